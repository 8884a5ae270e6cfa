"""Control flow of models of open sizes: bodies compute the original's bits at sizes that were never seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import map as map_
from torch._higher_order_ops import scan, while_loop
from torch.export import Dim

from taso_py.backend import Program, build
from taso_py.backend.sizes import hidden_sizes
from taso_py.checking.bodies import body_error
from taso_py.checking.roundtrip import difference
from taso_py.frontend import import_program, importer
from taso_py.frontend.errors import ImportRefusal
from taso_py.frontend.reexport import open_shapes
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make, remake
from taso_py.ops.nested import ControlFlow, Nested, graphs_in
from taso_py.ops.opaque import Opaque
from taso_py.saving.artifact import reimport, serialize
from taso_py.search.bodies import Body
from tests.round_trips import Model

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(3))
ROWS = (4, 2, 9, 64)
"""Sizes at which results are compared: the example's, the least, one in between, and the greatest."""
_mapped: Any = map_


def _sized(s: Any, x: Tensor) -> Tensor:
    """Bodies that reshape by a size, and compute with it."""

    def yes(y: Tensor) -> Tensor:
        return y.reshape(y.shape[0] * 2, 3).sum(1) / y.shape[0]

    def no(y: Tensor) -> Tensor:
        return y.reshape(y.shape[0] * 2, 3).amax(1) + y.shape[0]

    return torch.cond(x.sum() > 0, yes, no, (x,))


def _hidden(s: Any, x: Tensor) -> Tensor:
    """A size that no operand shows."""
    rows = x.shape[0]
    return torch.cond(x.sum() > 0, lambda y: y.expand(rows, 6) + 1, lambda y: y.expand(rows, 6) * 2, (x[0],))


def _counted(s: Any, x: Tensor) -> Any:
    def body(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, s.l(y / y.shape[0]).tanh() + y.mean(0)

    return while_loop(lambda i, y: i < 3, body, (torch.tensor(0), x))


def _counted_up(s: Any, x: Tensor) -> Any:
    """A loop that runs as often as there are rows, which it does not carry."""
    rows, first = x.shape[0], x[0].clone()
    return while_loop(lambda i, y: i < rows, lambda i, y: (i + 1, y * 0.5 + rows), (torch.tensor(0), first))


def _nested(s: Any, x: Tensor) -> Tensor:
    def yes(y: Tensor) -> Tensor:
        return torch.cond(y.mean() > 0.5, lambda z: z.flatten().reshape(z.shape) * 2, lambda z: z / len(z), (y,))

    return torch.cond(x.sum() > 0, yes, lambda y: s.l(y) * 2, (x,))


def _deep(s: Any, x: Tensor) -> Tensor:
    """A size that the operands show neither of the outer nor of the inner bodies."""
    rows = x.shape[0]

    def inner(y: Tensor) -> Tensor:
        return torch.cond(y.sum() > 1, lambda z: z.expand(rows, 6) + rows, lambda z: z.expand(rows, 6) * 2, (y,))

    def yes(y: Tensor) -> Tensor:
        return torch.cond(y.mean() > 0, inner, lambda z: z.expand(rows, 6) - 1, (y,))

    return torch.cond(x.sum() > 0, yes, lambda y: y.expand(rows, 6) * 1, (x[0],))


MODELS: dict[str, Callable[[Any, Tensor], Any]] = {
    "layer": lambda s, x: torch.cond(x.sum() > 0, lambda y: s.l(y).relu() + 1, lambda y: y * 2, (x,)),
    "sized": _sized,
    "hidden": _hidden,
    "counted": _counted,
    "counted up": _counted_up,
    "nested": _nested,
    "deep": _deep,
    "scan": lambda s, x: scan(lambda c, y: (c + y, c * y / 3), torch.zeros_like(x.mT[0]), x.mT.clone()),
    "map": lambda s, x: _mapped(lambda y, w: s.l(y) * w.sum(0), x, x * 2),
}


def model(name: str) -> Model:
    torch.manual_seed(0)
    return Model(MODELS[name], l=nn.Linear(6, 6)).eval()


def program_named(name: str) -> Program:
    with torch.no_grad():
        shapes = {"args": ({0: Dim("rows", min=2, max=64)},)}
        return import_program(torch.export.export(model(name), (X,), dynamic_shapes=shapes))


def inputs() -> list[Tensor]:
    """Arguments of all sizes, for both ways of a condition."""
    generator = torch.Generator().manual_seed(5)
    drawn = [torch.randn(rows, 6, generator=generator) for rows in ROWS]
    return [sign * (x + 0.5 * x.sum().sign()) for x in drawn for sign in (1, -1)]


@pytest.mark.parametrize("name", MODELS)
def test_bodies_compute_the_same_at_other_sizes(name: str) -> None:
    original, program = model(name), program_named(name)
    assert program.open
    assert any(not node.types or node.types[0].open for inner in graphs_in(program.graph) for node in inner.nodes)
    built = build(program)
    saved = build(reimport(serialize(built, program.example_inputs, {}, open_shapes(program))))
    with torch.no_grad():
        for x in inputs():
            for candidate in (built, saved):
                assert difference(original, candidate, (x,)) == ""


@pytest.mark.parametrize("name", MODELS)
def test_bodies_are_read_as_they_are_written_and_show_their_sizes(name: str) -> None:
    for node in program_named(name).graph.effects:
        flow = ControlFlow.of(node)
        assert flow is not None
        for body in flow.bodies:
            assert Nested.parse(body.text) == body
            assert not any(map(hidden_sizes, graphs_in(body.graph)))


def test_a_size_that_no_operand_shows_is_read_from_an_input() -> None:
    flow = ControlFlow.of(program_named("hidden").graph.effects[0])
    assert flow is not None
    graph = flow.bodies[0].graph
    assert len(graph.inputs) == 2
    assert hidden_sizes(replace(graph, inputs=graph.inputs[:1]))


def test_a_size_that_no_graph_around_shows_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer.Importer, "_shown", lambda *_: None)
    with pytest.raises(ImportRefusal, match=r"^cond reads an open size that none of its operands has [^\n]*$"):
        program_named("hidden")


def _at_example(graph: Graph) -> Graph:
    """A graph in which quotients by sizes are those by the example's."""

    def fixed(node: Node, inputs: tuple[Value, ...]) -> Node:
        op = node.op
        if isinstance(op, Opaque) and "div" in op.target and isinstance(op.at_example, Opaque):
            return make(replace(op, arguments=op.at_example.arguments), inputs)
        return remake(node, inputs)

    return graph.map(fixed)


def test_a_body_that_is_wrong_at_other_sizes_is_found() -> None:
    body = Body.of(program_named("sized").graph.effects[0], 0)
    assert body is not None
    wrong = _at_example(body.graph)
    assert wrong != body.graph
    assert body_error(body, body.graph, 0, torch.device("cpu")) is None
    found = str(body_error(body, wrong, 0, torch.device("cpu")))
    assert "random, args_0.0=" in found
