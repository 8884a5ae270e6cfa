"""The place in the model's source that an fx node comes from, and refusals that name it.

Invariant: a refusal is one line.
"""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from taso_py.backend.tensors import TensorError, tensor_type
from taso_py.frontend.errors import ImportRefusal
from taso_py.frontend.sizes import OpenSizeError, Sizes
from taso_py.ir.types import TensorType

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in [^\n]*\n\s*(?P<code>[^\n]*)')
_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_PYTHON = f"{sysconfig.get_path('stdlib')}{os.sep}"
_OWN_FOLDER = f"{Path(__file__).parent}{os.sep}"
_PACKAGES = re.compile(r"[/\\](site|dist)-packages[/\\]")


LONGEST_LINE = 80
"""Characters of a line of source that a message quotes."""


def shortened(line: str) -> str:
    """Return a line of source as messages quote it."""
    line = " ".join(line.split())
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 4]} ..."


def is_outside(file: str) -> bool:
    """Return whether code is neither PyTorch's nor Python's own; packages may be in a folder of Python's."""
    return not file.startswith((_TORCH, "<")) and (not file.startswith(_PYTHON) or bool(_PACKAGES.search(file)))


def place_in_model(frames: Sequence[traceback.FrameSummary]) -> str:
    """Return `` (at file.py:12: y = self.conv(x))`` for the innermost frame of the model's code, or nothing."""
    outside = [frame for frame in frames if is_outside(frame.filename) and not frame.filename.startswith(_OWN_FOLDER)]
    if not outside:
        return ""
    frame = outside[-1]
    return f" (at {Path(frame.filename).name}:{frame.lineno}: {shortened(frame.line or '')})"


def source_line(node: fx.Node) -> str:
    """Return ``file.py:12: y = self.conv(x)`` of the innermost frame of a model, or the module's path or node."""
    frames = [match for match in _FRAME.finditer(node.meta.get("stack_trace") or "") if match["file"][0] != "<"]
    outside = [frame for frame in frames if is_outside(frame["file"])]
    if frames:
        frame = (outside or frames)[-1]
        return f"{Path(frame['file']).name}:{frame['line']}: {shortened(frame['code'])}"
    module = module_path(node)
    return f"module {module}" if module else f"node {node.name}"


def module_path(node: fx.Node) -> str:
    """Return the path of the module whose forward contains a node; empty for the outermost."""
    paths = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values() if path]
    return paths[-1] if paths else ""


def operator_name(node: fx.Node) -> str:
    """Return the name of the operator that a node calls, as a user would write it."""
    target = node.args[0] if node.target is torch.ops.higher_order.auto_functionalized_v2 else node.target
    return str(target) if isinstance(target, str | OpOverload) else getattr(target, "__name__", str(target))


def refuse(node: fx.Node, problem: str, advice: str) -> NoReturn:
    """Raise the refusal that names operator, source line, problem and advice."""
    raise ImportRefusal(f"{operator_name(node)} {problem} (at {source_line(node)}); {advice}")


def type_of(node: fx.Node, tensor: Tensor, sizes: Sizes) -> TensorType:
    """Return the type of one result of a node.

    Raises:
        ImportRefusal: the graph has no form for it.
    """
    try:
        return tensor_type(tensor, sizes.dims)
    except OpenSizeError as error:
        refuse(node, f"has a result of open sizes: {error}", "export with static sizes")
    except TensorError as error:
        raise ImportRefusal(f"{operator_name(node)} (at {source_line(node)}): {error}") from error


def check_sizes(node: fx.Node) -> None:
    """Refuse a node whose result has a size that depends on data.

    Raises:
        ImportRefusal: it has.
    """
    val: Any = node.meta.get("val")
    for item in val if isinstance(val, list | tuple) else [val]:
        if isinstance(item, Tensor) and free_unbacked_symbols(item):
            refuse(node, "has a result whose size depends on the data", "use masks or padding to a fixed size instead")
