"""Choice of the engines that an optimization searches for: those that are fastest on the unchanged graph.

Measuring an engine's operators takes up to a minute, which is wasted on an engine that is far slower than another, or
that computes the model less accurately than is allowed. Timing the unchanged graph in every engine takes about a
second, and its outputs are compared with what is computed once in any case.

Invariant: an engine that the user names is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

import torch

from taso_py.backend import NO_PLAN, UNLIMITED, Program, fold
from taso_py.checking.preserve import preserve_state, repeatable
from taso_py.cost.model import CostModel
from taso_py.engines.engine import KERNEL_PRICES, PYTORCH_PRICES, Built, Engine, EngineUnavailableError
from taso_py.engines.inductor import CAPTURED_FORMS, WHOLE_MODULE_FORMS
from taso_py.engines.names import AUTO
from taso_py.engines.table import ENGINES, engines_to_try
from taso_py.ir.graph import Graph
from taso_py.judging.building import built_in
from taso_py.judging.expected import ExpectedOutputs
from taso_py.judging.plausible import library_seconds
from taso_py.judging.timing import race
from taso_py.kernels.check import FAILURES
from taso_py.latency.assumed import AssumedLatencies
from taso_py.latency.database import LatencyDatabase
from taso_py.latency.idle import wait_until_idle
from taso_py.models.source import Source
from taso_py.options import Options
from taso_py.progress import Phases
from taso_py.rules.lemma import Lemmas
from taso_py.rules.substitution import Substitution
from taso_py.search.rolling import running_operators, shortened

KERNELS_GAIN = 1.6
"""Typical speed-up over plain PyTorch by choosing kernels, where none can be tried."""
SCOUT_S = 1.5
"""Seconds to time unchanged graphs for."""


@dataclass(frozen=True)
class Selection:
    """The engines that an optimization tries."""

    searched: Mapping[str, Sequence[Engine]]
    """Engines to search for, by the name of their prices; where they were ranked, the fastest first."""
    others: Sequence[Engine] = ()
    """Engines that only run the unchanged graph."""
    notes: Sequence[str] = ()
    unchanged_s: Mapping[str, float] = field(default_factory=dict[str, float])
    """Measured seconds of the unchanged graph by the name of prices, of engines that were timed: among them all that
    are searched for and take whole graphs, unless they fail."""
    built: Mapping[str, Built] = field(default_factory=dict[str, Built])
    """The unchanged graph in the engines that were timed, by name."""
    expected_s: Mapping[str, float] = field(default_factory=dict[str, float])
    """Expected seconds of the unchanged graph by the name of prices, by which the engines were ranked; empty if all are
    searched for."""

    def may_lead(self, prices: str, gains: Mapping[str, float]) -> bool:
        """Return whether engines may still be the fastest with rules, given those that were searched for before.

        Where rules gained nothing there, no slower engine may: the unchanged graph is raced in all but PyTorch, and
        engines that tie differ by less than another search is worth.

        What rules gain differs between engines the more, the more they gain: at most like its power of 1.5 in 24 models
        (2.0 in ONNX Runtime and 2.7 in OpenVINO, 1.07 and 1.03; experiments/engines.py).

        Args:
            prices: the name of the engines' prices.
            gains: speed-ups by rules, as costs predict them, by the name of prices.
        """
        if not (self.expected_s and gains):
            return True
        fastest = min(
            # What is expected of PyTorch may have a gain in it already, that of lemmas.
            self.expected_s[searched] / (1.0 if searched == KERNEL_PRICES else gain)
            for searched, gain in gains.items()
        )
        return self.expected_s[prices] / max(1.0, *gains.values()) ** 1.5 < fastest

    def without(self, left: Sequence[str]) -> Selection:
        """Return the selection with some prices left out, in whose engines only the unchanged graph is tried."""
        kept = {prices: engines for prices, engines in self.searched.items() if prices not in left}
        out = [engine for prices in left for engine in self.searched[prices]]
        if not out:
            return self
        names, ((fastest, *_), *_) = ", ".join(engine.name for engine in out), kept.values()
        said = f"{names}: not searched, since {fastest.name} is faster; --effort thorough searches all"
        others = [*self.others, *(engine for engine in out if engine.prices != KERNEL_PRICES)]
        return replace(self, searched=kept, others=others, notes=[*self.notes, said])


def engines_for(
    options: Options, device: torch.device, *, is_open: bool = False
) -> tuple[Sequence[Engine], Sequence[str]]:
    """Return the engines that the options ask for, and notes on those that are missing.

    Args:
        options: the options of the optimization.
        device: the device of the program.
        is_open: true if it has open sizes, which nothing that is captured takes.

    Raises:
        EngineUnavailableError: the engine that the user names is not available on the device.
    """
    found, missing = engines_to_try(options.runtime, device)
    if not options.kernels and len(found) > 1:
        found = [engine for engine in found if not engine.compiles_around_kernels]  # there is nothing to compile around
    if options.runtime == AUTO:
        effort = options.effective_effort
        found = [engine for engine in found if effort.compiles or not engine.is_compiler]
        found = [engine for engine in found if effort.compiles_ahead or not engine.is_ahead_of_time]
        around = [engine for engine in found if engine.compiles_around_kernels and not (is_open and engine.is_captured)]
        if around and not effort.compiles_all:
            # It is the fastest form, or within 1 % of that, but where eager mode is faster still
            # (experiments/end_to_end.py, 51 comparisons on three processors; on a GPU so far experiments/captured.py).
            others = {*WHOLE_MODULE_FORMS, *CAPTURED_FORMS}.difference(around)
            found = [engine for engine in found if engine not in others]
    return found, missing


def select(
    expected: ExpectedOutputs, options: Options, phases: Phases, rules: Iterable[Substitution] = ()
) -> Selection:
    """Return the engines to search for: the fastest families among those asked for, as many as the effort allows.

    Args:
        expected: the expected outputs of what is optimized.
        options: the options of the optimization.
        phases: is told when engines are timed.
        rules: the rules that are searched with.

    Raises:
        EngineUnavailableError: the engine that the user names is not available on the device.
    """
    source, program = expected.source, expected.program
    engines, notes = engines_for(options, program.device, is_open=bool(program.open))
    groups = by_prices(engines)
    is_complete = options.runtime != AUTO or len(groups) <= options.effective_effort.families
    if is_complete and all(prices in PYTORCH_PRICES for prices in groups):
        return Selection(groups, (), notes)
    with phases.phase("engines", "time each one on the unchanged graph"):
        built, unusable = _unchanged(source, program, groups)
        if options.runtime == AUTO:
            wrong = _wrong(expected, built, groups)
            notes = [*notes, *wrong.values()]
            built = {prices: one for prices, one in built.items() if prices not in wrong}
            groups = {prices: engines for prices, engines in groups.items() if prices not in wrong}
        trial = _with_likely_kernels(source, program, options) if KERNEL_PRICES in groups and not is_complete else None
        timed, eager_s = _unchanged_seconds(source, program, built, trial)
    made = {groups[prices][0].name: one for prices, one in built.items()}
    if is_complete:  # the evaluation tells which engines fail
        return Selection(groups, (), notes, timed, made)
    gain = _shortening(program.graph, rules, options) * (1.0 if trial or not options.kernels else KERNELS_GAIN)
    seconds = ({KERNEL_PRICES: eager_s / gain} if KERNEL_PRICES in groups else {}) | timed
    ranking = sorted(seconds, key=seconds.__getitem__)
    ranked = Selection({prices: groups[prices] for prices in ranking}, (), [*notes, *unusable], timed, made, seconds)
    return ranked.without(ranking[options.effective_effort.families :])


def _shortening(graph: Graph, rules: Iterable[Substitution], options: Options) -> float:
    """Return how many times more operators run than if loops are rolled up and siblings merged.

    That is a speed-up where the calls take the time, as in PyTorch; engines call theirs faster.
    """
    before, after = map(running_operators, (graph, shortened(graph, Lemmas(rules), options.limits())))
    return max(1, before) / max(1, after)


def _unchanged(
    source: Source, program: Program, groups: Mapping[str, Sequence[Engine]]
) -> tuple[dict[str, Built], list[str]]:
    """Return the unchanged graph in the first engine of each group that takes whole graphs, and notes on failures."""
    folded, built, notes = fold(program, UNLIMITED), dict[str, Built](), list[str]()
    for prices, (engine, *_) in groups.items():
        if prices == KERNEL_PRICES:
            continue
        try:
            built[prices] = built_in(engine, folded, NO_PLAN, (source.args, source.kwargs), program)
        except EngineUnavailableError as error:
            notes.append(str(error))
    return built, notes


def _with_likely_kernels(source: Source, program: Program, options: Options) -> Built | None:
    """Return the unchanged graph in PyTorch with the kernels that are likely to be the fastest, before any is measured.

    None if none may be chosen, or they fail; on a GPU PyTorch chooses itself.
    """
    if not options.kernels or program.device.type != "cpu":
        return None
    engine, folded = ENGINES["eager"], fold(program, UNLIMITED)
    tiles = tuple(tile for tile in engine.tiles if tile.is_direct)
    with LatencyDatabase(":memory:") as nothing:
        assumed = AssumedLatencies(program.device, nothing)
        cost = CostModel(program.device, nothing, tiles=tiles, latencies=assumed)
        try:
            return built_in(engine, folded, cost.plan(folded.graph), (source.args, source.kwargs), program)
        except (*FAILURES, EngineUnavailableError):
            return None


def _wrong(
    expected: ExpectedOutputs, built: Mapping[str, Built], groups: Mapping[str, Sequence[Engine]]
) -> Mapping[str, str]:
    """Return the prices of engines that compute the unchanged graph wrongly, each with a note."""
    found: dict[str, str] = {}
    for prices, one in built.items():
        engine = groups[prices][0]
        compared = expected.of_unchanged(one, engine)
        if not compared.passed:
            found[prices] = f"{engine.name}: not tried, since the unchanged graph is wrong there: {compared.reason}"
    return found


def _unchanged_seconds(
    source: Source, program: Program, built: Mapping[str, Built], trial: Built | None
) -> tuple[dict[str, float], float]:
    """Return the time of each of these, and that of the trial in PyTorch, or else the model's there."""
    arguments = source.args, source.kwargs
    if trial is None:
        # A file with an ONNX model is the original in ONNX Runtime, whose time says nothing of PyTorch's.
        original = replace(source, onnx=None).callable()
        trial = Built(original, original)
    timed = {KERNEL_PRICES: trial, **built}
    calls = {
        name: repeatable(source.call_of(one.runner), program, one.module, arguments) for name, one in timed.items()
    }
    with preserve_state(program, [one.module for one in timed.values()], arguments):
        found = race(calls, device=program.device, seconds=SCOUT_S, settle=wait_until_idle)
    if not found.rounds:
        raise KeyboardInterrupt
    seconds = {name: median(times) for name, times in found.times.items()}
    return seconds, seconds.pop(KERNEL_PRICES)


def by_prices(engines: Sequence[Engine]) -> Mapping[str, Sequence[Engine]]:
    """Return engines grouped by the name of their prices, in order."""
    groups: dict[str, list[Engine]] = {}
    for engine in engines:
        groups.setdefault(engine.prices, []).append(engine)
    return groups


def library_seconds_of(runtime: str, costs: Mapping[str, CostModel]) -> Callable[[Graph], float] | None:
    """Return a function from a graph to the time that libraries take for it, by which compilers are left out.

    Return None if all are tried, since the user names one, or the libraries' latencies were not measured.

    Args:
        runtime: the user's choice.
        costs: the cost models by the name of their prices.
    """
    if runtime != AUTO or KERNEL_PRICES not in costs:
        return None
    return partial(library_seconds, cost=costs[KERNEL_PRICES])
