"""Makes the report of an optimization from the findings of its stages.

Invariant: a speed-up is reported only if it is plausible for these operators on this machine; if not, the report says
why it is withheld.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from torch import fx, nn

from taso_py.backend import Plan, Program
from taso_py.backend.build import PACKED_BYTES
from taso_py.backend.schema import stored_bytes
from taso_py.checking.preserve import preserve_state, repeatable
from taso_py.cost.model import CostModel
from taso_py.engines.engine import KERNEL_PRICES, PYTORCH_PRICES
from taso_py.ir.graph import Graph
from taso_py.ir.node import is_running
from taso_py.ir.types import DType
from taso_py.judging.evaluation import EvaluationOutcome
from taso_py.judging.finalists import EngineSearch, Finalist, result_for
from taso_py.judging.plausible import Bounds, bounds, estimate_note, why_withheld
from taso_py.judging.timing import Race, RaceStop, Ratio
from taso_py.latency.contention import Contention
from taso_py.latency.database import LatencyDatabase
from taso_py.latency.environment import Environment
from taso_py.latency.latencies import Latencies
from taso_py.latency.roofline import known_roofline
from taso_py.models.source import Source
from taso_py.profiling.trace import peak_bytes
from taso_py.report.optimization import EngineSpeedups, Report, Speedup
from taso_py.search.result import SearchResult, SearchStop

LONG_S = 5.0
"""Seconds of a call beyond which the peak of memory is not measured, since that takes another call."""
WITHHELD = Speedup(math.nan, math.nan, math.nan)
"""A speed-up that is withheld; null in JSON."""


@dataclass(frozen=True)
class Findings:
    """The results of all stages of an optimization, from which its report is made."""

    source: Source
    program: Program
    searches: Sequence[EngineSearch]
    outcome: EvaluationOutcome
    bounds: Bounds
    measuring: Contention
    """Load of the machine by other programs while latencies were measured."""
    peaks: tuple[int, int] | None
    """Peak memory of a call of original and result beyond weights and inputs; None if it was not measured."""
    notes: Sequence[str]
    phases: Mapping[str, float]
    seed: int

    @property
    def result(self) -> SearchResult:
        """The search result for the winner's engine; that of the first search if no search was for it."""
        return result_for(self.outcome.winner.engine, self.searches)


def bounds_of(source: Source, program: Program, outcome: EvaluationOutcome, costs: Mapping[str, CostModel]) -> Bounds:
    """Return bounds on the times of the original and of the winner, by the prices of the winner's engine."""
    winner = outcome.winner
    own = costs.get(winner.engine.prices) if winner.engine.prices in PYTORCH_PRICES else None
    cost = own or costs.get(KERNEL_PRICES)
    if cost is None:
        return Bounds(math.inf, 0.0)
    result_s: float | None = winner.candidate.seconds
    if own is None:
        result_s = 0.0  # the engine does not call these kernels, or does not launch each
    elif winner.engine.is_compiler:
        result_s = None
    roofline = known_roofline(program.device, {DType.F32}, cost.latencies.database)
    return bounds(
        program.graph, winner.program.graph, module=source.module, cost=cost, result_s=result_s, roofline=roofline
    )


def peaks_of(
    source: Source, program: Program, winner: Finalist, seconds: tuple[float, float]
) -> tuple[int, int] | None:
    """Return the peak memory of a call of the original and of the winner, beyond weights and inputs.

    Return None for CUDA graphs, whose memory is allocated once for all calls, and if a call takes long.
    """
    if winner.engine.is_captured or max(seconds) > LONG_S:
        return None
    original = source.callable()
    modules, arguments = [original, winner.module], (source.args, source.kwargs)
    calls = map(source.call_of, (original, winner.runner))
    runs = [repeatable(call, program, module, arguments) for call, module in zip(calls, modules, strict=True)]
    with preserve_state(program, modules, arguments):
        before, after = (peak_bytes(run, program.device) for run in runs)
    return None if before is None or after is None else (before, before if winner.is_original else after)


def _why_withheld(race: Race, ratio: Ratio, bounds: Bounds) -> str | None:
    """Return why the ratio of a confirming race must not be reported; None if it may be."""
    before, after = race.times[race.baseline], race.times["winner"]
    return why_withheld(before, after, ratio.median, bounds, contention=race.contention)


def report_of(found: Findings) -> Report:
    """Return the report."""
    program, outcome, winner = found.program, found.outcome, found.outcome.winner
    results = [search.result for search in found.searches]
    speedup, rules = outcome.speedup, outcome.rules_speedup
    before, after = outcome.seconds
    withheld = None
    if not winner.is_original:
        raced = [(outcome.final, speedup), (outcome.rules_race, rules)]
        reasons = (_why_withheld(race, ratio, found.bounds) for race, ratio in raced if race is not None)
        withheld = next(filter(None, reasons), None)
    told = Speedup(speedup.median, speedup.low, speedup.high) if withheld is None else WITHHELD
    return Report(
        model=found.source.name,
        device=str(program.device),
        runtime=winner.engine.name,
        original_ms=before * 1e3,
        optimized_ms=after * 1e3,
        speedup=told.median,
        speedup_low=told.low,
        speedup_high=told.high,
        withheld=withheld,
        is_final=is_final(found),
        rules_speedup=Speedup(rules.median, rules.low, rules.high) if withheld is None else WITHHELD,
        applied=winner.candidate.applied,
        kernels=_kernels(winner.plan),
        error=outcome.comparison.error,
        original_error=outcome.comparison.original_error,
        comparison_passed=outcome.comparison.passed,
        stop_reason=found.result.stop_reason.value,
        search_seconds=sum(result.seconds for result in results),
        expansions=sum(result.expansions for result in results),
        candidates=sum(result.built for result in results),
        estimated_ms=(found.result.original.seconds * 1e3, winner.candidate.seconds * 1e3),
        operators=(_running(program.graph), _running(winner.program.graph)),
        weight_bytes=(stored_bytes(program.weights.values()), stored_bytes(winner.program.weights.values())),
        memory_bytes=_memory_bytes(winner),
        peak_bytes=found.peaks,
        rounds=speedup.rounds,
        engines={} if withheld else _engines(outcome),
        timed={name: median(race.times[name]) * 1e3 for name, race in outcome.last_races.items()},
        environment=Environment.current(program.device).as_dict(),
        contention=outcome.final.contention.as_dict(),
        phases=dict(found.phases),
        seed=found.seed,
        notes=(
            *dict.fromkeys(note for result in results for note in result.notes),
            *found.notes,
            *_caveats(found, is_told=withheld is None),
        ),
    )


def is_final(found: Findings) -> bool:
    """Return whether nothing was interrupted, and other programs took little of the processor."""
    races = (*found.outcome.races, found.outcome.final)
    is_interrupted = SearchStop.INTERRUPTED in [search.result.stop_reason for search in found.searches]
    is_interrupted |= RaceStop.INTERRUPTED in [race.stop for race in races]
    return not (is_interrupted or any(race.contention.is_heavy for race in races) or found.measuring.is_heavy)


def _engines(outcome: EvaluationOutcome) -> dict[str, EngineSpeedups]:
    """Return the speed-ups of each engine, each graph's by the last race that it was in."""
    found: dict[str, EngineSpeedups] = {}
    for name, race in outcome.last_races.items():
        if name == race.baseline:
            continue
        contestant, ratio = outcome.contestants[name], race.ratio(name)
        speedup = Speedup(ratio.median, ratio.low, ratio.high)
        known = found.setdefault(contestant.engine, EngineSpeedups())
        if not contestant.is_rewritten:
            found[contestant.engine] = replace(known, unchanged=speedup)
        elif known.rewritten is None or speedup.median > known.rewritten.median:
            found[contestant.engine] = replace(known, rewritten=speedup)
    return found


def _caveats(found: Findings, *, is_told: bool) -> Iterator[str]:
    """Yield notes on numbers that may differ on a quiet machine."""
    outcome, winner = found.outcome, found.outcome.winner
    contention = outcome.final.contention
    if is_told and not contention.is_quiet:
        yield (
            f"{contention.text} while models were timed: on a quiet machine latencies are lower, and the speed-up may "
            "differ"
        )
    if not (winner.engine.is_compiler or winner.engine.is_captured or winner.engine.file):
        calls = _running(winner.program.graph)
        if winner.is_original and isinstance(found.source.module, nn.Module):
            calls += sum(1 for _ in found.source.module.modules())
        off = estimate_note(winner.candidate.seconds, outcome.seconds[1], calls)
        if off is not None:
            yield off
    busy = next((one for one in (contention, found.measuring) if not one.is_quiet), None)
    if busy is not None:
        yield f"for reliable numbers, {busy.advice}"


def measurement_notes(latencies: Latencies, measuring: Contention) -> list[str]:
    """Return notes on latencies that were measured on a busy machine, or not at all for lack of time."""
    notes: list[str] = []
    if latencies.disturbed:
        reasons = measuring.text or "other programs kept the machine busy"
        notes.append(
            f"{reasons} while {latencies.disturbed} of {latencies.measured} latencies were measured; those are not "
            "stored, and the search may have been misled by them"
        )
    if latencies.left_out:
        notes.append(
            f"measuring stopped after {latencies.limit_s:.0f} s, the limit of this level of effort; "
            f"{latencies.left_out} latencies are missing, and the kernels that need them were not considered; the next "
            "run continues from there"
        )
    return notes


def storage_notes(database: LatencyDatabase) -> list[str]:
    """Return a note if the latency database cannot be written."""
    if database.problem is None:
        return []
    return [f"latencies are kept for this run only: {database.problem}; set TASO_PY_CACHE to a folder for them"]


def _memory_bytes(winner: Finalist) -> int | None:
    """Return the bytes of the winner's weights in memory, packed ones included; None if an engine holds them."""
    is_called_as_built = not winner.engine.is_compiler and not winner.engine.file
    if winner.is_original or not is_called_as_built or not isinstance(winner.module, fx.GraphModule):
        return None
    state = (*winner.module.parameters(), *winner.module.buffers())
    return stored_bytes(state) + winner.module.meta[PACKED_BYTES]


def _running(graph: Graph) -> int:
    """Return the number of operators that run in each call: those that depend on more than weights and constants."""
    return sum(map(is_running, graph.nodes))


def _kernels(plan: Plan) -> dict[str, int]:
    """Return how many operators or groups of operators each kernel computes, plain ATen calls excluded."""
    return dict(sorted(Counter(step.kernel.name for step in plan.steps.values() if step.kernel is not None).items()))
