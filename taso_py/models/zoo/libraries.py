"""Import of the libraries that define models, even if torchvision was built for another torch than is installed.

PyPI has torchvision for CUDA only; with a torch for the CPU it cannot load its operators, so that importing it, timm or
most of transformers fails. ``python -m taso_py.models.zoo`` says in one line what to install instead.

Invariant: nothing is imported before it is asked for, and a torchvision that matches its torch is never touched.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path

import torch

MISSING = "operator torchvision::nms does not exist"
"""Error of importing a torchvision that cannot load its operators."""
LIBRARIES = ("torchvision", "timm", "transformers")
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
# torch.library removes an object's declarations when the object is freed.
_declared: list[torch.library.Library] = []


def require(library: str) -> None:
    """Import a library, after torchvision, which timm and transformers import in turn.

    Raises:
        ImportError: if it is not installed or does not import.
    """
    declare_missing_torchvision_operators()
    importlib.import_module(library)


def advice() -> str | None:
    """Return one line on what to install so that all libraries work; None if they do."""
    absent = [library for library in LIBRARIES if importlib.util.find_spec(library) is None]
    if absent:
        return f"{' and '.join(absent)}: not installed; run: {sys.executable} -m pip install {' '.join(absent)}"
    return misfit()


def misfit() -> str | None:
    """Return one line with a remedy if torchvision is for CUDA and torch for the CPU; None otherwise.

    This reads torchvision's files and does not import it.
    """
    vision = _version("torchvision")
    if vision is None or torch.version.cuda is not None or "+cu" not in vision:
        return None
    plain = vision.partition("+")[0]
    return (
        f"torchvision {vision} is for CUDA and torch {torch.__version__} for the CPU: the command taso-py works around "
        "it, but Python programs that import torchvision, timm or transformers fail; run: "
        f"{sys.executable} -m pip install --no-deps --force-reinstall --index-url {CPU_WHEELS} torchvision=={plain}"
    )


def _version(library: str) -> str | None:
    """Return the version in an installed library's ``version.py``, which names the build, unlike its metadata."""
    spec = importlib.util.find_spec(library)
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^__version__ = ['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return found and found[1]


def declare_if_misfit() -> None:
    """Make a torchvision for CUDA importable beside a torch for the CPU, before anything imports it."""
    if "torchvision" not in sys.modules and misfit() is not None:
        _declare()


def declare_missing_torchvision_operators() -> None:
    """Import torchvision, if it is installed, even if it cannot load its operators.

    Its import then fails on registering meta functions for them; declaring the two operators is enough for code that
    does not call them.
    """
    declare_if_misfit()
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return
    except RuntimeError as error:
        if str(error) != MISSING:
            raise
        _declare()
        importlib.import_module("torchvision")


def _declare() -> None:
    if _declared:
        return
    fragment = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        fragment.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(fragment)
