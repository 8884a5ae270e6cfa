"""Ablation: the contribution of each part of the optimizer.

The optimizer is run whole, and with one part removed at a time: the macros, which are rules that follow from others;
the rules with preconditions; the choice of kernels and memory formats; the measurement of the best few graphs, so that
the best by estimated cost is taken; and the reuse of search results between equal regions.

Invariant: all results of a model are timed in one race; each was found under the same limits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.figure import Figure

from experiments.drawing import grouped_bars
from experiments.harness import Experiment, Row, Settings
from experiments.subject import Subject, in_engines, subject
from experiments.ways import ORIGINAL, interval
from taso_py.driver.optimize import optimize_source
from taso_py.judging.timing import race
from taso_py.latency.idle import wait_until_idle
from taso_py.options import Options
from taso_py.rules.database import read_database
from taso_py.rules.substitution import Substitution
from taso_py.search.backtracking import search
from taso_py.search.result import SearchResult

QUICK = ("nasrnn",)
FULL = (
    *("nasrnn", "bert_base", "resnext50_32x4d", "inception_v3", "squeezenet1_1", "mobilenet_v3_large", "densenet121"),
    *("vit_b_16", "gpt2"),
)
IN_ENGINES = ("nasrnn", "densenet121", "vit_b_16")
"""Models that are optimized for engines as well."""
EVERYTHING, KERNELS, UNMEASURED = "everything", "kernel_choice", "final_measurement"


@dataclass(frozen=True)
class _Variant:
    """A part that is removed."""

    rules: Callable[[Substitution], bool] = lambda _: True
    """Returns whether a rule remains."""
    options: Mapping[str, Any] | None = None
    """Options that are changed."""


def is_general(rule: Substitution) -> bool:
    """Return whether a rule requires no particular sizes, by a precondition or by a number in a variable's shape."""
    numbers = (re.search(r"[\[,]\d", str(variable.types[0])) for variable in rule.variables)
    return not rule.preconditions and not any(numbers)


VARIANTS: Mapping[str, _Variant] = {
    EVERYTHING: _Variant(),
    "macros": _Variant(rules=lambda rule: rule.proof != "derived"),
    "preconditions": _Variant(rules=is_general),
    KERNELS: _Variant(options={"kernels": False}),
    "block_reuse": _Variant(options={"reuse": False}),
}
"""Variants by the part that is missing; the final measurement is left out in another way."""


@dataclass(frozen=True)
class _Result:
    """The result of one variant."""

    call: Callable[[], Any]
    facts: Row


def _measure(name: str, settings: Settings) -> Sequence[Row]:
    with subject(name, settings) as model:
        found = dict(_found(model, settings))
        calls = {ORIGINAL: model.source.call_of(model.source.callable())}
        calls |= {without: result.call for without, result in found.items()}
        seconds, settle = 10.0 if settings.quick else 40.0, wait_until_idle if model.engine else None
        held = race(
            calls, device=settings.device, seconds=seconds, seed=settings.seed, until_clear=False, settle=settle
        )
    rows: list[Row] = []
    for without, result in found.items():
        beside = interval(held, without, EVERYTHING, "over_everything")
        rows.append(
            {"model": name, "without": without, **interval(held, without, name="speedup"), **beside, **result.facts}
        )
    return rows


def _found(model: Subject, settings: Settings) -> Iterator[tuple[str, _Result]]:
    """Yield the results by the part that is missing."""
    race_seconds, limit = (2.0, 6.0) if settings.quick else (10.0, 60.0)
    runtime = "eager" if model.engine is None else model.engine.name
    options = Options(runtime=runtime, time_limit=limit, race_seconds=race_seconds, seed=settings.seed, cache=False)
    for without, taken in VARIANTS.items():
        if model.engine is not None and without == KERNELS:  # it chooses its own
            continue
        rules = [rule for rule in read_database() if taken.rules(rule)]
        chosen = replace(options, **(taken.options or {}))
        yield without, _optimized(model, chosen, rules)
    yield UNMEASURED, _best_by_price(model, options)


def _optimized(model: Subject, options: Options, rules: Sequence[Substitution]) -> _Result:
    result = optimize_source(model.source, options, rules, program=model.imported)
    report, args, kwargs = result.report, model.source.args, model.source.kwargs
    facts = {
        "rules": len(rules),
        "applied": len(report.applied),
        "cost": report.estimated_ms[1] / report.estimated_ms[0],
        "graphs": report.candidates,
        "search_s": report.search_seconds,
        "stop_reason": report.stop_reason,
    }
    return _Result(lambda: result.module(*args, **kwargs), facts)


def _best_by_price(model: Subject, options: Options) -> _Result:
    rules = read_database()
    found: SearchResult = search(model.imported.graph, rules, model.cost, options.limits())
    facts = {
        "rules": len(rules),
        "applied": len(found.best.applied),
        "cost": found.best.seconds / found.original.seconds,
        "graphs": found.built,
        "search_s": found.seconds,
        "stop_reason": found.stop_reason.value,
    }
    return _Result(model.build_graph(found.best.graph, model.cost)[1], facts)


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    models: dict[str, dict[str, Any]] = {}
    for row in rows:
        wide, without = models.setdefault(row["model"], {"model": row["model"]}), row["without"]
        wide |= {f"{without}{end}": row[f"speedup{end}"] for end in ("", "_low", "_high")}
    ways = list(dict.fromkeys(row["without"] for row in rows))
    grouped_bars(figure, list(models.values()), ways, "speed-up over the original, without what the legend names")


EXPERIMENT = Experiment(
    "ablation",
    "What does each part of the optimizer contribute?",
    reading=(
        "one row a model and part taken away; `preconditions` are rules that ask for certain sizes; `over_everything` "
        "below 1 is what the part is worth in speed of the result, above 1 the part did harm; `search_s` and `graphs` "
        "show what it is worth in search time; `cost` is what prices say of the result over the original, which for "
        "`kernel_choice` are those of plain kernels; engines for whole graphs, as in `nasrnn in openvino`, choose "
        "their own"
    ),
    parts=lambda settings: [*settings.choose(QUICK, FULL), *in_engines(settings.choose(QUICK, IN_ENGINES), settings)],
    measure=_measure,
    plot=_plot,
    apart=True,
)
