"""Open sizes at run time: the arguments' dimensions that determine them, and computations with them.

Invariant: a built module computes every open size from its arguments once, before anything else, and refuses arguments
whose sizes do not agree with each other or are out of range. Bodies of control flow compute those that they need from
their operands.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import fx

from taso_py.backend.elementwise import Caller
from taso_py.backend.guard import check_equal, check_range
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node
from taso_py.ir.operator import AttributeValue, Input
from taso_py.ir.size import Dim, FloorDiv, Open, Poly, open_size, open_sizes, substitute_open, terms
from taso_py.ir.types import TensorType

_sym_size = torch.ops.aten.sym_size.int


@dataclass(frozen=True)
class SizePlace:
    """A dimension of an input that determines an open size: it is ``factor * size + rest``."""

    size: Open
    input: Node
    axis: int
    factor: int
    rest: Dim
    """Depends only on open sizes that are determined earlier."""


def size_places(graph: Graph) -> tuple[SizePlace, ...]:
    """Return the dimension that determines each open size of a graph's inputs, in an order of computation."""
    found: dict[Open, SizePlace] = {}
    for node in graph.inputs:
        for axis, dim in enumerate(node.types[0].shape):
            unknown = open_sizes(dim) - found.keys() if isinstance(dim, Poly) else frozenset[Open]()
            if isinstance(dim, Poly) and len(unknown) == 1:
                (size,) = unknown
                factor = next((c for monomial, c in terms(dim) if monomial == (size,)), 0)
                rest = substitute_open(dim, {size: 0})
                found[size] = SizePlace(size, node, axis, factor=factor, rest=rest)
    return tuple(found.values())


def hidden_sizes(graph: Graph) -> set[Open]:
    """Return the open sizes in a graph that no input of it determines."""
    types = [type_ for node in graph.nodes for type_ in node.types]
    attributes = [getattr(node.op, field.name) for node in graph.nodes for field in fields(node.op)]
    return set(_sizes_in((*types, *attributes))) - {place.size for place in size_places(graph)}


def _sizes_in(value: AttributeValue) -> frozenset[Open]:
    """Return the open sizes in a value of an operator's attribute, graphs that it takes left out."""
    if isinstance(value, TensorType):
        return _sizes_in(value.dims)
    if isinstance(value, tuple):
        return frozenset[Open]().union(*map(_sizes_in, value))
    return open_sizes(value) if isinstance(value, Poly) else frozenset()


def _with_sizes(argument: Any, number: Callable[[Poly], Any]) -> Any:
    """Return an argument of a call with symbolic sizes replaced by ``number``."""
    if isinstance(argument, Poly):
        return number(argument)
    if isinstance(argument, list | tuple):
        return type(argument)(_with_sizes(item, number) for item in argument)
    return argument


def resolving(call: Caller, number: Callable[[Poly], Any]) -> Caller:
    """Return a caller like ``call`` that replaces symbolic sizes in arguments by ``number``."""

    def resolved(overload: Any, *arguments: Any, **keywords: Any) -> Any:
        given = [_with_sizes(argument, number) for argument in arguments]
        return call(overload, *given, **{name: _with_sizes(value, number) for name, value in keywords.items()})

    return resolved


class SizeWriter:
    """Writer of calls that compute sizes into an fx graph, each once."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._written: dict[Dim, Any] = {}
        self._shown: dict[Open, tuple[SizePlace, fx.Node]] = {}

    def show(self, graph: Graph, placeholders: Mapping[Node, fx.Node]) -> None:
        """Have the open sizes of a graph's inputs computed from these, where they are needed."""
        self._shown.update((place.size, (place, placeholders[place.input])) for place in size_places(graph))

    def declare(self, graph: Graph, placeholders: Mapping[Node, fx.Node]) -> None:
        """Write the open sizes of a graph's inputs, and the checks that the inputs agree on them."""
        self.show(graph, placeholders)
        for size in self._shown:
            self._graph.call_function(check_range, (self._atom(size), size.name, size.least, size.most))
        for node in graph.inputs:
            assert isinstance(node.op, Input)
            for axis, dim in enumerate(node.types[0].shape):
                if isinstance(dim, Poly):
                    shown = self._graph.call_function(_sym_size, (placeholders[node], axis))
                    self._graph.call_function(check_equal, (shown, self(dim), f"{node.op.key}.{axis}", str(dim)))

    def __call__(self, size: Dim) -> Any:
        """Return a number, or the fx node that computes the size."""
        if isinstance(size, int):
            return size
        if size not in self._written:
            self._written[size] = self._sum(size)
        return self._written[size]

    def _sum(self, size: Poly) -> Any:
        total: Any = None
        for monomial, coefficient in size.terms:
            product: Any = None
            for factor in (*([coefficient] if coefficient != 1 or not monomial else []), *map(self._atom, monomial)):
                product = factor if product is None else self._call(operator.mul, product, factor)
            total = product if total is None else self._call(operator.add, total, product)
        return total

    def _atom(self, atom: Any) -> Any:
        if isinstance(atom, FloorDiv):
            return self._call(operator.floordiv, self(atom.numerator), self(atom.denominator))
        if open_size(atom) not in self._written:
            place, placeholder = self._shown[atom]
            shown = self._call(_sym_size, placeholder, place.axis)
            value = self._call(operator.sub, shown, self(place.rest)) if place.rest != 0 else shown
            self._written[open_size(atom)] = (
                self._call(operator.floordiv, value, place.factor) if place.factor != 1 else value
            )
        return self._written[open_size(atom)]

    def _call(self, function: Callable[..., Any], *arguments: Any) -> fx.Node:
        return self._graph.call_function(function, arguments)
