"""Calls through Python functions: the same kernels on the same operands, and fewer calls where slices tile a value."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode

from taso_py.backend.direct import FUNCTIONS, call_directly
from taso_py.backend.lowering import lower
from taso_py.backend.overwrite import TYPE
from taso_py.backend.schema import target_of
from taso_py.backend.sizes import resolving
from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.ir.graph import Graph
from taso_py.ir.operator import Constant, Input
from taso_py.ir.size import at_example
from taso_py.ops.table import parse_graph
from tests.backend.test_lowering import CASES


class Log(TorchDispatchMode):
    """Notes which kernels run, on operands of which shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        shown = [tuple(arg.shape) if isinstance(arg, Tensor) else arg for arg in args]
        self.calls.append(f"{func}{shown}{kwargs}")
        return func(*args, **kwargs or {})


def module_of(graph: Graph) -> fx.GraphModule:
    written = fx.Graph()
    held: dict[Any, Any] = {}

    def call(overload: Any, *arguments: Any, **keywords: Any) -> fx.Node:
        return written.call_function(overload, arguments, keywords)

    for node in graph.nodes:
        if isinstance(node.op, Input):
            held[node.value] = written.placeholder(node.op.key)
        elif isinstance(node.op, Constant):
            held[node.value] = None
            continue
        else:
            operands = [held[value] for value in node.inputs]
            held.update(
                zip(
                    node.outputs,
                    lower(resolving(call, at_example), node, operands, torch.device("cpu")),
                    strict=True,
                )
            )
        for value in node.outputs:
            held[value].meta[TYPE] = value.type
    written.output(tuple(held[value] for value in graph.outputs))
    return fx.GraphModule(torch.nn.Module(), written)


def inputs_of(graph: Graph) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    types = [node.types[0] for node in graph.inputs]
    return [torch.rand(type_.sizes, generator=generator).to(TORCH_DTYPES[type_.dtype]) for type_ in types]


def logged(module: fx.GraphModule, inputs: list[Tensor]) -> tuple[list[str], list[Tensor]]:
    with torch.no_grad(), Log() as log:
        results = module(*inputs)
    return log.calls, results


@pytest.mark.parametrize("text", [text for text in CASES if "slice" not in text])
def test_the_same_kernels_run(text: str) -> None:
    graph = parse_graph(text)
    module, inputs = module_of(graph), inputs_of(graph)
    calls, expected = logged(module, inputs)
    targets = [node.target for node in module.graph.nodes]
    call_directly(module.graph)
    module.recompile()
    again, found = logged(module, inputs)
    assert again == calls
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    # What else looks at the module sees the overloads still.
    assert [target_of(node) for node in module.graph.nodes] == targets


def test_most_lowerings_are_called_directly() -> None:
    seen = {node.target for text in CASES for node in module_of(parse_graph(text)).graph.nodes}
    missing = {str(target) for target in seen if isinstance(target, torch._ops.OpOverload)} - set(map(str, FUNCTIONS))
    assert missing <= {"aten.slice.Tensor", "aten.rsub.Scalar", "aten.scalar_tensor.default", "aten.index.Tensor"}


@pytest.mark.parametrize(
    ("overload", "shape", "arguments"),
    [
        (torch.ops.aten.as_strided.default, (1, 6, 1, 1), ([1, 6, 1, 1], [6, 1, 1, 1])),
        (torch.ops.aten.conv1d.default, (1, 6, 9), (torch.ones(2, 3, 3), None, [2], [1], [1], 2)),
        (torch.ops.aten.embedding.default, (5, 3), (torch.tensor([4, 0]),)),
        (torch.ops.aten.embedding.default, (5, 3), (torch.tensor([4, 0]), 0)),
        (torch.ops.aten.pad.default, (1, 2, 4, 4), ([1, 2, 0, 1], "reflect")),
        (torch.ops.aten.roll.default, (3, 4), ([1, -2], [0, 1])),
        (torch.ops.aten.clone.default, (3, 4), ()),
        (torch.ops.aten.hardtanh.default, (3, 4), (-0.25, 6)),
        (torch.ops.aten.elu.default, (3, 4), (1.5, 2, 0.5)),
        (torch.ops.aten.softplus.default, (3, 4), (1.5, 3)),
    ],
    ids=str,
)
def test_calls_of_operators_outside_the_table_run_the_same_kernels(
    overload: Any, shape: tuple[int, ...], arguments: tuple[Any, ...]
) -> None:
    x = torch.linspace(-1, 1, math.prod(shape)).reshape(shape)
    with Log() as log:
        found = FUNCTIONS[overload](x, *arguments)
    with Log() as expected:
        wanted = overload(x, *arguments)
    assert log.calls == expected.calls
    assert torch.equal(found, wanted)
    assert found.stride() == wanted.stride()


@pytest.mark.parametrize("overload", [target for target in FUNCTIONS if "_." in str(target)], ids=str)
def test_in_place_forms_write_to_their_first_operand(overload: Any) -> None:
    x, y = torch.rand(3, 4) + 0.5, torch.rand(3, 4)
    others = (
        [y]
        if str(overload).endswith("Tensor") or "copy" in str(overload)
        else [0.75]
        if "clamp" in str(overload)
        else []
    )
    others = [y, y] if "addcmul" in str(overload) else others
    mine, other = x.clone(), x.clone()
    with Log() as log:
        FUNCTIONS[overload](mine, *others)
    with Log() as expected:
        overload(other, *others)
    assert log.calls == expected.calls
    assert torch.equal(mine, other)
    assert (
        not torch.equal(mine, x) or "elu" in str(overload) or "abs" in str(overload)
    )  # of positive numbers they give these


def parts(*bounds: tuple[int, int], axis: int = -1, step: int = 1) -> str:
    slices = (f"slice(x){{axis={axis}, start={start}, stop={stop}, step={step}}}" for start, stop in bounds)
    return f"graph(x: f32[6,8]) {{ return {', '.join(slices)} }}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (parts((0, 3), (3, 8)), ["split_with_sizes"]),
        (parts((3, 8), (0, 3)), ["split_with_sizes"]),
        (parts((0, 2), (2, 4), (4, 6), axis=-2), ["split_with_sizes"]),
        # Parts that overlap, leave something out, or take every other element, are taken one by one.
        (parts((0, 4), (3, 8)), ["narrow", "narrow"]),
        (parts((0, 3), (4, 8)), ["narrow", "narrow"]),
        (parts((1, 3), (3, 8)), ["narrow", "narrow"]),
        (parts((0, 3), (3, 7)), ["narrow", "narrow"]),
        (parts((0, 8), step=2), ["slice.Tensor"]),
        (parts((2, 4)), ["narrow"]),
        # Parts of parts, and parts along different axes.
        (
            "graph(x: f32[6,8]) { a = slice(x){axis=-1, start=0, stop=4} b = slice(x){axis=-1, start=4, stop=8}"
            " return slice(b){axis=-2, start=0, stop=1}, a, slice(b){axis=-2, start=1, stop=6} }",
            ["split_with_sizes", "split_with_sizes"],
        ),
        (
            "graph(x: f32[6,8]) { return slice(x){axis=-1, start=0, stop=4}, slice(x){axis=-2, start=4, stop=6} }",
            ["narrow", "narrow"],
        ),
    ],
)
def test_slices_that_tile_a_value_are_one_call(text: str, expected: list[str]) -> None:
    graph = parse_graph(text)
    module, inputs = module_of(graph), inputs_of(graph)
    before = module(*inputs)
    call_directly(module.graph)
    module.graph.lint()
    module.recompile()
    after = module(*inputs)
    called = [node.target for node in module.graph.nodes if node.op == "call_function"]
    assert [name for target in called if (name := target.__name__) != "getitem"] == expected
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()
        assert other.untyped_storage().data_ptr() == inputs[0].untyped_storage().data_ptr()


def test_a_slice_whose_type_is_not_known_to_fit_stays() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    beyond = graph.call_function(torch.ops.aten.slice.Tensor, (x, 0, 2, 100, 1))
    beyond.meta[TYPE] = parse_graph("graph(x: f32[3]) { return x }").outputs[0].type
    graph.output(beyond)
    call_directly(graph)
    assert torch.equal(fx.GraphModule(torch.nn.Module(), graph)(torch.arange(5.0)), torch.tensor([2.0, 3.0, 4.0]))
