"""Bodies of control flow, optimized as graphs of their own.

How often a loop runs is not known, and which branch is taken neither. So a body is rewritten wherever its own predicted
time falls, by the rules of the search of the outer graph. The prices are those of the engine, in PyTorch those of its
own calls: a compiler of the saved form has to trace them. Whether the whole is any faster, the race decides.

    graph ---- search ----> candidates ------------------+
      |                                                  +--> candidates, each also with its bodies rewritten
      +-- bodies -- search, comparison --> rewritings ---+

Invariant: a rewritten body has been compared with the original one alone; a body that has effects, but for control flow
that surely ends, or that gains nothing, stays as it was captured. So do the bodies inside of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from taso_py.checking.bodies import body_error
from taso_py.cost.model import CostModel
from taso_py.ir.graph import Graph
from taso_py.ops.nested import ControlFlow
from taso_py.rules.match import Matcher
from taso_py.search.bodies import Body
from taso_py.search.cost import static_bytes
from taso_py.search.result import Candidate, Limits, SearchResult, SearchStop
from taso_py.search.strategies import search
from taso_py.search.trace import BodyTrace


@dataclass(frozen=True)
class BodyPlace:
    """Where a body is in a graph, and in every graph that a search makes of it."""

    effect: int
    """The number of its node among the effects."""
    place: int
    """The number of the body among the node's."""


@dataclass(frozen=True)
class Rewriting:
    """A body and its rewritten form."""

    where: BodyPlace
    operator: str
    found: Candidate
    """From the body's own graph to the one that replaces it."""
    seconds: tuple[float, float]
    """The predicted times of a call of the body before and after."""

    @property
    def name(self) -> str:
        """The operator as users know it."""
        return self.operator.removeprefix("higher_order.").removesuffix("_impl")


def body_places(graph: Graph) -> list[BodyPlace]:
    """Return the places of all bodies in a graph."""
    flows = ((number, ControlFlow.of(node)) for number, node in enumerate(graph.effects))
    return [BodyPlace(number, place) for number, flow in flows if flow for place in range(len(flow.bodies))]


@dataclass(frozen=True)
class BodySearch:
    """The search of a graph's bodies."""

    rules: Matcher
    cost: CostModel
    """The prices of bodies."""
    strategy: str
    limits: Limits
    """The limits of the search of each body."""
    seed: int
    """The seed of the operands on which bodies are compared."""

    def add_to(self, found: SearchResult) -> SearchResult:
        """Return the result of the search of an outer graph with bodies rewritten.

        Every candidate has them; the original and the best of the others are there without them too.
        """
        graph = found.original.graph
        places, notes = body_places(graph), list[str]()
        rewritings, results = list[Rewriting](), list[SearchResult]()
        for where in places:
            body = Body.of(graph.effects[where.effect], where.place)
            if SearchStop.INTERRUPTED in [result.stop_reason for result in (found, *results)]:
                break
            if body is None:
                continue
            self.cost.warm(body.graph)
            results.append(search(body.graph, self.rules, self.cost, self.strategy, self.limits, progress=False))
            rewriting = self._best(body, where, results[-1], notes)
            rewritings += [] if rewriting is None else [rewriting]
        most = self.limits.most_bytes(found.original.static_bytes)
        changed = [one for candidate in found.candidates if (one := self._with(candidate, rewritings, most))]
        best = next((candidate for candidate in found.candidates if candidate.applied), None)
        others = (found.original,) if best is None else (best, found.original)
        return replace(
            found,
            candidates=(*changed, *others) if changed else found.candidates,
            expansions=found.expansions + sum(result.expansions for result in results),
            built=found.built + sum(result.built for result in results),
            seconds=found.seconds + sum(result.seconds for result in results),
            notes=(*found.notes, *([_note(rewritings, len(places))] if changed else []), *notes),
        )

    def _best(self, body: Body, where: BodyPlace, result: SearchResult, notes: list[str]) -> Rewriting | None:
        """Return the fastest rewritten form of a body that computes the same; None if none is faster."""
        rewritten = [candidate for candidate in result.candidates if candidate.applied]
        priced = [(self.cost.graph_cost(body.laid_out(candidate.graph)), candidate) for candidate in rewritten]
        before_s = result.original.seconds
        for after_s, candidate in sorted(priced, key=lambda one: one[0]):
            if not (math.isfinite(before_s) and after_s < before_s):
                break
            wrong = body_error(body, candidate.graph, self.seed, self.cost.device)
            if wrong is None:
                return Rewriting(where, body.flow.op.target, candidate, (before_s, after_s))
            notes.append(f"refused a rewritten body: {wrong}")
        return None

    def _with(self, candidate: Candidate, rewritings: Sequence[Rewriting], most: float) -> Candidate | None:
        """Return a candidate with its bodies rewritten, as far as it may store what that takes; None if none is."""
        graph, bodies, applied = candidate.graph, list(candidate.bodies), list(candidate.applied)
        for rewriting in () if bodies else rewritings:
            node = graph.effects[rewriting.where.effect]
            body = Body.of(node, rewriting.where.place)
            if body is None or body.graph.digest != rewriting.found.original.digest:
                continue
            after, _ = body.put_back(graph, rewriting.found.graph)
            if static_bytes(self.cost, after) > most:
                continue
            graph = after
            bodies.append(BodyTrace(node.digest, rewriting.where.place, rewriting.found.trace, after.digest))
            applied += rewriting.found.applied
        if not bodies:
            return None
        stored = static_bytes(self.cost, graph)
        return replace(candidate, graph=graph, static_bytes=stored, applied=tuple(applied), bodies=tuple(bodies))


def _note(rewritings: Sequence[Rewriting], count: int) -> str:
    """Return the note on rewritten bodies, with their predicted gains."""
    pairs = [(one.name, *(f"{seconds * 1e3:.3g}" for seconds in one.seconds)) for one in rewritings]
    told = ", ".join(f"{name} {before} -> {after} ms" for name, before, after in pairs)
    return f"{len(rewritings)} of {count} bodies of control flow were rewritten for the race; predicted, a call: {told}"
