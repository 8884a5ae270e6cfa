"""The searches of an optimization: one for each family of engines, priced by latencies measured in that family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from taso_py.backend.schema import stored_bytes
from taso_py.cost.model import CostModel
from taso_py.driver.bodies import BodySearch, body_places
from taso_py.driver.calibrating import scale_to_run, scale_to_runs
from taso_py.driver.planning import formats_for, tiles_for
from taso_py.driver.prepare import PreparedSource
from taso_py.driver.selection import Selection
from taso_py.engines.engine import COMPILED_PRICES, KERNEL_PRICES, PYTORCH_PRICES, Engine
from taso_py.engines.fusing import FusedLatencies
from taso_py.engines.prices import session_cost
from taso_py.engines.session import SessionEngine
from taso_py.judging.finalists import EngineSearch
from taso_py.kernels.table import PLAIN
from taso_py.latency.database import LatencyDatabase
from taso_py.options import Options
from taso_py.rules.database import read_database
from taso_py.rules.match import Matcher
from taso_py.rules.substitution import Substitution
from taso_py.search.follow import add_followed, follow
from taso_py.search.names import TEMPLATES
from taso_py.search.result import SearchResult
from taso_py.search.strategies import search
from taso_py.search.templates import read_templates
from taso_py.search.trace import Trace


def rules_for(options: Options, path: Path | None = None) -> Sequence[Substitution]:
    """Return the rules of a file or folder; by default the database, or the templates for a template search.

    Raises:
        TasoError: they cannot be read.
    """
    return read_templates() if path is None and options.search in TEMPLATES else read_database(path)


@dataclass(frozen=True)
class Searches:
    """The searches of one optimization."""

    prepared: PreparedSource
    rules: Sequence[Substitution]
    trace: Trace | None
    """The steps to apply in place of a search, if any."""

    @cached_property
    def _matcher(self) -> Matcher:
        """The rules, prepared for all searches."""
        return Matcher(self.rules)

    def cost_of(self, engines: Sequence[Engine], database: LatencyDatabase) -> CostModel:
        """Return the cost model for engines that share prices."""
        program, options = self.prepared.program, self.prepared.options
        if isinstance(engines[0], SessionEngine):
            return session_cost(engines[0], program.graph, database, progress=options.progress)
        tiles = tiles_for(engines, options.numerics) if options.kernels else PLAIN
        weight_bytes, latencies = stored_bytes(program.weights.values()), None
        if engines[0].prices == COMPILED_PRICES:
            latencies = FusedLatencies(program.device, database, None, weight_bytes, captured=True)
        return CostModel(
            program.device,
            database,
            weight_bytes=weight_bytes,
            tiles=tiles,
            formats=formats_for(tiles),
            progress=options.progress,
            captured=engines[0].is_captured,
            latencies=latencies,
        )

    def run(
        self, selection: Selection, database: LatencyDatabase, last: Trace | None, share: float
    ) -> tuple[list[EngineSearch], dict[str, CostModel], Selection]:
        """Run the searches, as long as another one may lead to the fastest engine.

        Return their results, the cost models by the name of prices, and the selection without those left out.

        Args:
            selection: the engines to search for.
            database: the latency database.
            last: the trace of the last winner for this program, which is tried too.
            share: the share of its seconds that each search gets.
        """
        found, costs, gains, left = list[EngineSearch](), dict[str, CostModel](), dict[str, float](), list[str]()
        for prices, engines in selection.searched.items():
            if not selection.may_lead(prices, gains):
                left.append(prices)
                continue
            costs[prices] = self.cost_of(engines, database)
            result = self._search(costs[prices], engines[0], selection.unchanged_s.get(prices), last, share)
            found.append(EngineSearch(result, engines))
            gains[prices] = result.gain
        return found, costs, selection.without(left)

    def _search(
        self, cost: CostModel, engine: Engine, unchanged_s: float | None, last: Trace | None, share: float
    ) -> SearchResult:
        graph, options, phases = self.prepared.program.graph, self.prepared.options, self.prepared.phases
        what = "its operators, one by one, on this machine"
        cost.latencies.limit_s = options.effective_effort.measure_s
        cost.latencies.reach = options.effective_effort.reach
        # Where as long a search has found a winner, it has refined the latencies that decide, and measured the factor.
        is_first, bodies = share == 1, len(body_places(graph))
        with phases.phase("measure", what if engine.prices == KERNEL_PRICES else f"{what}, in {engine.name}"):
            cost.warm(graph)
            if engine.prices in PYTORCH_PRICES:
                scale_to_runs(cost, measures=options.effective_effort.calibrates and is_first)
            elif unchanged_s is not None and not bodies:  # what goes on in them has no price
                scale_to_run(cost, graph, unchanged_s)
        limits = options.limits()
        each = replace(limits, seconds=limits.seconds * share / (1 + bodies))
        with phases.phase("search", "for faster graphs"):
            if self.trace is not None:
                return follow(graph, self.trace, self.rules, cost, limits)
            found = search(
                graph, self._matcher, cost, options.search, each, progress=options.progress, refines=is_first
            )
            if options.search not in TEMPLATES:  # these apply their rules whatever the cost
                found = found.worthwhile()
        if bodies:
            with phases.phase("bodies", "of control flow, as graphs of their own"):
                # In PyTorch bodies run by its own calls; engines for whole graphs compute them like all else.
                inside = cost.plain() if engine.prices in PYTORCH_PRICES else cost
                found = BodySearch(self._matcher, inside, options.search, each, options.seed).add_to(found)
        return found if last is None else add_followed(found, last, self.rules, cost, limits)
