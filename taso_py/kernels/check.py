"""Kernels on operands of their own types: whether they can be called at all, and compute what they stand for.

A probe knows one small example. A library may lack a kernel for other sizes, strides or groups, and it may be wrong
there: PyTorch 2.13 packs some convolutions of one channel so. So a kernel is called once before it is measured, on the
types and strides that it is measured on, and compared with the plain operators.

Invariant: a kernel that differs from the plain operators where it was checked is never chosen there.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Mapping

import torch
from torch import Tensor

from taso_py.backend.lowering import lower
from taso_py.backend.plan import MEMORY_FORMATS, Format, Packs, is_formatted
from taso_py.backend.run import call_now
from taso_py.ir.errors import first_line
from taso_py.ir.node import Value
from taso_py.kernels.layout import Layouts, random_operands
from taso_py.kernels.probe import TOLERANCE
from taso_py.kernels.tile import Cover

FAILURES = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError)
"""What a kernel raises that cannot be called, or is wrong."""
_log = logging.getLogger(__name__)


class WrongKernelError(RuntimeError):
    """A kernel computes something else than the operators that it stands for."""


def check(cover: Cover, reads: Format, device: torch.device) -> None:
    """Compares a kernel with plain operators, in both its forms where it has one that overwrites an operand.

    Activations have both signs and are so small that sums of products are about one: what is left out or done in
    addition shows at any size.

    Args:
        cover: with a kernel of its own.
        reads: the memory format of its operands.
        device: where.

    Raises:
        WrongKernelError: it gives something else, or lays it out otherwise, or writes where it must not.
        RuntimeError: it cannot be called, like the others of :data:`FAILURES`.
    """
    tensors = _tensors(cover, reads, device)
    operands, statics = ([tensors[value] for value in values] for values in (cover.operands, cover.statics))
    expected, magnitude = _by_plain_operators(cover, tensors, device)
    allowed = TOLERANCE.get(expected.dtype, 0.0) * magnitude
    gives = next(gives for taken, gives in cover.formats if taken is reads)
    bound, kept = cover.bind(statics, Packs()), [operand.clone() for operand in operands]

    def compare(result: Tensor, untouched: slice) -> None:
        _compare(result, expected, allowed)
        if is_formatted(cover.root.value) and not result.is_contiguous(memory_format=MEMORY_FORMATS[gives]):
            raise WrongKernelError(f"its result is not {gives.value}")
        if not all(map(torch.equal, operands[untouched], kept[untouched])):
            raise WrongKernelError("it writes to what it reads")

    result, last = bound.function(*operands), operands[-1]
    compare(result, slice(None))
    overwriting = bound.overwriting_function
    # What lies otherwise than the result, or is read twice, is never overwritten.
    if overwriting is not None and last.stride() == result.stride() and len(set(cover.operands)) == len(operands):
        written = overwriting(*operands)
        compare(written, slice(-1))
        if written.data_ptr() != last.data_ptr():
            raise WrongKernelError("its result is not where it was to be written")


class Trials:
    """Which kernels are right on operands of their own types; those priced without being measured are asked here."""

    def __init__(self, device: torch.device) -> None:
        """Prepare; nothing is called before the first question."""
        self._device, self._layouts = device, Layouts()
        self._known: dict[Hashable, bool] = {}

    def runs(self, cover: Cover, reads: Format) -> bool:
        """Whether a cover can be used that reads a memory format, tried once; plain calls are not tried."""
        if cover.binder is None:
            return True
        signatures = self._layouts.signature(cover.operands, reads), self._layouts.signature(cover.statics)
        key = cover.name, cover.text, reads, signatures
        if key not in self._known:
            self._known[key] = self._is_right(cover, reads)
        return self._known[key]

    def _is_right(self, cover: Cover, reads: Format) -> bool:
        try:
            with torch.no_grad():
                check(cover, reads, self._device)
        except FAILURES as error:
            _log.warning("%s fails on its operands and is not used: %s", cover.name, first_line(error))
            return False
        return True


def _tensors(cover: Cover, reads: Format, device: torch.device) -> dict[Value, Tensor]:
    """What a cover reads; of a product, what is multiplied is the smaller the more of it is summed up."""
    summed = math.prod(cover.packed.sizes[1:]) if cover.packed is not None else 1
    first, *others = dict.fromkeys(cover.operands)
    made = (
        *random_operands([first], device, reads, least=-0.5, scale=summed**-0.5),
        *random_operands(others, device, reads, seed=1, least=-0.5),
        *random_operands(cover.statics, device, seed=2),
    )
    pairs = zip((first, *others, *cover.statics), made, strict=True)
    return {value: tensor for value, tensor in pairs if tensor is not None}


def _by_plain_operators(cover: Cover, given: Mapping[Value, Tensor], device: torch.device) -> tuple[Tensor, float]:
    """What a cover's last node gives, and the largest magnitude on the way there."""
    known, made = dict(given), list[Tensor]()
    for node in cover.nodes:
        results = lower(call_now, node, [known.get(value) for value in node.inputs], device)
        known.update(zip(node.outputs, results, strict=True))
        made += results
    return known[cover.root.value], max(float(tensor.abs().max()) for tensor in made)


def _compare(result: Tensor, expected: Tensor, allowed: float) -> None:
    if (result.shape, result.dtype) != (expected.shape, expected.dtype):
        raise WrongKernelError(f"it gives {result.dtype} of {list(result.shape)}, not {list(expected.shape)}")
    error = float((result.float() - expected.float()).abs().max())
    if not error <= allowed:
        raise WrongKernelError(f"it is off by {error:.2g}, {allowed:.2g} would be rounding")
