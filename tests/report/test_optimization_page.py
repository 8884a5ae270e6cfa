"""The page of an optimization: whole by itself, with what changed, the rules, and the evidence."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from taso_py.checking.compare import OutputComparison
from taso_py.driver.evidence import _check
from taso_py.ops.table import parse_graph
from taso_py.report.difference import difference
from taso_py.report.optimization import Report, Speedup
from taso_py.report.optimization_page import Evidence, OutputCheck, agreement, optimization_page
from taso_py.report.page import milliseconds
from taso_py.rules.lemma import LEMMA
from taso_py.rules.text import read_rules
from tests.report.pages import problems, text_of
from tests.report.test_difference import MERGE, TWICE, applied
from tests.report.test_profile_page import PROFILE, region

REPORT = Report(
    model="mine.py:<i>model</i>", device="cpu", runtime="eager", original_ms=2.0, optimized_ms=1.0, speedup=2.0,
    speedup_low=1.9, speedup_high=2.1, rules_speedup=Speedup(1.5, 1.4, 1.6), applied=(MERGE.id, MERGE.id), error=1e-7,
    original_error=2e-7, comparison_passed=True, stop_reason="done", search_seconds=0.1, expansions=1, candidates=2,
    estimated_ms=(2.0, 1.0), operators=(7, 11), weight_bytes=(2**20, 2**20), rounds=9, kernels={"oneDNN linear": 3},
    timed={"original": 2.0, "2 rules applied, eager": 1.0}, environment={"device_name": "A & B"}, notes=("a note",),
)  # fmt: skip
AFTER = replace(PROFILE, regions=(*PROFILE.regions[:2], region("linear+relu", 3.6, 0.4, "layers.1")))
EVIDENCE = Evidence(
    difference=applied(TWICE), rules=(MERGE,), profiles=(PROFILE, AFTER),
    outputs=(
        OutputCheck("saved", 0, "example", 1e-7, 2e-7, 1e-6, True),
        OutputCheck("as timed", 1, "random x10", 1e-3, 2e-7, 1e-6, False),
    ),
    trace="trace 0 {}",
)  # fmt: skip


def _printed(report: Report, width: int = 80) -> list[str]:
    """The lines of the summary."""
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(report, crop=False)
    return captured.get().splitlines()


def test_the_page_is_whole_by_itself() -> None:
    page = optimization_page(REPORT, EVIDENCE)
    assert problems(page) == []
    assert "<i>model" not in page


def test_a_page_without_profiles_says_how_to_make_them() -> None:
    page = optimization_page(replace(REPORT, peak_bytes=(3 * 2**20, 2**20)), replace(EVIDENCE, profiles=None))
    assert problems(page) == []
    text = text_of(page)
    for part in ("2.00x", "taso-py profile does so", "2 rules applied, eager", "1.0 MiB was 3.0 MiB"):
        assert part in text
    assert "Roofline" not in text
    assert "not measured" in text_of(optimization_page(REPORT, replace(EVIDENCE, profiles=None)))


def test_the_page_says_what_is_known() -> None:
    text = text_of(optimization_page(REPORT, EVIDENCE))
    for part in (
        "Optimization of mine.py:<i>model</i>", "2.00x", "1.900 to 2.100 at 95%", "Note: a note.", "oneDNN linear",
        "4 operators removed, 8 added", f"{MERGE.id} × 2", "numerics: reorder", "linear(x, concat(a, b){axis=-2})",
        "linear+relu", "2 rules applied, eager", "saved 0 example", "as timed 1 random x10", "passed",
        "failed", "1.00 ms was 2.00 ms", "inputs, outputs", "trace 0 {}", "A & B",
    ):  # fmt: skip
        assert part in text, part


@pytest.mark.parametrize(("estimated_ms", "is_told"), [((2.0, 1.0), True), ((math.inf, math.inf), False)])
def test_latencies_that_the_engine_does_not_have_are_not_summed(
    estimated_ms: tuple[float, float], is_told: bool
) -> None:
    report = replace(REPORT, estimated_ms=estimated_ms)
    assert any(line.startswith("predicted") for line in _printed(report)) == is_told
    assert ("sum of operator latencies" in text_of(optimization_page(report, EVIDENCE))) == is_told


@pytest.mark.parametrize("memory_bytes", [3 * 2**20, None])
def test_what_weights_take_in_memory_is_said_where_it_is_known(memory_bytes: int | None) -> None:
    report = replace(REPORT, memory_bytes=memory_bytes)
    line = next((line for line in _printed(report) if line.startswith("  in memory")), None)
    is_known = memory_bytes is not None
    assert (line is not None and line.split()[2:6] == ["1.0", "MiB", "3.0", "MiB"]) == is_known
    assert ("in memory 3.0 MiB" in text_of(optimization_page(report, EVIDENCE))) == is_known


def test_numbers_of_the_summary_stay_whole_in_a_narrow_terminal() -> None:
    def row(name: str, width: int) -> str:
        return next(line for line in _printed(REPORT, width) if line.startswith(name))

    assert row("latency", 40).split()[1:] == [
        "2.000",
        "ms",
        "1.000",
        "ms",
        "2.000x",
        "1.900",
        "to",
        "2.100",
        "(95%",
        "sure)",
    ]
    assert [row(name, 40) for name in ("weights", "error")] == [row(name, 80) for name in ("weights", "error")]


def test_latencies_are_told_apart_however_short_they_are() -> None:
    text = text_of(optimization_page(replace(REPORT, original_ms=0.0301, optimized_ms=0.0199), EVIDENCE))
    assert "0.0199 ms was 0.0301 ms" in text
    shown = [milliseconds(time) for time in (1234.5, 123.4, 12.34, 0.001234, 0.0, math.inf)]
    assert shown == ["1234 ms", "123 ms", "12.3 ms", "0.00123 ms", "0.00 ms", "inf ms"]


def test_what_is_saved_and_what_was_timed_are_told_apart() -> None:
    """By what they say of themselves, in whichever order they come."""
    saved = OutputComparison(0, "example", 0.0, 0.0, 1e-6)
    timed = OutputComparison(1, "example", 0.0, 0.0, 1e-6, as_timed=True)
    checks = [_check(compared) for compared in (timed, saved, saved)]
    assert [(check.form, check.output) for check in checks] == [("as timed", 1), ("saved", 0), ("saved", 0)]


def test_the_page_says_what_a_lemma_is_and_what_it_follows_from() -> None:
    lemma = replace(MERGE, proof=LEMMA)
    (given,) = read_rules("rule x: float[A,B] source relu(relu(x)) target relu(x) proof index")
    text = text_of(optimization_page(REPORT, replace(EVIDENCE, rules=(lemma, given))))
    assert f"{lemma.id} × 2 A lemma: it follows from the last of these substitutions, for the sizes of this" in text
    assert ", from which a lemma follows Proved for all sizes, by their index-level definitions" in text
    assert given.id in text
    assert text.count("from which a lemma follows") == text.count("A lemma:") == 1


def test_the_page_says_when_nothing_changed() -> None:
    nothing = replace(EVIDENCE, difference=difference(parse_graph(TWICE), []), rules=())
    text = text_of(optimization_page(replace(REPORT, applied=(), kernels={}), nothing))
    assert "No substitution was applied" in text
    assert "Substitutions applied" not in text


def test_what_has_no_known_error_is_still_a_page() -> None:
    lost = replace(REPORT, error=float("nan"), speedup_high=float("inf"))
    assert problems(optimization_page(lost, EVIDENCE)) == []


def test_the_summary_has_throughput_memory_and_time() -> None:
    report = replace(
        REPORT, peak_bytes=(3 * 2**20, 2**20), phases={"measure": 3.0, "race": 20.0, "import": 1.0, "build": 0.5}
    )
    lines = {line.split()[0]: line for line in _printed(report)}
    assert lines["throughput"].split()[1:3] == ["500/s", "1,000/s"]
    assert lines["peak"].split()[2:6] == ["3.0", "MiB", "1.0", "MiB"]
    assert lines["took"].split(maxsplit=1)[1].strip() == "24.5 s, most of it race 20.0 s, measure 3.0 s, import 1.0 s"


def test_short_latencies_keep_their_digits() -> None:
    (line,) = (line for line in _printed(replace(REPORT, original_ms=0.0354, optimized_ms=0.0177)) if "latency" in line)
    assert line.split()[1:5] == ["35.40", "us", "17.70", "us"]


def test_the_printed_ratio_is_that_of_what_is_printed_or_it_is_said_why() -> None:
    assert not any("median of" in line for line in _printed(REPORT))
    drifted = replace(REPORT, original_ms=7.945, optimized_ms=3.015, speedup=1.708)
    said = " ".join(_printed(drifted, 2000))
    assert "1.708x is the median of" in said
    assert "their ratio is 2.635" in said


def test_a_withheld_ratio_is_printed_nowhere() -> None:
    nan = float("nan")
    withheld = replace(
        REPORT,
        **dict.fromkeys(("speedup", "speedup_low", "speedup_high"), nan),
        rules_speedup=Speedup(nan, nan, nan),
        withheld="the machine was busy",
    )
    printed = "\n".join(_printed(withheld, 2000))
    assert "withheld" in printed
    assert "the speed-up is withheld: the machine was busy" in printed
    page = text_of(optimization_page(withheld, EVIDENCE))
    assert "the machine was busy" in page
    for text in (printed, page):
        assert "nan" not in text.lower()
    assert [line.split()[0] for line in printed.splitlines() if "2.000x" in line] == ["predicted"]
    assert "2.00x" not in page
    document = withheld.as_dict()
    assert [document[name] for name in ("speedup", "speedup_low", "speedup_high")] == [None] * 3
    assert document["withheld"] == "the machine was busy"


def test_a_chart_that_tells_another_story_than_the_headline_says_so() -> None:
    """Times and ratio have to be near; else the reader is told which of them counts, and why they may differ."""
    before, after = PROFILE.total_ms, AFTER.total_ms
    agreeing = replace(REPORT, original_ms=before, optimized_ms=after, speedup=before / after)
    assert "differ" not in agreement(agreeing, (PROFILE, AFTER))
    for other in (replace(agreeing, speedup=3.0), replace(agreeing, original_ms=2 * before)):
        said = agreement(other, (PROFILE, AFTER))
        assert "The two differ, and the end-to-end times count: the original is timed as" in said
        assert "the result runs in" not in said
        assert "the result runs in inductor" in agreement(replace(other, runtime="inductor"), (PROFILE, AFTER))
        assert said in text_of(optimization_page(other, EVIDENCE))


def test_lanes_show_what_they_add_up_to_and_the_latency_end_to_end() -> None:
    text = text_of(optimization_page(replace(REPORT, original_ms=20.0), EVIDENCE))
    assert f"before {milliseconds(PROFILE.total_ms)} end to end 20.0 ms" in text


def _judged(page: str) -> list[str]:
    """The differences that are called good or bad."""
    return re.findall(r'<td class="(?:good|bad)">([^<]*)</td>', page)


def test_operators_that_came_by_fusing_are_no_regression() -> None:
    """Their time has moved there from other rows; good or bad is only the sum, and where a result was timed."""
    page = optimization_page(REPORT, EVIDENCE)
    change = AFTER.operators_ms - PROFILE.operators_ms
    assert "+0.400" in page  # of linear+relu
    assert _judged(page) == [f"{change:+.3f}"]
    assert _judged(optimization_page(replace(REPORT, rounds=0), EVIDENCE)) == []


def test_nothing_is_wider_than_a_narrow_screen() -> None:
    """Tables of many columns are moved sideways in a box of their own, and what is drawn to scale has no letters."""
    page = optimization_page(REPORT, EVIDENCE)
    for table in re.finditer(r'(<div class="scroll">\s*)?<table(?: class="(\w+)")?>(.*?)</table>', page, re.DOTALL):
        columns = max(len(re.findall(r"<t[hd]", row)) for row in table[3].split("<tr>"))
        assert table[1] or (table[2] == "fit" and columns <= 2), table[0][:200]
    lanes = re.findall(r'<div class="lanes">(.*?)</figure>', page, re.DOTALL)
    assert lanes
    assert not any("<text" in lane for lane in lanes)
