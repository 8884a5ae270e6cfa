"""Importing the libraries that define the zoo's models.

Invariant: nothing is imported before it is asked for, and a torchvision that matches its torch is never touched.
"""

from __future__ import annotations

import importlib

import torch

# torch.library withdraws what a Library object declared when that object dies.
_declared: list[torch.library.Library] = []


def require(library: str) -> None:
    """Import a library, after torchvision, which timm and transformers import in turn.

    Raises:
        ImportError: if it is not installed or does not import.
    """
    declare_missing_torchvision_operators()
    importlib.import_module(library)


def declare_missing_torchvision_operators() -> None:
    """Make a CUDA build of torchvision importable beside a CPU build of torch; does nothing in any other case.

    Such a torchvision cannot load its compiled operators and then fails on registering meta functions for them.
    Declaring the two names is enough for everything that does not call them. Development meets this pair of wheels,
    since PyPI has torchvision for CUDA only.
    """
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return
    except RuntimeError as error:
        if str(error) != "operator torchvision::nms does not exist":
            raise
        fragment = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            fragment.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(fragment)
        importlib.import_module("torchvision")
