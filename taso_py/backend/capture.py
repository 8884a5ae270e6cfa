"""CUDA graphs of calls.

Invariant: after a capture that failed, the current stream, the memory allocator and the generator of random numbers are
as if none had begun, as far as PyTorch has calls for that.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import torch

T = TypeVar("T")
WARM_UP = 3
"""Calls on a stream of their own before one is captured, as PyTorch asks for (notes/cuda.html, "CUDA Graphs")."""


def captured(call: Callable[[], T], device: torch.device) -> tuple[torch.cuda.CUDAGraph, T]:
    """A CUDA graph of a call, and what the call returned: a replay computes it anew in the same memory.

    Args:
        call: what to capture; whatever it reads has to live as long as the graph, which holds addresses only.
        device: the GPU; without an index the current one.

    Raises:
        RuntimeError: the call does what cannot be captured, as PyTorch says; or whatever the call raises.
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
    """Records a call; raises what that raises: ending a capture that failed fails too, and says nothing of why.

    cuBLAS keeps a workspace for each stream. Graphs may be recorded on the same one, so the workspace would lie in the
    memory of the first and be used by all, also once that one is gone.

    The stream is one of the current device: that of PyTorch's own choice is made once, and on another GPU nothing would
    be recorded.
    """
    clear: Any = torch._C._cuda_clearCublasWorkspaces  # pyright: ignore[reportPrivateUsage] -- Inductor does so too
    failed: Exception | None = None
    clear()
    try:
        # A capture that fails may leave its own stream the current one.
        recording = torch.cuda.graph(graph, pool=pool, stream=torch.cuda.Stream())
        with torch.cuda.stream(torch.cuda.current_stream()), recording:
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
    """Ends what a capture that failed may have left open (PyTorch 2.11).

    The allocator would go on as if memory were taken from the capture's pool; where it does not, it raises. The
    generator of random numbers would go on as if the capture did, until another one that succeeds has ended.
    """
    with suppress(RuntimeError):
        end_pool: Any = torch._C._cuda_endAllocateToPool  # pyright: ignore[reportPrivateUsage] -- there is no other
        end_pool(torch.cuda.current_device(), pool)
    with suppress(RuntimeError):
        counter = torch.zeros(1, device="cuda")
        _recorded(torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle(), lambda: counter.add_(1))
