"""Plans by runtime: each names kernels of the runtime's table only, and compilers of all of a module have none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from taso_py.backend import NO_PLAN, fold
from taso_py.cost.model import CostModel
from taso_py.driver.planning import Planner, formats_for, tiles_for
from taso_py.engines.engine import Engine
from taso_py.engines.inductor import WHOLE_MODULE_FORMS
from taso_py.engines.table import AROUND_KERNELS, ENGINES
from taso_py.frontend import import_module
from taso_py.kernels.table import PLAIN, TILES
from taso_py.kernels.tile import Tile
from taso_py.latency.database import LatencyDatabase
from taso_py.rules.verdict import Numerics

MODULE = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.ReLU()).eval()
X = torch.zeros(1, 8, 24, 24)


EAGER = ENGINES["eager"]


def _planner(path: Path, runtimes: tuple[Engine, ...], *, kernels: bool = True) -> Planner:
    tiles = tiles_for(runtimes) if kernels else PLAIN
    database = LatencyDatabase(path / "latencies.sqlite")
    return Planner(CostModel(torch.device("cpu"), database, tiles=tiles, formats=formats_for(tiles)))


def test_a_plan_names_what_its_runtime_can_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, narrowed = CostModel.with_tiles, list[CostModel]()

    def told(cost: CostModel, tiles: tuple[Tile, ...]) -> CostModel:
        narrowed.append(real(cost, tiles))
        return narrowed[-1]

    monkeypatch.setattr(CostModel, "with_tiles", told)
    graph = fold(import_module(MODULE, (X,))).graph
    planner = _planner(tmp_path, (EAGER, *WHOLE_MODULE_FORMS, AROUND_KERNELS))
    for runtime, is_fused_allowed in ((EAGER, True), (AROUND_KERNELS, False)):
        plan = planner(graph, runtime)
        assert plan.traced != plan.direct
        kernels = [step.kernel for step in plan.steps.values() if step.kernel]
        assert is_fused_allowed or all(len(kernel.nodes) == 1 for kernel in kernels)
    assert all(planner(graph, runtime) is NO_PLAN for runtime in WHOLE_MODULE_FORMS)
    assert len(narrowed) == 1, "beside the latencies of all kernels, those of what a compiler can trace"


def test_without_kernels_plans_are_plain_calls(tmp_path: Path) -> None:
    graph = fold(import_module(MODULE, (X,))).graph
    planner = _planner(tmp_path, (EAGER,), kernels=False)
    assert not any(step.kernel for step in planner(graph, EAGER).steps.values())


@pytest.mark.parametrize(("runtimes", "least"), [((EAGER, *WHOLE_MODULE_FORMS), len(TILES)), (WHOLE_MODULE_FORMS, 1)])
def test_the_search_is_guided_by_the_richest_table(runtimes: tuple[Engine, ...], least: int) -> None:
    assert len(tiles_for(runtimes)) == least


@pytest.mark.parametrize("numerics", [Numerics.EXACT, Numerics.REORDER, Numerics.REASSOCIATE])
def test_a_cap_leaves_out_kernels_that_multiply_by_zeros(numerics: Numerics, tmp_path: Path) -> None:
    indirect = {tile.name for tile in TILES if not tile.is_direct}
    assert indirect
    assert {tile.name for tile in tiles_for([EAGER], Numerics.ZERO_TERMS)} >= indirect
    tiles = tiles_for([EAGER], numerics)
    assert {tile.name for tile in TILES} - {tile.name for tile in tiles} == indirect
    priced = list[tuple[Tile, ...]]()

    class Told(CostModel):
        def with_tiles(self, tiles: tuple[Tile, ...]) -> CostModel:
            priced.append(tiles)
            return super().with_tiles(tiles)

    graph = fold(import_module(MODULE, (X,))).graph
    planner = Planner(Told(torch.device("cpu"), LatencyDatabase(tmp_path / "latencies.sqlite"), tiles=tiles))
    for runtime in (EAGER, AROUND_KERNELS):
        planner(graph, runtime)
    assert not any(tile.name in indirect for tiles in priced for tile in tiles)
