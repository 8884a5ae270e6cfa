"""Calls of covers in an engine that takes whole graphs, made up for measuring.

A model holds a cover several times, on operands of their own, so that one run is long beside what it takes to begin
one, and so that weights come from as far away as in a model that is as large.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from taso_py.backend.chance import uniform
from taso_py.backend.onnx import onnx_bytes, onnx_model
from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.cost.clock import Latency
from taso_py.engines.session import SessionEngine, bytes_of
from taso_py.engines.tiles import reads
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make, remake
from taso_py.ir.operator import Input, Weight
from taso_py.ir.types import TensorType
from taso_py.kernels.layout import is_weight
from taso_py.ops.contraction import Conv2d

COPIES, LEAST_COPIES = 8, 3
"""How often a model holds a cover without weights, and at least one with weights."""
MOST_COPIES = 64
MOST_BYTES = 1 << 26
"""Of the operands and results of all copies together."""
PROFILED_RUNS = 5
IDLE_SHARE, IDLE_STEP_S, IDLE_MOST_S = 0.1, 2e-3, 0.1
"""Threads sleep once the process uses less than this share of a core; how often to look, and how long to wait."""


class SessionCall:
    """A run of a model that holds a cover several times."""

    def __init__(self, engine: SessionEngine, nodes: Sequence[Node], ring_bytes: int) -> None:
        """Compile the model, and wait until no thread is busy.

        Args:
            engine: where it runs.
            nodes: connected, the last one's outputs being the results.
            ring_bytes: how many bytes of weights are read before the same are read again, within limits.

        Raises:
            TasoError: the engine refuses it.
        """
        self.copies = _copies(nodes, ring_bytes)
        graph, weights = _repeated(nodes, self.copies)
        self._engine = engine
        self._model = onnx_bytes(onnx_model(graph, weights))
        self._operands = [_random(node.types[0], seed) for seed, node in enumerate(graph.inputs)]
        self._run = engine.bound(self._model, self._operands)
        until_idle()

    def __call__(self) -> object:
        """Run the model once."""
        return self._run()

    @cached_property
    def reorder_shares(self) -> tuple[float, float]:
        """The shares of a run in which the engine brings images into its own order, and back, by its profiler."""
        times = self._engine.profile(self._model, self._operands, PROFILED_RUNS)
        total = sum(time.seconds for time in times) or 1.0
        before, after = (sum(t.seconds for t in times if t.reorders == way) / total for way in ("in", "out"))
        return before, after

    def net(self, latency: Latency, empty_s: float, share: float = 1.0) -> Latency:
        """Return what one cover takes, by what a run takes and an empty one does; or a share of that."""
        factor = max(latency.median_s - empty_s, latency.median_s / 20) / latency.median_s
        return latency.scaled(factor * share / self.copies)


def conversion(type_: TensorType) -> Node:
    """Return a convolution of each channel by itself with one weight, before which images are reordered, and after."""
    channels = type_.sizes[1]
    image = make(Input("x", type_))
    weight = make(Weight("w", TensorType(type_.dtype, (channels, 1, 1, 1))))
    return make(Conv2d(groups=channels), [image.value, weight.value])


def until_idle() -> None:
    """Wait until threads that spin after their work are asleep: a second pool of threads would be slowed by them."""
    deadline = time.perf_counter() + IDLE_MOST_S
    while time.perf_counter() < deadline:
        begun, used = time.perf_counter(), time.process_time()
        time.sleep(IDLE_STEP_S)
        if time.process_time() - used < IDLE_SHARE * (time.perf_counter() - begun):
            return


def _copies(nodes: Sequence[Node], ring_bytes: int) -> int:
    values = reads(nodes)
    weights = sum(bytes_of(value) for value in values if is_weight(value))
    total = sum(bytes_of(value) for value in (*values, *nodes[-1].outputs))
    wanted = COPIES if not weights else min(MOST_COPIES, max(LEAST_COPIES, ring_bytes // weights))
    return max(1, min(wanted, MOST_BYTES // max(1, total)))


def _repeated(nodes: Sequence[Node], copies: int) -> tuple[Graph, dict[str, Tensor]]:
    """A graph that holds nodes so many times, on operands of their own, and its weights."""
    inputs: list[Node] = []
    outputs: list[Value] = []
    weights: dict[str, Tensor] = {}
    for copy in range(copies):
        images: dict[Value, Value] = {}
        for place, value in enumerate(reads(nodes)):
            type_, key = value.type.at_example, f"x{copy}_{place}"
            if is_weight(value):
                weights[key] = _random(type_, seed=1 + len(weights))
                leaf = make(Weight(key, type_))
            else:
                leaf = make(Input(key, type_))
                inputs.append(leaf)
            images[value] = leaf.value
        for node in nodes:
            made = remake(node, [images.get(value, value) for value in node.inputs])
            images.update(zip(node.outputs, made.outputs, strict=True))
        outputs += [images[value] for value in nodes[-1].outputs]
    return Graph(tuple(inputs), tuple(outputs)), weights


def _random(type_: TensorType, seed: int) -> Tensor:
    """Moderate positive numbers, so that nothing is slow by NaN or denormals; zeros where they are indices."""
    dtype = TORCH_DTYPES[type_.dtype]
    if not dtype.is_floating_point:
        return torch.zeros(type_.sizes, dtype=dtype)
    return (uniform(type_.sizes, torch.Generator().manual_seed(seed), torch.float32) + 0.1).to(dtype)
