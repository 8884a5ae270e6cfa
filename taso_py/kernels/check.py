"""Checks of kernels on operands of the types they are used with: that they can be called, and are correct.

A probe (:mod:`taso_py.kernels.probe`) tries one small example. A library may lack a kernel for other sizes, strides or
groups, or be wrong there: PyTorch 2.13 packs some convolutions of one channel incorrectly. So a kernel is called once
before it is measured, on the types and strides it is measured on, and compared with the plain operators.

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
"""The exceptions of a kernel that cannot be called or is wrong."""
_log = logging.getLogger(__name__)


class WrongKernelError(RuntimeError):
    """A kernel computes something other than the operators that it replaces."""


def check(cover: Cover, reads: Format, device: torch.device) -> None:
    """Compare a kernel with plain operators, including its form that overwrites an operand, if it has one.

    Activations have both signs and are so small that sums of products are about one: a missing or an additional
    operation shows at any size. A result that should be dense may be laid out as that of the plain operators, which is
    not dense either where they keep the layout of a transposed operand.

    Args:
        cover: a cover with a kernel of its own.
        reads: the memory format of its operands.
        device: the device to call it on.

    Raises:
        WrongKernelError: its result or the layout of its result is wrong, or it writes where it must not.
        RuntimeError: it cannot be called; so do the other exceptions of :data:`FAILURES`.
    """
    tensors = _tensors(cover, reads, device)
    operands, statics = ([tensors[value] for value in values] for values in (cover.operands, cover.statics))
    expected, magnitude = _by_plain_operators(cover, tensors, device)
    allowed = TOLERANCE.get(expected.dtype, 0.0) * magnitude
    gives = next(gives for taken, gives in cover.formats if taken is reads)
    bound, kept = cover.bind(statics, Packs()), [operand.clone() for operand in operands]

    def compare(result: Tensor, untouched: slice) -> None:
        _compare(result, expected, allowed)
        is_plain = gives is Format.DENSE and result.stride() == expected.stride()
        is_laid_out = is_plain or result.is_contiguous(memory_format=MEMORY_FORMATS[gives])
        if is_formatted(cover.root.value) and not is_laid_out:
            raise WrongKernelError(f"its result is not {gives.value}")
        if not all(map(torch.equal, operands[untouched], kept[untouched])):
            raise WrongKernelError("it writes to its operands")

    result, last = bound.function(*operands), operands[-1]
    compare(result, slice(None))
    overwriting = bound.overwriting_function
    # An operand with another layout than the result, or that is read twice, is never overwritten.
    if overwriting is not None and last.stride() == result.stride() and len(set(cover.operands)) == len(operands):
        written = overwriting(*operands)
        compare(written, slice(-1))
        if written.data_ptr() != last.data_ptr():
            raise WrongKernelError("its result is not in the operand that it overwrites")


class KernelChecks:
    """Remembered results of :func:`check`, for kernels that are priced without being measured."""

    def __init__(self, device: torch.device) -> None:
        """Create an empty memory; kernels are called on first use."""
        self._device, self._layouts = device, Layouts()
        self._known: dict[Hashable, bool] = {}

    def runs(self, cover: Cover, reads: Format) -> bool:
        """Return whether a cover works when it reads a memory format, checked once; plain calls are not checked."""
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
    """Make operands for a cover; factors of long sums are scaled down so that the sums stay about one."""
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
    """Return the result of a cover's last node by plain operators, and the largest magnitude of any value computed."""
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
