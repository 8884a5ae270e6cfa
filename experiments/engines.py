"""The worth of the rules inside other engines, with prices measured there.

Every model runs in ONNX Runtime and in OpenVINO three ways: as PyTorch's own ONNX exporter writes it, which is what
their users have; as our lowering writes the unchanged graph; and as the search rewrites it, guided by operators'
latencies in that engine. PyTorch eager and three forms of Inductor run beside. Each way has a process of its own
and is built several times there; our results are the saved ones, loaded. What ``--runtime auto`` chose is compared with
the best of all that users have without us.

Invariant: the ratios of a row are paired, and their intervals are over builds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from experiments.contest import Make, contest, in_own_process
from experiments.deployed import EXPORTED, SESSIONS, compiled, eager, saved, session, session_engine, source_of
from experiments.drawing import interval_widths, name_rows
from experiments.end_to_end import COMPILERS, FULL, larger_batches
from experiments.harness import Experiment, Row, Settings
from experiments.headline import by_batch, ratios_in_words
from experiments.ways import ORIGINAL, interval
from taso_py.backend import fold
from taso_py.driver.optimize import optimize_source
from taso_py.driver.searches import rules_for
from taso_py.engines.engine import EngineUnavailableError
from taso_py.engines.names import AUTO
from taso_py.engines.session import OnnxModel
from taso_py.ir.errors import TasoError
from taso_py.judging.timing import Race
from taso_py.models.importing import import_source
from taso_py.options import Options
from taso_py.report.optimization import Report

QUICK = ("squeezenet1_1", "nasrnn")
FIRST = ("nasrnn", "squeezenet1_1", "mobilenet_v3_large", "bert_base", "resnet50", "inception_v3", "mobileone_s0")
LAST = ("nasnetalarge",)
MODELS = (*FIRST, *(name for name in FULL if name not in (*FIRST, *LAST)), *larger_batches("cpu"), *LAST)
"""Models on which engines differ most come first, so that an incomplete run shows something; the one that takes longest
comes last."""
QUICK_COMPILERS = ("inductor-freezing",)
LOWERED, RULES = "lowered", "rules"
OTHERS = (ORIGINAL, *COMPILERS, *(f"{engine} {EXPORTED}" for engine in SESSIONS))
"""Alternatives of users without taso-py."""
TUNED = "inductor-max-autotune"
"""The form of Inductor that is mostly the fastest; the others are compiled if it is near the fastest of all ways."""
SECONDS, QUICK_SECONDS = 30.0, 6.0
"""Time for racing the ways in all heats together."""
MARKS = {
    ORIGINAL: ("D", "white"),
    **{form: (mark, "white") for form, mark in zip(COMPILERS, ("v", "^", ">"), strict=True)},
    **{
        f"{engine} {way}": (mark, colour)
        for engine, mark in zip(SESSIONS, ("o", "s"), strict=True)
        for way, colour in ((EXPORTED, "white"), (RULES, "black"))
    },
}
"""Mark and colour of each way in the figure."""
SHOWN_RULES = 24
"""Number of rules that are drawn: those that are applied most often."""


def _measure(name: str, settings: Settings) -> Sequence[Row]:
    with TemporaryDirectory() as folder:
        makes, reports, missing = in_own_process(_build_ways, f"zoo:{name}", settings, Path(folder))
        seconds = QUICK_SECONDS if settings.quick else SECONDS
        relatives = {form: TUNED for form in COMPILERS if form != TUNED and TUNED in makes}
        if AUTO in reports and (chosen := reports[AUTO].runtime) in SESSIONS:
            reports = {**reports, chosen: reports[AUTO]}
        held = contest(
            makes,
            seconds=seconds,
            seed=settings.seed,
            relatives=relatives,
            is_decided=lambda race: settings.quick or _is_decided(_with_chosen(race, reports), reports),
        )
    missing += [f"{way}: {reason}" for way, reason in held.missing.items()]
    row = _row(name, _with_chosen(held.race, reports), reports)
    return [row | {"beside others/alone": held.beside, "missing": "; ".join(missing)}]


def _with_chosen(held: Race, reports: Mapping[str, Report]) -> Race:
    """Return a race in which the result of ``auto`` stands for that of its engine, which is not made a second time."""
    if AUTO not in held.times or (chosen := reports[AUTO].runtime) not in SESSIONS:
        return held
    return replace(held, times={**held.times, f"{chosen} {RULES}": held.times[AUTO]})


def _is_decided(held: Race, reports: Mapping[str, Report]) -> bool:
    """Return whether it is known in each engine in which rules were applied whether they gain or lose there."""
    applied = [engine for engine in SESSIONS if f"{engine} {RULES}" in held.times and reports[engine].applied]
    ratios = [held.ratio(f"{engine} {RULES}", _without_rules(held, engine)) for engine in applied]
    return all(ratio.low > 1 or ratio.high < 1 for ratio in ratios)


def _without_rules(held: Race, engine: str) -> str:
    """Return the faster way to run a model in an engine without rules."""
    plain = [way for way in (f"{engine} {EXPORTED}", f"{engine} {LOWERED}") if way in held.times]
    return max(plain, key=_speed(held), default=ORIGINAL)


def _row(name: str, held: Race, reports: Mapping[str, Report]) -> dict[str, Any]:
    """Return the speeds of all ways, and what the rules gain."""
    times = held.times
    row: dict[str, Any] = {"model": name, "original_ms": median(times[ORIGINAL]) * 1e3}
    for way in list(times)[1:]:
        row |= interval(held, way)
    for engine in SESSIONS:
        if f"{engine} {RULES}" in times:
            row |= _engine_figures(held, engine, reports[engine])
    if AUTO in times:
        best = max((way for way in OTHERS if way in times), key=_speed(held))
        row |= {"chosen": reports[AUTO].runtime, "best of others": best}
        row |= {f"seconds for {AUTO}": sum(reports[AUTO].phases.values())}
        row |= interval(held, AUTO, best, "ours/others")
    return row


def _engine_figures(held: Race, engine: str, report: Report) -> Row:
    """Return the speed-up by rules in an engine, the rules, and the accuracy of the predicted latency."""
    rules = f"{engine} {RULES}"
    return {
        **interval(held, rules, _without_rules(held, engine), f"rules in {engine}"),
        f"rules applied in {engine}": len(report.applied),
        f"original kept in {engine}": report.runtime != engine,
        f"predicted/measured in {engine}": report.estimated_ms[1] / (median(held.times[rules]) * 1e3),
        f"seconds for {engine}": sum(report.phases.values()),
        f"rules of {engine}": "; ".join(f"{rule} {count}" for rule, count in Counter(report.applied).most_common()),
    }


def _speed(held: Race) -> Callable[[str], float]:
    return lambda way: held.ratio(way).median


def _build_ways(
    name: str, settings: Settings, folder: Path
) -> tuple[Mapping[str, Make], Mapping[str, Report], list[str]]:
    """Return the builders of all ways by name, our reports by engine, and the reasons why some ways are missing."""
    source = source_of(name, settings.seed)
    effort = "quick" if settings.quick else "normal"
    options = Options(effort=effort, seed=settings.seed, cache=False)
    program = fold(import_source(source))
    makes: dict[str, Make] = {ORIGINAL: partial(eager, name, settings.seed)}
    reports: dict[str, Report] = {}
    missing: list[str] = []
    exported = cache(lambda: session_engine(SESSIONS[0]).export_module(source.callable(), source.args, source.kwargs))
    for engine in SESSIONS:
        lowered = partial(session_engine(engine).model_of, program.graph, program.weights)
        for way, write in ((EXPORTED, exported), (LOWERED, lowered)):
            path = folder / f"{engine}_{way}"
            try:
                model: OnnxModel = write()
            except EngineUnavailableError as error:
                missing.append(f"{engine} {way}: {error}")
                continue
            path.write_bytes(model.as_bytes)
            makes[f"{engine} {way}"] = partial(session, engine, path, model.inputs, name, settings.seed)
    for runtime in (AUTO, *SESSIONS):
        if AUTO in reports and reports[AUTO].runtime == runtime:
            continue
        way = AUTO if runtime == AUTO else f"{runtime} {RULES}"
        chosen = replace(options, runtime=runtime)
        try:
            reports[runtime] = optimize_source(source, chosen, rules_for(chosen), folder / runtime).report
        except TasoError as error:
            missing.append(f"{way}: {error}")
            continue
        makes[way] = partial(saved, folder / runtime, name, settings.seed)
    makes |= {
        form: partial(compiled, form, name, settings.seed) for form in settings.choose(QUICK_COMPILERS, COMPILERS)
    }
    return makes, reports, missing


def _headline(rows: Sequence[Row]) -> Sequence[str]:
    compared = [row for row in rows if "ours/others" in row]
    than = f"the best of eager mode, Inductor and {' and '.join(SESSIONS)} without rules"
    return [
        f"{batch}: {ratios_in_words(of_batch, 'ours/others', than=than)}"
        for batch, of_batch in by_batch(compared).items()
    ]


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    """Draw a line for each model: the speeds of all ways over the best that users have without us, and the rules."""
    figure.set_size_inches(9, 0.32 * len(rows) + 1.6)
    axes = figure.subplots()
    name_rows(axes, [row["model"] for row in rows])
    axes.set_xscale("log", base=2)
    for way, (mark, colour) in MARKS.items():
        speeds = {place: speed for place, row in enumerate(rows) if (speed := _relative(row, way)) is not None}
        axes.plot(list(speeds.values()), list(speeds), mark, color=colour, markeredgecolor="black", label=way)
    compared = {place: row for place, row in enumerate(rows) if "ours/others" in row}
    axes.errorbar(
        [row["ours/others"] for row in compared.values()],
        list(compared),
        xerr=interval_widths(list(compared.values()), "ours/others"),
        fmt="|",
        color="black",
        markersize=14,
        markeredgewidth=2.5,
        label=f"{AUTO}, with its interval",
    )
    axes.axvline(1, color="black", linewidth=0.8)
    axes.grid(axis="x", color="0.85")
    axes.set_axisbelow(True)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlabel("speed over the best of the white marks, which users have without taso-py (medians, 95% interval)")
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    _heat_map(figure, rows)


def _relative(row: Row, way: str) -> float | None:
    """Return the speed of a way over the best that users have without us; None if one of the two is missing."""
    speeds = {ORIGINAL: 1.0, **row}
    best = speeds.get("best of others")
    return speeds[way] / speeds[best] if best in speeds and way in speeds else None


def _heat_map(figure: Figure, rows: Sequence[Row]) -> None:
    """Draw how often each rule is applied to a model in an engine, below the existing figure."""
    applied = {
        f"{row['model']}, {engine}": _counts(row[f"rules of {engine}"])
        for row in rows
        for engine in SESSIONS
        if row.get(f"rules of {engine}")
    }
    total = sum(applied.values(), Counter[str]())
    if not total:
        return
    rules = [rule for rule, _ in total.most_common(SHOWN_RULES)]
    width, height = figure.get_size_inches()
    more = 0.2 * len(rules) + 2.0
    figure.set_size_inches(width, height + more)
    grid = figure.add_gridspec(2, 1, height_ratios=(height, more))
    figure.axes[0].set_subplotspec(grid[0])
    axes = figure.add_subplot(grid[1])
    counts = [[found[rule] for found in applied.values()] for rule in rules]
    axes.imshow(counts, cmap="Greys", aspect="auto", vmin=0, vmax=1.5 * max(map(max, counts)))
    for row, line in enumerate(counts):
        for column, count in enumerate(line):
            axes.text(column, row, str(count or ""), ha="center", va="center", fontsize=7)
    axes.set_yticks(range(len(rules)), rules, fontsize=7)
    axes.set_xticks(range(len(applied)), list(applied), rotation=30, ha="right", fontsize=7)
    axes.set_title("how often rules are applied, by the prices of each engine", fontsize=9)


def _counts(text: str) -> Counter[str]:
    """Parse rules and how often each is applied from a row's text."""
    return Counter({rule: int(count) for rule, count in (part.rsplit(" ", 1) for part in text.split("; "))})


EXPERIMENT = Experiment(
    "engines",
    "What are the rules worth inside other engines, priced there?",
    reading=(
        "`onnxruntime exported` and the like are speeds over PyTorch eager: as PyTorch's exporter writes the model, as "
        "our lowering writes it unchanged, and with rules; where `auto` chose an engine, its result and its seconds "
        "stand for that engine's (until 27 November 2026 each was made apart); `rules in onnxruntime` is the last "
        "speed over the better of the first two; `ours/others` is the result of `--runtime auto` over the best of what "
        "users have without us; intervals are over six builds, each in a process of its own, so that of 32 pairs of "
        "equals one looks surely different (over twelve where six did not decide what rules gain; until 1 December "
        "2026 six in any case), but what takes 1.4 times as long as the fastest is built once (until 30 "
        "November 2026 all were built anew); Inductor by default and with freezing is raced only where max-autotune is "
        "near the fastest (until 27 November 2026 only freezing was); `predicted/measured` is what latencies in the "
        "engine said of the result, scaled to the time of the unchanged graph there (not so until 27 November 2026)"
    ),
    parts=lambda settings: settings.choose(QUICK, MODELS),
    measure=_measure,
    plot=_plot,
    headline=_headline,
    drawn=[f"rules of {engine}" for engine in SESSIONS],
    apart=True,
    devices=("cpu",),
)
