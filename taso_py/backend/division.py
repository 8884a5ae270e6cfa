"""Graphs that write, divided for engines that write to nothing: what an engine computes, and the writes after it.

Where a model writes rows to a cache, its program computes a second cache with those rows. An engine would make that
cache, and all of it would be copied over the first. Here the engine returns the rows and their places, and PyTorch puts
them into the first cache (:mod:`taso_py.backend.inplace`).

Invariant: the calls that are left to PyTorch put elements into places, and compute none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from torch._ops import OpOverload

from taso_py.backend.schema import bind, overload_named
from taso_py.backend.writes import is_state, ordered_writes, state_of
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make, remake
from taso_py.ir.operator import Constant, Input, Ref
from taso_py.ops.movement import Reshape, Slice
from taso_py.ops.nested import with_pure_control_flow
from taso_py.ops.opaque import Opaque

_PART = frozenset({"aten.select_scatter.default", "aten.slice_scatter.default"})
"""Calls that replace a part of the first operand by the second."""
_PLACES = frozenset({"aten.index_copy.default", "aten.index_put.default", "aten.scatter.src", "aten.scatter.value"})
"""Calls that replace elements of the first operand, at places that other operands say."""
_VIEWS = (Slice, Reshape)
MOST_GIVEN = 0.5
"""Most elements that an engine returns for a write, as a share of what is written to; copying all is faster beyond."""


@dataclass(frozen=True)
class Division:
    """A graph whose effects are writes, divided."""

    graph: Graph
    is_whole: bool = False
    """True if the engine returns whole contents, which files of earlier releases do."""

    @cached_property
    def writes(self) -> Sequence[tuple[Value, ...]]:
        """The values that are written to, each with its new content.

        Their order is that of :func:`~taso_py.backend.writes.ordered_writes`.
        """
        return [write.inputs for write in ordered_writes(self.graph)]

    @cached_property
    def given(self) -> Sequence[Value]:
        """The values that the engine returns for the writes."""
        if self.is_whole:
            return [content for _, content in self.writes]
        return list(dict.fromkeys(value for leaf, content in self.writes for value in _made_of(leaf, content)))

    @cached_property
    def state(self) -> Mapping[Node, Node]:
        """Inputs of the engine's graph in place of the state (:func:`~taso_py.backend.writes.state_of`)."""
        return {node: make(Input(f"state.{key}", node.types[0])) for key, node in state_of(self.graph).items()}

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The inputs of the engine's graph: those of the graph, and then the state."""
        return (*self.graph.inputs, *self.state.values())

    @cached_property
    def pure(self) -> Graph:
        """The engine's graph, which returns the outputs and then what the writes are made of."""
        read = Graph(self.graph.inputs, (*self.graph.outputs, *self.given))
        replaced = {node.value: taken.value for node, taken in self.state.items()}
        return Graph(self.inputs, read.map(_read_part, replaced).outputs)

    @cached_property
    def late(self) -> Graph:
        """The graph that makes new contents of what is written to and, behind it, of what the engine returns."""
        return _late(self.writes, self.given)


def divided(graph: Graph, *, whole: bool = False) -> Division:
    """Return a graph divided; its control flow is pure where all that it does is to compute its results.

    Args:
        graph: a graph whose effects are writes and such control flow. Others stay effects of the result's graph.
        whole: true to have the engine return whole contents.
    """
    return Division(with_pure_control_flow(graph), is_whole=whole)


def written_before(graph: Graph) -> Graph:
    """Return what is left to be written behind an engine that writes by itself: each leaf as it is then."""
    leaves = [make(Input(f"leaf_{place}", write.inputs[0].type)) for place, write in enumerate(ordered_writes(graph))]
    return Graph(tuple(leaves), tuple(leaf.value for leaf in leaves))


def _late(writes: Sequence[tuple[Value, ...]], given: Sequence[Value]) -> Graph:
    leaves = [make(Input(f"leaf_{place}", leaf.type)) for place, (leaf, _) in enumerate(writes)]
    others = [make(Input(f"given_{place}", value.type)) for place, value in enumerate(given)]
    known = {value: node.value for value, node in zip(given, others, strict=True)}
    contents: list[Value] = []
    for node, (leaf, content) in zip(leaves, writes, strict=True):
        # A leaf that another one becomes is given: what it was before any write.
        replaced = known if content in known else {**known, leaf: node.value}
        contents += Graph((), (content,)).replace(replaced).outputs
    return Graph((*leaves, *others), tuple(contents))


def _made_of(leaf: Value, content: Value) -> Sequence[Value]:
    """Return the values that an engine should give so that the content can be made: few, or the content itself."""
    path = _path(content, leaf, by_views=False)
    given = _given(path) if path else [content]
    few = sum(value.type.elements for value in given) <= MOST_GIVEN * leaf.type.elements
    return given if few and not any(map(is_state, given)) else [content]


def _given(path: Sequence[Node]) -> list[Value]:
    """Return what the nodes on a path read beside each other."""
    found: list[Value] = []
    for node in path:
        for operand in node.inputs[1:]:
            inner = _path(operand, node.inputs[0], by_views=True) if _target(node) in _PART else None
            if inner and any(map(_replaces, inner)):
                found += _given(inner)
            elif not isinstance(operand.node.op, Constant):
                found.append(operand)
    return found


def _path(value: Value, start: Value, *, by_views: bool) -> Sequence[Node] | None:
    """Return the nodes that lead from one value to another, of which each replaces places of the one before.

    Args:
        value: the value at the end.
        start: the value at the start.
        by_views: whether nodes may also be views of the one before.

    Returns:
        The nodes in order; None if others are on the way.
    """
    found: list[Node] = []
    while value != start:
        node = value.node
        if not (_replaces(node) or (by_views and isinstance(node.op, _VIEWS))):
            return None
        found.append(node)
        value = node.inputs[0]
    return found[::-1]


def _read_part(node: Node, inputs: tuple[Value, ...]) -> Node:
    """Return a node with other operands; a slice of what has parts replaced reads what it needs of it directly."""
    op = node.op
    if not isinstance(op, Slice) or not isinstance(op.start, int) or not isinstance(op.stop, int):
        return node if inputs == node.inputs else remake(node, inputs)
    (x,) = inputs
    while _target(x.node) in _PART and (part := _part(x.node)) is not None and part[0] == op.axis % x.type.rank:
        start, stop = part[1]
        whole, new = x.node.inputs
        if start <= op.start and op.stop <= stop and op.start < op.stop:
            new = make(Reshape((*x.type.dims[: part[0]], stop - start, *x.type.dims[part[0] + 1 :])), [new]).value
            return make(Slice(op.axis, op.start - start, op.stop - start, op.step), [new])
        if op.start < stop and start < op.stop:
            break
        x = whole
    return make(op, [x])


def _part(node: Node) -> tuple[int, tuple[int, int]] | None:
    """Return axis, start and stop of the part that a node replaces; None if they are not known or there are gaps."""
    if not _replaces(node) or len(node.inputs) != 2 or not isinstance(node.op, Opaque):
        return None
    given = _arguments(node.op)
    axis, numbers = given["dim"] % node.types[0].rank, [given.get(name) for name in ("index", "start", "end")]
    size = node.types[0].dims[axis]
    if given.get("step", 1) != 1 or not all(isinstance(number, int | None) for number in (size, *numbers)):
        return None
    index, start, end = numbers
    start, end = slice(start, end).indices(size)[:2] if index is None else (index % size, index % size + 1)
    return axis, (start, max(start, end))


def _target(node: Node) -> str:
    return node.op.target if isinstance(node.op, Opaque) else ""


def _replaces(node: Node) -> bool:
    """Return whether a node's result is its first operand, some elements replaced by those of other operands."""
    op = node.op
    if not isinstance(op, Opaque) or op.target not in _PART | _PLACES or not op.is_pure:
        return False
    given = _arguments(op)
    return given["self"] == Ref(0) and not given.get("accumulate")


def _arguments(op: Opaque) -> Mapping[str, Any]:
    """Return the arguments of a call by name, defaults included."""
    return bind(cast(OpOverload, overload_named(op.target)), op.arguments, dict(op.keywords))
