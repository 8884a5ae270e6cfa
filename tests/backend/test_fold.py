"""Folding computes what is static once, precisely, within its limit, and shares what it only moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from taso_py.backend import UNLIMITED, Program, build, fold
from taso_py.backend.bits import content_of
from taso_py.backend.schema import stored_bytes
from taso_py.frontend import import_module
from taso_py.ir.graph import Graph
from taso_py.ir.operator import Constant, Weight
from taso_py.ops.table import parse_graph
from tests.round_trips import Model, operator_names

X = torch.arange(6.0).view(2, 3)


def folded(model: nn.Module, growth_limit: float = 1.25) -> tuple[Program, Program]:
    before = import_module(model, (X,))
    return before, fold(before, growth_limit)


def run(program: Program) -> list[Tensor]:
    result = build(program)(X)
    return list(result) if isinstance(result, tuple) else [result]


def test_arithmetic_is_rounded_once() -> None:
    """In float32 alone, 1 + 1e-8 - 1 is 0."""
    model = Model(lambda s, x: x + ((s.w + 1e-8) - 1), w=torch.ones(3))
    before, after = folded(model)
    assert operator_names(before) == ["add", "sub", "add"]
    assert operator_names(after) == ["add"]
    (weight,) = after.weights.values()
    assert weight.dtype is torch.float32
    assert weight.tolist() == torch.full((3,), 1e-8).tolist()


def test_casts_in_a_static_part_still_round() -> None:
    model = Model(lambda s, x: x + (s.w * 3).half().float(), w=torch.full((3,), 0.1))
    _, after = folded(model)
    (weight,) = after.weights.values()
    assert torch.equal(weight, torch.full((3,), 0.3, dtype=torch.float64).half().float())


def test_operators_outside_the_table_run_as_they_are() -> None:
    model = Model(lambda s, x: x + torch.cumsum(s.w, 0), w=torch.full((3,), 0.1))
    before, after = folded(model)
    assert operator_names(after) == ["add"]
    assert torch.equal(*run(before), *run(after))


def test_one_element_has_content_whatever_its_stride() -> None:
    """One that is expanded has a stride of 0, and is contiguous."""
    one = torch.tensor([2.5]).expand(1, 1)[:, :1].as_strided((1, 1), (0, 0))
    assert one.is_contiguous()
    assert torch.equal(content_of(one), content_of(torch.tensor([2.5])))
    assert content_of(torch.ones(2).expand(3, 2)[:, :0]).numel() == 0


def test_what_is_only_moved_shares_storage() -> None:
    model = Model(lambda s, x: (x @ s.w.t(), x[:, :2] @ s.w[:2, :2]), w=nn.Parameter(torch.randn(4, 3)))
    before, after = folded(model)
    assert operator_names(after) == ["matmul", "slice", "matmul"]
    assert stored_bytes(after.weights.values()) == stored_bytes(before.weights.values())
    assert all(map(torch.equal, run(before), run(after)))


def test_weights_that_nothing_reads_any_more_are_dropped() -> None:
    model = Model(lambda s, x: x @ torch.cat([s.a, s.b], 1), a=torch.randn(3, 2), b=torch.randn(3, 2))
    _, after = folded(model)
    assert len(after.weights) == 1
    assert after.parameters == {}


def test_growth_is_limited() -> None:
    """A large result is not folded where it would break the limit; what it is made of is."""
    weight = torch.randn(512, 600)

    def forward(s: nn.Module, x: Tensor) -> Tensor:
        small = s.get_buffer("w") * 2
        return x.sum() + torch.cat([small, small, small], 1).sum(1)

    model = Model(forward, w=weight)
    before = import_module(model, (X,))
    half = replace(before, graph=_without_last(before.graph))
    assert [fold(half, limit).graph.nodes[-1].op.name for limit in (1.25, 4.0)] == ["concat", "weight"]
    tight, loose = fold(half, 1.25), fold(half, 4.0)
    assert stored_bytes(tight.weights.values()) == stored_bytes([weight])
    assert stored_bytes(loose.weights.values()) == 3 * stored_bytes([weight])


def _without_last(graph: Graph) -> Graph:
    """The graph that returns the concatenation itself."""
    concat = next(node for node in graph.nodes if node.op.name == "concat")
    return Graph(graph.inputs, (concat.value,))


def test_masks_of_models_without_weights_are_folded() -> None:
    model = Model(lambda s, x: x.masked_fill(torch.ones(3, 3).tril()[:2] == 0, -1.0))
    before, after = folded(model)
    assert len(after.graph.nodes) < len(before.graph.nodes)
    assert torch.equal(*run(before), *run(after))


def test_without_a_limit_models_without_weights_have_none() -> None:
    before = import_module(Model(lambda s, x: x + torch.ones(600, 600).tril().exp()), (torch.ones(600, 600),))
    assert ["exp" in operator_names(fold(before, limit)) for limit in (1.25, UNLIMITED)] == [True, False]


def test_shape_readers_are_static() -> None:
    """What takes an input only for its shape does not depend on it."""
    before, after = folded(Model(lambda s, x: x + torch.ones_like(x).cumsum(0) + x.new_full((3,), 2.0)))
    assert operator_names(after) == ["add", "add"]
    assert torch.equal(*run(before), *run(after))


def test_written_buffers_are_not_folded() -> None:
    model = Model(lambda s, x: (s.n.add_(1), x + s.n * 2)[1], n=torch.zeros(3))
    before, after = folded(model)
    assert after.graph == before.graph


def test_numbers_become_numbers() -> None:
    before = import_module(Model(lambda s, x: x + 1), (X,))
    graph = parse_graph("""
        graph(args_0: f32[2,3]) {
          a = constant{value=0.1, dtype=f32}
          b = constant{value=0.2, dtype=f32}
          return mul(args_0, mul(a, b))
        }""")
    after = fold(replace(before, graph=graph)).graph
    assert [node.op.value for node in after.nodes if isinstance(node.op, Constant)] == [0.1 * 0.2]


def test_static_output_is_a_weight_that_callers_may_write_to() -> None:
    before, after = folded(Model(lambda s, x: (x, s.w * 2), w=torch.ones(3)))
    module = build(after)
    module(X)[1].zero_()
    assert module(X)[1].tolist() == [2, 2, 2]
    assert [node.op.name for node in after.graph.nodes] == ["input", "weight"]
    assert not any(isinstance(node.op, Weight) and node.op.key == "w" for node in after.graph.nodes)
    assert torch.equal(run(before)[1], run(after)[1])


def test_folded_weights_of_the_same_bits_are_stored_once() -> None:
    ones = torch.ones(3)
    model = Model(lambda s, x: (x + s.a * 2, x * (s.b + 1), x - s.c * 1), a=ones, b=ones.clone(), c=ones.clone() * 2)
    before, after = folded(model)
    assert len(after.weights) == 3
    assert stored_bytes(after.weights.values()) == 3 * 4
    assert all(map(torch.equal, run(before), run(after)))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_operands_of_control_flow_are_stored_apart_though_their_bits_are_equal() -> None:
    """PyTorch exports none that share memory."""

    def forward(s: Any, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: y * s.a + s.b, lambda y: y - s.a, (x,))

    before, after = folded(Model(forward, a=torch.ones(3), b=torch.ones(3)))
    assert stored_bytes(after.weights.values()) == 2 * 3 * 4
    assert all(map(torch.equal, run(before), run(after)))
    torch.export.export(build(after), (X,))


def test_weights_that_are_equal_but_not_in_all_bits_are_kept_apart() -> None:
    model = Model(lambda s, x: ((x + 1) / (s.a * 1), (x + 1) / (s.b * 1)), a=torch.zeros(3), b=-torch.zeros(3))
    before, after = folded(model)
    assert stored_bytes(after.weights.values()) == 2 * 3 * 4
    assert all(map(torch.equal, run(before), run(after)))
    assert torch.equal(run(after)[0], -run(after)[1])


def test_what_equals_a_buffer_that_is_written_is_stored_apart() -> None:
    model = Model(lambda s, x: (s.n.add_(1), x + s.n, x + s.w * 1)[1:], n=torch.ones(3), w=torch.ones(3))
    before, after = folded(model)
    assert stored_bytes(after.weights.values()) == 2 * 3 * 4
    module = build(after)
    assert module(X)[1].tolist() == module(X)[1].tolist() == (X + 1).tolist()
    assert run(before)[1].tolist() == (X + 1).tolist()


def test_conjugates_are_folded_to_numbers_of_their_own() -> None:
    """The conjugate of a weight, and the imaginary part of that, are the weight's own memory with a bit set."""
    w = torch.randn(2, dtype=torch.complex64)
    functions = (lambda s, x: torch.fft.rfft(x) * s.w.conj(), lambda s, x: torch.fft.rfft(x) * s.w.conj().imag)
    for function in functions:
        before, after = folded(Model(function, w=w))
        assert torch.equal(*run(before), *run(after))
        (weight,) = after.weights.values()
        assert not weight.is_conj()
        assert not weight.is_neg()


def test_weights_that_are_conjugates_are_told_apart_by_their_numbers() -> None:
    w = torch.randn(2, dtype=torch.complex64)
    model = Model(lambda s, x: torch.fft.rfft(x) * s.w + s.v * 1, w=w.conj(), v=w)
    before, after = folded(model)
    assert torch.equal(*run(before), *run(after))


@pytest.mark.parametrize(
    ("function", "is_folded"),
    [
        (lambda s, x: torch.where(torch.arange(3) * 0.1 <= 0.2, x, 0.0), True),
        (lambda s, x: torch.where(s.w >= 0.7, x, -x), True),
        (lambda s, x: x + ((s.w * 3).to(torch.int32) + torch.floor(s.w * 10)), True),
        (lambda s, x: x * (s.w.double() == 0.7).float(), True),
        (lambda s, x: torch.where(s.w.half() * 3 > 2.1, x, -x), True),
    ],
)
def test_where_a_rounding_decides_it_is_the_models(function: Any, is_folded: bool) -> None:
    """In double precision 3 * 0.1 is more than 0.3, and the 0.7 of single precision less than 0.7."""
    model = Model(function, w=torch.full((3,), 0.7))
    before, after = folded(model)
    assert len(operator_names(after)) < len(operator_names(before))
    assert torch.equal(build(after)(X), model(X))
