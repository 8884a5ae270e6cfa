"""What a model does between two calls of a kernel: calls of other kernels, which displace it from the caches.

A kernel that is called again and again finds its code, its operands and the memory of its results in the nearest
caches, and takes half to nine tenths of the time that it takes in a model. So what is measured on the CPU is called
once at a time, other kernels before it.

Invariant: nothing outside depends on what is computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

NEAR_BYTES = 3 << 19
"""Of the nearest caches that one thread has for itself, code and data: what a sum moves for each thread."""
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Prepared:
    """A call before each of which something is done whose time is not that of the call."""

    prepare: Callable[[], None]
    call: Callable[[], object]

    def __call__(self) -> object:
        """Prepares and calls."""
        self.prepare()
        return self.call()


def keep_company() -> None:
    """Calls what displaces other kernels from the caches of the processor: code, data and predictions."""
    _company(torch.get_num_threads())()


@cache
def _company(threads: int) -> Callable[[], None]:
    """A convolution, a softmax, an activation, and a sum of as much as the threads' caches hold."""
    image, weight, rows = torch.ones(1, 32, 14, 14), torch.ones(32, 32, 3, 3), torch.ones(128, 256)
    left, right, total = torch.zeros(3, threads * NEAR_BYTES // FLOAT_BYTES // 3)

    def calls() -> None:
        functional.conv2d(image, weight, padding=1)
        torch.softmax(rows, -1)
        torch.add(left, right, out=total)
        functional.gelu(rows)

    return calls


def rewriting(operands: Sequence[Tensor]) -> Callable[[], None]:
    """What writes the operands of a call as a model does: the first by the last call before it, the others earlier."""
    writes = [_rewriting(operand) for operand in operands if operand.is_floating_point()]

    def prepare() -> None:
        for write in writes[1:]:
            write()
        keep_company()
        for write in writes[:1]:
            write()

    return prepare


def _rewriting(tensor: Tensor) -> Callable[[], object]:
    """What writes all of a tensor's storage, however the tensor lies in it, as it is now."""
    storage = tensor.untyped_storage()
    whole = tensor.new_empty(0).set_(storage, 0, (storage.nbytes() // tensor.itemsize,), (1,))
    content = whole.clone()
    return lambda: whole.copy_(content)
