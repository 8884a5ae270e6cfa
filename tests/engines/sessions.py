"""What tests of engines that take whole graphs share: small programs, compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from taso_py.backend import Program, fold
from taso_py.engines.session import SessionEngine
from taso_py.engines.table import ENGINES
from taso_py.frontend import import_module, import_program

NAMES = ("onnxruntime", "openvino")


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def engine_named(name: str) -> SessionEngine:
    """An engine; skips the test where it is not installed."""
    engine = ENGINES[name]
    assert isinstance(engine, SessionEngine)
    reason = engine.absence(torch.device("cpu"))
    if reason is not None:
        pytest.skip(reason)
    return engine


def program_of(function: Callable[..., Any], args: Sequence[Tensor], *, is_open: bool = False) -> Program:
    """A function, or a module, as a folded program; with the first size of its first argument left open or not."""
    module = function if isinstance(function, nn.Module) else Function(function)
    if not is_open:
        return fold(import_module(module, tuple(args)))
    sizes: tuple[Any, ...] = ({0: Dim("batch", min=1, max=64)}, *[None] * (len(args) - 1))
    shapes = (sizes,) if isinstance(module, Function) else sizes
    return fold(import_program(torch.export.export(module, tuple(args), dynamic_shapes=shapes), tuple(args)))


def called_at_once(module: nn.Module, inputs: Sequence[Tensor], times: int) -> list[list[Any]]:
    """Results of calls of one module by as many threads as there are inputs, a number of calls each."""
    together = Barrier(len(inputs))

    def call(given: Tensor) -> list[Any]:
        together.wait()
        return [module(given) for _ in range(times)]

    with ThreadPoolExecutor(len(inputs)) as pool:
        return list(pool.map(call, inputs))
