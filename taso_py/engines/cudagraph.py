"""CUDA graphs: one call of a module is captured and replayed at every later call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from taso_py.backend.capture import capture_cuda_graph
from taso_py.backend.guard import ArgumentError, check_fixed, check_tensor
from taso_py.engines.engine import CAPTURED_PRICES, Engine, Runner
from taso_py.ir.errors import first_line
from taso_py.kernels.table import TILES

NEEDS_GPU = "CUDA graphs need a GPU; use --runtime eager, inductor or auto"


class CudaGraph(Engine):
    """PyTorch's kernels, launched by one replay of a CUDA graph."""

    name = "cudagraph"
    devices = ("cuda",)
    prices = CAPTURED_PRICES
    tiles = TILES

    def absence(self, device: torch.device) -> str | None:
        return None if device.type == "cuda" else NEEDS_GPU

    def _runner(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], resizable: bool) -> Runner:
        check_capturable(args, kwargs, resizable)
        return _Captured(module, args, kwargs)


class _Captured:
    """A captured call of a module, replayed at later calls.

    They copy inputs to its memory, replay it, copy back the inputs that it wrote to, and return copies of its outputs.
    The next replay overwrites the captured outputs, so callers get copies, whose cost is part of a call. Calls from
    several threads are serialized, also on the GPU, where each thread may use another stream.
    """

    def __init__(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        # A graph holds addresses, not tensors, so the module's weights must be kept alive.
        self._module = module
        static_args, static_kwargs = pytree.tree_map_only(Tensor, Tensor.clone, (tuple(args), dict(kwargs)))
        self._leaves = _named(static_args, static_kwargs)
        self._structure = pytree.tree_structure((static_args, static_kwargs))
        tensors = (leaf for _, leaf in self._leaves if isinstance(leaf, Tensor))
        self._device = next((tensor.device for tensor in tensors), torch.device("cuda"))
        versions = [leaf._version if isinstance(leaf, Tensor) else 0 for _, leaf in self._leaves]
        self._graph, self._outputs = capture_cuda_graph(lambda: module(*static_args, **static_kwargs), self._device)
        self._written = [
            isinstance(leaf, Tensor) and leaf._version != version
            for (_, leaf), version in zip(self._leaves, versions, strict=True)
        ]
        self._turn = Lock()
        self._stream = torch.cuda.current_stream(self._device)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Replay the call; raise ArgumentError for arguments unlike the captured ones: nothing is cast or broadcast."""
        try:
            given = self._structure.flatten_up_to((args, kwargs))
        except ValueError as error:
            raise ArgumentError(
                f"this module was captured with other arguments ({first_line(error)}); pass those of the example"
            ) from error
        for (name, leaf), value in zip(self._leaves, given, strict=True):
            _check_like(value, leaf, name)
        with torch.no_grad(), self._turn:
            stream = torch.cuda.current_stream(self._device)
            if stream != self._stream:
                # The previous call may still be running there, on the same memory.
                stream.wait_stream(self._stream)
                self._stream = stream
            for (_, leaf), value in zip(self._leaves, given, strict=True):
                if isinstance(leaf, Tensor):
                    leaf.copy_(value)
            self._graph.replay()
            for (_, leaf), value, is_written in zip(self._leaves, given, self._written, strict=True):
                if is_written:
                    value.copy_(leaf)
            return clone_outputs(self._outputs)


def check_capturable(args: Sequence[Any], kwargs: Mapping[str, Any], resizable: bool) -> None:
    """Raise RuntimeError if a call with these arguments cannot be captured."""
    if resizable:
        raise RuntimeError("it has open sizes, but a CUDA graph is fixed to those of the example")
    for name, leaf in _named(args, kwargs):
        if isinstance(leaf, Tensor) and not leaf.is_cuda:
            raise RuntimeError(f"{name} is on {leaf.device}, but a CUDA graph reads the memory of a GPU only")


def _named(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the leaves of arguments, each with the name of its argument."""
    places = (*enumerate(args), *kwargs.items())
    return [(f"argument {place}", leaf) for place, value in places for leaf in pytree.tree_leaves(value)]


def _check_like(value: Any, example: Any, name: str) -> None:
    """Raise unless an argument is like the captured one: a tensor of equal shape and type, or the same value."""
    if isinstance(value, Tensor) and isinstance(example, Tensor):
        check_tensor(value, name, example.shape, example.dtype)
    elif isinstance(value, Tensor) or isinstance(example, Tensor):
        wanted, found = ("tensor" if isinstance(x, Tensor) else type(x).__name__ for x in (example, value))
        raise ArgumentError(f"this module was captured with a {wanted} as {name}, not a {found}; pass that")
    elif value is not example:
        check_fixed(value, example)


def clone_outputs(outputs: Any) -> Any:
    """Return outputs with every tensor cloned, once if it occurs several times."""
    copies: dict[int, Tensor] = {}

    def copy_of(tensor: Tensor) -> Tensor:
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor.clone()
        return copies[id(tensor)]

    return pytree.tree_map_only(Tensor, copy_of, outputs)
