"""The report of an optimization as a page: what changed and why that is allowed, and what it brought.

Invariant: nothing is computed here but what to show and where to draw it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node
from taso_py.ir.operator import Constant, Input, Weight
from taso_py.report.chart import colours
from taso_py.report.difference import Difference, Region
from taso_py.report.drawing import Drawing, draw
from taso_py.report.optimization import Report
from taso_py.report.page import milliseconds, render
from taso_py.report.profile import Profile, Summed
from taso_py.report.profile_page import BESIDES, Bar, agree, bars, lane_scale, legend, roof_chart
from taso_py.rules.substitution import Substitution

WHOLE = 24
"""A graph of so many operators is drawn whole; of larger ones, the changed parts with what is around them."""
MOST_PARTS = 12
"""How many different changed parts are drawn."""
MOST_NODES = 60
"""How many operators a drawing shows at most on a side."""


@dataclass(frozen=True)
class OutputCheck:
    """One output compared on one set of inputs."""

    form: str
    """``saved`` or ``as timed``: what is saved may be computed otherwise than what was timed and is returned."""
    output: int
    inputs: str
    error: float
    original_error: float
    allowed: float
    passed: bool


@dataclass(frozen=True)
class Evidence:
    """What a report rests on."""

    difference: Difference
    """Between the original's graph and that which the rules lead to."""
    rules: tuple[Substitution, ...]
    """Those that were applied, each once."""
    profiles: tuple[Profile, Profile]
    """Before and after."""
    outputs: tuple[OutputCheck, ...]
    trace: str


@dataclass(frozen=True)
class Change:
    """A part that changed, drawn."""

    before: Drawing
    after: Drawing
    count: int
    """How many parts of the graph changed alike."""
    removed: int
    """How many operators went; the picture shows `MOST_NODES` at most."""
    added: int
    """How many came."""

    @property
    def is_cut(self) -> bool:
        """Whether there are more operators than the picture shows."""
        return max(self.removed, self.added) > MOST_NODES


@dataclass(frozen=True)
class AppliedRule:
    """A rule, drawn."""

    rule: Substitution
    count: int
    before: Drawing
    after: Drawing


@dataclass(frozen=True)
class KindRow:
    """A kind of operator before and after."""

    kind: str
    before: Summed | None
    after: Summed | None

    @property
    def ms(self) -> float:
        """The longer of the two times."""
        return max(self._times)

    @property
    def difference_ms(self) -> float:
        """What it takes longer after than before."""
        before, after = self._times
        return after - before

    @property
    def _times(self) -> tuple[float, float]:
        before, after = (side.ms if side else 0.0 for side in (self.before, self.after))
        return before, after


@dataclass(frozen=True)
class Lane:
    """A run, drawn from left to right."""

    name: str
    bars: tuple[Bar, ...]
    total_ms: float
    """Of its parts."""
    whole_ms: float
    """The latency end to end."""


def optimization_page(report: Report, evidence: Evidence) -> str:
    """The page of an optimization."""
    rows = _kinds(*evidence.profiles)
    kinds = colours([row.kind for row in rows])
    whole = (report.original_ms, report.optimized_ms)
    x = lane_scale(max(*whole, *(profile.total_ms for profile in evidence.profiles)))
    return render(
        "optimization.html",
        report=report,
        evidence=evidence,
        changes=changes(evidence.difference),
        rules=[_applied(rule, report.applied.count(rule.id)) for rule in evidence.rules],
        rows=rows,
        longest_ms=max((row.ms for row in rows), default=0.0) or 1.0,
        slowest_ms=max(report.timed.values(), default=0.0) or 1.0,
        colours=kinds,
        legend=legend(kinds),
        around=BESIDES,
        x=x,
        lanes=[
            Lane(name, tuple(bars(profile, x, kinds)), profile.total_ms, whole_ms)
            for name, profile, whole_ms in zip(("before", "after"), evidence.profiles, whole, strict=True)
        ],
        agreement=agreement(report, evidence.profiles),
        roofs=[roof_chart(profile.regions, profile.ceilings, kinds) for profile in evidence.profiles],
    )


def agreement(report: Report, profiles: tuple[Profile, Profile]) -> str:
    """What the runs that are drawn add up to beside the latencies end to end and, where the two differ, why."""
    drawn = [profile.total_ms for profile in profiles]
    whole = [report.original_ms, report.optimized_ms]
    ratio = drawn[0] / drawn[1] if drawn[1] else 1.0
    text = (
        f"The operators that are drawn add up to {milliseconds(drawn[0])} before and {milliseconds(drawn[1])} after, "
        f"{ratio:.2f}x. End to end, the original takes {milliseconds(whole[0])} and the result "
        f"{milliseconds(whole[1])}; the speed-up is {'withheld' if report.withheld else f'{report.speedup:.2f}x'}."
    )
    if all(map(agree, drawn, whole)) and agree(ratio, report.speedup):
        return text
    reasons = [
        "the original is timed as it was given, with its own Python, which is not drawn",
        "other programs on the machine may have slowed either down",
    ]
    if report.runtime != "eager":
        reasons.insert(0, f"the result runs in {report.runtime}, where operators have no times of their own")
    return f"{text} The two differ, and the latter counts: {'; '.join(reasons)}."


def changes(difference: Difference) -> list[Change]:
    """The changed parts, alike ones once; a small graph as a whole."""
    before, after, found = difference.before, difference.after, difference.regions
    went, came = _state(difference.stayed.values(), "removed"), _state(difference.stayed, "added")
    if found and max(_size(before), _size(after)) <= WHOLE:
        removed, added = (sum(map(len, sides)) for sides in ([r.removed for r in found], [r.added for r in found]))
        return [Change(draw(before.nodes, went), draw(after.nodes, came), 1, removed, added)]
    alike: dict[object, list[Region]] = {}
    for region in found:
        alike.setdefault(region.kind, []).append(region)
    return [
        Change(
            draw(_around(same[0].removed, before), went),
            draw(_around(same[0].added, after), came),
            len(same),
            len(same[0].removed),
            len(same[0].added),
        )
        for same in islice(alike.values(), MOST_PARTS)
    ]


def _state(stayed: Iterable[Node], otherwise: str) -> Callable[[Node], str]:
    kept = set(stayed)

    def state(node: Node) -> str:
        if isinstance(node.op, Input):
            return "outside"
        return "same" if node in kept else otherwise

    return state


def _size(graph: Graph) -> int:
    return sum(not isinstance(node.op, Input | Weight | Constant) for node in graph.nodes)


def _around(nodes: Sequence[Node], graph: Graph) -> list[Node]:
    """The nodes, as far as they fit, with what they read and what reads them, in the order of the graph."""
    shown = set(nodes[:MOST_NODES])
    beside = {value.node for node in shown for value in node.inputs} | {u for node in shown for u in graph.users[node]}
    return [node for node in graph.nodes if node in shown or node in beside]


def _applied(rule: Substitution, count: int) -> AppliedRule:
    source, target = Graph((), rule.source.outputs), Graph((), rule.target.outputs)
    return AppliedRule(
        rule,
        count,
        draw(source.nodes, _state((), "removed")),
        draw(target.nodes, _state((), "added")),
    )


def _kinds(before: Profile, after: Profile) -> list[KindRow]:
    sides = [{one.kind: one for one in profile.kinds} for profile in (before, after)]
    names = dict.fromkeys([*sides[0], *sides[1]])
    rows = [KindRow(name, sides[0].get(name), sides[1].get(name)) for name in names]
    return sorted(rows, key=lambda row: -row.ms)
