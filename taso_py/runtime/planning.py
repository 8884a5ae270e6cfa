"""Plans for graphs: the kernels and memory formats that suit a graph best, among those that a runtime can use.

Invariant: a plan for a runtime names only kernels of that runtime's table.
"""

from __future__ import annotations

from collections.abc import Sequence

from taso_py.backend import NO_PLAN, Plan
from taso_py.backend.plan import Format
from taso_py.cost.model import CostModel
from taso_py.ir.graph import Graph
from taso_py.kernels.table import PLAIN
from taso_py.kernels.tile import Tile
from taso_py.rules.verdict import Numerics
from taso_py.runtime.runtimes import COMPILED_AROUND, TILES_FOR


def tiles_for(runtimes: Sequence[str], numerics: Numerics | None = None) -> tuple[Tile, ...]:
    """The kernels by whose latencies to search for several runtimes: of the one that has the most.

    Args:
        runtimes: where the result may run.
        numerics: the cap on how results may differ; below that of products with zero, kernels that have them are out.
    """
    tiles = max((TILES_FOR[runtime] for runtime in runtimes), key=len)
    is_capped = numerics is not None and numerics < Numerics.ZERO_TERMS
    return tuple(tile for tile in tiles if tile.is_direct or not is_capped)


def formats_for(tiles: tuple[Tile, ...]) -> Sequence[Format]:
    """The memory formats to choose from beside these kernels; compilers of all of a module choose their own."""
    return [Format.DENSE] if tiles == PLAIN else list(Format)


class Planner:
    """Plans by graph and runtime."""

    def __init__(self, cost: CostModel) -> None:
        """Plans with the latencies of a cost model; without kernels of its own, where it has none."""
        self._cost = cost
        self._costs = {cost.tiles: cost}

    def __call__(self, graph: Graph, runtime: str) -> Plan:
        """The plan of a graph for a runtime; none for a compiler of all of it."""
        tiles = TILES_FOR[runtime]
        if tiles == PLAIN:
            return NO_PLAN
        known = {tile.name for tile in self._cost.tiles}
        plan = self._priced(tuple(tile for tile in tiles if tile.name in known)).plan(graph)
        return plan.compiled() if runtime == COMPILED_AROUND else plan

    def _priced(self, tiles: tuple[Tile, ...]) -> CostModel:
        if tiles not in self._costs:
            self._costs[tiles] = self._cost.narrowed(tiles)
        return self._costs[tiles]
