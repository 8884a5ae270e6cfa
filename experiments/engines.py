"""What are the rules worth inside the engines that people deploy with, priced there?

Every model runs in ONNX Runtime and in OpenVINO three ways: as PyTorch's own ONNX exporter writes it, which is what
their users have; as our lowering writes the unchanged graph; and as the search rewrites it, guided by what operators
cost in that engine. PyTorch eager and Inductor with frozen weights run beside. The best of ours is the one that its own
optimization said is fastest; it is set beside the best of all the others.

Invariant: the ratios of a row are paired, from one race, in whose turns no thread of another contestant is awake.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from matplotlib.figure import Figure

from experiments.drawing import grouped_bars
from experiments.end_to_end import FULL
from experiments.harness import Experiment, Row, Settings
from experiments.ways import ORIGINAL, interval
from taso_py.backend import fold
from taso_py.cost.idle import until_idle
from taso_py.engines.engine import EngineUnavailableError
from taso_py.engines.table import ENGINES
from taso_py.runtime.optimize import optimize_source, read_rules
from taso_py.runtime.replay import import_source
from taso_py.runtime.result import Optimized, Options
from taso_py.runtime.source import Source, load_source
from taso_py.runtime.timing import Race, race

QUICK = ("squeezenet1_1", "nasrnn")
FIRST = ("nasrnn", "squeezenet1_1", "mobilenet_v3_large", "bert_base", "resnet50", "inception_v3")
MODELS = (*FIRST, *(name for name in FULL if name not in FIRST))
"""Those first that engines differ most on: a run that is cut short shows something."""
INDUCTOR = "inductor-freezing"
SESSIONS = ("onnxruntime", "openvino")
"""The engines that take whole graphs."""
EXPORTED, LOWERED, RULES = "exported", "lowered", "rules"
OTHERS = (ORIGINAL, INDUCTOR, *(f"{engine} {EXPORTED}" for engine in SESSIONS))
"""What users have without us."""

Call = Callable[[], Any]


def _measure(name: str, settings: Settings) -> Sequence[Row]:
    source = load_source(f"zoo:{name}", device=settings.device, seed=settings.seed)
    with torch.no_grad():
        calls, results, missing = _made(source, settings)
        seconds = 8.0 if settings.quick else 25.0
        held = race(
            calls, device=settings.device, seconds=seconds, seed=settings.seed, until_clear=False, settle=until_idle
        )
    row: dict[str, Any] = {"model": name, "original_ms": median(held.times[ORIGINAL]) * 1e3}
    for way in list(calls)[1:]:
        row |= interval(held, way)
    for engine in results:
        base = max((f"{engine} {way}" for way in (EXPORTED, LOWERED) if f"{engine} {way}" in calls), key=_speed(held))
        row |= interval(held, f"{engine} {RULES}", base, f"rules in {engine}")
        row[f"rules applied in {engine}"] = len(results[engine].report.applied)
        row[f"seconds for {engine}"] = sum(results[engine].report.phases.values())
    if results:
        fastest = min(results, key=lambda engine: results[engine].report.optimized_ms)
        best = max((way for way in OTHERS if way in calls), key=_speed(held))
        row |= {"best of ours": fastest, "best of others": best}
        row |= interval(held, f"{fastest} {RULES}", best, "ours/others")
    return [row | {"missing": "; ".join(missing)}]


def _speed(held: Race) -> Callable[[str], float]:
    return lambda way: held.ratio(way).median


def _made(source: Source, settings: Settings) -> tuple[Mapping[str, Call], Mapping[str, Optimized], Sequence[str]]:
    """What is timed by name, our results by engine, and why some ways are missing."""
    effort = "quick" if settings.quick else "normal"
    options = Options(effort=effort, seed=settings.seed, reload=False, cache=False)
    program = fold(import_source(source))
    calls: dict[str, Call] = {ORIGINAL: source.call_of(source.unchecked())}
    results: dict[str, Optimized] = {}
    missing: list[str] = []

    def add(way: str, make: Callable[[], Callable[..., Any]]) -> None:
        try:
            calls[way] = source.call_of(make())
        except EngineUnavailableError as error:
            missing.append(f"{way}: {error}")

    for name in SESSIONS:
        engine, module = ENGINES[name], source.callable()
        add(f"{name} {EXPORTED}", lambda e=engine, m=module: e.prepare(m, source.args, source.kwargs))
        add(f"{name} {LOWERED}", lambda e=engine: e.prepare(e.build(program), source.args, source.kwargs))
        if f"{name} {LOWERED}" in calls:
            chosen = replace(options, runtime=name)
            results[name] = optimize_source(source, chosen, read_rules(chosen))
            calls[f"{name} {RULES}"] = source.call_of(results[name].module)
    with suppress(EngineUnavailableError):
        calls[INDUCTOR] = source.call_of(ENGINES[INDUCTOR].prepare(source.callable(), source.args, source.kwargs))
    return calls, results, missing


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    ways = [f"{engine} {way}" for engine in SESSIONS for way in (EXPORTED, LOWERED, RULES)]
    grouped_bars(figure, rows, [*ways, INDUCTOR], "speed over PyTorch eager (medians, 95% intervals)")


EXPERIMENT = Experiment(
    "engines",
    "What are the rules worth inside other engines, priced there?",
    "`onnxruntime exported` and the like are speeds over PyTorch eager: as PyTorch's exporter writes the model, as our "
    "lowering writes it unchanged, and with rules; `rules in onnxruntime` is the last over the better of the first "
    "two; `ours/others` is the best of ours over the best of what users have without us",
    lambda settings: settings.choose(QUICK, MODELS),
    _measure,
    _plot,
    apart=True,
    on_device=False,
)
