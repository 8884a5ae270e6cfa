"""Plans: the kernels and memory formats that are fastest for a graph, among those that an engine can use.

Invariant: a plan for an engine names only kernels of that engine's table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from taso_py.backend import NO_PLAN, Plan
from taso_py.backend.plan import Format
from taso_py.cost.model import CostModel
from taso_py.engines.engine import PYTORCH_PRICES, Engine
from taso_py.ir.graph import Graph
from taso_py.kernels.table import PLAIN
from taso_py.kernels.tile import Tile
from taso_py.rules.verdict import Numerics


def tiles_for(engines: Sequence[Engine], numerics: Numerics | None = None) -> tuple[Tile, ...]:
    """Return the tiles whose latencies a search for several engines uses: those of the engine that has the most.

    Args:
        engines: where the result may run.
        numerics: the cap on how results may differ; a cap below ZERO_TERMS excludes kernels that are not direct.
    """
    tiles = max((engine.tiles for engine in engines), key=len)
    is_capped = numerics is not None and numerics < Numerics.ZERO_TERMS
    return tuple(tile for tile in tiles if tile.is_direct or not is_capped)


def formats_for(tiles: tuple[Tile, ...]) -> Sequence[Format]:
    """Return the memory formats to choose from with these tiles; only dense ones if all are plain operators."""
    return [Format.DENSE] if tiles == PLAIN else list(Format)


class Planner:
    """Chooses the plan of a graph for an engine."""

    def __init__(self, cost: CostModel) -> None:
        """Plan by the latencies of a cost model, with the kernels that it knows."""
        self._cost = cost
        self._costs = {cost.tiles: cost}

    def __call__(self, graph: Graph, engine: Engine) -> Plan:
        """Return the plan of a graph for an engine; empty if the engine chooses kernels itself."""
        if engine.tiles == PLAIN:
            return NO_PLAN
        known = {tile.name for tile in self._cost.tiles}
        cost = self._cost_with(tuple(tile for tile in engine.tiles if tile.name in known))
        return engine.plan_for(cost.plan(graph))

    def _cost_with(self, tiles: tuple[Tile, ...]) -> CostModel:
        if tiles not in self._costs:
            self._costs[tiles] = self._cost.with_tiles(tiles)
        return self._costs[tiles]


def planner_of(costs: Mapping[str, CostModel]) -> Callable[[Graph, Engine], Plan]:
    """Return a function from a graph and an engine to a plan, given the cost models by the name of their prices."""
    planners = {prices: Planner(costs[prices]) for prices in PYTORCH_PRICES if prices in costs}

    def plan(graph: Graph, engine: Engine) -> Plan:
        # An engine that was not searched for runs the unchanged graph, by the prices that are known.
        planner = planners.get(engine.prices) or next(iter(planners.values()), None)
        return NO_PLAN if planner is None else planner(graph, engine)

    return plan
