"""Graphs of open sizes as ONNX models: engines compute the original's results at sizes that were never seen."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from taso_py.backend import Program, fold
from taso_py.backend.onnx import NotInOnnx, onnx_bytes, onnx_model
from taso_py.frontend import import_program
from taso_py.ir.graph import Graph
from taso_py.ir.node import make
from taso_py.ir.operator import Input
from taso_py.ir.size import Open, floordiv, open_size
from taso_py.ir.types import DType, TensorType
from taso_py.ops.movement import Expand, Slice
from tests.backend.onnx_engines import ENGINES
from tests.frontend.test_open_sizes import BATCH, LENGTH, SMALL, Block, Function, Image, exported
from tests.versions import need


def _leaves(result: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    return [result] if isinstance(result, Tensor) else result


def _several(x: Tensor) -> tuple[Tensor, ...]:
    """What many functions give, so that they are exported at once."""
    full = x.new_full((x.shape[1], 2), 3) + x.shape[0]
    return (full, *(leaf for function in SMALL.values() for leaf in _leaves(function(x))))


MODELS: dict[str, tuple[nn.Module, Any, Sequence[Sequence[int]]]] = {
    "several": (Function(_several), {0: BATCH, 1: LENGTH}, [(3, 7), (2, 4), (2, 64), (9, 5)]),
    "causal": (
        Function(lambda x: nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)),
        {0: BATCH, 1: LENGTH},
        [(3, 7, 8), (1, 4, 8), (2, 30, 8)],
    ),
    "volumes": (
        Function(lambda x: nn.functional.max_pool3d(x, 2, ceil_mode=True)),
        {0: BATCH},
        [(3, 2, 5, 6, 7), (1, 2, 5, 6, 7)],
    ),
    "attention": (Block(), {0: BATCH, 1: LENGTH}, [(3, 10, 16), (1, 4, 16), (5, 64, 16)]),
    "convolution": (
        Image(),
        {0: BATCH, 2: 8 * Dim("height", min=2), 3: 2 * Dim("width", min=4)},
        [(2, 3, 24, 20), (1, 3, 16, 12), (3, 3, 80, 98)],
    ),
}


@cache
def _imported(name: str) -> Program:
    module, dims, shapes = MODELS[name]
    return fold(import_program(exported(module, shapes[:1], [dims])))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", MODELS)
def test_engines_compute_the_same_at_other_sizes(engine: str, name: str) -> None:
    if name == "causal":
        need("2.13", "attention of open sizes has another layout in an export")
    module, dims, shapes = MODELS[name]
    program = _imported(name)
    model = onnx_model(program.graph, program.weights)
    (given,) = model.graph.inputs
    assert [axis for axis, dim in enumerate(given.shape or ()) if not isinstance(dim, int)] == list(dims)
    content = onnx_bytes(model)
    for shape in shapes:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            expected = _leaves(module(x))
        found = ENGINES[engine](content, {str(given.name): x.numpy()})
        for before, after in zip(expected, found, strict=True):
            torch.testing.assert_close(torch.as_tensor(after), before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_sizes_are_rounded_down_below_zero_too(engine: str) -> None:
    size = open_size(Open("x.0", 8, 1, None))
    x = make(Input("x", TensorType(DType.F32, (size,))))
    part = make(Slice(-1, 0, floordiv(size - 9, 2) + 5), [x.value])
    content = onnx_bytes(onnx_model(Graph((x,), (part.value,)), {}))
    for count in (4, 5, 9, 12):
        (found,) = ENGINES[engine](content, {"x": torch.arange(float(count)).numpy()})
        assert found.tolist() == list(range((count - 9) // 2 + 5))


def test_a_size_that_no_input_shows_is_named() -> None:
    size = open_size(Open("x.0", 8, 1, None))
    x = make(Input("x", TensorType(DType.F32, (1,))))
    with pytest.raises(NotInOnnx, match="shows in no input of the graph"):
        onnx_model(Graph((x,), (make(Expand((size,)), [x.value]).value,)), {})
