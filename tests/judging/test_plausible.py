"""A ratio that cannot be is not told; one that can be is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from taso_py.cost.model import CostModel
from taso_py.ir.graph import Graph
from taso_py.ir.types import DType
from taso_py.judging import plausible
from taso_py.judging.plausible import Bounds, bounds, estimate_note, why_withheld
from taso_py.latency.contention import Contention
from taso_py.latency.database import LatencyDatabase
from taso_py.latency.roofline import MemoryLevel, Roofline
from taso_py.ops.table import parse_graph

QUIET = Contention(seconds=10.0, cores=2, threads=2, others=0.01, waiting=0.0)
BUSY = replace(QUIET, others=1.0, waiting=0.9)
POSSIBLE = Bounds(original_s=2e-3, result_s=1e-3)


@pytest.fixture(autouse=True)
def slack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plausible, "SLACK", 3.0)
    monkeypatch.setattr(plausible, "CONTENDED_SLACK", 1.5)


def withheld(before_s: float, after_s: float, limits: Bounds, contention: Contention = QUIET) -> str | None:
    return why_withheld([before_s] * 9, [after_s] * 9, before_s / after_s, limits, contention)


def test_a_ratio_that_latencies_allow_is_told() -> None:
    assert withheld(2e-3, 1e-3, POSSIBLE) is None
    assert withheld(5e-3, 1e-3, POSSIBLE) is None
    assert withheld(2e-3, 1e-3, POSSIBLE, BUSY) is None
    assert withheld(1e-3, 2e-3, Bounds(1e-9, 1.0)) is None, "nobody boasts of being slower"
    assert withheld(1.0, 1e-9, Bounds(float("inf"), 1e-3)) is None, "nothing is known of the original"
    assert withheld(1.0, 1e-9, Bounds(float("inf"), 0.0)) is None, "nor of the result"


def test_a_ratio_beyond_what_latencies_allow_is_withheld() -> None:
    assert withheld(11.9e-3, 0.035e-3, Bounds(0.2e-3, 0.01e-3)) == (
        "11.900 ms against 0.035 ms is more than 60.0 times, the most that the operators' own latencies allow"
    )
    # On a busy machine less is believed, and what made it busy is said.
    assert withheld(5e-3, 1e-3, POSSIBLE, BUSY) == (
        "5.000 ms against 1.000 ms is more than 3.0 times, the most that the operators' own latencies allow; other "
        "programs kept 1.0 of 2 cores busy and 0.9 threads of this process waited for a core on average meanwhile"
    )


def test_what_the_fastest_rounds_do_not_show_is_withheld_on_a_busy_machine() -> None:
    before, after = [2e-3, *[4e-3] * 8], [1.5e-3] * 9
    limits = Bounds(1.0, 1e-3)
    found = why_withheld(before, after, 4 / 1.5, limits, BUSY)
    assert found is not None
    assert found.startswith("the fastest rounds, which were disturbed least, show 1.33x, far from the median of all")
    assert why_withheld(before, after, 4 / 1.5, limits, QUIET) is None


def test_no_result_is_faster_than_the_roofline() -> None:
    limits = replace(POSSIBLE, roof_s=1.5e-3)
    found = withheld(2e-3, 1e-3, limits)
    assert found is not None
    assert "at the highest rates ever measured on this device its work takes 1.500 ms" in found
    assert withheld(2e-3, 1e-3, replace(limits, roof_s=1.05e-3)) is None, "ceilings are measured too"


def test_an_estimate_that_is_far_off_is_noted() -> None:
    assert estimate_note(1e-3, 2e-3, 0) is None
    assert estimate_note(1e-6, 100e-6, 2) is None, "Python takes the rest"
    slow, fast = estimate_note(1e-3, 7e-3, 0), estimate_note(1e-3, 0.2e-3, 0)
    assert slow is not None
    assert "took 7 times as long" in slow
    assert fast is not None
    assert "took 5 times less" in fast
    assert estimate_note(float("inf"), 1.0, 0) is None


class Priced(CostModel):
    """A millisecond for each operator."""

    def with_tiles(self, tiles: object) -> CostModel:
        return self

    def node_cost(self, node: object) -> float:
        return 1e-3


def graph(body: str) -> Graph:
    return parse_graph(f"graph(x: f32[64,64], w: f32[64,64]) {{ return {body} }}")


def test_bounds_are_sums_of_latencies() -> None:
    one = graph("relu(matmul(x, w))")
    module = nn.Sequential(nn.ReLU(), nn.ReLU())
    roofline = Roofline({DType.F32: 1e9}, (MemoryLevel(2**30, 1e9),), 1e-6)
    with LatencyDatabase(":memory:") as database:
        cost = Priced(torch.device("cpu"), database)
        found = bounds(one, one, module, cost, 2e-3, None)
        assert 2e-3 < found.original_s < 3e-3
        assert 2e-3 < found.result_s < 2.1e-3
        assert found.roof_s == 0.0
        compiled = bounds(one, one, module, cost, None, roofline)
        assert 1e-3 < compiled.result_s < 1.1e-3, "a compiler may fuse all but products"
        assert compiled.roof_s == pytest.approx(2 * 64**3 / 1e9, rel=0.05)
