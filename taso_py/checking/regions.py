"""Check of each applied rule where it was applied: source against target, in float64, on random operands.

A comparison of whole outputs misses a wrong rewrite whose result is scaled down later on, e.g. in a residual branch.
Here both sides of a rule, at the concrete types it matched, run through PyTorch on the same random operands.
(Translation validation: Pnueli, Siegel and Singerman 1998.)

Invariant: this check shares no code with the prover, only the text of the rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from taso_py.backend.run import run_graph
from taso_py.checking.bodies import BodyError, body_error
from taso_py.checking.operands import LOWEST, places_in, random_operand
from taso_py.ir.errors import first_line
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.ir.sign import with_sign
from taso_py.ir.types import DType
from taso_py.ops.signs import sign_of
from taso_py.rules.apply import concrete_side
from taso_py.rules.match import Match
from taso_py.rules.substitution import key, retyped
from taso_py.search.trace import Trace, replay_bodies, replay_steps

TOLERANCE = 1e-9
"""Allowed difference relative to the output's greatest magnitude; float64 rounds at 1.1e-16."""
LEAST = 1e-4
"""Least magnitude of outputs that counts: outputs that are zero, as a number less its own mean, are roundings."""
INTEGERS = range(4)
"""Integers by which nothing is chosen."""


@dataclass(frozen=True)
class RegionError:
    """Difference between the two sides of a rule at one match."""

    rule: str
    error: float
    """The greatest relative difference; infinite if a side cannot be computed."""
    reason: str = ""
    """Why a side cannot be computed."""

    @property
    def passed(self) -> bool:
        """True if the sides agree up to rounding."""
        return self.error <= TOLERANCE

    def __str__(self) -> str:
        if self.reason:
            return f"the two sides of {self.rule} cannot be compared where it was applied: {self.reason}"
        return f"the two sides of {self.rule} differ by {self.error:.1e} where it was applied"


def check_regions(matches: Iterable[Match], seed: int, device: torch.device) -> list[RegionError]:
    """Return the difference at every match; matches with equal operators and types are run once."""
    known: dict[object, RegionError] = {}
    for match in matches:
        source, target = region(match, DType.F64)
        if (source.key, target.key) not in known:
            try:
                found = RegionError(match.rule.id, deviation(source, target, seed, device))
            except Exception as error:  # an operator may raise anything
                found = RegionError(match.rule.id, math.inf, first_line(error))
            known[source.key, target.key] = found
    return list(known.values())


def region(match: Match, dtype: DType) -> tuple[Graph, Graph]:
    """Return both sides of a match as graphs, over inputs of the matched shapes and the given element type."""
    variables: dict[str, Value] = {}
    for node in match.rule.variables:
        type_ = match.values[key(node)].type
        variables[key(node)] = retyped(node, replace(type_, dtype=dtype) if type_.dtype.is_floating else type_)
    own = replace(match, values=variables, dtype=dtype)
    inputs = tuple(value.node for value in variables.values())
    source, target = (Graph(inputs, concrete_side(own, side)) for side in (match.rule.source, match.rule.target))
    return source, target


def deviation(source: Graph, target: Graph, seed: int, device: torch.device) -> float:
    """Return the greatest difference of two graphs' outputs on equal inputs, relative to the source's magnitude.

    Operands are drawn twice: with both signs, where both sides may be NaN at the same places (an operand may be a
    variance), and all positive, where neither may. Any other NaN counts as an infinite difference.
    """
    generator = torch.Generator().manual_seed(seed)
    return max(_deviation(source, target, lowest, generator, device) for lowest in LOWEST.values())


def _deviation(source: Graph, target: Graph, lowest: float, generator: torch.Generator, device: torch.device) -> float:
    places = places_in((source, target), INTEGERS, lambda type_: type_.sizes)
    operands = [_random(node, lowest, places(node.value), generator).to(device) for node in source.inputs]
    worst = 0.0
    for before, after in zip(run_graph(source, operands), run_graph(target, operands), strict=True):
        before, after = before.double(), after.double()
        excused = before.isnan() & after.isnan() if lowest < 0 else torch.zeros_like(before, dtype=torch.bool)
        apart = (before - after).abs().masked_fill(excused, 0.0)
        if apart.numel():
            scale = max(LEAST, float(before.masked_fill(excused, 0.0).abs().max()))
            relative = float(apart.max()) / scale
            worst = max(worst, relative if math.isfinite(relative) else math.inf)
    return worst


def _random(node: Node, lowest: float, places: range, generator: torch.Generator) -> Tensor:
    (type_,) = node.types
    drawn = random_operand(type_, type_.sizes, lowest=lowest, places=places, generator=generator)
    return with_sign(drawn, sign_of(node.value)) if type_.dtype.is_floating else drawn


def first_mismatch(graph: Graph, trace: Trace, seed: int, device: torch.device) -> RegionError | BodyError | None:
    """Return the first step of a trace at which the two sides of the rule differ; None if there is none.

    Bodies of control flow are compared as wholes besides, before and after their steps.

    Raises:
        TasoError: the trace is of another graph, or has a step that cannot be taken.
    """
    steps = [*replay_steps(graph, trace)]
    bodies = [*replay_bodies(steps[-1][1] if steps else graph, trace)]
    matches = [match for match, _ in (*steps, *(step for body in bodies for step in body.steps))]
    wrong = next((region for region in check_regions(matches, seed, device) if not region.passed), None)
    compared = (body_error(one.body, one.graph, seed, device) for one in bodies)
    return wrong or next((error for error in compared if error is not None), None)
