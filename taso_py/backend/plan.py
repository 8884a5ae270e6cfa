"""Plans: which kernel computes what, and in which memory format values lie.

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
"""Values of this rank have a choice of memory format."""


class Format(enum.Enum):
    """How values of rank 4 lie in memory. All others lie as plain ATen calls leave them."""

    DENSE = "dense"
    """As plain ATen calls leave them: in row-major order, unless they are views."""
    CHANNELS_LAST = "channels_last"
    """In the order (batch, row, column, channel)."""

    __hash__ = object.__hash__  # an enumeration's own is slow Python, of the name

    @property
    def other(self) -> Format:
        """The other one."""
        return Format.DENSE if self is Format.CHANNELS_LAST else Format.CHANNELS_LAST


MEMORY_FORMATS = {Format.DENSE: torch.contiguous_format, Format.CHANNELS_LAST: torch.channels_last}


class Packs:
    """Weights as kernels want them laid out, each once for all kernels of a module that want it alike.

    A recurrent model reads a weight at every step: were it packed for each, it would take as many times the memory, and
    would have to be read from there every time, where the one is found in a cache.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Tensor, int]] = {}

    def packed(self, weight: Hashable, pack: Callable[[], Tensor], nbytes: int | None = None) -> Tensor:
        """A packed weight.

        Args:
            weight: which it is, and how it is packed.
            pack: packs it, if it is not.
            nbytes: what it is counted for, where the packed tensor does not tell.
        """
        if weight not in self._known:
            tensor = pack()
            self._known[weight] = tensor, tensor.numel() * tensor.element_size() if nbytes is None else nbytes
        return self._known[weight][0]

    @property
    def nbytes(self) -> int:
        """What the packed weights take, but for what a library adds to fill up its blocks."""
        return sum(nbytes for _, nbytes in self._known.values())


@dataclass(frozen=True)
class Bound:
    """A kernel with its weights packed: what is called on the run-time operands, and then on the rest.

    It gives a tensor, or a tuple of them where the last node has several outputs, in storage of its own.
    """

    name: str
    """What generated code calls it."""
    target: Callable[..., Any]
    rest: tuple[Any, ...] = ()
    overwriting: Callable[..., Any] | None = None
    """The same, with the result written to the last of the run-time operands, if that lies as the result does."""

    @property
    def function(self) -> Callable[..., Any]:
        """What computes it from the run-time operands: a plain function, called in less time than an object."""
        return _plain_function(self.name, self.target, self.rest)

    @property
    def overwriting_function(self) -> Callable[..., Any] | None:
        """The same for the form that overwrites an operand."""
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
        """The tile that it is an instance of."""
        ...

    @property
    def nodes(self) -> tuple[Node, ...]:
        """What it covers, the node whose outputs it computes last."""
        ...

    @property
    def operands(self) -> tuple[Value, ...]:
        """What it reads at run time, in the order of the bound function's arguments."""
        ...

    @property
    def statics(self) -> tuple[Value, ...]:
        """What it packs when a module is built."""
        ...

    def bind(self, statics: Sequence[Tensor], packs: Packs) -> Bound:
        """The kernel with these static operands packed, as far as others have not packed them."""
        ...


@dataclass(frozen=True)
class Step:
    """How a node, or several at once, are computed."""

    kernel: Kernel | None
    """None for plain ATen calls."""
    reads: Format = Format.DENSE
    """How operands of rank 4 that are computed at run time must lie."""
    gives: Format = Format.DENSE
    """How results of rank 4 lie."""


PLAIN = Step(None)
"""A plain ATen call on values as plain ATen calls leave them."""


@dataclass(frozen=True)
class Plan:
    """The steps of a graph, by the node whose outputs each computes; nodes without one are computed plainly."""

    steps: Mapping[Node, Step] = field(default_factory=dict[Node, Step])
    overwrites: bool = False
    """Whether elementwise calls may write their result to operands that nobody reads any more."""
    direct: bool = False
    """Whether calls go through PyTorch's Python functions, quicker than the overloads that compilers trace."""
    traced: bool = False
    """Whether kernels are written as calls of operators, packed weights beside them, which a compiler can trace."""

    def eager(self) -> Plan:
        """The same for modules that run as they are written, traced by no compiler."""
        return replace(self, overwrites=True, direct=True, traced=False)

    def compiled(self) -> Plan:
        """The same for modules that a compiler traces."""
        return replace(self, overwrites=False, direct=False, traced=True)

    def step(self, node: Node) -> Step:
        """How a node that some step ends with is computed."""
        return self.steps.get(node, PLAIN)


NO_PLAN = Plan()
"""Plain ATen calls throughout."""


def is_formatted(value: Value) -> bool:
    """Whether a value has a choice of memory format."""
    node, output = value  # Asked so often that a search takes 3% longer by way of properties.
    return not node.is_static and len(node.types[output].shape) == IMAGE_RANK


def laid_out(call: Caller, value: Value, tensor: Any, format_: Format) -> Any:
    """A value laid out in a memory format.

    Where channels, or rows and columns, are one, a channels-last result counts as in row-major order and is not copied,
    but its strides are not those that plain calls leave; PyTorch 2.13 crashes on some of them (``conv2d`` with dilation
    on the CPU). So they are said explicitly.

    Args:
        call: makes the calls.
        value: of rank 4.
        tensor: what stands for it, in the other format.
        format_: the format wanted.

    Returns:
        What stands for it in that format.
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
