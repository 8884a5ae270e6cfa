"""The report of an optimization, made of what its stages found.

Invariant: a ratio is told only where what is known of the operators and of the machine allows it; why not, otherwise.
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
from taso_py.checking.kept import state_kept
from taso_py.cost.model import CostModel
from taso_py.engines.engine import KERNEL_PRICES
from taso_py.ir.graph import Graph
from taso_py.ir.node import is_running
from taso_py.ir.types import DType
from taso_py.judging.plausible import Bounds, bounds, estimate_note, why_withheld
from taso_py.judging.trial import ORIGINAL, Finalist, Judgement, Searched
from taso_py.latency.contention import Contention
from taso_py.latency.database import LatencyDatabase
from taso_py.latency.environment import Environment
from taso_py.latency.latencies import Latencies
from taso_py.latency.roofline import known_roofline
from taso_py.models.source import Source
from taso_py.profiling.trace import peak_bytes
from taso_py.report.optimization import EngineSpeedups, Report, Speedup
from taso_py.search.result import SearchResult

LONG_S = 5.0
"""A model that takes longer is not called once more to see how much memory it takes."""
UNTOLD = Speedup(math.nan, math.nan, math.nan)
"""A ratio that is withheld; null in JSON."""


@dataclass(frozen=True)
class Found:
    """What the stages of an optimization found."""

    source: Source
    program: Program
    searches: Sequence[Searched]
    judgement: Judgement
    bounds: Bounds
    measuring: Contention
    """What there was of the machine while latencies were measured."""
    peaks: tuple[int, int] | None
    """The most memory that original and result use beyond weights and inputs; None where that does not show."""
    notes: Sequence[str]
    phases: Mapping[str, float]
    seed: int

    @property
    def result(self) -> SearchResult:
        """What the search found that was made for the engine of the winner; the first one where the original won."""
        engine = self.judgement.winner.engine
        return next((one.result for one in self.searches if engine in one.engines), self.searches[0].result)


def bounds_of(source: Source, program: Program, judgement: Judgement, costs: Mapping[str, CostModel]) -> Bounds:
    """Between what the times of the original and of the winner can be, by the prices of each search."""
    winner, cost = judgement.winner, costs.get(KERNEL_PRICES)
    if cost is None:
        return Bounds(math.inf, 0.0)
    result_s: float | None = winner.candidate.seconds
    if winner.engine.is_captured and not cost.captured:
        result_s = 0.0  # was priced with launches, which it does not have
    elif winner.engine.is_compiler:
        result_s = None
    elif winner.engine.prices != KERNEL_PRICES:
        result_s = 0.0  # does not call these kernels
    roofline = known_roofline(program.device, {DType.F32}, cost.latencies.database)
    return bounds(program.graph, winner.program.graph, source.module, cost, result_s, roofline)


def peaks_of(
    source: Source, program: Program, winner: Finalist, seconds: tuple[float, float]
) -> tuple[int, int] | None:
    """The most memory that the original and the winner take beside weights and inputs.

    None for captured graphs, whose memory is theirs for good, and where another call each would take long.
    """
    if winner.engine.is_captured or max(seconds) > LONG_S:
        return None
    original = source.callable()
    modules = [original, winner.module]
    runs = [source.call_of(runner) for runner in (original, winner.runner)]
    with state_kept(program, modules):
        before, after = (peak_bytes(run, program.device) for run in runs)
    return None if before is None or after is None else (before, before if winner.name == ORIGINAL else after)


def report_of(found: Found) -> Report:
    """The report."""
    program, judgement, winner = found.program, found.judgement, found.judgement.winner
    results = [search.result for search in found.searches]
    speedup, rules = judgement.speedup, judgement.rules_speedup
    before, after = judgement.seconds
    withheld = None
    if winner.name != ORIGINAL:
        times, race = judgement.final.times, judgement.final
        withheld = why_withheld(
            times[race.baseline], times["winner"], speedup.median, found.bounds, contention=race.contention
        )
    told = Speedup(speedup.median, speedup.low, speedup.high) if withheld is None else UNTOLD
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
        rules_speedup=Speedup(rules.median, rules.low, rules.high) if withheld is None else UNTOLD,
        applied=winner.candidate.applied,
        kernels=_kernels(winner.plan),
        error=judgement.comparison.error,
        original_error=judgement.comparison.original_error,
        comparison_passed=judgement.comparison.passed,
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
        engines={} if withheld else _engines(judgement),
        timed={name: median(times) * 1e3 for name, times in judgement.first.times.items() if times},
        environment=Environment.current(program.device).as_dict(),
        contention=judgement.final.contention.as_dict(),
        phases=dict(found.phases),
        seed=found.seed,
        notes=(
            *dict.fromkeys(note for result in results for note in result.notes),
            *found.notes,
            *_doubts(found, is_told=withheld is None),
        ),
    )


def _engines(judgement: Judgement) -> dict[str, EngineSpeedups]:
    """What each engine made of the model in the first race."""
    found: dict[str, EngineSpeedups] = {}
    for name, contestant in judgement.contestants.items():
        if not judgement.first.times[name]:
            continue
        ratio = judgement.first.ratio(name)
        speedup = Speedup(ratio.median, ratio.low, ratio.high)
        known = found.setdefault(contestant.engine, EngineSpeedups())
        if not contestant.is_rewritten:
            found[contestant.engine] = replace(known, unchanged=speedup)
        elif known.rewritten is None or speedup.median > known.rewritten.median:
            found[contestant.engine] = replace(known, rewritten=speedup)
    return found


def _doubts(found: Found, *, is_told: bool) -> Iterator[str]:
    """What to say of numbers that need not be what they are on a quiet machine."""
    judgement, winner = found.judgement, found.judgement.winner
    contention = judgement.final.contention
    if is_told and not contention.is_quiet:
        yield (
            f"{contention.text} while models were timed: on a quiet machine latencies are lower, and the speed-up may "
            "be another"
        )
    if not (winner.engine.is_compiler or winner.engine.is_captured or winner.engine.file):
        calls = _running(winner.program.graph)
        if winner.name == ORIGINAL and isinstance(found.source.module, nn.Module):
            calls += sum(1 for _ in found.source.module.modules())
        off = estimate_note(winner.candidate.seconds, judgement.seconds[1], calls)
        if off is not None:
            yield off
    busy = next((one for one in (contention, found.measuring) if not one.is_quiet), None)
    if busy is not None:
        yield f"for numbers that can be trusted, {busy.advice}"


def disturbances(latencies: Latencies, measuring: Contention) -> list[str]:
    """What to say about latencies that were measured while others kept the machine busy, or not measured at all."""
    notes: list[str] = []
    if latencies.disturbed:
        reasons = measuring.text or "other programs kept the machine busy"
        notes.append(
            f"{reasons} while {latencies.disturbed} of {latencies.measured} latencies were measured; those are not "
            "kept, and the search may have chosen by wrong ones"
        )
    if latencies.left_out:
        notes.append(
            f"measuring ended after {latencies.limit_s:.0f} s, as the effort says; {latencies.left_out} latencies were "
            "left out, and what they belong to was not chosen; the next run goes on from there"
        )
    return notes


def unkept(database: LatencyDatabase) -> list[str]:
    """What to say where latencies cannot be kept."""
    if database.problem is None:
        return []
    return [f"latencies are kept for this run only: {database.problem}; TASO_PY_CACHE names a folder for them"]


def _memory_bytes(winner: Finalist) -> int | None:
    """What the weights of a module take that is called as it was built."""
    is_called_as_built = not winner.engine.is_compiler and not winner.engine.file
    if winner.name == ORIGINAL or not is_called_as_built or not isinstance(winner.module, fx.GraphModule):
        return None
    state = (*winner.module.parameters(), *winner.module.buffers())
    return stored_bytes(state) + winner.module.meta[PACKED_BYTES]


def _running(graph: Graph) -> int:
    """How many operators run each time: those that do not depend on weights and constants only."""
    return sum(map(is_running, graph.nodes))


def _kernels(plan: Plan) -> dict[str, int]:
    """How often each tile but the plain operators computes something."""
    return dict(sorted(Counter(step.kernel.name for step in plan.steps.values() if step.kernel is not None).items()))
