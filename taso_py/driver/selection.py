"""Which engines an optimization tries: those that are fastest without rules are searched for.

What operators cost in an engine takes up to a minute to measure, so that searching for an engine that is far behind
another is time lost. Every engine's time with the unchanged graph is known after a second.

Invariant: an engine that was asked for by its name is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch

from taso_py.backend import UNLIMITED, Program, fold
from taso_py.checking.kept import state_kept
from taso_py.cost.model import CostModel
from taso_py.driver.result import Options
from taso_py.engines.engine import KERNEL_PRICES, Engine, EngineUnavailableError
from taso_py.engines.names import AUTO
from taso_py.engines.table import AROUND_KERNELS, engines_to_try
from taso_py.judging.plausible import products_seconds
from taso_py.judging.timing import race
from taso_py.judging.trial import ORIGINAL, Searched
from taso_py.latency.idle import wait_until_idle
from taso_py.models.source import Source

PREDICTED = 0.9
"""By which factor what is predicted may be too long, of an engine beside another."""
KERNELS_GAIN = 1.6
"""How many times as fast as plain PyTorch a model is that is computed by kernels chosen for it, as a rule."""
SCOUT_S = 1.5
"""Seconds to time unchanged graphs for."""


@dataclass(frozen=True)
class Selection:
    """The engines that an optimization tries."""

    searched: Mapping[str, Sequence[Engine]]
    """Those to search for, by the prices that they ask for."""
    others: Sequence[Engine] = ()
    """Those that run the unchanged graph only."""
    notes: Sequence[str] = ()


def engines_for(options: Options, device: torch.device) -> tuple[Sequence[Engine], Sequence[str]]:
    """Return the engines that options ask for, and what there is to say of others.

    Raises:
        EngineUnavailableError: the device does not have the one asked for.
    """
    found, missing = engines_to_try(options.runtime, device)
    if not options.kernels and found != [AROUND_KERNELS]:
        found = [engine for engine in found if engine is not AROUND_KERNELS]  # a plan has nothing to compile around
    if options.runtime == AUTO and not options.limited.compiles:
        found = [engine for engine in found if not engine.is_compiler]
    return found, missing


def select(source: Source, program: Program, options: Options) -> Selection:
    """Return the engines to search for: of those that options ask for, as many families as the effort allows.

    Raises:
        EngineUnavailableError: the device does not have the one asked for.
    """
    engines, notes = engines_for(options, program.device)
    groups = by_prices(engines)
    if options.runtime != AUTO or len(groups) <= options.limited.families:
        return Selection(groups, (), notes)
    seconds, unusable = _unchanged_seconds(source, program, groups)
    ranking = sorted(seconds, key=seconds.__getitem__)
    chosen, left = ranking[: options.limited.families], ranking[options.limited.families :]
    others = [engine for prices in left if prices != KERNEL_PRICES for engine in groups[prices]]
    said = [engine.name for prices in left for engine in groups[prices]]
    if said:
        fastest = groups[ranking[0]][0].name
        unusable.append(f"{', '.join(said)}: not searched for, since {fastest} is faster; --effort thorough does")
    return Selection({prices: groups[prices] for prices in groups if prices in chosen}, others, [*notes, *unusable])


def _unchanged_seconds(
    source: Source, program: Program, groups: Mapping[str, Sequence[Engine]]
) -> tuple[dict[str, float], list[str]]:
    """About how long the unchanged graph takes with engines, by their prices, and why others cannot run it."""
    folded, modules, notes = fold(program, UNLIMITED), [source.callable()], list[str]()
    calls: dict[str, Callable[[], object]] = {ORIGINAL: source.call_of(modules[0])}
    for prices, (engine, *_) in groups.items():
        if prices == KERNEL_PRICES:
            continue
        try:
            module = engine.build(folded)
            with state_kept(program, [module]):
                runner = engine.prepare(module, source.args, source.kwargs, bool(program.open))
        except EngineUnavailableError as error:
            notes.append(str(error))
            continue
        modules.append(module)
        calls[prices] = source.call_of(runner)
    with state_kept(program, modules):
        found = race(calls, device=program.device, seconds=SCOUT_S, settle=wait_until_idle)
    if not found.rounds:
        raise KeyboardInterrupt
    seconds = {name: median(times) for name, times in found.times.items()}
    plain = seconds.pop(ORIGINAL)
    return ({KERNEL_PRICES: plain / KERNELS_GAIN} if KERNEL_PRICES in groups else {}) | seconds, notes


def by_prices(engines: Sequence[Engine]) -> Mapping[str, Sequence[Engine]]:
    """Return engines by the prices that a search for them asks for, in order."""
    groups: dict[str, list[Engine]] = {}
    for engine in engines:
        groups.setdefault(engine.prices, []).append(engine)
    return groups


def without_hopeless(searches: Sequence[Searched], cost: CostModel) -> tuple[Sequence[Searched], Sequence[str]]:
    """Return what searches found without the compilers that cannot win, and a note about those.

    A compiler calls the same libraries for products and convolutions as eager PyTorch does: their latencies are the
    least that it takes, however well it fuses the rest. Where that is more than another engine is predicted to take in
    all, building its code, which takes up to a minute, is time lost.

    Args:
        searches: what was found by each family of prices.
        cost: the latencies of PyTorch's kernels.
    """
    best = min(searches, key=lambda found: found.result.candidates[0].seconds)
    best_s, others, dropped = best.result.candidates[0].seconds, list[Searched](), list[str]()
    for found in searches:
        least_s = min(products_seconds(candidate.graph, cost) for candidate in found.result.candidates)
        hopeless = [
            engine
            for engine in found.engines
            if engine.is_compiler and engine.prices == KERNEL_PRICES and PREDICTED * least_s > best_s
        ]
        dropped += [engine.name for engine in hopeless]
        others.append(replace(found, engines=[engine for engine in found.engines if engine not in hopeless]))
    if not dropped:
        return searches, ()
    said = f"{', '.join(dropped)}: not tried, since products alone take longer there than all does in"
    return others, (f"{said} {best.engines[0].name}",)
