"""Following a trace instead of searching: the graph that it leads to, in the form of a search result.

Invariant: every step is of a rule that was given; the trace's own text of the rule is not trusted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from taso_py.ir.graph import Graph
from taso_py.rules.ruleset import RuleSet
from taso_py.rules.substitution import Substitution
from taso_py.search.cost import Cost, static_bytes
from taso_py.search.result import Candidate, Limits, SearchResult, SearchStop
from taso_py.search.trace import Trace, TraceError, replay_bodies, replay_steps


def follow(graph: Graph, trace: Trace, rules: Iterable[Substitution], cost: Cost, limits: Limits) -> SearchResult:
    """Return the graph that a trace leads to, together with the original, as a search result.

    Args:
        graph: the original.
        trace: the trace to follow.
        rules: the rules that may be applied.
        cost: gives the costs of graphs.
        limits: the limits on the result: growth and numerics.

    Raises:
        TraceError: the trace is of another graph, or has a step that cannot be taken or is not allowed.
    """
    start = time.monotonic()
    allowed = RuleSet.of(rules)
    steps = tuple(replay_steps(graph, trace, allowed))
    bodies = tuple(replay_bodies(steps[-1][1] if steps else graph, trace, allowed))
    matches = [match for match, _ in (*steps, *(step for body in bodies for step in body.steps))]
    refused = next((match for match in matches if not limits.allows(match)), None)
    if refused is not None:
        raise TraceError(
            f"the numerics class {refused.rule.numerics.name.lower()} of {refused.rule.id} is above the cap"
        )
    ends: list[tuple[Graph, Trace | None]] = [(graph, None)]
    if matches:
        ends.append((bodies[-1].outer if bodies else steps[-1][1], trace))
    original, *followed = (
        Candidate(
            graph,
            end,
            cost.graph_cost(end),
            static_bytes=static_bytes(cost, end),
            applied=taken.applied if taken else (),
            steps=steps if taken else (),
            bodies=taken.bodies if taken else (),
        )
        for end, taken in ends
    )
    if followed and followed[0].static_bytes > limits.most_bytes(original.static_bytes):
        raise TraceError(f"the result would store more than {limits.growth} times the weights")
    candidates = (*followed, original)
    return SearchResult(
        original, candidates, SearchStop.FOLLOWED, expansions=0, built=len(matches), seconds=time.monotonic() - start
    )


def add_followed(
    found: SearchResult, trace: Trace, rules: Iterable[Substitution], cost: Cost, limits: Limits
) -> SearchResult:
    """Return a search result with the graph that a trace leads to added, if it can be followed and is new.

    It does not displace another candidate, since its cost does not decide whether it is timed. The arguments are those
    of :func:`follow`.
    """
    try:
        followed = follow(found.original.graph, trace, rules, cost=cost, limits=limits).candidates[0]
    except TraceError:
        return found
    if any(candidate.graph == followed.graph for candidate in found.candidates):
        return found
    ordered = sorted([*found.candidates, followed], key=lambda candidate: candidate.seconds)
    return replace(found, candidates=tuple(ordered))
