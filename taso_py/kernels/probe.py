"""Probing operators whose schemas no one promises: they are used only where a small example comes out right.

Invariant: a probe has no effect but the time it takes, and its answer is remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from taso_py.backend.chance import uniform
from taso_py.backend.tracing import alone, without_warnings

TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""Absolute and relative, of results whose magnitude is about one; float32 leaves room for TF32."""


def agrees(fused: Callable[[], Sequence[Tensor]], expected: Sequence[Tensor]) -> bool:
    """Whether calls of operators that may not exist, or not for these operands, give what is expected."""
    try:
        # Libraries warn of algorithms that they try and that fail, which says nothing about the result.
        with torch.no_grad(), alone(), without_warnings():
            results = fused()
    except (RuntimeError, AttributeError, TypeError, NotImplementedError):
        return False
    allowed = TOLERANCE.get(results[0].dtype)
    return allowed is not None and all(
        bool(torch.allclose(result.float(), right, rtol=allowed, atol=allowed))
        for result, right in zip(results, expected, strict=True)
    )


_ELSEWHERE: ContextVar[bool] = ContextVar("elsewhere", default=False)


@contextmanager
def elsewhere() -> Generator[None]:
    """Devices are another machine's meanwhile, of whichever type."""
    token = _ELSEWHERE.set(True)
    try:
        yield
    finally:
        _ELSEWHERE.reset(token)


def is_here(device: torch.device) -> bool:
    """Whether a device can be asked. Of others, only those kernels are chosen whose latencies were measured there."""
    return not _ELSEWHERE.get() and (device.type != "cuda" or torch.cuda.is_available())


def works_on(device: torch.device, works: Callable[[], bool]) -> bool:
    """Whether a kernel works on a device; on one that is not here it is taken to."""
    return not is_here(device) or works()


def example(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The same small numbers at each call."""
    return uniform(shape, torch.Generator().manual_seed(0), torch.float32).sub(0.5).to(device, dtype)
