"""Graphs inside operators: the bodies of control flow, as text in the arguments of an opaque operator.

    graph:tuple 0,1 -
    graph(x0: f32[3,4], x1: f32[4]) {
      v0 = add(x0, x1)
      v1 = expand{shape=[3,4]}(x1)
      return v0, v1
    }

Invariant: ``Nested.parse(nested.text)`` is equal to ``nested``, and an argument that begins with :data:`PREFIX` is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make, remake
from taso_py.ir.operator import AttributeValue, Operator, Ref
from taso_py.ir.text import print_graph
from taso_py.ir.types import TensorType
from taso_py.ops.layout import Order
from taso_py.ops.opaque import Opaque
from taso_py.ops.table import parse_graph

PREFIX = "graph:"
"""The beginning of an argument that is a graph."""
MOST_PARSED = 256
"""The number of graphs inside operators that are kept as they were parsed: the same ones are looked at again and again,
by the search of bodies, by the traces that it gives, and by each module that is built."""
CONTROL_FLOW = frozenset(f"higher_order.{name}" for name in ("cond", "while_loop", "scan", "map_impl"))
"""Operators whose bodies are functions of tensors that may return neither their arguments, nor views of them, nor one
tensor twice."""


def is_control_flow(op: Operator) -> bool:
    """Return whether an operator is one of :data:`CONTROL_FLOW`."""
    return isinstance(op, Opaque) and op.target in CONTROL_FLOW


def surely_ends(op: Operator) -> bool:
    """Return whether an operator calls its bodies, if any, a number of times that does not depend on their results."""
    return not isinstance(op, Opaque) or op.target != "higher_order.while_loop"


@dataclass(frozen=True)
class Nested:
    """A graph that an operator takes."""

    kind: str
    """The container of its results: ``tuple``, ``list``, or ``one`` for a result by itself."""
    orders: tuple[Order, ...]
    """How each result lies in memory in the original."""
    graph: Graph

    @staticmethod
    @lru_cache(maxsize=MOST_PARSED)
    def parse(text: str) -> Nested:
        """Return the graph that an argument of an operator holds."""
        head, _, graph = text.removeprefix(PREFIX).partition("\n")
        kind, *orders = head.split(" ")
        return Nested(kind, tuple(map(_read_order, orders)), parse_graph(graph))

    @property
    def text(self) -> str:
        """The argument of an operator that holds this graph."""
        return f"{PREFIX}{' '.join([self.kind, *map(_order_text, self.orders)])}\n{print_graph(self.graph)}"


def _order_text(order: Order) -> str:
    return "-" if order is None else ",".join(map(str, order)) or "scalar"


def _read_order(text: str) -> Order:
    return None if text == "-" else () if text == "scalar" else tuple(map(int, text.split(",")))


@dataclass(frozen=True)
class ControlFlow:
    """A node of control flow: its bodies, and its operands in the order in which every body takes them.

    Such an operator takes its graphs, then lists of operands. Each call of a body is given others for those of the
    first lists (what a loop carries, slices), and those of the last list as they are.
    """

    node: Node
    op: Opaque
    bodies: tuple[Nested, ...]
    varying: tuple[int, ...]
    """The operands in the first lists, by their place among the node's inputs."""
    shared: tuple[int, ...]
    """The operands in the last list."""

    @classmethod
    def of(cls, node: Node) -> Self | None:
        """Return what a node is; None if it is no control flow, or takes more than tensors and graphs."""
        op = node.op
        if not isinstance(op, Opaque) or op.target not in CONTROL_FLOW:
            return None
        bodies, lists = _bodies(op), _lists(op)
        given = {body.graph.inputs for body in bodies}
        if not lists or len(given) != 1 or any(len(inputs) != sum(map(len, lists)) for inputs in given):
            return None
        *varying, shared = lists
        return cls(node, op, bodies, tuple(index for part in varying for index in part), shared)

    @property
    def lists(self) -> Sequence[tuple[int, ...]]:
        """The lists of operands, the shared ones last."""
        return _lists(self.op)

    def places(self, inputs: Sequence[Node]) -> dict[int, Node]:
        """Return a body's input for each operand that bodies take, by its place among the node's inputs."""
        return dict(zip((*self.varying, *self.shared), inputs, strict=True))

    def with_bodies(self, bodies: Sequence[Nested], kept: Sequence[int], added: int) -> Opaque:
        """Return the operator with other bodies, and other shared operands.

        It is for the node's inputs without the shared ones that are not kept, and the new ones behind them.

        Args:
            bodies: as many as before.
            kept: the shared operands that are kept, as in :attr:`shared`.
            added: the number of new ones.
        """
        texts = iter([body.text for body in bodies])
        left = [index for index in range(len(self.node.inputs)) if index in kept or index not in self.shared]
        place = {old: new for new, old in enumerate(left)}
        last = max(at for at, argument in enumerate(self.op.arguments) if _operands(argument) is not None)

        def changed(at: int, argument: AttributeValue) -> AttributeValue:
            refs = _operands(argument)
            if isinstance(argument, Ref):
                return Ref(place[argument.index])
            if refs is None or not isinstance(argument, tuple):
                return next(texts) if _is_body(argument) else argument
            new = range(len(left), len(left) + added) if at == last else ()
            mark = argument[:1] if argument[:1] == _TUPLE else ()
            return (*mark, *(Ref(index) for index in (*(place[old] for old in refs if old in place), *new)))

        return replace(self.op, arguments=tuple(changed(*item) for item in enumerate(self.op.arguments)))


def graphs_in(graph: Graph) -> Iterator[Graph]:
    """Yield a graph, and the bodies of control flow in it, and those in these."""
    yield graph
    for node in graph.nodes:
        yield from graphs_inside(node)


def graphs_inside(node: Node) -> Iterator[Graph]:
    """Yield the bodies of a node, and those of control flow in them."""
    if isinstance(node.op, Opaque):
        for body in _bodies(node.op):
            yield from graphs_in(body.graph)


def types_in(graph: Graph) -> Iterator[TensorType]:
    """Return the types of all values of a graph and of the bodies of control flow in it."""
    return (type_ for inner in graphs_in(graph) for node in inner.nodes for type_ in node.types)


def with_pure_control_flow(graph: Graph) -> Graph:
    """Return a graph in which control flow is pure where all that its bodies do is to compute their results."""
    free = [node for node in graph.effects if _is_free(node)]

    def rebuilt(node: Node, inputs: tuple[Value, ...]) -> Node:
        if node in free and isinstance(node.op, Opaque):
            return make(replace(node.op, is_pure=True), inputs)
        return node if inputs == node.inputs else remake(node, inputs)

    made = graph.map(rebuilt) if free else graph
    return replace(made, effects=tuple(node for node in made.effects if not node.op.pure))


def _is_free(node: Node) -> bool:
    """Return whether a node is control flow without effects of its bodies, but for such control flow in them."""
    flow = ControlFlow.of(node)
    return flow is not None and all(_is_free(effect) for body in flow.bodies for effect in body.graph.effects)


_TUPLE = ("tuple:",)
"""The beginning of an argument that is a tuple, not a list."""


def _is_body(argument: AttributeValue) -> bool:
    return isinstance(argument, str) and argument.startswith(PREFIX)


def _bodies(op: Opaque) -> tuple[Nested, ...]:
    return tuple(Nested.parse(text) for text in op.arguments if isinstance(text, str) and _is_body(text))


def _lists(op: Opaque) -> Sequence[tuple[int, ...]]:
    return [refs for argument in op.arguments if (refs := _operands(argument)) is not None]


def _operands(argument: AttributeValue) -> tuple[int, ...] | None:
    """Return the operands in a list of such; None if the argument is something else."""
    if not isinstance(argument, tuple):
        return None
    items = argument[1:] if argument[:1] == _TUPLE else argument
    refs = tuple(item.index for item in items if isinstance(item, Ref))
    return refs if len(refs) == len(items) else None
