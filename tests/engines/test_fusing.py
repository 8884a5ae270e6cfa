"""Prices in a compiler that fuses elementwise operators, by latencies that are made up."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from taso_py.backend.plan import Format
from taso_py.engines.fusing import FusedLatencies
from taso_py.ir.node import Node
from taso_py.kernels.aten import ATEN
from taso_py.latency.clock import Latency
from taso_py.latency.database import LatencyDatabase
from taso_py.latency.environment import Environment
from taso_py.latency.latencies import Latencies
from taso_py.ops.table import parse_graph

CPU = torch.device("cpu")
GRAPH = """graph(x: f32[4,8], y: f32[4,8]) {{
  w = weight{{key="w", type=f32[8,8]}} b = weight{{key="b", type=f32[8]}}
  product = matmul(x, w) loop = tanh(y) return {result}
}}"""
FUSED = (
    "relu(loop)",
    "relu(mul(loop, b))",
    "mul(loop, b)",
    "add(loop, x)",
    "add(loop, tanh(x))",
    "mul(softmax(product){axis=-1}, y)",
    "mul(sum(product){axes=[-1]}, sum(loop){axes=[-1]})",
    "relu(relu(product))",
    "relu(permute(slice(loop){axis=-1, start=0, stop=4}){order=[-1,-2]})",
)
APART = (
    "tanh(y)",
    "add(x, y)",
    "add(x, b)",
    "relu(product)",
    "add(product, loop)",
    "relu(permute(slice(product){axis=-1, start=0, stop=4}){order=[-1,-2]})",
    "softmax(loop){axis=-1}",
    "matmul(loop, w)",
    "concat(loop, relu(loop)){axis=-2}",
    'relu(opaque(x){target="aten.cumsum.default", arguments=[$0,1], types=[f32[4,8]]})',
)
SECONDS = 7e-6


def latency_of(kind: type[Latencies], node: Node, folder: Path) -> float:
    """The latency of a node in an environment where each takes equally long by itself."""
    environment = Environment.current(CPU)
    with LatencyDatabase(folder / "latencies.sqlite") as database:
        latencies = kind(CPU, database, environment, weight_bytes=0, captured=False)
        (cover,) = ATEN.covers(node, CPU)
        database.put(environment, *latencies.key(cover, Format.DENSE), Latency(SECONDS, SECONDS, SECONDS, 9, 0))
        return latencies.of_cover(cover, Format.DENSE)


@pytest.mark.parametrize(("result", "is_fused"), [*((r, True) for r in FUSED), *((r, False) for r in APART)])
def test_what_a_loop_computes_besides_its_operands_costs_nothing(result: str, is_fused: bool, tmp_path: Path) -> None:
    (output,) = parse_graph(GRAPH.format(result=result)).outputs
    assert latency_of(FusedLatencies, output.node, tmp_path) == (0.0 if is_fused else SECONDS)
    assert latency_of(Latencies, output.node, tmp_path) == SECONDS
