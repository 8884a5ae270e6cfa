"""Calls of covers on random operands, for measuring.

Invariant: a timed call computes the results of the cover's nodes, with as little overhead as in a built module.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, repeat
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

from taso_py.backend.direct import call_directly
from taso_py.backend.lowering import Caller, lower
from taso_py.backend.overwrite import TYPE
from taso_py.backend.plan import Format, Packs, laid_out
from taso_py.backend.sizes import resolving
from taso_py.ir.node import Node, Value
from taso_py.ir.size import at_example
from taso_py.kernels.eviction import operand_writer
from taso_py.kernels.layout import is_weight, random_operands
from taso_py.kernels.prepared_call import PreparedCall
from taso_py.kernels.tile import Cover
from taso_py.ops.selection import Gather, Take

RING_COPIES = 64
"""The most copies of a weight: as many small ones exceed the caches, or do not matter."""
HELD = 2
"""The number of results held, as a model holds them until they are read, so that the next is written elsewhere."""
_Turn: TypeAlias = tuple[Callable[..., Any], Sequence[Tensor]]
"""A function and its arguments."""


def timed_call(cover: Cover, reads: Format, device: torch.device, ring_bytes: int) -> Callable[[], Any]:
    """Return a call of a cover, for measuring.

    A model reads each weight once per run, by when the rest of the model has evicted it from the fast caches, whereas
    activations were written just before. So calls cycle through copies of the weights, and on the CPU, before each call
    the operands are written and other kernels called; results are held while the next one is computed.

    Args:
        cover: the cover to call.
        reads: the memory format of its operands.
        device: the device to call it on.
        ring_bytes: bytes of weights to read before the first are read again: as many as the model has.

    Returns:
        A function that computes the outputs; on the CPU, one with a preparation.
    """
    operands = random_operands(cover.operands, device, reads)
    if isinstance(cover.root.op, Take | Gather):
        operands[1] = _spread(operands[1], cover.root.inputs[0].type.sizes[cover.root.op.axis])
    is_turned = [is_weight(value) for value in cover.operands]
    statics = [tensor for tensor in random_operands(cover.statics, device) if tensor is not None]
    turned = [tensor for tensor, turns in zip(operands, is_turned, strict=True) if turns and tensor is not None]
    size = sum(tensor.nbytes for tensor in (*statics, *turned))
    copies = min(RING_COPIES, 1 + ring_bytes // size) if size else 1
    forward = None if cover.binder is not None else _plain(cover.root, operands, device)
    overwrites = (reads, reads) in cover.formats

    def turn() -> _Turn:
        """Return a function and its arguments, with their own copies of the weights."""
        pairs = [(tensor, turns) for tensor, turns in zip(operands, is_turned, strict=True) if tensor is not None]
        arguments = [_copy(tensor) if turns else tensor for tensor, turns in pairs]
        return forward or _bound(cover, statics, overwrites), arguments

    ring = cycle([turn() for _ in range(copies)])
    activations = [x for x, turns in zip(operands, is_turned, strict=True) if x is not None and not turns]
    return _as_in_a_model(ring, activations, device)


def _spread(places: Tensor | None, extent: int) -> Tensor | None:
    """Return integers like the given ones that stand for places all over an extent, as in a model."""
    if places is None:
        return None
    count = max(1, places.numel())
    found = torch.arange(places.numel(), device=places.device) * max(1, extent // count) % max(1, extent)
    return found.to(places.dtype).reshape(places.shape)


def conversion(value: Value, format_: Format, device: torch.device) -> Callable[[], object]:
    """Return the call that converts a value to a memory format, from the other one."""
    (tensor,) = random_operands([value], device, format_.other)
    assert tensor is not None, "constants have no memory format"
    forward = _module(lambda call, given: laid_out(call, value, given[0], format_), [tensor])
    return _as_in_a_model(repeat((forward, [tensor])), [tensor], device)


def _as_in_a_model(ring: Iterator[_Turn], activations: Sequence[Tensor], device: torch.device) -> Callable[[], Any]:
    """Return a function that makes the calls of a ring in turn, on the CPU under the cache conditions of a model."""
    if device.type != "cpu":
        return lambda: _called(next(ring))
    held = deque[Any](maxlen=HELD)
    turn = [next(ring)]
    write = operand_writer(activations)

    def prepare() -> None:
        turn[0] = next(ring)
        write()

    def call() -> Any:
        held.append(_called(turn[0]))
        return held[-1]

    return PreparedCall(prepare, call)


def _called(turn: _Turn) -> Any:
    function, arguments = turn
    return function(*arguments)


def _bound(cover: Cover, statics: Sequence[Tensor], overwrites: bool) -> Callable[..., Any]:
    """Return a cover's kernel with its own copy of the weights, in its overwriting form if ``overwrites``."""
    bound = cover.bind(list(map(_copy, statics)), Packs())
    return (bound.overwriting_function if overwrites else None) or bound.function


def _plain(node: Node, operands: Sequence[Tensor | None], device: torch.device) -> Callable[..., Any]:
    """Return the plain ATen calls of a node as a function of its non-constant operands."""

    def written(call: Caller, placeholders: Sequence[Any]) -> Any:
        results = lower(call, node, placeholders, device)
        for value, result in zip(node.outputs, results, strict=True):
            result.meta[TYPE] = value.type
        return results

    return _module(written, operands)


def _module(write: Callable[[Caller, Sequence[Any]], Any], operands: Sequence[Tensor | None]) -> Callable[..., Any]:
    """Return the calls that ``write`` makes as a function, built as in a module."""
    graph = fx.Graph()
    placeholders = [None if tensor is None else graph.placeholder(f"x{i}") for i, tensor in enumerate(operands)]

    def call(overload: Any, *arguments: Any, **keywords: Any) -> fx.Node:
        return graph.call_function(overload, arguments, keywords)

    graph.output(write(resolving(call, at_example), placeholders))
    call_directly(graph)
    return fx.GraphModule(torch.nn.Module(), graph).forward


def _copy(tensor: Tensor) -> Tensor:
    """Return the tensor on a copy of its storage: strides stay, even where elements overlap."""
    storage = tensor.untyped_storage().clone()
    return tensor.new_empty(0).set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
