"""Tokens per second of a decoder, beside other engines and the bandwidth of memory.

A step of decoding moves every weight once, so that the least time is their bytes over the bandwidth. PyTorch and
Inductor write to the cache in place; ONNX Runtime and OpenVINO are given it and return it with one position more. Ours
are both: in place in eager mode and in what ``--runtime auto`` chooses, and that for a cache that goes in and out.

Invariant: the ratios of a row are paired, and their intervals are over builds, each way in a process of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from matplotlib.figure import Figure

from experiments import decoder
from experiments.contest import Make, contest, in_own_process
from experiments.deployed import EXPORTED, SESSIONS, compiled, eager, saved, session, session_engine, source_of
from experiments.drawing import grouped_bars
from experiments.harness import Experiment, Row, Settings
from experiments.headline import ratios_in_words
from experiments.ways import ORIGINAL, interval
from taso_py.driver.optimize import optimize_source
from taso_py.driver.searches import rules_for
from taso_py.engines.engine import EngineUnavailableError
from taso_py.engines.names import AUTO
from taso_py.ir.errors import TasoError
from taso_py.ir.types import DType
from taso_py.latency.database import LatencyDatabase
from taso_py.latency.roofline import measure_roofline
from taso_py.options import Options

IN_PLACE, IN_AND_OUT = f"{decoder.__name__}:in_place", f"{decoder.__name__}:in_and_out"
PROMPT = f"{decoder.__name__}:prompt"


@dataclass(frozen=True)
class Job:
    """A computation in the forms that engines take."""

    tokens: int
    """Tokens of a call."""
    in_place: str
    """The model for PyTorch's engines."""
    in_and_out: str
    """The model for engines that take whole graphs."""


JOBS = {
    "decode": Job(1, IN_PLACE, IN_AND_OUT),
    "decode, batch 4": Job(4, f"{IN_PLACE}_4", f"{IN_AND_OUT}_4"),
    "prompt of 128": Job(decoder.PROMPT, PROMPT, PROMPT),
}
COMPILERS = ("inductor-freezing", "inductor-max-autotune")
OURS, AUTO_IN_PLACE = "ours", "auto in place"
OPTIMIZED = (OURS, AUTO_IN_PLACE, AUTO)
WAYS = (ORIGINAL, *COMPILERS, *SESSIONS, *OPTIMIZED)
SECONDS, QUICK_SECONDS = 25.0, 5.0
"""Time for racing everything in all heats together."""


def _measure(name: str, settings: Settings) -> Sequence[Row]:
    job = JOBS[name]
    with TemporaryDirectory() as folder:
        makes, missing = in_own_process(_build_ways, job, settings, Path(folder))
        seconds = QUICK_SECONDS if settings.quick else SECONDS
        held = contest(makes, seconds=seconds, seed=settings.seed)
    missing += [f"{way}: {reason}" for way, reason in held.missing.items()]
    times = held.race.times
    row: dict[str, Any] = {"model": name}
    row |= {f"tokens/s {way}": job.tokens / median(times[way]) for way in WAYS if way in times}
    for way in list(times)[1:]:
        row |= interval(held.race, way)

    def speed(way: str) -> float:
        return held.race.ratio(way).median

    others = max((way for way in WAYS if way in times and way not in OPTIMIZED), key=speed)
    ours = max((way for way in OPTIMIZED if way in times), key=speed, default=ORIGINAL)
    floor = in_own_process(_floor_s, job, settings.seed)
    row |= {"best of others": others, "best of ours": ours, **interval(held.race, ours, others, "ours/others")}
    row |= {"floor_ms": floor * 1e3, "times the floor": median(times[ours]) / floor}
    return [row | {"beside others/alone": held.beside, "missing": "; ".join(missing)}]


def _build_ways(job: Job, settings: Settings, folder: Path) -> tuple[dict[str, Make], list[str]]:
    """Return the builders of all ways, and the reasons why some are missing."""
    seed = settings.seed
    makes: dict[str, Make] = {ORIGINAL: partial(eager, job.in_place, seed)}
    missing: list[str] = []
    for form in COMPILERS[: 1 if settings.quick else None]:
        makes[form] = partial(compiled, form, job.in_place, seed)
    source, path = source_of(job.in_and_out, seed), folder / EXPORTED
    try:
        model = session_engine(SESSIONS[0]).export_module(source.callable(), source.args, source.kwargs)
    except EngineUnavailableError as error:
        missing += [f"{engine}: {error}" for engine in SESSIONS]
    else:
        path.write_bytes(model.as_bytes)
        makes |= {engine: partial(session, engine, path, model.inputs, job.in_and_out, seed) for engine in SESSIONS}
    effort = "quick" if settings.quick else "normal"
    forms = [(OURS, "eager", job.in_place), (AUTO_IN_PLACE, AUTO, job.in_place), (AUTO, AUTO, job.in_and_out)]
    for way, runtime, model in forms if job.in_place != job.in_and_out else (forms[0], forms[-1]):
        options = Options(runtime=runtime, effort=effort, seed=seed, cache=False)
        try:
            optimize_source(source_of(model, seed), options, rules_for(options), folder / way)
        except TasoError as error:
            missing.append(f"{way}: {error}")
            continue
        makes[way] = partial(saved, folder / way, model, seed)
    return makes, missing


def _floor_s(job: Job, seed: int) -> float:
    """Return the seconds in which memory delivers all weights of a call once, those of the embedding left out."""
    model = source_of(job.in_place, seed).without_checks()
    weights = sum(weight.nbytes for name, weight in model.named_parameters() if "embedding" not in name)
    with LatencyDatabase() as database:
        return weights / measure_roofline(torch.device("cpu"), [DType.F32], database).bandwidth


def _headline(rows: Sequence[Row]) -> Sequence[str]:
    return [ratios_in_words(rows, "ours/others", than="the best of eager mode, Inductor, onnxruntime and openvino")]


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    grouped_bars(figure, rows, WAYS[1:], "speed over PyTorch eager, cache in place (medians, 95% intervals)")


EXPERIMENT = Experiment(
    "decoding",
    "How many tokens per second does a decoder give?",
    reading=(
        "a decoder of four layers of width 1024 at the last of 256 positions of its cache; `ours` writes to the cache "
        "in place in eager mode, `auto in place` in the engine that `--runtime auto` chooses, and `auto` is what that "
        "makes of the form that takes and returns the cache, which other engines need; `ours/others` is the best of "
        "the three over the best of the others; `floor_ms` is the bytes of all weights over the bandwidth of memory, "
        "which bounds `decode` only"
    ),
    parts=lambda settings: settings.choose(("decode",), tuple(JOBS)),
    measure=_measure,
    plot=_plot,
    headline=_headline,
    apart=True,
    devices=("cpu",),
)
