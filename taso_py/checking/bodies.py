"""Comparison of a rewritten body of control flow with the original one, each called alone.

A run of a model takes one branch, and rounds that loops carry on hide what one call does. Here both bodies are called
on the same random operands, as the modules that the operator would call; where sizes are open, at other ones too.

Invariant: a body that passes returned, for every kind of operands, what the original returned up to rounding, with the
same strides, in memory that neither belongs to an operand nor to another result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from taso_py.backend.convert import retyped_graph
from taso_py.backend.fold import evaluate
from taso_py.backend.input_cases import Arguments
from taso_py.backend.lowering import nested_module
from taso_py.backend.schema import storage_of
from taso_py.backend.tensors import TensorError
from taso_py.checking.compare import Oracle
from taso_py.checking.operands import LOWEST, places_in, random_operand
from taso_py.checking.resize import other_sizes, sizes_at
from taso_py.ir.errors import first_line
from taso_py.ir.graph import Graph
from taso_py.ops.nested import Nested
from taso_py.search.bodies import Body, leaf_name

INTEGERS = range(2)
"""Integers that are valid as places in most operands, for operators outside the table."""


@dataclass(frozen=True)
class BodyError:
    """Difference between a body and its rewritten form."""

    operator: str
    place: int
    """The number of the body among the operator's."""
    reason: str

    def __str__(self) -> str:
        return f"body {self.place} of {self.operator} computes something else once it is rewritten: {self.reason}"


def body_error(body: Body, graph: Graph, seed: int, device: torch.device) -> BodyError | None:
    """Return what is wrong with a body that is replaced by a graph; None if it computes the same.

    Args:
        body: the body.
        graph: the graph in place of its own.
        seed: the seed of the random operands.
        device: where it is called.
    """
    try:
        reason = _difference(body, graph, seed, device)
    except Exception as error:  # an operator may raise anything
        reason = f"raises {first_line(error)}"
    return BodyError(body.flow.op.target, body.place, reason) if reason else None


def _difference(body: Body, graph: Graph, seed: int, device: torch.device) -> str:
    cases = _cases(body.nested.graph, seed, device)
    before, after = _module(body.nested, device), _rewritten(body, graph, device)
    compared = Oracle(before, _reference(body.nested, device), cases, draws=False).compare(after)
    if not compared.passed:
        return str(compared.reason)
    if not {*LOWEST} <= {output.inputs for output in compared.outputs}:
        return "the original cannot be called on random operands"
    return next((problem for _, (args, _) in cases for problem in _shared(after, args)), "")


def _cases(graph: Graph, seed: int, device: torch.device) -> list[tuple[str, Arguments]]:
    """Return random operands of each kind, of the example's sizes first, by name."""
    generator = torch.Generator().manual_seed(seed)
    sizes = tuple(dict.fromkeys(size for node in graph.inputs for size in sorted(node.types[0].open, key=str)))
    cases: list[tuple[str, Arguments]] = []
    for given in ({size: size.example for size in sizes}, *other_sizes(sizes)):
        where = "" if not cases else "".join(f", {size.name}={value}" for size, value in given.items())
        places = places_in([graph], INTEGERS, partial(sizes_at, sizes=given))
        for name, lowest in LOWEST.items():
            operands = tuple(
                random_operand(
                    node.types[0],
                    sizes_at(node.types[0], given),
                    lowest=lowest,
                    places=places(node.value),
                    generator=generator,
                ).to(device)
                for node in graph.inputs
            )
            cases.append((f"{name}{where}", (operands, {})))
    return cases


def _module(nested: Nested, device: torch.device) -> Callable[..., Any]:
    """Return a body as its operator calls it."""
    return nested_module(nested.text, device, is_apart=True)


def _reference(nested: Nested, device: torch.device) -> Callable[..., Any] | None:
    """Return a body in double precision; None if it has an operator that cannot compute in it."""
    try:
        return _module(replace(nested, graph=retyped_graph(nested.graph)), device)
    except TensorError:
        return None


def _rewritten(body: Body, graph: Graph, device: torch.device) -> Callable[..., Any]:
    """Return a rewritten body as a function of the original one's operands."""
    made = body.rewritten(graph)
    module = _module(made.nested, device)
    names = [leaf_name(node) for node in body.nested.graph.inputs]
    own = [leaf_name(node) for node in made.nested.graph.inputs]

    def call(*operands: Tensor) -> Any:
        given = dict(zip(names, operands, strict=True))
        known = {**given, **{name: evaluate(value, given, device) for name, value in made.hoisted.items()}}
        return module(*(known[name] for name in own))

    return call


def _shared(call: Callable[..., Any], operands: Sequence[Tensor]) -> Iterator[str]:
    """Yield which results are in memory of an operand or of another result."""
    with torch.no_grad():
        results = [leaf for leaf in pytree.tree_leaves(call(*operands)) if isinstance(leaf, Tensor)]
    taken = set(map(storage_of, operands))
    for place, result in enumerate(results):
        if result.numel() and storage_of(result) in taken:
            yield f"result {place} is in memory of an operand, or of another result"
        taken.add(storage_of(result))
