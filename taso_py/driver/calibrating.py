"""Scale of operator latencies that were measured alone to those of calls within a run of a whole model.

Latencies are measured one call at a time. Within a run of a model, calls take longer: the interpreter has to get from
one to the next, operands are less often in the nearest cache, and memory is freed. This adds a tenth to a fifth, much
the same share for all models that are computed by kernels. The factor is measured once per environment on a small
reference network, so that a prediction for a user's model never depends on a measurement of that model.

Engines for whole graphs are another matter: what they fuse and reorder beyond single operators differs from model to
model, and so does the factor (in ONNX Runtime from 1.0 to 1.6). The unchanged graph is timed there anyhow, to choose
among engines, so it gives the factor.

Invariant: all prices are scaled by one factor.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from taso_py.backend import Program, build, fold
from taso_py.backend.plan import Format
from taso_py.backend.random_tensors import uniform
from taso_py.backend.schema import stored_bytes
from taso_py.backend.tracing import tracing_lock
from taso_py.cost.model import CostModel
from taso_py.frontend import import_module
from taso_py.ir.errors import first_line
from taso_py.ir.graph import Graph
from taso_py.ir.node import Value
from taso_py.kernels.check import KernelChecks
from taso_py.kernels.tile import Cover, Formats
from taso_py.latency.clock import TimingError
from taso_py.latency.schema import Key

IN_RUN: Key = ("network", "in a run")
CALL_BY_CALL: Key = ("network", "call by call")
"""Keys of the reference network's two times in the latency database."""
SIZE, CHANNELS, CLASSES = 160, (24, 48, 96, 192), 128
TOKENS, WIDTH, HEADS = 64, 256, 4
_log = logging.getLogger(__name__)


def scale_to_runs(cost: CostModel, *, measures: bool = True) -> None:
    """Scale a cost model of PyTorch's kernels so that its estimates are the times of runs of whole models.

    If the factor is not known, latencies stay as they are where nothing is to be measured, where the time for that is
    used up, and where other programs disturb what is measured: then the factor would be that of the disturbance, which
    is not stored, so that every run would measure it again.

    Args:
        cost: the cost model, which is changed in place.
        measures: whether the factor is measured if it is not known.
    """
    can_measure = measures and not (cost.latencies.is_over or cost.latencies.is_disturbed)
    if not can_measure and not cost.latencies.knows_network((IN_RUN, CALL_BY_CALL)):
        return
    try:
        found = cost.latencies.of_network((IN_RUN, CALL_BY_CALL), lambda: network_seconds(cost))
    except TimingError as error:
        _log.warning("predictions add up single calls and may be a tenth to a fifth too low: %s", first_line(error))
        return
    if found is not None:
        in_run_s, call_by_call_s = found
        cost.rescale(in_run_s / call_by_call_s)


def scale_to_run(cost: CostModel, graph: Graph, seconds: float) -> None:
    """Scale a cost model so that its estimate of a graph is a given time, unless it cannot price the graph."""
    estimate = cost.graph_cost(graph)
    if 0 < estimate < math.inf:
        cost.rescale(cost.scale * seconds / estimate)


def network_seconds(cost: CostModel) -> tuple[float, float]:
    """Return the seconds that the reference network takes in a run, and the sum of its single calls."""
    program, image = _network(cost.device)
    weight_bytes = stored_bytes(program.weights.values())
    calls = _FewestCalls(cost.device, cost.latencies.database, weight_bytes=weight_bytes, captured=cost.captured)
    alone = calls.without_wrong(program.graph)
    module = build(program, alone.plan(program.graph))
    with torch.no_grad():
        found = alone.run_and_call_seconds(program.graph, lambda: module(image))
    return sorted(found, key=lambda pair: pair[0] / pair[1])[len(found) // 2]


def _network(device: torch.device) -> tuple[Program, Tensor]:
    """Return the reference network as a program, and its example image."""
    generator = torch.Generator().manual_seed(0)
    network = with_random_weights(Network, generator)
    image = uniform((1, 3, SIZE, SIZE), generator, torch.float32).to(device)
    return fold(import_module(network.to(device), (image,))), image


def with_random_weights(make: Callable[[], nn.Module], generator: torch.Generator) -> nn.Module:
    """Return a module in evaluation mode whose weights are drawn from a generator.

    PyTorch's initializers would draw from the global generator, whose state belongs to the user. So the module is made
    on the meta device, where initializers draw nothing, and is filled afterwards.
    """
    with tracing_lock(), torch.device("meta"):
        module = make()
    module = module.to(torch.float32).to_empty(device="cpu").eval()
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d | nn.LayerNorm):
                part.reset_parameters()
                continue
            for weight in part.parameters(recurse=False):
                reach = weight[0].numel() ** -0.5  # as PyTorch has it
                weight.copy_(uniform(weight.shape, generator, torch.float32).mul(2).sub(1).mul(reach))
    return module


class _FewestCalls(CostModel):
    """Cost model that chooses the kernels with the fewest calls, packed ones first, and measures none."""

    @cached_property
    def _trials(self) -> KernelChecks:
        return KernelChecks(self.device)

    @cached_property
    def _wrong(self) -> set[tuple[Cover, Format]]:
        return set()

    def without_wrong(self, graph: Graph) -> Self:
        """Repeat the choice of kernels for a graph until each computes the results of plain operators."""
        while wrong := {where for where in self._chosen_covers(graph) if not self._trials.runs(*where)}:
            self._wrong.update(wrong)
        return self

    def cover_seconds(self, cover: Cover, formats: Formats) -> float:
        if (cover, formats[0]) in self._wrong:
            return math.inf
        return 1.5 if cover.binder is None else 1.0

    def conversion_seconds(self, value: Value, format_: Format) -> float:
        return 1.0


class Network(nn.Module):
    """Reference network: residual blocks of convolutions of all kinds, then attention and linear layers over tokens."""

    def __init__(self) -> None:
        """Draw the weights."""
        super().__init__()
        self.stem = nn.Conv2d(3, CHANNELS[0], 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(_Block(*pair) for pair in pairwise(CHANNELS))
        self.tokens = nn.Linear(CHANNELS[-1], WIDTH)
        self.norm, self.attention = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of images."""
        x = functional.relu(self.stem(x))
        for block in self.blocks:
            x = block(x)
        x = functional.adaptive_avg_pool2d(x, (8, TOKENS // 8))
        x = self.tokens(x.flatten(2).transpose(1, 2))
        qkv = self.attention(self.norm(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
        x = x + attended.transpose(1, 2).flatten(2)
        x = x + self.narrow(functional.gelu(self.wide(x)))
        return self.head(x.mean(1))


class _Block(nn.Module):
    """Two branches: expand, filter by channel and reduce (an inverted bottleneck), and a plain convolution."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        wide = 4 * before
        self.widen, self.widened = nn.Conv2d(before, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.filter, self.filtered = nn.Conv2d(wide, wide, 3, padding=1, groups=wide), nn.BatchNorm2d(wide)
        self.narrow, self.beside = nn.Conv2d(wide, after, 1), nn.Conv2d(before, after, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        wide = functional.relu(self.filtered(self.filter(functional.silu(self.widened(self.widen(x))))))
        return functional.max_pool2d(functional.relu(self.narrow(wide) + self.beside(x)), 2)
