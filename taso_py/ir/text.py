"""Printer of the text form of graphs. Its parser is :mod:`taso_py.ir.parse`.

    graph(x: f32[1,512], h: f32[1,512]) {
      w = weight{key="w", type=f32[512,512]}
      v0 = matmul(x, w)
      v1 = add(v0, h)
      return relu(v1), v0
    }

A value is a name, ``name.1`` for the second output of a node, or an operator applied to values; an impure operator
carries its token (``opaque#3(...)``). Effects are listed before the outputs: ``effects v7, v9``. The type of an input
that the model writes to follows the word ``mutable``, that of one whose elements have a sign ``positive`` or
``nonnegative``.

Invariant: ``parse_graph(print_graph(g), operators) is equal to g``, and printing is a function of the graph alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from taso_py.ir.graph import Graph, topological
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Input, Weight

MUTABLE = "mutable"
"""The word before the type of an input that the model writes to."""


def print_graph(graph: Graph) -> str:
    """Return the graph as text, one statement per node."""
    names = value_names(graph)
    arguments = ", ".join(f"{names[node]}: {described(node)}" for node in graph.inputs)
    lines = [f"graph({arguments}) {{"]
    lines += [f"  {names[n]} = {_application(n, names)}" for n in graph.nodes if not isinstance(n.op, Input)]
    if graph.effects:
        lines.append("  effects " + ", ".join(names[node] for node in graph.effects))
    lines.append("  return " + ", ".join(value_text(value, names) for value in graph.outputs))
    return "\n".join([*lines, "}"]) + "\n"


def described(node: Node) -> str:
    """Return what is declared of an input: its type, after a word on whether it is written to and one on its sign."""
    words = [MUTABLE if node.op.mutable else "", node.op.sign.label] if isinstance(node.op, Input) else []
    return " ".join([*filter(None, words), str(node.types[0])])


def value_names(graph: Graph) -> dict[Node, str]:
    """Return a name for every node: inputs keep theirs, weights are ``w0, w1, ...``, all others ``v0, v1, ...``."""
    taken = {node.op.key for node in graph.inputs if isinstance(node.op, Input)}
    names: dict[Node, str] = {}
    counts: dict[str, int] = {}
    for node in graph.nodes:
        if isinstance(node.op, Input):
            names[node] = node.op.key
            continue
        letter = "w" if isinstance(node.op, Weight) else "v"
        while (name := f"{letter}{counts.setdefault(letter, 0)}") in taken:
            counts[letter] += 1
        counts[letter] += 1
        names[node] = name
    return names


def print_values(values: Sequence[Value]) -> str:
    """Return values as nested applications; shared ones are bound first: ``t0 = ...; f(t0), g(t0)``.

    This is how rules are written: readable for a few operators, exponential in no case.
    """
    nodes = topological(value.node for value in values)
    uses: dict[Node, int] = {}
    for read in [*values, *(operand for node in nodes for operand in node.inputs)]:
        uses[read.node] = uses.get(read.node, 0) + 1
    texts: dict[Node, str] = {}
    bound: list[str] = []
    for node in nodes:
        text = node.op.key if isinstance(node.op, Input) else _application(node, texts)
        if not isinstance(node.op, Input) and (uses[node] > 1 or len(node.types) > 1):
            bound.append(f"t{len(bound)} = {text}")
            text = f"t{len(bound) - 1}"
        texts[node] = text
    return "; ".join([*bound, ", ".join(value_text(value, texts) for value in values)])


def value_text(value: Value, names: Mapping[Node, str]) -> str:
    """Return a value as the name of its node; outputs after the first are numbered."""
    return names[value.node] + (f".{value.output}" if value.output else "")


def _application(node: Node, names: Mapping[Node, str]) -> str:
    token = "" if node.token is None else f"#{node.token}"
    operands: Iterable[str] = (value_text(value, names) for value in node.inputs)
    arguments = f"({', '.join(operands)})" if node.inputs else ""
    return f"{node.op.name}{token}{arguments}{node.op.attributes_text}"
