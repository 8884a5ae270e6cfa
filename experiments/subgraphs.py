"""Connected subgraphs of a graph: all of them up to a size, and the form that isomorphic ones share.

A *form* is written as the source of a rule is: operators, the dataflow among them, and operands from outside, which are
variables ``a, b, ...``, ``w`` for whatever depends on weights only, and numbers. Of attributes it has those that decide
which rules may apply (axes, orders, flags, names), not sizes: ``add(a, linear(gelu(linear(b, w, w)), w, w))``.

Invariant: two sets of nodes have one form exactly if a renaming of nodes and variables, and an exchange of operands of
commutative operators, takes one to the other; forms are equal in every process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import permutations, product
from typing import NamedTuple, TypeAlias

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, is_running
from taso_py.ir.operator import Constant, Operator, attribute_text
from taso_py.ops.contraction import Conv2d
from taso_py.ops.movement import Reshape
from taso_py.ops.opaque import Opaque

MOST_NEIGHBOURS = 8
"""Most running readers of a node, and most running operands, that it is connected with. Beyond are masks and tables
that every layer reads, and long concatenations, each of which would join any four of its neighbours."""
KEPT = frozenset({"axis", "axes", "order", "keepdim", "causal", "approximate", "exponent", "dtype"})
"""Attributes that forms have."""
NUMBERS = frozenset({-1.0, 0.0, 0.5, 1.0, 2.0})
"""Numbers that laws of algebra are about; all others are written ``c``."""

_Operand: TypeAlias = str | int | tuple[int, int]
"""Text of a static operand, number of a variable, or number and output of an operator."""


class _Operator(NamedTuple):
    """An operator of a set of nodes."""

    name: str
    marks: str
    """Attributes as text."""
    is_commutative: bool
    operands: tuple[_Operand, ...]


_Described: TypeAlias = tuple[str, str, bool, tuple[str | Value, ...]]
"""Facts of a node for `_Operator`; operands that are not static are values."""


class Dataflow:
    """The nodes of a graph that run, and which are connected: of two, one reads the other."""

    def __init__(self, graph: Graph) -> None:
        self.nodes: Sequence[Node] = [node for node in graph.nodes if is_running(node)]
        self.number: Mapping[Node, int] = {node: number for number, node in enumerate(self.nodes)}
        self.neighbours = self._neighbours(graph)
        """For each node the numbers of those it is connected with, as bits of an integer."""

    def mask(self, nodes: Iterable[Node]) -> int:
        """Return nodes as bits of an integer; those that do not run are left out."""
        return sum(1 << self.number[node] for node in set(nodes) if node in self.number)

    def _neighbours(self, graph: Graph) -> list[int]:
        operands = {node: {n for n, _ in node.inputs if n in self.number} for node in self.nodes}
        readers = {node: [n for n in graph.users[node] if n in self.number] for node in self.nodes}
        neighbours = [0] * len(self.nodes)
        for node, read in operands.items():
            if len(read) > MOST_NEIGHBOURS:
                continue
            for operand in read:
                if len(readers[operand]) <= MOST_NEIGHBOURS:
                    neighbours[self.number[node]] |= 1 << self.number[operand]
                    neighbours[self.number[operand]] |= 1 << self.number[node]
        return neighbours


def connected_sets(neighbours: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    """Yield each connected set of two to ``most`` vertices once.

    The method is that of Wernicke, Efficient detection of network motifs (2006).

    Args:
        neighbours: for each vertex the neighbours, as bits of an integer.
        most: the most vertices of a set, at least two.
    """

    def extend(chosen: tuple[int, ...], known: int, candidates: int) -> Iterator[tuple[int, ...]]:
        """Yield the sets with what was chosen; ``known`` are its neighbours and all vertices up to the first."""
        while candidates:
            vertex = (candidates & -candidates).bit_length() - 1
            candidates &= candidates - 1
            grown = (*chosen, vertex)
            yield grown
            if len(grown) < most:
                around = neighbours[vertex]
                yield from extend(grown, known | around, candidates | (around & ~known))

    for vertex, around in enumerate(neighbours):
        up_to = (2 << vertex) - 1
        yield from extend((vertex,), up_to | around, around & ~up_to)


class SubgraphForms:
    """Forms of sets of nodes; each node is described once."""

    def __init__(self) -> None:
        self._described: dict[Node, _Described] = {}

    def of(self, nodes: Collection[Node]) -> str:
        """Return the form of a set of nodes that run; they need not be connected."""
        return _least_text(self._structure(nodes))

    def _structure(self, nodes: Collection[Node]) -> tuple[_Operator, ...]:
        numbers = {node: number for number, node in enumerate(nodes)}
        variables: dict[Value, int] = {}
        found: list[_Operator] = []
        for node in nodes:
            name, marks, is_commutative, described = self._description(node)
            operands: list[_Operand] = []
            for operand in described:
                if isinstance(operand, str):
                    operands.append(operand)
                elif operand.node in numbers:
                    operands.append((numbers[operand.node], operand.output))
                else:
                    operands.append(variables.setdefault(operand, len(variables)))
            found.append(_Operator(name, marks, is_commutative, tuple(operands)))
        return tuple(found)

    def _description(self, node: Node) -> _Described:
        known = self._described.get(node)
        if known is None:
            operands = tuple([_static_text(value.node) or value for value in node.inputs])
            known = operator_name(node), _marks(node), node.op.commutative, operands
            self._described[node] = known
        return known


def operator_name(node: Node) -> str:
    """Return the name of a node's operator: that of PyTorch if it is outside the table."""
    return node.op.target.removesuffix(".default") if isinstance(node.op, Opaque) else node.op.name


def _static_text(node: Node) -> str:
    """Return the text of an operand that depends on weights only; empty for others."""
    if isinstance(node.op, Constant):
        value = node.op.value
        return f"{value:g}" if isinstance(value, int | float) and value in NUMBERS else "c"
    return "w" if node.is_static else ""


def _marks(node: Node) -> str:
    """Return the attributes of a node that forms have, as text."""
    marks = [f"{name}={attribute_text(value)}" for name, value in node.op.attributes if name in KEPT]
    special = _SPECIAL.get(type(node.op))
    if special is not None:
        marks.append(special(node))
    read = [value.type.dtype for value in node.inputs]
    if read and not any(dtype.is_floating for dtype in read):
        marks.append(f"of={read[0]}")
    return "{" + ", ".join(marks) + "}" if marks else ""


def _convolution_mark(node: Node) -> str:
    """Return whether a convolution is of single pixels, and how its channels are grouped."""
    assert isinstance(node.op, Conv2d)
    kernel = node.inputs[1].type.sizes
    groups = node.op.at_example.groups
    kind = "" if groups == 1 else ", depthwise" if groups == node.inputs[0].type.sizes[-3] else ", grouped"
    return f"{'1x1' if kernel[-2:] == (1, 1) else 'larger'}{kind}"


def _reshape_mark(node: Node) -> str:
    return f"rank={node.inputs[0].type.rank} to {node.types[0].rank}"


_SPECIAL: Mapping[type[Operator], Callable[[Node], str]] = {Conv2d: _convolution_mark, Reshape: _reshape_mark}
"""Marks that follow from types, by operator."""


@lru_cache(maxsize=1 << 18)
def _least_text(structure: tuple[_Operator, ...]) -> str:
    """Return the least of the texts over the orders of results and of operands of commutative operators."""
    read = Counter(operand[0] for op in structure for operand in op.operands if isinstance(operand, tuple))
    results = [number for number in range(len(structure)) if number not in read]
    swappable = [n for n, op in enumerate(structure) if op.is_commutative and len(set(op.operands)) > 1]
    texts = (
        _Writer(structure, read, frozenset(number for number, swap in zip(swappable, swaps, strict=True) if swap)).text(
            order
        )
        for order in permutations(results)
        for swaps in product((False, True), repeat=len(swappable))
    )
    return min(texts)


class _Writer:
    """Text of a structure with some order of results and operands."""

    def __init__(self, structure: Sequence[_Operator], read: Mapping[int, int], swapped: Collection[int]) -> None:
        self._structure, self._read, self._swapped = structure, read, swapped
        self._texts: dict[int, str] = {}
        self._bound: list[str] = []
        self._variables: dict[int, str] = {}

    def text(self, results: Iterable[int]) -> str:
        """Return the results as nested applications; shared ones are bound first, as in rules."""
        values = ", ".join([self._operator(number) for number in results])
        return "; ".join([*self._bound, values])

    def _operator(self, number: int) -> str:
        known = self._texts.get(number)
        if known is not None:
            return known
        op = self._structure[number]
        operands = reversed(op.operands) if number in self._swapped else op.operands
        text = f"{op.name}({', '.join([self._operand(operand) for operand in operands])}){op.marks}"
        if self._read.get(number, 0) > 1:
            self._bound.append(f"t{len(self._bound)} = {text}")
            text = f"t{len(self._bound) - 1}"
        self._texts[number] = text
        return text

    def _operand(self, operand: _Operand) -> str:
        if isinstance(operand, str):
            return operand
        if isinstance(operand, int):
            return self._variables.setdefault(operand, _variable_name(len(self._variables)))
        number, output = operand
        return self._operator(number) + (f".{output}" if output else "")


def _variable_name(number: int) -> str:
    """Return a letter for each of the first variables, and a numbered one for others; ``c`` and ``w`` are taken."""
    letters = "abdefghijklmn"
    return letters[number] if number < len(letters) else f"x{number}"
