"""The report of an optimization as an HTML page: what changed, why it is correct, and what was gained.

Invariant: this module only decides what to show and where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node
from taso_py.ir.operator import Constant, Input, Weight
from taso_py.report.chart import Scale, colours
from taso_py.report.difference import ChangedRegion, GraphDifference
from taso_py.report.drawing import Drawing, draw
from taso_py.report.optimization import Report
from taso_py.report.page import milliseconds, render
from taso_py.report.profile import Profile, RegionGroup
from taso_py.report.profile_page import BESIDES, Bar, RoofChart, agree, bars, lane_scale, legend, roof_chart
from taso_py.rules.substitution import Substitution

WHOLE = 24
"""Largest number of operators of graphs that are drawn as a whole; of larger ones, only changed regions are."""
MOST_PARTS = 12
"""Most changed regions that are drawn."""
MOST_NODES = 60
"""Most operators in a drawing of one side."""


@dataclass(frozen=True)
class OutputCheck:
    """Comparison of one output on one set of inputs."""

    form: str
    """``saved`` or ``as timed``: the saved form may be computed differently from the module that was timed and is
    returned."""
    output: int
    inputs: str
    error: float
    original_error: float
    allowed: float
    passed: bool


@dataclass(frozen=True)
class Evidence:
    """Evidence for a report."""

    difference: GraphDifference
    """Difference between the original's graph and the rewritten one."""
    rules: tuple[Substitution, ...]
    """The applied rules, each once, then those that lemmas among them follow from."""
    profiles: tuple[Profile, Profile] | None
    """Profiles before and after, if any were made."""
    outputs: tuple[OutputCheck, ...]
    trace: str
    bodies: tuple[GraphDifference, ...] = ()
    """Differences between bodies of control flow and their rewritten forms."""


@dataclass(frozen=True)
class DrawnChange:
    """Drawings of a changed region before and after."""

    before: Drawing
    after: Drawing
    count: int
    """Number of similar regions."""
    removed: int
    """Number of removed operators; the drawing shows at most `MOST_NODES`."""
    added: int
    """Number of added operators."""

    @property
    def is_cut(self) -> bool:
        """True if there are more operators than the drawing shows."""
        return max(self.removed, self.added) > MOST_NODES


@dataclass(frozen=True)
class AppliedRule:
    """Drawings of an applied rule."""

    rule: Substitution
    count: int
    before: Drawing
    after: Drawing


@dataclass(frozen=True)
class KindRow:
    """Times of one kind of operator before and after."""

    kind: str
    before: RegionGroup | None
    after: RegionGroup | None

    @property
    def ms(self) -> float:
        """The longer of the two times."""
        return max(self._times)

    @property
    def difference_ms(self) -> float:
        """The additional time after."""
        before, after = self._times
        return after - before

    @property
    def _times(self) -> tuple[float, float]:
        before, after = (side.ms if side else 0.0 for side in (self.before, self.after))
        return before, after


@dataclass(frozen=True)
class Lane:
    """Bars of a run from left to right."""

    name: str
    bars: tuple[Bar, ...]
    total_ms: float
    """Sum of its parts."""
    whole_ms: float
    """Latency end to end."""


@dataclass(frozen=True)
class Profiled:
    """Drawings and tables of the profiles before and after."""

    before: Profile
    after: Profile
    rows: Sequence[KindRow]
    longest_ms: float
    """The longest time of a row."""
    colours: Mapping[str, str]
    """The colour of each kind of operator."""
    legend: list[tuple[str, str]]
    """Names of kinds with their colours."""
    x: Scale
    """The axis of the lanes."""
    lanes: Sequence[Lane]
    agreement: str
    roofs: Sequence[RoofChart]
    """Rooflines before and after."""


def optimization_page(report: Report, evidence: Evidence) -> str:
    """Return the page of an optimization."""
    return render(
        "optimization.html",
        report=report,
        evidence=evidence,
        changes=[change for one in (evidence.difference, *evidence.bodies) for change in changes(one)],
        rules=[_applied(rule, report.applied.count(rule.id)) for rule in evidence.rules],
        slowest_ms=max(report.timed.values(), default=0.0) or 1.0,
        around=BESIDES,
        profiled=None if evidence.profiles is None else _profiled(report, evidence.profiles),
    )


def _profiled(report: Report, profiles: tuple[Profile, Profile]) -> Profiled:
    before, after = profiles
    rows = _kinds(before, after)
    kinds = colours([row.kind for row in rows])
    whole = (report.original_ms, report.optimized_ms)
    x = lane_scale(max(*whole, before.total_ms, after.total_ms))
    return Profiled(
        before,
        after,
        rows,
        longest_ms=max((row.ms for row in rows), default=0.0) or 1.0,
        colours=kinds,
        legend=legend(kinds),
        x=x,
        lanes=[
            Lane(name, tuple(bars(profile, x, kinds)), profile.total_ms, whole_ms)
            for name, profile, whole_ms in zip(("before", "after"), profiles, whole, strict=True)
        ],
        agreement=agreement(report, profiles),
        roofs=[roof_chart(profile.regions, profile.ceilings, kinds) for profile in profiles],
    )


def agreement(report: Report, profiles: tuple[Profile, Profile]) -> str:
    """Return text that compares the drawn operators' sum with the end-to-end latencies, and explains differences."""
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
        "the original is timed as it was given, including its own Python code, which is not drawn",
        "other programs on the machine may have slowed either down",
    ]
    if report.runtime != "eager":
        reasons.insert(0, f"the result runs in {report.runtime}, where operators cannot be timed one by one")
    return f"{text} The two differ, and the end-to-end times count: {'; '.join(reasons)}."


def changes(difference: GraphDifference) -> list[DrawnChange]:
    """Return drawings of the changed regions, similar ones once; of the whole graph if it is small."""
    before, after, found = difference.before, difference.after, difference.regions
    went, came = _state(difference.stayed.values(), "removed"), _state(difference.stayed, "added")
    if found and max(_size(before), _size(after)) <= WHOLE:
        removed, added = (sum(map(len, sides)) for sides in ([r.removed for r in found], [r.added for r in found]))
        return [
            DrawnChange(
                before=draw(before.nodes, went), after=draw(after.nodes, came), count=1, removed=removed, added=added
            )
        ]
    alike: dict[object, list[ChangedRegion]] = {}
    for region in found:
        alike.setdefault(region.kind, []).append(region)
    return [
        DrawnChange(
            before=draw(_around(same[0].removed, before), went),
            after=draw(_around(same[0].added, after), came),
            count=len(same),
            removed=len(same[0].removed),
            added=len(same[0].added),
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
    """Return the first of the nodes with their operands and readers, in the order of the graph."""
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
