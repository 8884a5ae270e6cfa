"""Seconds that an optimization takes at each level of effort, and the speed that they buy, beside other compilers.

Each model is optimized at each level by a process of its own that knows no latency; at the normal level twice more:
with latencies known, and with the winner known too. The other compilers begin without anything in their caches as well.
What was made is then raced, each in a process of its own.

Invariant: seconds are by the clock, from the model in memory to what can be called, without importing PyTorch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from matplotlib.figure import Figure

from experiments.contest import Make, contest, in_own_process
from experiments.deployed import EXPORTED, SESSIONS, compiled, eager, saved, session, session_engine, source_of
from experiments.drawing import STYLES
from experiments.harness import Experiment, Row, Settings
from experiments.ways import ORIGINAL, interval
from taso_py.driver.optimize import optimize_source
from taso_py.driver.searches import rules_for
from taso_py.effort import EFFORTS, NORMAL
from taso_py.engines.names import AUTO
from taso_py.engines.session import OnnxModel
from taso_py.ir.errors import TasoError
from taso_py.options import Options

QUICK_MODELS = ("squeezenet1_1",)
MODELS = ("nasrnn", "mobilenet_v3_large", "resnet50", "bert_base", "nasnetalarge")
QUICK, THOROUGH = "quick", "thorough"
AUTO_QUICK = f"{AUTO}, {QUICK}"
KNOWN, AGAIN = "normal, latencies known", "normal, same model again"
"""Runs that are not raced, since they find what the one before found."""
COMPILERS = ("inductor-freezing", "inductor-max-autotune")
SECONDS, QUICK_SECONDS = 35.0, 6.0
"""Time for racing everything in all heats together."""
COLUMNS = 3
"""Number of models side by side in the figure."""


@dataclass
class _Made:
    """Builders and figures of one model."""

    ways: dict[str, Make]
    """Builders for the race, by name."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    missing: list[str] = field(default_factory=list[str])
    phases: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds of each phase at the normal level."""


def _measure(name: str, settings: Settings) -> Sequence[Row]:
    with TemporaryDirectory() as folder:
        made = _make(f"zoo:{name}", settings, Path(folder))
        seconds = QUICK_SECONDS if settings.quick else SECONDS
        held = contest(made.ways, seconds=seconds, seed=settings.seed)
    times = held.race.times
    row: dict[str, Any] = {"model": name, "original_ms": median(times[ORIGINAL]) * 1e3}
    row |= {f"{way}_s": seconds for way, seconds in made.seconds.items()}
    for way in list(times)[1:]:
        row |= interval(held.race, way)
    for level in (QUICK, NORMAL):
        if level in times and THOROUGH in times:
            row |= interval(held.race, level, THOROUGH, f"{level}/{THOROUGH}")
    phases = "; ".join(f"{phase} {seconds:.1f}" for phase, seconds in made.phases.items())
    missing = [*made.missing, *(f"{way}: {reason}" for way, reason in held.missing.items())]
    return [row | {"phases at normal": phases, "missing": "; ".join(missing)}]


def _make(name: str, settings: Settings, folder: Path) -> _Made:
    """Make everything once, each in a process that ends afterwards."""
    seed = settings.seed
    made = _Made({ORIGINAL: partial(eager, name, seed)})
    for number, (way, options, cache) in enumerate(_optimizations(seed, quick=settings.quick)):
        place = folder / str(number)
        try:
            seconds, phases = in_own_process(_optimize, name, options, place, folder / cache)
        except TasoError as error:
            made.missing.append(f"{way}: {error}")
            continue
        made.seconds[way] = seconds
        if way == NORMAL:
            made.phases = phases
        if way not in (KNOWN, AGAIN):
            made.ways[way] = partial(saved, place, name, seed)
    for form in COMPILERS[: 1 if settings.quick else None]:
        made.seconds[form] = in_own_process(_compile, form, name, seed, folder / form)
        made.ways[form] = partial(compiled, form, name, seed)
    for engine in SESSIONS:
        path = folder / f"{engine}_{EXPORTED}"
        try:
            made.seconds[engine], inputs = in_own_process(_export, engine, name, seed, path)
        except TasoError as error:
            made.missing.append(f"{engine}: {error}")
            continue
        made.ways[engine] = partial(session, engine, path, inputs, name, seed)
    return made


def _optimizations(seed: int, *, quick: bool) -> Iterator[tuple[str, Options, str]]:
    """Yield names of optimizations, their options, and the folders that hold what is known before."""
    for level in EFFORTS:
        if not quick or level == QUICK:
            yield level, Options(effort=level, seed=seed), f"cache of {level}"
        if level == NORMAL and not quick:
            cache = f"cache of {level}"
            yield KNOWN, Options(effort=level, seed=seed, cache=False), cache
            yield AGAIN, Options(effort=level, seed=seed), cache
    if not quick:
        yield AUTO_QUICK, Options(runtime=AUTO, effort=QUICK, seed=seed), f"cache of {AUTO_QUICK}"
        yield AUTO, Options(runtime=AUTO, seed=seed), f"cache of {AUTO}"


def _optimize(name: str, options: Options, place: Path, cache: Path) -> tuple[float, Mapping[str, float]]:
    """Optimize a model into a folder; return the seconds of all and of each phase."""
    os.environ["TASO_PY_CACHE"] = str(cache)
    source = source_of(name, options.seed)
    begun = time.perf_counter()
    report = optimize_source(source, options, rules_for(options), place).report
    return time.perf_counter() - begun, report.phases


def _compile(form: str, name: str, seed: int, cache: Path) -> float:
    """Return the seconds of compiling a model with nothing in the compiler's caches, its first call included."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    source_of(name, seed)
    begun = time.perf_counter()
    compiled(form, name, seed)()
    return time.perf_counter() - begun


def _export(engine: str, name: str, seed: int, path: Path) -> tuple[float, tuple[str, ...]]:
    """Write a model as PyTorch exports it; return the seconds until an engine has called it, and its inputs' names."""
    source = source_of(name, seed)
    begun = time.perf_counter()
    model: OnnxModel = session_engine(engine).export_module(source.callable(), source.args, source.kwargs)
    path.write_bytes(model.as_bytes)
    session(engine, path, model.inputs, name, seed)()
    return time.perf_counter() - begun, model.inputs


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    """Draw speed over seconds, a panel for each model."""
    lines = -(-len(rows) // COLUMNS)
    figure.set_size_inches(9, 2.6 * lines + 0.8)
    panels = figure.subplots(lines, min(COLUMNS, len(rows)), squeeze=False).flat
    for row, panel in zip(rows, panels, strict=False):
        levels = [level for level in EFFORTS if level in row]
        panel.plot([row[f"{level}_s"] for level in levels], [row[level] for level in levels], "k-", linewidth=0.8)
        ways = (*EFFORTS, AUTO_QUICK, AUTO, *COMPILERS, *SESSIONS)
        for number, ((_, mark), way) in enumerate(zip(STYLES, ways, strict=False)):
            if way in row:
                is_ours = way in (*EFFORTS, AUTO_QUICK, AUTO)
                colour = "black" if is_ours else "0.6"
                size = {QUICK: 4, NORMAL: 6, THOROUGH: 8}.get(way, 6)
                panel.plot(row[f"{way}_s"], row[way], mark, color=colour, markersize=size, label=way)
                beside = (4, 4) if number % 2 else (4, -9)  # neighbours are often alike
                panel.annotate(way, (row[f"{way}_s"], row[way]), beside, textcoords="offset points", fontsize=6)
        panel.set(title=row["model"], xscale="log", xlabel="seconds to get there")
        panel.axhline(1, color="0.8", linewidth=0.8)
        panel.margins(x=0.25, y=0.15)
    for panel in list(panels):
        panel.set_visible(False)
    figure.supylabel("speed over eager mode")


EXPERIMENT = Experiment(
    "effort",
    "What do seconds of optimizing buy?",
    reading=(
        "`quick_s` and the like are seconds until the result can be called, with nothing known before, and `quick` is "
        "its speed over eager mode; `normal, latencies known_s` repeats the normal level with the latencies that it "
        "measured, `normal, same model again_s` with its winner too; `auto` is `--runtime auto` at the normal level, "
        "`auto, quick` at the quick one (since 1 December 2026), the others run in eager mode; intervals are over "
        "builds, each in a process of its own"
    ),
    parts=lambda settings: settings.choose(QUICK_MODELS, MODELS),
    measure=_measure,
    plot=_plot,
    apart=True,
    devices=("cpu",),
)
