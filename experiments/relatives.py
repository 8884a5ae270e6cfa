"""Programs on arrays, on which superoptimizers of programs are compared, and the models of the paper that this follows.

A program *reaches* its best known form if the result's graph is that form's, or if it is predicted to take as long
within `MARGIN` and is as fast within the noise of the race. Original, result, best form and Inductor's compilation of
the original take turns in one process. Of the models only the substitutions count: their gain in an engine, which
`engines` measured, beside the gain that was published.

Invariant: a program and its best form were compared in double precision before anything is timed, and the ratios of a
row are paired.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import geometric_mean, median
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import engines
from experiments.deployed import SESSIONS
from experiments.drawing import interval_widths, name_rows
from experiments.harness import Experiment, Row, Settings
from experiments.programs import GROUPS, PROGRAMS, ArrayProgram, Computing
from experiments.running import finished_parts
from experiments.subject import priced
from experiments.ways import ORIGINAL, interval
from taso_py.cost.model import CostModel
from taso_py.driver.optimize import optimize_source
from taso_py.driver.prepare import source_of
from taso_py.driver.searches import rules_for
from taso_py.engines.names import INDUCTOR
from taso_py.engines.table import ENGINES
from taso_py.ir.errors import TasoError
from taso_py.ir.graph import Graph
from taso_py.judging.timing import race
from taso_py.models.importing import import_source
from taso_py.models.source import Source
from taso_py.options import Options
from taso_py.search.trace import replay

OURS, BEST = "ours", "best"
WAYS = (OURS, BEST, INDUCTOR)
_NAMES = {OURS: "the results", INDUCTOR: "Inductor"}
MARGIN = 1.05
"""Factor within which two graphs cost the same: the slack of a search."""
NEARNESS = 1e-9
"""Greatest difference of a program from its best form in double precision, relative to the greatest element."""
QUICK = ("trace of a product", "multiples collected", "exponential of logarithms")
SECONDS, QUICK_SECONDS = 3.0, 1.5
"""Time for racing the forms of a program."""
DECIDING, QUICK_DECIDING = 2.0, 1.0
"""Seconds of the first race of an optimization."""

MODELS = "models"
PUBLISHED: Mapping[str, float | None] = {
    "resnet50": 1.0,
    "resnext50_32x4d": 2.8,
    "nasnetalarge": 1.3,
    "nasrnn": 1.4,
    "bert_base": 1.4,
    "squeezenet1_1": None,
}
"""Published speed-up by substitutions of each model (Jia et al., SOSP 2019, figure 7: NVIDIA V100, cuDNN back end,
batch 1, over the best other system); None for a model that is not among them."""


def _measure(part: str, settings: Settings) -> Sequence[Row]:
    if part == MODELS:
        return list(model_rows(settings))
    (program,) = (program for program in PROGRAMS if program.name == part)
    return [measure_program(program, settings)]


def check_best_form(program: ArrayProgram, seed: int) -> None:
    """Compare a program with its best form in double precision.

    Raises:
        TasoError: they differ.
    """
    inputs = [x.double() for x in program.inputs(seed)]
    first, second = program.original(*inputs), program.best(*inputs)
    if first.shape != second.shape or not (first - second).abs().max() <= NEARNESS * first.abs().max():
        raise TasoError(f"the best form of {program.name} computes something else")


@torch.no_grad()
def measure_program(program: ArrayProgram, settings: Settings) -> Row:
    """Return the row of a program: what was found, and how fast all forms are."""
    check_best_form(program, settings.seed)
    inputs = program.inputs(settings.seed)
    positive = tuple(f"inputs_{place}" for place in range(len(inputs))) if program.is_positive else ()
    source, best = (
        replace(source_of(Computing(form).eval(), inputs, {}), positive=positive)
        for form in (program.original, program.best)
    )
    deciding = QUICK_DECIDING if settings.quick else DECIDING
    effort = "quick" if settings.quick else "normal"
    options = Options(effort=effort, seed=settings.seed, race_seconds=deciding, cache=False)
    optimized = optimize_source(source, options, rules_for(options))
    row: dict[str, Any] = {"program": program.name, "group": program.group}
    with priced(source) as subject:
        found, wanted = replay(subject.imported.graph, optimized.trace), import_source(best).graph
        predicted = _cost_ratio(subject.cost, found, wanted)
    calls = {
        ORIGINAL: source.call_of(source.callable()),
        OURS: source.call_of(optimized.module),
        BEST: source.call_of(best.callable()),
    }
    missing = _add_compiled(calls, source)
    held = race(
        calls,
        device=settings.device,
        seconds=QUICK_SECONDS if settings.quick else SECONDS,
        seed=settings.seed,
        until_clear=False,
    )
    row["original_ms"] = median(held.times[ORIGINAL]) * 1e3
    for way in list(calls)[1:]:
        row |= interval(held, way)
    row |= interval(held, OURS, BEST, f"{OURS}/{BEST}")
    row |= {"same graph": found.outputs == wanted.outputs, "predicted/best": predicted}
    row |= {"rules": len(optimized.trace.applied), "missing": missing}
    return {**row, "reached": is_reached(row)}


def _cost_ratio(cost: CostModel, graph: Graph, other: Graph) -> float:
    """Return the predicted latency of a graph over that of another."""
    for each in (graph, other):
        cost.warm(each)
    return cost.graph_cost(graph) / cost.graph_cost(other)


def _add_compiled(calls: dict[str, Any], source: Source) -> str:
    """Add Inductor's compilation of a program to its calls; return the reason if there is none."""
    # All programs are called by the same code, of which PyTorch compiles only so many versions before it gives up.
    torch.compiler.reset()
    try:
        calls[INDUCTOR] = source.call_of(ENGINES[INDUCTOR].prepare(source.callable(), source.args, source.kwargs))
    except TasoError as error:
        return f"{INDUCTOR}: {error}"
    return ""


def is_reached(row: Row) -> bool:
    """Return whether a row's result is the best known form, or as good by its price and in the race."""
    as_fast = row["predicted/best"] <= MARGIN and row[f"{OURS}/{BEST}_high"] >= 1 / MARGIN
    return bool(row["same graph"] or as_fast)


def model_rows(settings: Settings) -> Iterator[Row]:
    """Yield the models' rows: the gain by substitutions in each engine, from `engines`, and the published one.

    Raises:
        TasoError: `engines` has measured nothing here.
    """
    known = finished_parts(engines.EXPERIMENT, settings).done
    if not known:
        raise TasoError("run the experiment engines first, whose rows these are")
    for model, published in PUBLISHED.items():
        rows: Sequence[Row] = known[model]["rows"] if model in known else ()
        columns = [f"rules in {engine}{end}" for engine in SESSIONS for end in ("", "_low", "_high")]
        found = {name: row[name] for row in rows for name in columns if name in row}
        yield {
            "program": model,
            "group": MODELS,
            **found,
            **({} if published is None else {"published": published}),
            "missing": "" if found else "engines has no row of it",
        }


def arrange(rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows with a summary of each group of programs behind it, and of all."""
    programs = [row for row in rows if row["group"] != MODELS]
    arranged: list[Row] = []
    for group in GROUPS:
        of_group = [row for row in programs if row["group"] == group]
        arranged += of_group
        if of_group:
            arranged.append(_summary(group, of_group))
    if programs:
        arranged.append(_summary("programs", programs))
    return [*arranged, *(row for row in rows if row["group"] == MODELS)]


def _summary(group: str, rows: Sequence[Row]) -> Row:
    known = {way: [row[way] for row in rows if way in row] for way in (*WAYS, f"{OURS}/{BEST}")}
    return {
        "program": f"all {group}",
        "group": "summary",
        "reached": f"{sum(row['reached'] for row in rows)} of {len(rows)}",
        **{way: geometric_mean(ratios) for way, ratios in known.items() if ratios},
    }


def _headline(rows: Sequence[Row]) -> Sequence[str]:
    everything = next((row for row in rows if row["program"] == "all programs"), None)
    if everything is None:
        return []
    means = " and ".join(f"{name} {everything[way]:.2f} times" for way, name in _NAMES.items() if way in everything)
    return [f"{everything['reached']} programs reach their best known form; geometric mean over eager mode: {means}"]


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    programs = [row for row in rows if row["group"] in GROUPS]
    models = [row for row in rows if row["group"] == MODELS]
    panels = [(_programs, programs), (_models, models)]
    drawn = [(draw, part) for draw, part in panels if part]
    figure.set_size_inches(9, sum(0.2 * len(part) + 1.2 for _, part in drawn))
    axes = figure.subplots(len(drawn), 1, squeeze=False, height_ratios=[len(part) + 4 for _, part in drawn])
    for (draw, part), panel in zip(drawn, axes[:, 0], strict=True):
        draw(panel, part)


def _programs(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw the speeds of all forms over the originals; programs that miss their best form are marked."""
    for way, mark, colour in ((INDUCTOR, "x", "0.4"), (BEST, "s", "0.7"), (OURS, ".", "black")):
        there = [(place, row) for place, row in enumerate(rows) if way in row]
        values = [row[way] for _, row in there]
        spread = interval_widths([row for _, row in there], way)
        places = [place for place, _ in there]
        axes.errorbar(values, places, xerr=spread, fmt=mark, color=colour, elinewidth=0.8, label=way)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    name_rows(axes, [row["program"] + ("" if row["reached"] else " (not reached)") for row in rows])
    axes.set_xlabel("speed over the original in eager mode (medians, 95% intervals)")
    axes.legend(fontsize="small")


def _models(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw the gain by substitutions in each engine, and the published one."""
    for column, mark in ((f"rules in {SESSIONS[0]}", "o"), (f"rules in {SESSIONS[1]}", "^"), ("published", "x")):
        there = [(row[column], place) for place, row in enumerate(rows) if column in row]
        axes.plot([value for value, _ in there], [place for _, place in there], mark, color="black", label=column)
    axes.axvline(1, color="black", linewidth=0.8)
    name_rows(axes, [row["program"] for row in rows])
    axes.set_xlabel("speed-up by substitutions alone")
    axes.legend(fontsize="small")


EXPERIMENT = Experiment(
    "relatives",
    "What is found where other superoptimizers are compared?",
    reading=(
        "`ours`, `best` and `inductor` are speeds over the original program in eager mode: of the result at default "
        "settings, of the best known form, and of `torch.compile`; `ours/best` compares the first two; a program is "
        f"`reached` if its result has the `same graph` as the best form, or is `predicted/best` within {MARGIN} and as "
        "fast within the interval; of models, `rules in onnxruntime` and the like are the speed-ups by substitutions "
        "alone, from `engines`, beside those `published` in the TASO paper, on an NVIDIA V100 over the best other "
        "system; SqueezeNet is not among those"
    ),
    parts=lambda settings: (*settings.choose(QUICK, [program.name for program in PROGRAMS]), MODELS),
    measure=_measure,
    plot=_plot,
    arrange=arrange,
    headline=_headline,
    devices=("cpu",),
)
