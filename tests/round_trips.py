"""What tests of the frontend and the backend share: modules made of functions, and the round trip itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from taso_py.backend import Program, build
from taso_py.checking.roundtrip import difference
from taso_py.frontend import import_module
from taso_py.ops.opaque import Opaque


class Model(nn.Module):
    """``forward`` is a function of the module and the arguments; keywords are parameters, buffers and submodules."""

    def __init__(self, function: Callable[..., Any], **state: Tensor | nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, value in state.items():
            if isinstance(value, nn.Module):
                self.add_module(name, value)
            elif isinstance(value, nn.Parameter):
                self.register_parameter(name, value)
            else:
                self.register_buffer(name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def randn(*shape: int) -> Tensor:
    """Random numbers, the same for the same shape."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def round_trip(module: nn.Module, *args: Any, **kwargs: Any) -> Program:
    """Imports and builds a module; asserts that it returns what the original returns, twice over.

    That is: the same tree of the same bits with the same strides, drawing the same random numbers, with buffers
    developing the same way, and no output sharing memory with what it did not share memory with.
    """
    original = copy.deepcopy(module)
    program = import_module(module, args, kwargs)
    built = build(program)
    for seed in (0, 1):
        torch.manual_seed(seed)
        with torch.no_grad():
            assert difference(original, built, args, kwargs) == ""
    return program


def opaque_targets(program: Program) -> list[str]:
    """The operators outside the table, in order, without the suffix for the overload."""
    targets = [node.op.target for node in program.graph.nodes if isinstance(node.op, Opaque)]
    return [target.removeprefix("aten.").rpartition(".")[0] for target in targets]


def operator_names(program: Program) -> list[str]:
    """The operators of the table, in order, leaves left out."""
    names = [node.op.name for node in program.graph.nodes]
    return [name for name in names if name not in ("input", "weight", "constant", "opaque")]
