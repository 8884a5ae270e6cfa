"""CUDA graph capture of calls.

Invariant: after a capture that failed, the current stream, the memory allocator and the generator of random numbers are
as if none had begun, as far as PyTorch has calls for that.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import torch

from taso_py.backend.tracing import without_warnings

T = TypeVar("T")
WARM_UP = 3
"""The number of calls on a side stream before one is captured, as PyTorch asks for (notes/cuda.html, "CUDA Graphs")."""


def capture_cuda_graph(call: Callable[[], T], device: torch.device) -> tuple[torch.cuda.CUDAGraph, T]:
    """Capture a call; return the CUDA graph and the call's result, which every replay computes anew in the same memory.

    Args:
        call: the call to capture; whatever it reads has to live as long as the graph, which holds addresses only.
        device: the GPU; without an index the current one.

    Raises:
        RuntimeError: the call does something that cannot be captured; or whatever the call raises.
    """
    with torch.cuda.device(device):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                call()
        torch.cuda.current_stream().wait_stream(side)
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        try:
            return graph, _recorded(graph, pool, call)
        except Exception:
            _end_captures(pool)
            raise


def _recorded(graph: torch.cuda.CUDAGraph, pool: Any, call: Callable[[], T]) -> T:
    """Record a call; if it fails, raise its own error, since ending the failed capture raises another.

    cuBLAS keeps a workspace per stream. If several graphs were recorded on one stream, the workspace would be in the
    memory of the first and be used by all, even after the first is gone.

    The stream belongs to the current device: PyTorch creates its default capture stream once, and with another GPU
    current, nothing would be recorded.
    """
    clear: Any = torch._C._cuda_clearCublasWorkspaces  # pyright: ignore[reportPrivateUsage] -- Inductor does so too
    failed: Exception | None = None
    clear()
    try:
        # A capture that fails may leave its own stream the current one.
        recording = torch.cuda.graph(graph, pool=pool, stream=torch.cuda.Stream())
        # PyTorch warns of a graph without kernels, as that of a view is.
        with without_warnings(), torch.cuda.stream(torch.cuda.current_stream()), recording:
            try:
                return call()
            except Exception as error:
                failed = error
                raise
    except Exception as error:
        raise failed or error from None
    finally:
        clear()


def _end_captures(pool: Any) -> None:
    """Undo what a failed capture may have left open (PyTorch 2.11).

    Otherwise the allocator would go on allocating from the capture's pool (ending that raises if it does not), and the
    random number generator would act as if the capture continued, until a later one has ended successfully.
    """
    with suppress(RuntimeError):
        end_pool: Any = torch._C._cuda_endAllocateToPool  # pyright: ignore[reportPrivateUsage] -- there is no other
        end_pool(torch.cuda.current_device(), pool)
    with suppress(RuntimeError):
        counter = torch.zeros(1, device="cuda")
        _recorded(torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle(), lambda: counter.add_(1))
