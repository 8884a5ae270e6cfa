"""Benchmarks of covers in an engine for whole graphs.

A benchmark model contains several copies of a cover with separate operands, so that a run is long compared with its
fixed overhead, and weights come from the same level of the memory hierarchy as in the user's model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from taso_py.backend.random_tensors import uniform
from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.engines.session import OnnxModel, SessionEngine, bytes_of
from taso_py.engines.tiles import external_operands
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make, make_as, remake
from taso_py.ir.operator import Constant, Input, Weight
from taso_py.ir.types import DType, TensorType
from taso_py.kernels.layout import is_weight
from taso_py.latency.clock import Latency
from taso_py.latency.idle import wait_until_idle
from taso_py.ops.contraction import Conv2d
from taso_py.ops.opaque import Opaque
from taso_py.ops.work import work

COPIES, WEIGHT_COPIES, MOST_COPIES = 8, 16, 64
"""Most copies of a cover in a model: without weights, with small weights, and with large ones."""
LARGE_BYTES = 1 << 18
"""Bytes of weights beyond which that many copies do not stay in a core's caches."""
SMALL_BYTES = 1 << 18
"""Limit on the bytes of operands and results of all copies without weights, which fit the nearest caches."""
MOST_WEIGHT_BYTES = 1 << 26
"""Limit on the bytes of all copies' weights, which exceeds any cache."""
LEAST_COPIES, MOST_FLOPS = 2, 1 << 28
"""Limits for covers with much computation, which hardly depends on where weights are; this many operations take
milliseconds."""
WIDTH = 16
"""Channels, or rows and columns, of small examples."""
KERNEL, GROUPS = 3, 2
"""Kernel size of convolutions in small examples, and number of groups if grouped."""
PROFILED_RUNS = 8


class SessionCall:
    """A run of a model with several copies of a cover."""

    def __init__(self, engine: SessionEngine, nodes: Sequence[Node], ring_bytes: int) -> None:
        """Compile the model, and wait until no thread is busy.

        Args:
            engine: the engine.
            nodes: connected nodes, of which the last one's outputs are the results.
            ring_bytes: how many bytes of weights to read before the same ones are read again, within limits.

        Raises:
            TasoError: the engine refuses the model.
        """
        self.copies = _copies(nodes, ring_bytes)
        model, operands = _model(engine, nodes, self.copies)
        self._run = engine.bind(model, operands)
        wait_until_idle()

    def __call__(self) -> object:
        """Run the model once."""
        return self._run()

    def net(self, latency: Latency, empty_s: float) -> Latency:
        """Return the latency of one copy, given that of a run and of an empty run."""
        factor = max(1 - empty_s / latency.median_s, 1 / 20)
        return latency.scaled(factor / self.copies)


def reorder_split(engine: SessionEngine, nodes: Sequence[Node], ring_bytes: int) -> tuple[float, float, float]:
    """Return a cover's time from the engine's profiler, and the times to reorder images before and after it.

    Args:
        engine: the engine.
        nodes: connected nodes, of which the last one's outputs are the results; operands and results are dense.
        ring_bytes: how many bytes of weights to read before the same ones are read again, within limits.

    Raises:
        TasoError: the engine refuses the model.
    """
    copies = _copies(nodes, ring_bytes)
    model, operands = _model(engine, nodes, copies)
    wait_until_idle()
    times = engine.profile(model, operands, PROFILED_RUNS)
    inside, before, after = (sum(t.seconds for t in times if t.reorders == way) for way in ("", "in", "out"))
    # All copies with separate weights read one image, which is reordered once.
    images = 1 if any(map(is_weight, external_operands(nodes))) else copies
    return inside / copies, before / images, after / copies


def conversion_node(type_: TensorType) -> Node:
    """Return a depthwise convolution with kernel size 1, before and after which the engine reorders images."""
    channels = type_.sizes[1]
    image = make(Input("x", type_))
    weight = make(Weight("w", TensorType(type_.dtype, (channels, 1, 1, 1))))
    return make(Conv2d(groups=channels), [image.value, weight.value])


def small_example(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return a product and operators on its result, like those of nodes, at a size that compiles quickly.

    Convolutions become one of three kinds: pointwise, depthwise, and others. What an engine fuses with a convolution
    does not depend on its stride, padding or number of channels.
    """
    product, *tail = nodes
    first, weight, op = product.inputs[0].type, product.inputs[1].type, product.op
    dtype = first.dtype
    if isinstance(op, Conv2d):
        kernel = 1 if weight.shape[2:] == (1, 1) else KERNEL
        groups = 1 if op.groups == 1 else WIDTH if weight.shape[1] == 1 else GROUPS
        op = Conv2d(padding=(kernel // 2, kernel // 2), groups=groups)
        shapes = [(1, WIDTH, WIDTH, WIDTH), (WIDTH, WIDTH // groups, kernel, kernel)]
    else:
        shapes = [(*[1] * (first.rank - 2), WIDTH, WIDTH), (WIDTH, WIDTH)]
    features = shapes[1][0]
    shapes += [(features,)] * (len(product.inputs) - 2)
    operands = [
        _leaf(value, TensorType(dtype, shape), place)
        for place, (value, shape) in enumerate(zip(product.inputs, shapes, strict=True))
    ]
    made = [make(op, operands)]
    images = {product: made[0]}
    for node in tail:
        whole = made[-1].types[0]
        read = [
            images[value.node].value
            if value.node in images
            else value
            if isinstance(value.node.op, Constant)
            else _leaf(value, TensorType(dtype, (features,)) if value.type.rank == 1 else whole, len(operands) + place)
            for place, value in enumerate(node.inputs)
        ]
        made.append(make(node.op, read) if not isinstance(node.op, Opaque) else make_as(node.op, read, (whole,)))
        images[node] = made[-1]
    return tuple(made)


def _leaf(value: Value, type_: TensorType, place: int) -> Value:
    leaf = Weight(f"w{place}", type_) if is_weight(value) else Input(f"x{place}", type_)
    return make(leaf).value


def operators_made(engine: SessionEngine, nodes: Sequence[Node]) -> int:
    """Return how many operators an engine compiles connected nodes to."""
    return engine.count(*_model(engine, nodes, 1))


def _copies(nodes: Sequence[Node], ring_bytes: int) -> int:
    values = external_operands(nodes)
    weights = sum(bytes_of(value) for value in values if is_weight(value))
    if weights:
        flops = sum(work(node).flops or 0 for node in nodes)
        copies = MOST_COPIES if weights >= LARGE_BYTES else WEIGHT_COPIES
        most = min(copies, max(LEAST_COPIES, MOST_FLOPS // max(1, flops)))
        return min(most, 1 + min(ring_bytes, MOST_WEIGHT_BYTES) // weights)
    total = sum(bytes_of(value) for value in (*values, *nodes[-1].outputs))
    return max(1, min(COPIES, SMALL_BYTES // max(1, total)))


def _model(engine: SessionEngine, nodes: Sequence[Node], copies: int) -> tuple[OnnxModel, Sequence[Tensor]]:
    """Return a model with a number of copies of nodes, and its operands.

    Copies with weights share the other operands, which are then in the caches, as if just computed. Copies without
    weights have separate operands, since an engine would merge them otherwise.
    """
    values = external_operands(nodes)
    has_weights = any(map(is_weight, values))
    inputs: dict[str, Node] = {}
    outputs: list[Value] = []
    weights: dict[str, Tensor] = {}
    numbers = {
        value: _numbers(value.type.elements + copies, value.type.dtype, seed)
        for seed, value in enumerate(values)
        if is_weight(value)
    }
    for copy in range(copies):
        images: dict[Value, Value] = {}
        for place, value in enumerate(values):
            type_, key = value.type.at_example, f"x{copy}_{place}"
            if is_weight(value):
                weights[key] = numbers[value][copy : copy + type_.elements].view(type_.sizes)  # each differs
                leaf = make(Weight(key, type_))
            else:
                key = f"x{place}" if has_weights else key
                leaf = inputs.setdefault(key, make(Input(key, type_)))
            images[value] = leaf.value
        for node in nodes:
            made = remake(node, [images.get(value, value) for value in node.inputs])
            images.update(zip(node.outputs, made.outputs, strict=True))
        outputs += [images[value] for value in nodes[-1].outputs]
    graph = Graph(tuple(inputs.values()), tuple(outputs))
    types = [node.types[0] for node in graph.inputs]
    operands = [_numbers(type_.elements, type_.dtype, seed).view(type_.sizes) for seed, type_ in enumerate(types)]
    return engine.model_of(graph, weights), operands


def _numbers(count: int, dtype: DType, seed: int) -> Tensor:
    """Return moderate positive numbers, which avoid NaN and denormals; zeros for integers, which may be indices."""
    type_ = TORCH_DTYPES[dtype]
    if not type_.is_floating_point:
        return torch.zeros(count, dtype=type_, device="cpu")
    return (uniform((count,), torch.Generator().manual_seed(seed), torch.float32) + 0.1).to(type_)
