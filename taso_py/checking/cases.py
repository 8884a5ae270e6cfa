"""Inputs to compare the results of a program on.

Invariant: no loop runs longer for them than for the example inputs unless what ends it does not depend on the inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taso_py.backend import Program
from taso_py.backend.input_cases import Arguments, input_cases
from taso_py.backend.program import leaves_in_order
from taso_py.ir.graph import Graph, topological
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Input
from taso_py.ops.nested import ControlFlow, graphs_inside, surely_ends


def program_cases(
    program: Program, args: Sequence[Any], kwargs: Mapping[str, Any], seed: int
) -> list[tuple[str, Arguments]]:
    """Return the example inputs and random ones, by name; inputs that decide when loops end stay as in the example.

    Args:
        program: the program that takes them.
        args: positional example inputs.
        kwargs: keyword example inputs.
        seed: seed of the random ones.
    """
    deciding = ending_inputs(program.graph)
    if not deciding:
        return input_cases(args, kwargs, seed)
    leaves = leaves_in_order(args, kwargs, program.signature.in_spec)
    keys = zip(program.signature.inputs, leaves, strict=True)
    return input_cases(args, kwargs, seed, kept={id(leaf) for key, leaf in keys if key in deciding})


def ending_inputs(graph: Graph) -> list[str]:
    """Return the keys of the inputs on which it depends when loops end; most loops only count, and depend on none."""
    deciding = set(topological(value.node for node in graph.nodes for value in _ending_operands(node)))
    return [node.op.key for node in graph.inputs if node in deciding and isinstance(node.op, Input)]


def _ending_operands(node: Node) -> Sequence[Value]:
    """Return the operands of a node on which it depends when loops end, it or those in it."""
    if not all(surely_ends(inner.op) for graph in graphs_inside(node) for inner in graph.nodes):
        return node.inputs
    if surely_ends(node.op):
        return ()
    loop = ControlFlow.of(node)
    return node.inputs if loop is None else _read_by_condition(loop)


def _read_by_condition(loop: ControlFlow) -> Sequence[Value]:
    """Return the operands of a loop on which its condition depends, in any iteration."""
    condition, step = (body.graph for body in loop.bodies)
    places, read = set[int](), set(topological(value.node for value in condition.outputs))
    further = {place for place, node in enumerate(condition.inputs) if node in read}
    while further > places:
        places = further
        # What a step carries to the next one is what the condition reads there.
        read = set(topological(value.node for place, value in enumerate(step.outputs) if place in places))
        further = places | {place for place, node in enumerate(step.inputs) if node in read}
    operands = (*loop.varying, *loop.shared)
    return [loop.node.inputs[operands[place]] for place in sorted(places)]
