"""What ``torch.compile`` captured, as a source that can be optimized: its weights, its autocast, and its limits.

Invariant: the source computes what the captured graph computes, with its weights where the caller's are now; what is
timed of it is all that a call takes, the check of frozen weights included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from operator import is_
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from taso_py.backend import Program
from taso_py.engines.engine import Runner
from taso_py.frontend.higher_order import without_wrappers
from taso_py.models.source import Source

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
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
    if any(_writes_to_input(node) for node in graph.graph.nodes):
        return "it writes to its inputs or buffers (call eval() on a model that only predicts)"
    return ""


def _writes_to_input(node: fx.Node) -> bool:
    """Whether a call surely writes to an input, as far as its name says; others are found at import."""
    name = node.target if node.op == "call_method" else ""
    writes = isinstance(name, str) and name.endswith("_") and not name.endswith("__")
    return writes and isinstance(node.args[0], fx.Node) and node.args[0].op == "placeholder"


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

    def without(self, runner: Runner) -> Runner:
        """What calls a runner whose casts are explicit, so that autocast adds no others."""
        if not self.is_enabled:
            return runner

        def run(*args: Any) -> Any:
            with self.off():
                return runner(*args)

        return run


class Captured(nn.Module):
    """A captured graph whose weights are its own, so that it is called with the other inputs only."""

    def __init__(self, graph: fx.GraphModule, weights: Mapping[int, Tensor], autocast: AutocastState) -> None:
        """Wraps a graph; ``weights`` are those of its inputs, by place, that are frozen."""
        super().__init__()
        self.graph = without_wrappers(graph)
        self._autocast = autocast
        self._places = tuple(weights)
        for place, tensor in weights.items():
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(f"w{place}", tensor)
            else:
                self.register_buffer(f"w{place}", tensor)

    def forward(self, *inputs: Any) -> Any:
        """Calls the graph; ``inputs`` are those that are no weights, in order."""
        own = {place: getattr(self, f"w{place}") for place in self._places}
        with self._autocast.on():
            return self.graph(*_joined(inputs, own))


def _joined(inputs: Sequence[Any], weights: Mapping[int, Tensor]) -> list[Any]:
    """All inputs of a captured graph: the weights, by place, and the others in order."""
    given = iter(inputs)
    return [weights[p] if p in weights else next(given) for p in range(len(inputs) + len(weights))]


class FrozenWeights:
    """Inputs of a captured graph, by place, as they were when they were folded and packed."""

    def __init__(self, tensors: Mapping[int, Tensor]) -> None:
        """Notes tensors as they are now; from the first ones on, steps of optimizers count as writes."""
        if tensors:
            _count_optimizer_steps()
        self.tensors = tensors
        self._places, self._kept = list(tensors), list(tensors.values())
        self._versions = [tensor._version for tensor in self._kept]
        self._pointers = [tensor.data_ptr() for tensor in self._kept]
        # Batch normalisation in training mode updates its statistics without counting that as a new version.
        silent: dict[Any, list[int]] = {}
        for place, tensor in tensors.items():
            if not isinstance(tensor, nn.Parameter) and _is_statistic(tensor):
                silent.setdefault((tensor.device, tensor.dtype), []).append(place)
        self._content = [(places, _bits(tensors[place] for place in places)) for places in silent.values()]

    @property
    def are_tied(self) -> bool:
        """Whether some share memory."""
        return len({tensor.untyped_storage().data_ptr() for tensor in self.tensors.values()}) < len(self.tensors)

    def are_current(self, args: Sequence[Any]) -> bool:
        """Whether the inputs of a call are the same tensors with the same content.

        What is written through ``.data`` to anything but vectors that are buffers is not seen, nor what a fused kernel
        of an optimizer writes if it is not called by the optimizer.
        """
        # Lists, and one tensor of all content: every call pays for this.
        now = [args[place] for place in self._places]
        return (
            all(map(is_, now, self._kept))
            and [tensor._version for tensor in now] == self._versions
            and [tensor.data_ptr() for tensor in now] == self._pointers
            and all(torch.equal(bits, _bits(args[place] for place in places)) for places, bits in self._content)
        )


def _bits(vectors: Iterable[Tensor]) -> Tensor:
    """Vectors of one type in one, as integers: what is not a number equals itself."""
    joined = torch.cat(tuple(vectors))
    return joined.view(_INTEGERS[joined.itemsize])


_NOTHING_FROZEN = FrozenWeights({})


@dataclass(frozen=True)
class Running:
    """What runs, and the inputs that it does not ask for, as long as they stay what they are."""

    runner: Runner
    frozen: FrozenWeights = _NOTHING_FROZEN

    def __call__(self, args: Sequence[Any]) -> Any:
        """Calls it with those of a captured graph's inputs that it asks for."""
        weights = self.frozen.tensors
        return self.runner(*([arg for place, arg in enumerate(args) if place not in weights] if weights else args))


@dataclass(frozen=True, kw_only=True)
class CapturedSource(Source):
    """A :class:`Captured` whose example inputs are those of a call that are no weights."""

    graph: fx.GraphModule
    frozen: FrozenWeights
    autocast: AutocastState

    @classmethod
    def of(
        cls, name: str, graph: fx.GraphModule, args: Sequence[Any], frozen: FrozenWeights, autocast: AutocastState
    ) -> CapturedSource:
        """A captured graph, called with these inputs."""
        # An export puts tensors of its own in the place of those of a module meanwhile; other threads run the graph.
        held = (*graph.parameters(), *graph.buffers(), *vars(graph).values())
        twin = deepcopy(graph, {id(leaf): leaf for leaf in held if isinstance(leaf, Tensor)})
        module = Captured(twin, frozen.tensors, autocast)
        inputs = tuple(arg for place, arg in enumerate(args) if place not in frozen.tensors)
        return cls(name, module, inputs, graph=graph, frozen=frozen, autocast=autocast)

    def call_of(self, runner: Callable[..., Any]) -> Callable[[], Any]:
        """A call as it will be made: of the graph as it is, or of a result behind the check of its weights."""
        running = Running(self.graph.forward)
        if runner is not self.module:
            running = Running(self.autocast.without(runner), self.frozen)
        args = _joined(self.args, self.frozen.tensors)

        def call() -> Any:
            with self.autocast.on():  # as at every call; around both alike
                running.frozen.are_current(args)
                return running(args)

        return call


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
