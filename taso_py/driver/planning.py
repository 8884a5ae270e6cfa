"""Plans for graphs: the kernels and memory formats that suit a graph best, among those that an engine can use.

Invariant: a plan for an engine names only kernels of that engine's table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from taso_py.backend import NO_PLAN, Plan
from taso_py.backend.plan import Format
from taso_py.cost.model import CostModel
from taso_py.engines.engine import KERNEL_PRICES, Engine
from taso_py.ir.graph import Graph
from taso_py.kernels.table import PLAIN
from taso_py.kernels.tile import Tile
from taso_py.rules.verdict import Numerics


def tiles_for(engines: Sequence[Engine], numerics: Numerics | None = None) -> tuple[Tile, ...]:
    """Return the kernels by whose latencies to search for several engines: those of the one that has the most.

    Args:
        engines: where the result may run.
        numerics: the cap on how results may differ; below that of products with zero, kernels that have them are out.
    """
    tiles = max((engine.tiles for engine in engines), key=len)
    is_capped = numerics is not None and numerics < Numerics.ZERO_TERMS
    return tuple(tile for tile in tiles if tile.is_direct or not is_capped)


def formats_for(tiles: tuple[Tile, ...]) -> Sequence[Format]:
    """Return the memory formats to choose from beside these kernels; compilers of all of a module choose their own."""
    return [Format.DENSE] if tiles == PLAIN else list(Format)


class Planner:
    """Plans by graph and engine."""

    def __init__(self, cost: CostModel) -> None:
        """Plan with the latencies of a cost model; without kernels of its own, where it has none."""
        self._cost = cost
        self._costs = {cost.tiles: cost}

    def __call__(self, graph: Graph, engine: Engine) -> Plan:
        """Return the plan of a graph for an engine; none for one that chooses kernels itself."""
        if engine.tiles == PLAIN:
            return NO_PLAN
        known = {tile.name for tile in self._cost.tiles}
        cost = self._priced(tuple(tile for tile in engine.tiles if tile.name in known))
        return engine.plan_for(cost.plan(graph))

    def _priced(self, tiles: tuple[Tile, ...]) -> CostModel:
        if tiles not in self._costs:
            self._costs[tiles] = self._cost.with_tiles(tiles)
        return self._costs[tiles]


def planner_of(costs: Mapping[str, CostModel]) -> Callable[[Graph, Engine], Plan]:
    """Return what chooses kernels, for engines that let it."""
    return Planner(costs[KERNEL_PRICES]) if KERNEL_PRICES in costs else lambda _graph, _engine: NO_PLAN
