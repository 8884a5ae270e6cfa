"""A graph captured by ``torch.compile`` as a source to optimize: its weights, its autocast state, and its limits.

Invariant: the source computes the same as the captured graph, and shares the caller's weights; the timed call includes
all costs of a real one, the check of frozen weights included.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from operator import is_
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import Dim
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from taso_py.backend import Program
from taso_py.engines.engine import Runner
from taso_py.frontend.higher_order import without_wrappers
from taso_py.ir.errors import TasoError
from taso_py.ir.operator import Input
from taso_py.ir.size import Poly
from taso_py.models.importing import import_source
from taso_py.models.source import Source

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FIX_NUMBERS = "compile with dynamic=False to have it optimized for each of them"
_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_GRAD_MODES = frozenset({torch._C._set_grad_enabled, torch.set_grad_enabled})  # pyright: ignore[reportPrivateUsage]


class FixedSizeError(TasoError):
    """Raised for a graph that can be optimized for some of its sizes only."""


def why_untouched(graph: fx.GraphModule, examples: Sequence[Any]) -> str:
    """Return why a captured graph cannot be optimized, in one line; empty if it can.

    Args:
        graph: the captured graph.
        examples: its inputs; numbers that vary between calls are symbols among them.
    """
    needs_gradients = any(isinstance(x, Tensor) and x.requires_grad for x in examples)
    if needs_gradients and (torch.is_grad_enabled() or any(n.target in _GRAD_MODES for n in graph.graph.nodes)):
        return "it needs gradients (call the model under torch.no_grad() to have it optimized)"
    if any(isinstance(node.meta.get("example_value"), _NUMBERS) for node in placeholders(graph)):
        return f"it computes with numbers that vary between calls ({_FIX_NUMBERS})"
    return ""


def placeholders(graph: fx.GraphModule) -> Sequence[fx.Node]:
    """Return the inputs of a graph."""
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


def varying_axes(graph: fx.GraphModule) -> Sequence[Collection[int]]:
    """Return, for each input of a captured graph, the axes whose sizes vary between calls."""
    examples = (node.meta.get("example_value") for node in placeholders(graph))
    shapes = (example.shape if isinstance(example, FakeTensor) else () for example in examples)
    return [[axis for axis, size in enumerate(shape) if type(size) is not int] for shape in shapes]


def _written(node: fx.Node) -> fx.Node | None:
    """Return what a call surely writes to, by its name; other writes are found at import."""
    name = node.target if node.op == "call_method" else ""
    writes = isinstance(name, str) and name.endswith("_") and not name.endswith("__")
    return node.args[0] if writes and isinstance(node.args[0], fx.Node) else None


def weight_positions(graph: fx.GraphModule) -> tuple[int, ...]:
    """Return the positions of the inputs that are parameters and buffers of the compiled modules, if only read.

    Those that the graph writes to, as a decoder does to its cache, are its inputs like others.
    """
    written = set(map(_written, graph.graph.nodes))
    return tuple(place for place, node in enumerate(placeholders(graph)) if _is_state(node) and node not in written)


def _is_state(node: fx.Node) -> bool:
    """Return whether a node is an input that is a parameter or buffer of a compiled module, or marked like one."""
    # torch.compile marks here, for its own compilers, which tensors keep their address between calls.
    mark = node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type")
    return node.op == "placeholder" and mark is not None


class AutocastState:
    """The autocast state around a call: needed by the captured graph, and off for results, whose casts are explicit."""

    def __init__(self, device: str) -> None:
        """Record the current state."""
        self._device = device
        self.is_enabled = torch.is_autocast_enabled(device)
        self._dtype = torch.get_autocast_dtype(device)

    def on(self) -> AbstractContextManager[Any]:
        """Return a context with the recorded autocast state."""
        if not self.is_enabled:
            return nullcontext()
        return torch.autocast(self._device, self._dtype, cache_enabled=False)

    def off(self) -> AbstractContextManager[Any]:
        """Return a context without autocast."""
        return torch.autocast(self._device, enabled=False) if self.is_enabled else nullcontext()

    def without(self, runner: Runner) -> Runner:
        """Wrap a runner whose casts are explicit, so that it runs without autocast."""
        if not self.is_enabled:
            return runner

        def run(*args: Any) -> Any:
            with self.off():
                return runner(*args)

        return run


class Captured(nn.Module):
    """A captured graph that owns its frozen weights, so that it is called with the other inputs only."""

    def __init__(self, graph: fx.GraphModule, weights: Mapping[int, Tensor], autocast: AutocastState) -> None:
        """Wrap a graph; ``weights`` are its frozen inputs by position."""
        super().__init__()
        self.graph = without_wrappers(graph)
        self._autocast = autocast
        self._places = tuple(weights)
        for place, tensor in weights.items():
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(weight_key(place), tensor)
            else:
                self.register_buffer(weight_key(place), tensor)

    def forward(self, *inputs: Any) -> Any:
        """Call the graph; ``inputs`` are the inputs that are no weights, in order."""
        own = {place: getattr(self, weight_key(place)) for place in self._places}
        with self._autocast.on():
            return self.graph(*_join_inputs(inputs, own))


def weight_key(place: int) -> str:
    """Return the name of a frozen weight in a :class:`Captured`, given its position among the inputs."""
    return f"w{place}"


def _join_inputs(inputs: Sequence[Any], weights: Mapping[int, Tensor]) -> list[Any]:
    """Return all inputs of a captured graph: weights by position, and the others in order."""
    given = iter(inputs)
    return [weights[p] if p in weights else next(given) for p in range(len(inputs) + len(weights))]


class FrozenWeights:
    """Inputs of a captured graph, by position, in the state in which they were folded and packed."""

    def __init__(self, tensors: Mapping[int, Tensor]) -> None:
        """Record the tensors' versions; from the first instance on, optimizer steps count as writes."""
        if tensors:
            _count_optimizer_steps()
        self.tensors = tensors
        self._places, self._kept = list(tensors), list(tensors.values())
        self._versions = [tensor._version for tensor in self._kept]
        self._pointers = [tensor.data_ptr() for tensor in self._kept]
        # Batch normalization in training mode updates its statistics without a new version.
        silent: dict[Any, list[int]] = {}
        for place, tensor in tensors.items():
            if not isinstance(tensor, nn.Parameter) and _is_statistic(tensor):
                silent.setdefault((tensor.device, tensor.dtype), []).append(place)
        self._content = [(places, _bits(tensors[place] for place in places)) for places in silent.values()]

    @property
    def are_tied(self) -> bool:
        """True if some share memory."""
        return len({tensor.untyped_storage().data_ptr() for tensor in self.tensors.values()}) < len(self.tensors)

    def are_current(self, args: Sequence[Any]) -> bool:
        """Return whether the inputs of a call are the recorded tensors with unchanged content.

        Writes through ``.data`` are only noticed for buffers that are vectors, and writes by a fused optimizer kernel
        only if the optimizer calls it.
        """
        # Lists, and one tensor for all content, since every call pays for this.
        now = [args[place] for place in self._places]
        return (
            all(map(is_, now, self._kept))
            and [tensor._version for tensor in now] == self._versions
            and [tensor.data_ptr() for tensor in now] == self._pointers
            and all(torch.equal(bits, _bits(args[place] for place in places)) for places, bits in self._content)
        )


def _bits(vectors: Iterable[Tensor]) -> Tensor:
    """Return vectors of one type as one vector of integers, in which NaN equals itself."""
    joined = torch.cat(tuple(vectors))
    return joined.view(_INTEGERS[joined.itemsize])


_NOTHING_FROZEN = FrozenWeights({})


@dataclass(frozen=True)
class BoundRunner:
    """A runner with the frozen weights that it was made for, which are not passed to it."""

    runner: Runner
    frozen: FrozenWeights = _NOTHING_FROZEN

    def __call__(self, args: Sequence[Any]) -> Any:
        """Call the runner with the captured graph's inputs but for frozen weights."""
        weights = self.frozen.tensors
        return self.runner(*([arg for place, arg in enumerate(args) if place not in weights] if weights else args))


@dataclass(frozen=True, kw_only=True)
class CapturedSource(Source):
    """The source for a :class:`Captured`; its example inputs are those of a call without the frozen weights."""

    graph: fx.GraphModule
    frozen: FrozenWeights
    autocast: AutocastState

    @classmethod
    def of(
        cls, name: str, graph: fx.GraphModule, args: Sequence[Any], frozen: FrozenWeights, autocast: AutocastState
    ) -> CapturedSource:
        """Return the source for a captured graph and the inputs of a call."""
        # An export temporarily replaces the tensors of a module, which other threads may be running.
        held = (*graph.parameters(), *graph.buffers(), *vars(graph).values())
        twin = deepcopy(graph, {id(leaf): leaf for leaf in held if isinstance(leaf, Tensor)})
        module = Captured(twin, frozen.tensors, autocast)
        inputs = tuple(arg for place, arg in enumerate(args) if place not in frozen.tensors)
        return cls(name, module, inputs, graph=graph, frozen=frozen, autocast=autocast)

    def program(self) -> Program:
        """Return the source as a program; sizes that vary between calls of the graph are open.

        Raises:
            TasoError: it cannot be imported, or is for some sizes only.
        """
        axes = varying_axes(self.graph)
        varying = [axes[place] for place in range(len(axes)) if place not in self.frozen.tensors]
        if not any(varying):
            return import_source(self)
        shapes = tuple(dict.fromkeys(each, Dim.AUTO) or None for each in varying)
        program = import_source(self, shapes={"inputs": shapes})
        types = {node.op.key: node.types[0] for node in program.graph.inputs if isinstance(node.op, Input)}
        for leaf, each in zip(program.signature.inputs, varying, strict=True):
            if not all(isinstance(leaf, str) and isinstance(types[leaf].shape[axis], Poly) for axis in each):
                raise FixedSizeError(
                    f"it is only exported with a size fixed that varies between calls ({_FIX_NUMBERS})"
                )
        return program

    def call_of(self, runner: Callable[..., Any]) -> Callable[[], Any]:
        """Return a call as it will be made: of the graph, or of a result after the check of its weights."""
        running = BoundRunner(self.graph.forward)
        if runner is not self.module:
            running = BoundRunner(self.autocast.without(runner), self.frozen)
        args = _join_inputs(self.args, self.frozen.tensors)

        def call() -> Any:
            with self.autocast.on():  # as in real calls; around graph and result alike
                running.frozen.are_current(args)
                return running(args)

        return call


@cache
def _count_optimizer_steps() -> None:
    """Make each optimizer step a new version of the parameters, since fused ones do not count as writes."""
    # If the hook were compiled with a step, it would run only once.
    hook: Any = torch.compiler.disable(_count_step)
    register_optimizer_step_post_hook(hook)


def _count_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    groups: Sequence[Mapping[str, Any]] = optimizer.param_groups
    written = [parameter for group in groups for parameter in group["params"] if parameter.grad is not None]
    torch.autograd.graph.increment_version(written)


def _is_statistic(buffer: Tensor) -> bool:
    return buffer.dim() == 1 and buffer.is_floating_point()


def with_weights(program: Program, weights: Mapping[int, Tensor]) -> Program:
    """Return the program of a :class:`Captured` with other weights of equal types, none of them tied."""
    renewed = {weight_key(place): tensor.detach() for place, tensor in weights.items()}
    return replace(program, weights={key: renewed.get(key, tensor) for key, tensor in program.weights.items()})
