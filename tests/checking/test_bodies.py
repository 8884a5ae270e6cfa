"""Rewritten bodies of control flow, compared alone: right ones pass, wrong ones do not, whichever branch is taken."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from taso_py.backend import lowering
from taso_py.checking.bodies import body_error
from taso_py.checking.regions import first_mismatch
from taso_py.frontend import import_module
from taso_py.ir.graph import Graph
from taso_py.ops.table import parse_graph
from taso_py.rules.apply import apply
from taso_py.rules.match import Matcher
from taso_py.rules.text import read_rules
from taso_py.search.bodies import Body
from taso_py.search.trace import BodyTrace, make_trace
from tests.search.test_bodies import outer

CPU = torch.device("cpu")
SCALED = "graph(x0: f32[2,3], x1: f32[3,3]) { return mul(linear(x0, x1), constant{value=2.0, dtype=f32}) }"
SAME = "graph(x0: f32[2,3], x1: f32[3,3]) { return mul(x0, constant{value=1.0, dtype=f32}) }"
TWO = "graph(x0: f32[2,3], x1: f32[3,3]) { return add(x0, x0), relu(x0) }"


def body_of(text: str) -> Body:
    body = Body.of(outer(text, text).effects[0], 0)
    assert body is not None
    return body


def error(text: str, target: str) -> str:
    """What is said of a body that is replaced by another; weights are written as ``w1``."""
    body = body_of(text)
    weights = 'w1 = weight{key="x1", type=f32[3,3]}'
    made = parse_graph(f"graph(x0: f32[2,3], x1: f32[3,3]) {{\n  {weights}\n  return {target}\n}}")
    found = body_error(body, Graph(body.graph.inputs, made.outputs), 0, CPU)
    return "" if found is None else str(found)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        (SCALED, "linear(x0, mul(w1, constant{value=2.0, dtype=f32}))"),
        (SCALED, "linear(mul(x0, constant{value=2.0, dtype=f32}), w1)"),
        (SAME, "x0"),
        (SAME, "permute(permute(x0){order=[-1,-2]}){order=[-1,-2]}"),
    ],
)
def test_a_body_that_computes_the_same_passes(text: str, target: str) -> None:
    """Also one that has become its operand, which is copied."""
    assert error(text, target) == ""


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("linear(x0, mul(w1, constant{value=2.001, dtype=f32}))", "output 0 on random inputs"),
        ("linear(x0, w1)", "output 0"),
        ("relu(mul(linear(x0, w1), constant{value=2.0, dtype=f32}))", "output 0"),
        ("cast(mul(linear(x0, w1), constant{value=2.0, dtype=f32})){dtype=f64}", "dtype is torch.float64"),
        ("slice(mul(linear(x0, w1), constant{value=2.0, dtype=f32})){axis=-1, start=0, stop=2}", "shape is"),
    ],
)
def test_a_body_that_computes_something_else_is_caught(target: str, reason: str) -> None:
    found = error(SCALED, target)
    assert found.startswith("body 0 of higher_order.cond computes something else once it is rewritten: ")
    assert reason in found


class Chosen(nn.Module):
    """Rows of a table, in the branches of a condition."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(rows, 4))

    def forward(self, x: Tensor, index: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x, i, t: t[i] + x, lambda x, i, t: t[i] - x, (x, index, self.table))


WRONG_ROWS = (
    "rule t: float[N,M], i: int[K] source take(t, i){axis=-2, wraps=W} target take(concat("
    "slice(t){axis=-2, start=0, stop=2}, abs(slice(t){axis=-2, start=2, stop=N})){axis=-2}, i){axis=-2, wraps=W}"
)
"""The third and further rows are wrong."""


@pytest.mark.parametrize("rows", [1, 5])
def test_integers_choose_any_of_the_rows_that_there_are(rows: int) -> None:
    program = import_module(Chosen(rows).eval(), (torch.randn(6, 4), torch.zeros(6, dtype=torch.long)))
    (node,) = (node for node in program.graph.nodes if Body.of(node, 0) is not None)
    body = Body.of(node, 0)
    assert body is not None
    assert body_error(body, body.graph, 0, CPU) is None
    if rows > 2:
        (match,) = Matcher(read_rules(WRONG_ROWS)).matches(body.graph)
        wrong = apply(body.graph, match)
        assert wrong is not None
        assert "output 0" in str(body_error(body, wrong, 0, CPU))


def test_a_result_in_memory_of_an_operand_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies that keep results apart, left out."""
    lowering.nested_module.cache_clear()
    monkeypatch.setattr(lowering, "_apart", lambda _call, _graph, results: results)
    assert "result 0 is in memory of an operand" in error(SAME, "x0")
    lowering.nested_module.cache_clear()


def test_a_body_that_cannot_be_called_on_random_operands_is_not_taken_on_trust() -> None:
    body = body_of(
        'graph(x0: f32[2,3], x1: f32[3,3]) { return opaque(x0, x1){target="aten.cholesky.default", '
        "arguments=[$1], types=[f32[3,3]]} }"
    )
    found = body_error(body, body.graph, 0, CPU)
    assert found is not None


def test_a_trace_with_a_wrong_body_is_refused() -> None:
    """Its steps are compared one by one, and the body as a whole."""
    source = "rule x: float[..A,B], a: float[C,B], c: float[] source mul(linear(x, a), c) target"
    for rule, reason in ((f"{source} linear(x, a)", "two sides"), (f"{source} linear(x, mul(a, c))", "")):
        graph = outer(SCALED, SCALED)
        body = Body.of(graph.effects[0], 1)
        assert body is not None
        (match,) = Matcher(read_rules(rule)).matches(body.graph)
        inner = apply(body.graph, match)
        assert inner is not None
        after, _ = body.put_back(graph, inner)
        told = BodyTrace(graph.effects[0].digest, 1, make_trace(body.graph, [(match, inner)], inner), after.digest)
        found = first_mismatch(graph, make_trace(graph, (), after, (told,)), 0, CPU)
        assert reason in str(found) if reason else found is None
