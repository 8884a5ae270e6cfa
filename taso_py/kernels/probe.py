"""Probes of operators with unstable schemas: they are used only if a small example comes out right.

Invariant: a probe has no effect but the time it takes, and its answer is remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar

import torch
from torch import Tensor

from taso_py.backend.random_tensors import uniform
from taso_py.backend.tracing import without_warnings

TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""Absolute and relative tolerance, for results of magnitude about one; float32 leaves room for TF32."""


def agrees(fused: Callable[[], Sequence[Tensor]], expected: Sequence[Tensor]) -> bool:
    """Return whether calls of operators, which may be missing or refuse these operands, give the expected results."""
    # A GPU's libraries warn of algorithms that they try and that fail, which says nothing about the result. Holding
    # warnings back imports PyTorch's compiler.
    quietly = nullcontext if expected[0].device.type == "cpu" else without_warnings
    try:
        with torch.no_grad(), quietly():
            results = fused()
    except (RuntimeError, AttributeError, TypeError, NotImplementedError):
        return False
    allowed = TOLERANCE.get(results[0].dtype)
    return allowed is not None and all(
        bool(torch.allclose(result.float(), right, rtol=allowed, atol=allowed))
        for result, right in zip(results, expected, strict=True)
    )


_ELSEWHERE: ContextVar[bool] = ContextVar("devices_elsewhere", default=False)


@contextmanager
def devices_elsewhere() -> Generator[None]:
    """Within this context, every device counts as another machine's, whatever its type."""
    token = _ELSEWHERE.set(True)
    try:
        yield
    finally:
        _ELSEWHERE.reset(token)


def is_here(device: torch.device) -> bool:
    """Return whether a device can be used here; otherwise only kernels measured on the other machine are chosen."""
    return not _ELSEWHERE.get() and (device.type != "cuda" or torch.cuda.is_available())


def works_on(device: torch.device, works: Callable[[], bool]) -> bool:
    """Return whether a kernel works on a device; on a device that is not here it is assumed to."""
    return not is_here(device) or works()


def example(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return small pseudo-random numbers, equal at every call."""
    return uniform(shape, torch.Generator().manual_seed(0), torch.float32).sub(0.5).to(device, dtype)
