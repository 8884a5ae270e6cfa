"""Memory formats that were decided for one graph hold for others, by kind of operator, whatever they cost there."""

from __future__ import annotations

import math

import pytest
import torch

from experiments.joint_layout import DecidedCost
from taso_py.backend.plan import Format
from taso_py.cost.model import CostModel
from taso_py.kernels.table import PLAIN, TILES
from taso_py.kernels.tile import Tile
from taso_py.latency import measuring
from taso_py.latency.clock import Latency
from taso_py.latency.database import LatencyDatabase
from taso_py.ops.table import parse_graph

CPU = torch.device("cpu")
BODY = """x: f32[1,8,6,6]) {
  w = weight{key="w", type=f32[8,8,3,3]}
  y = conv2d(x, w){stride=[1, 1], padding=[1, 1]}
  z = conv2d(relu(y), w){stride=[1, 1], padding=[1, 1]}
"""
GRAPH = parse_graph(f"graph({BODY} return relu(z) }}")
OTHER = parse_graph(f"graph({BODY} return tanh(add(z, y)) }}")


@pytest.fixture(autouse=True)
def _even_latencies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "measure", lambda *_, **__: Latency(1e-3, 1e-3, 1e-3, 10, 0))
    monkeypatch.setattr(measuring.Probe, "is_calm", lambda _: True)


@pytest.mark.parametrize(("format_", "tiles"), [(Format.DENSE, PLAIN), (Format.CHANNELS_LAST, TILES)])
def test_what_was_decided_holds_in_another_graph(format_: Format, tiles: tuple[Tile, ...]) -> None:
    with LatencyDatabase(":memory:") as database:
        plan = CostModel(CPU, database, tiles=tiles, formats=[format_]).plan(GRAPH)
        decided = DecidedCost(CPU, database)
        decided.decide(GRAPH, plan)
        choice = decided.choice(OTHER)
    convolutions = [node for node in OTHER.nodes if node.op.name == "conv2d"]
    covering = {n: root for root, step in choice.plan.steps.items() if step.kernel for n in step.kernel.nodes}
    assert {choice.plan.step(covering.get(node, node)).gives for node in convolutions} == {format_}
    assert math.isfinite(choice.seconds)
    assert choice.seconds < 0.1


def test_without_a_decision_prices_are_the_usual_ones() -> None:
    with LatencyDatabase(":memory:") as database:
        assert DecidedCost(CPU, database).graph_cost(OTHER) == CostModel(CPU, database).graph_cost(OTHER)
