"""The page of a profile: whole by itself, with everything that is known, and nothing of a model's text unescaped."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from taso_py.report.chart import OTHER, PALETTE, Scale, colours, decades, short
from taso_py.report.profile import Ceilings, Duration, Profile, ProfiledRegion
from taso_py.report.profile_page import BESIDES, BOUND_COLOURS, profile_page, roof_chart, timeline
from tests.report.pages import problems, text_of


def region(kind: str, start: float, ms: float, module: str, **changes: Any) -> ProfiledRegion:
    made = ProfiledRegion(
        kind=kind, operators=(kind,), calls=(f"aten.{kind}.default",), types="f32[2,3] -> f32[2,3]",
        line=f"mine.py:7: y = {kind}(x)", module=module, start_ms=start, time=Duration(ms, 0.9 * ms, 1.2 * ms),
        isolated_ms=0.8 * ms, flops=10**6, moved_bytes=10**5, dtype="f32", bound="compute", ceiling_ms=0.5 * ms,
        live_bytes=2**20,
    )  # fmt: skip
    return replace(made, **changes)


AROUND = Duration(0.1, 0.1, 0.2)
PROFILE = Profile(
    model="zoo:<b>mine</b>", device="cpu", original=Duration(7.0, 6.9, 7.5), whole=Duration(6.0, 5.9, 6.5),
    input=AROUND, output=AROUND,
    regions=(
        region("linear", 0.1, 3.0, "layers.0.dense", live_bytes=3 * 2**20),
        region("relu", 3.1, 0.5, "layers.0", bound="memory", ceiling_ms=0.1),
        region("linear", 3.6, 2.0, "layers.1.dense"),
        region("reshape", 5.6, 0.01, "layers.1", flops=0, moved_bytes=0, bound="overhead"),
        region("aten.cumsum.default", 5.61, 0.2, "", flops=None, bound="memory", isolated_ms=None),
    ),
    ceilings=Ceilings({"f32": 1e11}, ((2**20, 2e11), (2**30, 1e10)), 0.002),
    rounds=9, mark_ms=0.0001, busy_ms=None, peak_bytes=3 * 2**20, weight_bytes=2**22, input_bytes=24,
    environment={"device": "cpu", "device_name": "A & B", "torch_version": "2.13.0"}, notes=("busy",),
)  # fmt: skip


def test_the_page_is_whole_by_itself() -> None:
    assert problems(profile_page(PROFILE)) == []


@pytest.mark.parametrize(
    ("hurt", "problem"),
    [
        ('<script src="https://a/b.js"></script>', "script"),
        ('<img src="x.png">', "reaches outside"),
        ('<p style="background:url(x)">a</p>', "reaches outside"),
        ("<p><b>a</p></b>", "closes something else"),
        ("<p>a", "never closed"),
    ],
)
def test_what_a_page_must_not_have_is_noticed(hurt: str, problem: str) -> None:
    assert any(problem in found for found in problems(profile_page(PROFILE).replace("</main>", f"{hurt}</main>")))


def test_the_page_says_what_is_known() -> None:
    page = profile_page(PROFILE)
    text = text_of(page)
    for part in (
        "Profile of zoo:<b>mine</b>", "A & B", "mine.py:7: y = linear(x)", "layers.*.dense", "3.0 MiB", "6.00 ms",
        "100 GFLOP/s f32", "10 GB/s memory", "5 operators in the order of the run", "Note: busy.",
    ):  # fmt: skip
        assert part in text, part
    assert "<b>mine" not in page


def test_a_page_of_nothing_is_a_page() -> None:
    empty = replace(PROFILE, regions=(), peak_bytes=0, ceilings=Ceilings({}, ((2**20, 1e10),), 0.002))
    assert problems(profile_page(empty)) == []


def test_a_roofline_without_arithmetic_is_that_of_memory() -> None:
    assert dict(PROFILE.facts)["roofline"].startswith("100 GFLOP/s f32; 10.0 GB/s from memory; it allows ")
    moves = replace(PROFILE, ceilings=Ceilings({}, ((2**20, 1e10),), 0.002))
    assert dict(moves.facts)["roofline"].startswith("10.0 GB/s from memory; it allows ")


def test_what_is_no_operator_is_bound_by_nothing() -> None:
    drawn = timeline(PROFILE, colours([one.kind for one in PROFILE.kinds]))
    assert [bar.colour for bar in drawn.bars[:2]] == [BESIDES[1]] * 2
    assert [bar.x for bar in drawn.bounds] == [bar.x for bar in drawn.bars[2:]]
    assert [bar.colour for bar in drawn.bounds] == [BOUND_COLOURS[region.bound] for region in PROFILE.regions]
    assert BESIDES[1] not in {*PALETTE, OTHER, *BOUND_COLOURS.values()}
    assert BESIDES[0] in text_of(profile_page(PROFILE))


def test_a_timeline_that_adds_up_to_another_time_than_the_headline_says_so() -> None:
    assert "The two differ" not in text_of(profile_page(PROFILE))
    busy = replace(PROFILE, whole=Duration(173.0, 158.0, 251.0))
    assert "What is drawn adds up to 5.91 ms; the median of whole runs is 173 ms. The two differ" in text_of(
        profile_page(busy)
    )


def test_lines_of_alike_modules_are_one_bottleneck() -> None:
    first = PROFILE.bottlenecks[0]
    assert (first.kind, first.module, first.count, first.ms) == ("linear", "layers.*.dense", 2, 5.0)
    assert first.achieved == 0.5
    assert first.share == pytest.approx(5.0 / 5.91)
    assert PROFILE.bounds == {"compute": 5.0, "memory": 0.7, "overhead": 0.01}


def test_operators_whose_lines_are_not_known_are_told_apart_by_their_types() -> None:
    regions = [
        region("linear", 0.1, 1.0, "", line=f"node linear_{place}", types=types) for place, types in enumerate("aab")
    ]
    rows = replace(PROFILE, regions=tuple(regions)).bottlenecks
    assert [(row.count, row.place) for row in rows] == [(2, "a"), (1, "node linear_2  b")]


def test_the_json_form_has_numbers_only_where_they_are_finite() -> None:
    document = json.loads(json.dumps(PROFILE.as_dict(), allow_nan=False))
    assert document["bottlenecks"][0]["kind"] == "linear"
    assert document["regions"][0]["achieved"] == 0.5
    assert document["regions"][4]["flops"] is None


def test_the_summary_names_the_bottlenecks() -> None:
    console = Console(width=200, record=True, file=None, quiet=False, force_terminal=False)
    with console.capture() as captured:
        console.print(PROFILE)
    text = captured.get()
    assert "mine.py:7: y = linear(x)" in text
    assert "compute-bound" in text


def test_the_summary_fits_a_terminal() -> None:
    console = Console(width=80, force_terminal=False)
    with console.capture() as captured:
        console.print(PROFILE)
    lines = captured.get().splitlines()
    (header,) = (line for line in lines if line.startswith("bottleneck"))
    assert header.endswith("of roof")
    assert sum(line.endswith("%") and line.startswith("linear") for line in lines) >= 2


def test_bars_follow_each_other_and_stay_inside() -> None:
    kinds = colours([one.kind for one in PROFILE.kinds])
    drawn = timeline(PROFILE, kinds)
    _, _, *bars = drawn.bars
    assert [bar.x for bar in bars] == sorted(bar.x for bar in bars)
    assert bars[0].width == pytest.approx(bars[2].width * 1.5, rel=0.01)
    assert all(drawn.x.start <= bar.x <= bar.x + bar.width <= drawn.x.end + 0.03 for bar in drawn.bars)


def test_dots_lie_under_their_roof_by_what_they_achieve() -> None:
    chart = roof_chart(PROFILE.regions, PROFILE.ceilings, colours(["linear", "relu"]) | {"aten.cumsum.default": OTHER})
    assert len(chart.dots) == 3  # views, and what has no known number of operations, have no place
    peak = next(roof for roof in chart.roofs if roof.is_peak)
    assert all(dot.y > peak.points[1] for dot in chart.dots)
    assert [roof.name for roof in chart.roofs] == ["100 GFLOP/s f32", "10 GB/s memory", "200 GB/s up to 1.0 MiB"]


def test_scales() -> None:
    linear = Scale(0.0, 10.0, 100.0, 200.0)
    assert [linear(value) for value in (-1.0, 0.0, 5.0, 10.0, 11.0)] == [100.0, 100.0, 150.0, 200.0, 200.0]
    assert linear.ticks == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    logarithmic = Scale(1.0, 100.0, 0.0, 100.0, True)
    assert [logarithmic(value) for value in (0.0, 1.0, 10.0, 100.0)] == [0.0, 0.0, 50.0, 100.0]
    assert logarithmic.ticks == [1.0, 10.0, 100.0]
    assert decades([0.0, 3.0, 250.0]) == (1.0, 1000.0)
    assert decades([]) == (1.0, 10.0)


def test_colours_and_numbers() -> None:
    names = [f"kind {number}" for number in range(len(PALETTE) + 2)]
    assert [*colours(names).values()] == [*PALETTE, OTHER, OTHER]
    assert [short(value) for value in (0.5, 1500.0, 2.5e9, 3e12)] == ["0.5 ", "1.5 k", "2.5 G", "3 T"]


def test_more_of_the_roof_than_all_of_it_is_not_told() -> None:
    """The roofline was measured, on a machine that may have been busy."""
    possible, impossible = (region("linear", 0.1, 1.0, "layers.0", ceiling_ms=share) for share in (1.05, 4.1))
    for made, told in ((possible, "105%"), (impossible, "?")):
        profile = replace(PROFILE, regions=(made,))
        console = Console(width=120, file=io.StringIO(), record=True)
        console.print(profile)
        printed = console.export_text()
        assert [line.split()[-1] for line in printed.splitlines() if line.startswith("linear")] == [told, told]
        assert "410%" not in printed
        assert "410%" not in text_of(profile_page(profile))
        (entry,) = profile.as_dict()["regions"]
        assert (entry["achieved"] is None) == (told == "?")
