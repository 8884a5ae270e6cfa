"""Where in the model's source a node comes from."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import fx

from taso_py.frontend.source import module_path, source_line


def node(*files: str) -> fx.Node:
    """A node with a stack of frames in these files, one line deeper in each."""
    made = fx.Graph().placeholder("x")
    frames = [f'File "{file}", line {line}, in forward\n    code {line}' for line, file in enumerate(files, 1)]
    made.meta["stack_trace"] = "\n  ".join(frames)
    return made


def test_the_innermost_frame_outside_torch_counts() -> None:
    torch_file = str(Path(torch.__file__).parent / "nn" / "modules" / "conv.py")
    assert source_line(node("mine.py", "/models/block.py", torch_file)) == "block.py:2: code 2"
    assert source_line(node(torch_file)) == "conv.py:1: code 1"


def test_a_package_whose_name_begins_with_torch_is_not_torch() -> None:
    beside = str(Path(torch.__file__).parent.parent / "torchvision" / "resnet.py")
    assert source_line(node("mine.py", beside)) == "resnet.py:2: code 2"


def test_the_standard_library_is_left_out_but_for_packages_in_it() -> None:
    library = sysconfig.get_path("stdlib")
    assert source_line(node("mine.py", f"{library}/contextlib.py")) == "mine.py:1: code 1"
    beside = f"{library}/site-packages/timm/layers.py"
    assert source_line(node("mine.py", beside, f"{library}/functools.py")) == "layers.py:2: code 2"


def test_without_frames_the_module_is_named() -> None:
    made = fx.Graph().placeholder("x")
    assert source_line(made) == "node x"
    made.meta["nn_module_stack"] = {"a": ("", object), "b": ("layer.0", object)}
    assert source_line(made) == "module layer.0"
    assert module_path(made) == "layer.0"
