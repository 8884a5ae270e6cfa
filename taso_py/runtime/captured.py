"""What ``torch.compile`` captured, as a module that can be imported: its weights, its autocast, and its limits.

Invariant: the module computes what the captured graph computes, with its weights where the caller's are now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from taso_py.backend import Program

_GRAD_MODES = frozenset({torch._C._set_grad_enabled, torch.set_grad_enabled})  # pyright: ignore[reportPrivateUsage]


def why_untouched(graph: fx.GraphModule, examples: Sequence[Any]) -> str:
    """Why a captured graph must stay as it is: one line, empty if it need not.

    Args:
        graph: as captured.
        examples: its inputs; sizes that vary between calls are among them as symbols.
    """
    needs_gradients = any(isinstance(x, Tensor) and x.requires_grad for x in examples)
    if needs_gradients and (torch.is_grad_enabled() or any(n.target in _GRAD_MODES for n in graph.graph.nodes)):
        return "it needs gradients (call the model under torch.no_grad() to have it optimized)"
    if any(_varies(node.meta.get("example_value")) for node in graph.graph.nodes if node.op == "placeholder"):
        return "its sizes vary between calls (compile with dynamic=False to have it optimized for each of them)"
    return ""


def _varies(example: Any) -> bool:
    if isinstance(example, FakeTensor):
        return any(type(size) is not int for size in example.shape)
    return isinstance(example, torch.SymInt | torch.SymFloat | torch.SymBool)


def weight_places(graph: fx.GraphModule) -> tuple[int, ...]:
    """Which inputs of a captured graph are parameters and buffers of the modules that were compiled."""
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    # This is where torch.compile notes for its own compilers which tensors stay where they are between calls.
    marked = [node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type") for node in placeholders]
    return tuple(place for place, mark in enumerate(marked) if mark is not None)


class AutocastState:
    """The autocast around a call: on for the captured graph, off for what was made of it, whose casts are explicit."""

    def __init__(self, device: str) -> None:
        """Notes the state that holds now."""
        self._device = device
        self.is_enabled = torch.is_autocast_enabled(device)
        self._dtype = torch.get_autocast_dtype(device)

    def on(self) -> AbstractContextManager[Any]:
        """The autocast that was noted."""
        if not self.is_enabled:
            return nullcontext()
        return torch.autocast(self._device, self._dtype, cache_enabled=False)

    def off(self) -> AbstractContextManager[Any]:
        """No autocast."""
        return torch.autocast(self._device, enabled=False) if self.is_enabled else nullcontext()


class Captured(nn.Module):
    """A captured graph whose weights are its own, so that it is called with the other inputs only."""

    def __init__(self, graph: fx.GraphModule, weights: Mapping[int, Tensor], autocast: AutocastState) -> None:
        """Wraps a graph; ``weights`` are those of its inputs, by place, that are frozen."""
        super().__init__()
        self.graph = graph
        self._autocast = autocast
        self._places = tuple(weights)
        for place, tensor in weights.items():
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(f"w{place}", tensor)
            else:
                self.register_buffer(f"w{place}", tensor)

    def forward(self, *inputs: Any) -> Any:
        """Calls the graph; ``inputs`` are those that are no weights, in order."""
        given = iter(inputs)
        total = len(inputs) + len(self._places)
        own = {place: getattr(self, f"w{place}") for place in self._places}
        with self._autocast.on():
            return self.graph(*(own[place] if place in own else next(given) for place in range(total)))


class FrozenWeights:
    """Inputs of a captured graph, by place, as they were when they were folded and packed."""

    def __init__(self, tensors: Mapping[int, Tensor]) -> None:
        """Notes tensors as they are now; from the first ones on, steps of optimizers count as writes."""
        if tensors:
            _count_optimizer_steps()
        self.tensors = tensors
        self._state = {place: (tensor._version, tensor.data_ptr()) for place, tensor in tensors.items()}
        # Batch normalisation in training mode updates its statistics without counting that as a new version.
        self._silent = [p for p, t in tensors.items() if not isinstance(t, nn.Parameter) and _is_statistic(t)]
        self._content = self._statistics(tensors)

    @property
    def are_tied(self) -> bool:
        """Whether some share memory."""
        return len({tensor.untyped_storage().data_ptr() for tensor in self.tensors.values()}) < len(self.tensors)

    def are_current(self, args: Sequence[Any]) -> bool:
        """Whether the inputs of a call are the same tensors with the same content.

        What is written through ``.data`` to anything but vectors that are buffers is not seen, nor what a fused kernel
        of an optimizer writes if it is not called by the optimizer.
        """
        for place, tensor in self.tensors.items():
            now = args[place]
            if now is not tensor or (now._version, now.data_ptr()) != self._state[place]:
                return False
        return self._content is None or torch.equal(self._content, self._statistics(args))

    def _statistics(self, args: Any) -> Any:
        return torch.cat([args[place].double() for place in self._silent]) if self._silent else None


@cache
def _count_optimizer_steps() -> None:
    """Lets each step of an optimizer be a new version of what it may have written: fused ones count none themselves."""
    # Compiled along with a step, the hook would run once for all of them.
    hook: Any = torch.compiler.disable(_count_step)
    register_optimizer_step_post_hook(hook)


def _count_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    groups: Sequence[Mapping[str, Any]] = optimizer.param_groups
    written = [parameter for group in groups for parameter in group["params"] if parameter.grad is not None]
    torch.autograd.graph.increment_version(written)


def _is_statistic(buffer: Tensor) -> bool:
    return buffer.dim() == 1 and buffer.is_floating_point()


def reweighted(program: Program, weights: Mapping[int, Tensor]) -> Program:
    """The program of a :class:`Captured` with other weights of the same types in the same places, none of them tied."""
    renewed = {f"w{place}": tensor.detach() for place, tensor in weights.items()}
    return replace(program, weights={key: renewed.get(key, tensor) for key, tensor in program.weights.items()})
