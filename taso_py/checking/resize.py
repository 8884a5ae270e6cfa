"""Inputs of other sizes for models with open sizes, and notes on rules that only fit the example's sizes.

Invariant: the inputs are valid for the original: their sizes are in range and agree with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from taso_py.backend import Program
from taso_py.backend.generators import may_draw_random
from taso_py.backend.input_cases import Arguments
from taso_py.backend.program import Signature
from taso_py.backend.random_tensors import integers
from taso_py.backend.writes import Writes
from taso_py.checking.compare import outputs_of
from taso_py.ir.errors import first_line
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node
from taso_py.ir.operator import Input
from taso_py.ir.size import Open, substitute_open
from taso_py.ir.types import TensorType
from taso_py.rules.apply import replacements
from taso_py.rules.index import GraphIndex
from taso_py.rules.match import Matcher
from taso_py.rules.substitution import Substitution

NAMED = 8
"""Number of rules that a note names."""


def resized_cases(
    program: Program, modules: Mapping[str, Callable[..., Any]], seed: int
) -> tuple[list[tuple[str, Arguments]], list[str]]:
    """Return named input cases of other sizes; none if no size is open.

    Args:
        program: the program whose inputs to make.
        modules: the original, and others that should accept them, by a name for notes.
        seed: seed of their content.

    Returns:
        The cases, and a note for each one that a module refuses although it is in the export's range.
    """
    cases: list[tuple[str, Arguments]] = []
    notes: list[str] = []
    for sizes in other_sizes(program.open):
        name = ", ".join(f"{size.name}={value}" for size, value in sizes.items())
        case = resized_arguments(program, sizes, seed)
        refused = _refusal(modules, case, may_draw=may_draw_random(program))
        if refused:
            notes.append(f"not compared at {name}, which is in the export's range but refused by {refused}")
        else:
            cases.append((name, case))
    return cases, notes


def _refusal(modules: Mapping[str, Callable[..., Any]], case: Arguments, *, may_draw: bool) -> str:
    """Return the name of the first module that refuses arguments, with its error; empty if none does."""
    for what, module in modules.items():
        try:
            outputs_of(module, *case, draws=may_draw)
        except Exception as error:  # a model may raise anything
            return f"{what} ({first_line(error)})"
    return ""


def open_size_notes(program: Program, rules: Sequence[Substitution]) -> list[str]:
    """Return notes for the user on a program with open sizes."""
    if not program.open:
        return []
    sizes = ", ".join(f"{size.name} ({size.range}, in the example {size.example})" for size in program.open)
    notes = [f"the result is valid for all sizes {sizes}; latencies are those of the example"]
    missed = sorted(applicable_rules(program.graph.at_example, rules) - applicable_rules(program.graph, rules))
    if missed:
        names = ", ".join(missed[:NAMED]) + (", ..." if len(missed) > NAMED else "")
        notes.append(f"{len(missed)} rules fit the example's sizes but not all, and were left out: {names}")
    return notes


def applicable_rules(graph: Graph, rules: Sequence[Substitution]) -> set[str]:
    """Return the identifiers of rules that can be applied somewhere in a graph."""
    index = GraphIndex(graph)
    return {match.rule.id for match in Matcher(rules).matches(index) if replacements(match, index) is not None}


def other_sizes(sizes: tuple[Open, ...]) -> list[dict[Open, int]]:
    """Return distinct sizes to check: the least, larger than the example's, and each size changed alone."""
    if not sizes:
        return []
    least = {size: size.least for size in sizes}
    larger = {size: _within(size, 2 * size.example + 1) for size in sizes}
    each = [{**{other: other.example for other in sizes}, size: _within(size, size.example + 3)} for size in sizes]
    found = [least, larger, *(each if len(sizes) > 1 else [])]
    return [one for place, one in enumerate(found) if one not in found[:place]]


def _within(size: Open, value: int) -> int:
    return value if size.most is None else min(value, size.most)


def resized_arguments(program: Program, sizes: Mapping[Open, int], seed: int) -> Arguments:
    """Return inputs of the given sizes with elements drawn from the example inputs."""
    return OpenInputs.of(program).at(sizes, seed)


@dataclass(frozen=True)
class OpenInputs:
    """Makes inputs of a program at any of its sizes; holds none of its weights."""

    open: tuple[Open, ...]
    nodes: tuple[Node, ...]
    examples: tuple[Tensor, ...]
    signature: Signature
    has_state: bool
    """True if a call writes to buffers."""

    @classmethod
    def of(cls, program: Program) -> Self:
        """Return the inputs of a program."""
        nodes, has_state = tuple(program.graph.inputs), bool(Writes.of(program.graph).buffers)
        return cls(program.open, nodes, program.example_inputs, program.signature, has_state)

    def at(self, sizes: Mapping[Open, int], seed: int) -> Arguments:
        """Return arguments of the given sizes, with elements drawn from the examples."""
        generator = torch.Generator().manual_seed(seed)
        made = {
            node.op.key: _drawn(sizes_at(node.types[0], sizes), example, generator)
            for node, example in zip(self.nodes, self.examples, strict=True)
            if isinstance(node.op, Input)
        }
        leaves = [made[leaf] if isinstance(leaf, str) else leaf.value for leaf in self.signature.inputs]
        args, kwargs = pytree.tree_unflatten(leaves, self.signature.in_spec)
        return tuple(args), dict(kwargs)


def sizes_at(type_: TensorType, sizes: Mapping[Open, int]) -> list[int]:
    """Return the shape of a type as integers, given all its open sizes."""
    return [size for dim in type_.dims if isinstance(size := substitute_open(dim, sizes), int)]


def _drawn(shape: list[int], example: Tensor, generator: torch.Generator) -> Tensor:
    """Return a tensor with elements drawn from another's, so that indices stay valid, and with its order of axes."""
    if list(example.shape) == shape:
        return example.detach().clone()  # the model may write to it
    axes = zip(shape, example.stride(), example.shape, strict=True)
    compact = [1 if step == 0 and before > 1 else size for size, step, before in axes]
    count = torch.Size(compact).numel()
    places = integers(max(1, example.numel()), (count,), generator).to(example.device)
    order = sorted(range(len(shape)), key=lambda axis: (-example.stride(axis), -example.shape[axis]))
    dense = example.detach().reshape(-1)[places].reshape([compact[axis] for axis in order])
    return dense.permute([order.index(axis) for axis in range(len(shape))]).expand(shape)
