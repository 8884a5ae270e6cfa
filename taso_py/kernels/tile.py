"""Tiles: the ways PyTorch offers to compute an operator, or a small pattern of operators, on a device.

Graphs hold meanings; a tile is an implementation, as in instruction selection. A tile that fits a graph gives a cover:
the nodes that one call computes, the values that it reads, and the memory formats in which it can work.

Invariant: a cover computes the results of its nodes; measurement decides which one is fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from taso_py.backend.plan import BoundKernel, Format, Packs, PlanStep, is_formatted
from taso_py.ir.errors import InvariantError
from taso_py.ir.node import Node, Value
from taso_py.ir.types import TensorType

Formats: TypeAlias = tuple[Format, Format]
"""The memory format in which operands of rank 4 are read, and the one in which results of rank 4 are given."""

DENSE: Formats = (Format.DENSE, Format.DENSE)
CHANNELS_LAST: Formats = (Format.CHANNELS_LAST, Format.CHANNELS_LAST)
EITHER = (DENSE, CHANNELS_LAST)


@dataclass(frozen=True, eq=False)
class Cover:
    """An instance of a tile in a graph: a connected set of nodes that one kernel computes."""

    name: str
    """The tile's name."""
    nodes: tuple[Node, ...]
    """The nodes computed at once, operands first; only the outputs of the last can be read by others."""
    operands: tuple[Value, ...]
    """The values read at run time."""
    formats: tuple[Formats, ...]
    """The memory formats to choose from."""
    statics: tuple[Value, ...] = ()
    """The values that are packed at build time, in the order in which the kernel takes them."""
    packed: TensorType | None = None
    """The type of the packed weight: all of it that a latency depends on, whatever its layout before packing."""
    binder: Callable[[Sequence[Tensor], Packs], BoundKernel] | None = None
    """Packs static operands; None for plain ATen calls."""
    text: str = ""
    """The part of the latency key that depends on the operators."""
    bare: Callable[[], Cover] | None = None
    """Return the cover of the bare product by the same kernel, next to which a latency is measured; None for none."""

    @property
    def root(self) -> Node:
        """The node whose outputs are computed."""
        return self.nodes[-1]

    @cached_property
    def formatted_operands(self) -> tuple[Value, ...]:
        """The operands that have a choice of memory format, each once."""
        return tuple([value for value in dict.fromkeys(self.operands) if is_formatted(value)])

    @cached_property
    def formatted_outputs(self) -> tuple[Value, ...]:
        """The outputs that have a choice of memory format."""
        return tuple([value for value in self.root.outputs if is_formatted(value)])

    def bind(self, statics: Sequence[Tensor], packs: Packs) -> BoundKernel:
        """Return the kernel with these static operands packed, reusing what ``packs`` holds.

        Raises:
            InvariantError: the cover stands for plain ATen calls, which pack nothing.
        """
        if self.binder is None:
            raise InvariantError(f"{self.name} has no kernel of its own; lower {self.root.op.name} instead")
        return self.binder(statics, packs)

    def step(self, formats: Formats) -> PlanStep:
        """Return this cover as a step of a plan."""
        return PlanStep(self if self.binder is not None else None, *formats)


@dataclass(frozen=True)
class Tile:
    """An implementation that PyTorch offers."""

    name: str
    covers: Callable[[Node, torch.device], Iterable[Cover]]
    """Return the covers that end with a node, on a device, given that nothing else reads their inner nodes."""
    is_direct: bool = True
    """True if it sums the products that define the operator, in any order; other tiles may multiply by zeros."""
