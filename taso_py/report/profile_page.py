"""The profile as an HTML page: a timeline with memory, the roofline with every operator, tables.

Invariant: this module only computes positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from taso_py.report.chart import OTHER, Scale, colours, decades, short
from taso_py.report.page import milliseconds, render
from taso_py.report.profile import (
    PROFILER_COST,
    TOP,
    Ceilings,
    Duration,
    Profile,
    ProfiledRegion,
    mebibytes,
    share_of_roof,
)

BOUND_COLOURS: Mapping[str, str] = {name: f"var(--{name})" for name in ("compute", "memory", "overhead")}
BESIDES = ("inputs, outputs", "var(--around)")
"""Name and colour of the parts that are no operators."""
LETTERING = 24.0
"""Least distance between labeled lines of the roofline, in its units: the height of letters on a narrow screen."""
TOLERANCE = 1.15
"""Factor between two times that count as equal."""
ROOF_SIZE = (760.0, 430.0)
"""Width and height of the roofline, in units of its own."""


@dataclass(frozen=True)
class Bar:
    """A bar of a lane; positions are percentages of the lane."""

    x: float
    width: float
    colour: str
    title: str


@dataclass(frozen=True)
class Timeline:
    """A run from left to right."""

    x: Scale
    bars: tuple[Bar, ...]
    """Bars coloured by kind."""
    bounds: tuple[Bar, ...]
    """Bars coloured by bound."""
    curve: str
    """Memory in use as points of a polygon in a box of 100 by 100."""


@dataclass(frozen=True)
class Dot:
    """An operator on the roofline."""

    x: float
    y: float
    radius: float
    colour: str
    title: str


@dataclass(frozen=True)
class Roof:
    """A line of the roofline, with its name at its end."""

    points: tuple[float, float, float, float]
    name: str
    is_peak: bool


@dataclass(frozen=True)
class RoofChart:
    """The roofline, and the operators below it."""

    x: Scale
    y: Scale
    roofs: tuple[Roof, ...]
    dots: tuple[Dot, ...]
    width: float
    height: float

    @property
    def slope(self) -> float:
        """Angle of a bandwidth's line in degrees: one power of ten up for each to the right."""
        up, right = (abs(axis.end - axis.start) / math.log10(axis.high / axis.low) for axis in (self.y, self.x))
        return round(-math.degrees(math.atan2(up, right)), 1)


def profile_page(profile: Profile) -> str:
    """Return the page of a profile."""
    kinds = colours([one.kind for one in profile.kinds])
    return render(
        "profile.html",
        profile=profile,
        top=profile.bottlenecks[:TOP],
        colours=kinds,
        legend=legend(kinds),
        around=BESIDES,
        bound_colours=BOUND_COLOURS,
        timeline=timeline(profile, kinds),
        agreement=agreement(profile),
        roof=roof_chart(profile.regions, profile.ceilings, kinds),
    )


def agreement(profile: Profile) -> str:
    """Return text that compares the sum of the timeline with the latency at the top, and explains a difference."""
    drawn, whole = profile.total_ms, profile.whole.ms
    if profile.engine:
        return (
            f"What is drawn adds up to {milliseconds(drawn)} by the profiler of {profile.engine}, {PROFILER_COST}; a "
            f"whole run takes {milliseconds(profile.original.ms)} without it."
        )
    text = f"What is drawn adds up to {milliseconds(drawn)}; the median of whole runs is {milliseconds(whole)}."
    if agree(drawn, whole):
        return text
    return (
        f"{text} The two differ because the runs did: an interruption prolongs most whole runs but few runs of each "
        "operator. Profile again when the machine is at rest."
    )


def agree(one_ms: float, other_ms: float) -> bool:
    """Return whether two times are so close that their difference needs no explanation."""
    return one_ms <= other_ms * TOLERANCE and other_ms <= one_ms * TOLERANCE


def legend(kinds: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return names with their colours; all names without their own colour share one entry."""
    own = [(name, colour) for name, colour in kinds.items() if colour != OTHER]
    return own + ([("others", OTHER)] if OTHER in kinds.values() else [])


def timeline(profile: Profile, kinds: Mapping[str, str]) -> Timeline:
    """Return the timeline of a profile."""
    x = lane_scale(profile.total_ms)
    memory = Scale(0.0, max(profile.peak_bytes, 1), 100.0, 0.0)
    curve = [(x.start, memory.start)]
    for region in profile.regions:
        level = memory(region.live_bytes)
        curve += [(x(region.start_ms), level), (x(region.start_ms + region.time.ms), level)]
    curve.append((curve[-1][0], memory.start))
    return Timeline(
        x,
        tuple(bars(profile, x, kinds)),
        tuple(_bar(x, region, BOUND_COLOURS[region.bound]) for region in profile.regions),
        " ".join(f"{place},{level}" for place, level in curve),
    )


def lane_scale(longest_ms: float) -> Scale:
    """Return the axis of lanes: percentages of their width."""
    return Scale(0.0, max(longest_ms, 1e-9), 0.0, 100.0)


def bars(profile: Profile, x: Scale, kinds: Mapping[str, str]) -> Iterator[Bar]:
    """Yield bars for inputs, outputs and regions of a run."""
    for name, start, time in (
        ("input preparation", 0.0, profile.input),
        ("output", profile.total_ms - profile.output.ms, profile.output),
    ):
        yield Bar(x(start), _width(x, start, time), BESIDES[1], f"{name}\n{time.text}")
    for region in profile.regions:
        yield _bar(x, region, kinds[region.kind])


def _bar(x: Scale, region: ProfiledRegion, colour: str) -> Bar:
    return Bar(x(region.start_ms), _width(x, region.start_ms, region.time), colour, title(region))


def _width(x: Scale, start_ms: float, time: Duration) -> float:
    """Return the width of a bar, which is visible however short the time is."""
    return max(round(x(start_ms + time.ms) - x(start_ms), 2), 0.03)


def title(region: ProfiledRegion) -> str:
    """Return the tooltip of a region."""
    place = " ".join(part for part in (region.line, region.module) if part)
    return (
        f"{region.kind}  {region.types}\n{place}\n{region.time.text}, {region.bound}-bound, "
        f"{share_of_roof(region.achieved)} of the roofline\n"
        f"{short(region.flops or 0)}FLOP, {mebibytes(region.moved_bytes)} moved"
        + (f", {mebibytes(region.live_bytes)} in use" if region.live_bytes else "")
    )


def roof_chart(regions: tuple[ProfiledRegion, ...], ceilings: Ceilings, kinds: Mapping[str, str]) -> RoofChart:
    """Return the roofline with the operators that compute, by operations per byte and per second."""
    computing = [region for region in regions if region.flops and region.moved_bytes and region.time.ms > 0]
    peak = max(ceilings.peaks.values(), default=0.0)
    fastest = max(rate for _, rate in ceilings.levels)
    ridge = peak / ceilings.levels[-1][1] if peak else 1.0
    width, height = ROOF_SIZE
    x = Scale(*decades([*(region.intensity for region in computing), ridge, ridge / 100]), 84.0, width - 20, True)
    y = Scale(*decades([*(region.rate for region in computing), peak or fastest]), height - 60, 45.0, True)
    longest = max((region.time.ms for region in computing), default=1.0)
    dots = tuple(
        Dot(
            x=x(region.intensity), y=y(region.rate), radius=round(2.5 + 8 * (region.time.ms / longest) ** 0.5, 1),
            colour=kinds[region.kind], title=title(region),
        )
        for region in sorted(computing, key=lambda region: -region.time.ms)
    )  # fmt: skip
    return RoofChart(x=x, y=y, roofs=tuple(_roofs(ceilings, x, y)), dots=dots, width=width, height=height)


def _roofs(ceilings: Ceilings, x: Scale, y: Scale) -> Iterator[Roof]:
    top = max(ceilings.peaks.values(), default=y.high)
    for dtype, peak in ceilings.peaks.items():
        yield Roof((x.start, y(peak), x.end, y(peak)), f"{short(peak)}FLOP/s {dtype}", True)
    apart = (y.high / y.low) ** (LETTERING / (y.start - y.end))
    drawn: float | None = None
    for size, rate in reversed(ceilings.levels):
        if drawn is not None and rate < drawn * apart:
            continue  # its label would overlap the previous one
        name = f"{short(rate)}B/s " + ("memory" if drawn is None else f"up to {mebibytes(size)}")
        drawn = rate
        left, right = max(x.low, y.low / rate), min(x.high, min(top, y.high) / rate)
        if left < right:
            yield Roof((x(left), y(left * rate), x(right), y(right * rate)), name, False)
