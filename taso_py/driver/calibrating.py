"""How much longer calls take in a run than one by one, on a device.

Latencies are measured call by call. In a run the interpreter goes from call to call, operands come from farther away,
and memory is given back: a tenth to a fifth of the time, much the same share in all models that are computed by
kernels. It is found once for each environment, by a run of a small network that belongs to no model: so what is
predicted of a model says nothing that was learned from it.

Invariant: prices keep their ratios.
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
from taso_py.engines.engine import Engine
from taso_py.engines.session import SessionEngine
from taso_py.frontend import import_module
from taso_py.ir.errors import first_line
from taso_py.ir.graph import Graph
from taso_py.ir.node import Value
from taso_py.kernels.check import KernelChecks
from taso_py.kernels.tile import Cover, Formats
from taso_py.latency.clock import TimingError
from taso_py.latency.database import Key

TOGETHER: Key = ("network", "in a run")
APART: Key = ("network", "call by call")
"""Where the seconds that the network takes are kept among the latencies."""
SIZE, CHANNELS, CLASSES = 160, (24, 48, 96, 192), 128
TOKENS, WIDTH, HEADS = 64, 256, 4
RUN_S = 0.3
"""Time to measure a run in an engine for."""
_log = logging.getLogger(__name__)


def calibrate(cost: CostModel, engine: Engine | None = None) -> None:
    """Let a cost model say what graphs take in a run; it says what their calls take where nothing is known of that.

    Where the time to measure is used up, nothing is measured: prices keep their ratios.

    Args:
        cost: of graphs in an engine.
        engine: the engine, if it is not PyTorch.
    """

    def measured() -> tuple[float, float]:
        return _measured_in(engine, cost) if isinstance(engine, SessionEngine) else network_seconds(cost)

    if cost.latencies.is_over and not cost.latencies.is_stored(TOGETHER, APART):
        return
    try:
        found = cost.latencies.load_or_compute((TOGETHER, APART), measured)
    except TimingError as error:
        _log.warning("latencies are those of calls one by one, not in a run: %s", first_line(error))
        return
    if found is not None:
        together, apart = found
        cost.rescale(together / apart)


def network_seconds(cost: CostModel) -> tuple[float, float]:
    """Return the seconds that the network takes on a device, in a run and call by call."""
    program, image = _network(cost.device)
    weight_bytes = stored_bytes(program.weights.values())
    calls = _FewestCalls(cost.device, cost.latencies.database, weight_bytes=weight_bytes, captured=cost.captured)
    alone = calls.without_wrong(program.graph)
    module = build(program, alone.plan(program.graph))
    with torch.no_grad():
        found = alone.run_and_call_seconds(program.graph, lambda: module(image))
    return sorted(found, key=lambda pair: pair[0] / pair[1])[len(found) // 2]


def _measured_in(engine: SessionEngine, cost: CostModel) -> tuple[float, float]:
    """Seconds that the network takes in an engine, and its operators do by themselves."""
    program, image = _network(cost.device)
    run = engine.bound(engine.model_of(program.graph, program.weights), [image])
    return cost.latencies.of_run(run, RUN_S).median_s, cost.graph_cost(program.graph)


def _network(device: torch.device) -> tuple[Program, Tensor]:
    """The network and its image."""
    generator = torch.Generator().manual_seed(0)
    network = drawn(Network, generator)
    image = uniform((1, 3, SIZE, SIZE), generator, torch.float32).to(device)
    return fold(import_module(network.to(device), (image,))), image


def drawn(make: Callable[[], nn.Module], generator: torch.Generator) -> nn.Module:
    """A module in evaluation mode with weights that are drawn from a generator.

    By itself it would draw them from the generator of the process, which belongs to the user; on the meta device there
    is nothing to draw.
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
    """Chooses kernels without measuring any: those that make the fewest calls of a graph, packed ones first."""

    @cached_property
    def _trials(self) -> KernelChecks:
        return KernelChecks(self.device)

    @cached_property
    def _wrong(self) -> set[tuple[Cover, Format]]:
        return set()

    def without_wrong(self, graph: Graph) -> Self:
        """Choose again until every kernel that is chosen for a graph computes what plain operators do."""
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
    """Convolutions of every kind, normalised, in residual blocks; then attention and a linear network over tokens."""

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
    """Widens, filters each channel, narrows; beside that a filter of all channels."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        wide = 4 * before
        self.widen, self.widened = nn.Conv2d(before, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.filter, self.filtered = nn.Conv2d(wide, wide, 3, padding=1, groups=wide), nn.BatchNorm2d(wide)
        self.narrow, self.beside = nn.Conv2d(wide, after, 1), nn.Conv2d(before, after, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        wide = functional.relu(self.filtered(self.filter(functional.silu(self.widened(self.widen(x))))))
        return functional.max_pool2d(functional.relu(self.narrow(wide) + self.beside(x)), 2)
