"""Plans: which kernel computes which nodes, and the memory formats of values.

A kernel covers a connected set of nodes and computes the outputs of the last of them. A plan names a kernel for some
of a graph's nodes; the others are lowered to plain ATen calls, one by one.

Invariant: a plan changes how values are computed and how they lie in memory, never which values they are.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from taso_py.backend.lowering import Caller
from taso_py.ir.node import Node, Value
from taso_py.ir.size import Dim, least

IMAGE_RANK = 4
"""The rank of values that have a choice of memory format."""


class Format(enum.Enum):
    """The memory format of values of rank 4. All others are laid out as plain ATen calls leave them."""

    DENSE = "dense"
    """The layout that plain ATen calls give: row-major order, unless the value is a view."""
    CHANNELS_LAST = "channels_last"
    """The order (batch, row, column, channel)."""

    __hash__ = object.__hash__  # an enumeration's own is slow Python, of the name

    @property
    def other(self) -> Format:
        """The other memory format."""
        return Format.DENSE if self is Format.CHANNELS_LAST else Format.CHANNELS_LAST


MEMORY_FORMATS = {Format.DENSE: torch.contiguous_format, Format.CHANNELS_LAST: torch.channels_last}


class Packs:
    """The packed weights of a module, each stored once for all kernels that need the same packing.

    A recurrent model reads a weight at every step: packed separately for each, it would take as many times the memory,
    and would be read from there every time, whereas one copy stays in a cache.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Tensor, int]] = {}

    def packed(self, weight: Hashable, pack: Callable[[], Tensor], nbytes: int | None = None) -> Tensor:
        """Return a packed weight.

        Args:
            weight: identifies the weight and its packing.
            pack: packs it, if that has not been done.
            nbytes: its size, if the packed tensor does not know it.
        """
        if weight not in self._known:
            tensor = pack()
            self._known[weight] = tensor, tensor.numel() * tensor.element_size() if nbytes is None else nbytes
        return self._known[weight][0]

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights, without the padding that a library adds to fill its blocks."""
        return sum(nbytes for _, nbytes in self._known.values())


@dataclass(frozen=True)
class BoundKernel:
    """A kernel with its weights packed: ``target`` is called on the run-time operands followed by ``rest``.

    It returns a tensor, or a tuple of them if the last node has several outputs, in storage of its own.
    """

    name: str
    """The function's name in generated code."""
    target: Callable[..., Any]
    rest: tuple[Any, ...] = ()
    overwriting: Callable[..., Any] | None = None
    """Variant of ``target`` that writes the result to the last run-time operand, if that has the result's layout."""

    @property
    def function(self) -> Callable[..., Any]:
        """The plain Python function of the run-time operands, which is quicker to call than an object."""
        return _plain_function(self.name, self.target, self.rest)

    @property
    def overwriting_function(self) -> Callable[..., Any] | None:
        """The plain Python function of the variant that overwrites an operand, if there is one."""
        return self.overwriting and _plain_function(f"{self.name}_", self.overwriting, self.rest)


def _plain_function(name: str, target: Callable[..., Any], rest: tuple[Any, ...]) -> Callable[..., Any]:
    def kernel(*operands: Tensor) -> Any:
        return target(*operands, *rest)

    kernel.__name__ = name
    return kernel


class Kernel(Protocol):
    """An implementation of a connected set of nodes."""

    @property
    def name(self) -> str:
        """The name of the tile that it is an instance of."""
        ...

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes it covers; it computes the outputs of the last."""
        ...

    @property
    def operands(self) -> tuple[Value, ...]:
        """The values it reads at run time, in the order of the bound function's arguments."""
        ...

    @property
    def statics(self) -> tuple[Value, ...]:
        """The values it packs at build time."""
        ...

    def bind(self, statics: Sequence[Tensor], packs: Packs) -> BoundKernel:
        """Return the kernel with these static operands packed, reusing what ``packs`` holds."""
        ...


@dataclass(frozen=True)
class PlanStep:
    """The computation of one node, or of the nodes that one kernel covers."""

    kernel: Kernel | None
    """The kernel; None for plain ATen calls."""
    reads: Format = Format.DENSE
    """The memory format in which operands of rank 4 that are computed at run time are read."""
    gives: Format = Format.DENSE
    """The memory format of results of rank 4."""


PLAIN = PlanStep(None)
"""A plain ATen call on values in the layout that plain ATen calls give."""


@dataclass(frozen=True)
class Plan:
    """The steps of a graph, by the node whose outputs each computes; nodes without one become plain ATen calls."""

    steps: Mapping[Node, PlanStep] = field(default_factory=dict[Node, PlanStep])
    overwrites: bool = False
    """True if elementwise calls may write their result to operands that are dead."""
    direct: bool = False
    """True if calls go through PyTorch's Python functions, which are faster than the overloads that compilers trace."""
    traced: bool = False
    """True if kernels are written as operator calls with packed weights as buffers, which a compiler can trace."""

    def eager(self) -> Plan:
        """Return the plan for modules that run as they are written, traced by no compiler."""
        return replace(self, overwrites=True, direct=True, traced=False)

    def compiled(self) -> Plan:
        """Return the plan for modules that a compiler traces."""
        return replace(self, overwrites=False, direct=False, traced=True)

    def step(self, node: Node) -> PlanStep:
        """Return the step that ends with a node."""
        return self.steps.get(node, PLAIN)


NO_PLAN = Plan()
"""Plain ATen calls throughout."""


def is_formatted(value: Value) -> bool:
    """Return whether a value has a choice of memory format."""
    node, output = value  # Asked so often that a search takes 3% longer by way of properties.
    return not node.is_static and len(node.types[output].shape) == IMAGE_RANK


def laid_out(call: Caller, value: Value, tensor: Any, format_: Format) -> Any:
    """Convert a value to a memory format.

    Where channels, or rows and columns, are one, PyTorch takes a channels-last result for row-major and does not copy
    it, but its strides are not those that plain calls leave; PyTorch 2.13 crashes on some of them (``conv2d`` with
    dilation on the CPU). So the strides are set explicitly.

    Args:
        call: makes the calls.
        value: a value of rank 4.
        tensor: the node or tensor that holds it, in the other format.
        format_: the target format.

    Returns:
        The node or tensor that holds it in the target format.
    """
    result = call(torch.ops.aten.contiguous.default, tensor, memory_format=MEMORY_FORMATS[format_])
    _, channels, rows, columns = value.type.dims
    if format_ is Format.DENSE and (_may_be_one(channels) or (_may_be_one(rows) and _may_be_one(columns))):
        strides = [channels * rows * columns, rows * columns, columns, 1]
        result = call(torch.ops.aten.as_strided.default, result, list(value.type.dims), strides)
    return result


def _may_be_one(size: Dim) -> bool:
    bound = least(size)
    return size == 1 or (not isinstance(size, int) and (bound is None or bound <= 1))
