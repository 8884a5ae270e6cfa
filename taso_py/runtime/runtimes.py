"""The runtimes a module can be prepared for: eager, CUDA graphs, Inductor.

Inductor comes in four forms: as ``torch.compile`` has it by default; with ``freezing``, which folds weights and picks
packed kernels for them; with ``max_autotune`` besides, which measures kernels; and with what the device offers beyond
that. On the CPU this is a plan, around whose kernels and memory formats only what lies between them is compiled; on a
GPU it is CUDA graphs of all that was frozen and measured. Which is fastest depends on the model.

What freezing compiles was computed of the weights once; writes to a weight in place show afterwards only where it is
read as it is, which is the compiler's choice and, around the kernels of a plan, the plan's.

Invariant: a prepared module computes what the module computes, for inputs of the shapes of the example inputs; if it
is prepared as resizable, for all that the module takes. What it returns is the caller's: no later call writes to it.
Compiled or captured, it is frozen (:mod:`taso_py.backend.frozen`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stderr
from io import StringIO
from threading import Lock
from typing import Any, TypeAlias
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from taso_py.backend.capture import captured
from taso_py.backend.frozen import FrozenRunner
from taso_py.backend.guard import ArgumentError, check_fixed, check_tensor
from taso_py.ir.errors import TasoError, first_line
from taso_py.kernels.table import PLAIN, TILES, TRACED
from taso_py.kernels.tile import Tile

Runner: TypeAlias = Callable[..., Any]
_PACKS = "cpp.weight_prepack"
"""The setting of Inductor that says whether it packs products itself."""
_Preparation: TypeAlias = Callable[[nn.Module, Sequence[Any], Mapping[str, Any], bool], Runner]

COMPILERS = ("inductor", "inductor-freezing", "inductor-max-autotune")
"""The runtimes that compile all of a module, and choose kernels for it."""
COMPILED_AROUND = "inductor-kernels"
"""The runtime that compiles what lies between the kernels of a plan."""
COMPILED_CAPTURED = "inductor-cudagraph"
"""The runtime that compiles all of a module, and runs what it compiled as CUDA graphs."""
COMPILED = (*COMPILERS, COMPILED_AROUND, COMPILED_CAPTURED)
"""The runtimes that compile, which takes a while."""
CAPTURED = frozenset({"cudagraph", COMPILED_CAPTURED})
"""The runtimes in which launching calls costs the processor nothing."""
RUNTIMES = ("eager", "cudagraph", *COMPILED)
"""The names of the runtimes."""
CHOICES = ("auto", *RUNTIMES)
"""What may be asked for; ``auto`` and ``inductor`` stand for several."""
TILES_FOR: Mapping[str, tuple[Tile, ...]] = {
    "eager": TILES,
    "cudagraph": TILES,
    COMPILED_AROUND: TRACED,
    **dict.fromkeys((*COMPILERS, COMPILED_CAPTURED), PLAIN),
}
"""The kernels that a plan for a runtime may name; compilers of all of a module choose their own."""


class RuntimeUnavailableError(TasoError):
    """A runtime that this device or machine does not have."""


def runtimes_to_try(name: str, device: torch.device) -> tuple[str, ...]:
    """The runtimes that a choice stands for; ``auto`` is all that the device has, ``inductor`` all its forms there.

    Raises:
        RuntimeUnavailableError: the device does not have the one asked for.
    """
    if name in CAPTURED and device.type != "cuda":
        raise RuntimeUnavailableError("CUDA graphs need a GPU; use --runtime eager, inductor or auto")
    if name == COMPILED_AROUND and device.type != "cpu":
        raise RuntimeUnavailableError(f"the kernels of {name} are those of the CPU; use --runtime inductor or auto")
    forms = (*COMPILERS, COMPILED_AROUND if device.type == "cpu" else COMPILED_CAPTURED)
    if name == "auto":
        # What a capture that fails leaves behind can disturb what is timed after it.
        return ("eager", *forms) if device.type == "cpu" else ("eager", *COMPILERS, "cudagraph", COMPILED_CAPTURED)
    return forms if name == "inductor" else (name,)


def prepare(
    module: nn.Module, runtime: str, args: Sequence[Any], kwargs: Mapping[str, Any], resizable: bool = False
) -> Runner:
    """The module made ready to run: compiled or captured; the first call has been made.

    Args:
        module: to run.
        runtime: one of :data:`RUNTIMES`.
        args: positional example inputs.
        kwargs: keyword example inputs.
        resizable: whether calls with inputs of other sizes will follow.

    Raises:
        RuntimeUnavailableError: the runtime cannot run this module here; the message says why, in one line.
    """
    try:
        with torch.no_grad():
            runner = _PREPARE[runtime](module, args, kwargs, resizable)
            runner = runner if runtime == "eager" else FrozenRunner(runner)
            runner(*args, **kwargs)
    except (RuntimeError, ImportError, AssertionError, NotImplementedError) as error:
        if runtime == "eager":
            raise
        raise RuntimeUnavailableError(f"{runtime} cannot run this module: {first_line(error)}") from error
    return runner


def _eager(module: nn.Module, _args: Sequence[Any], _kwargs: Mapping[str, Any], _resizable: bool) -> Runner:
    return module


# None lets torch.compile take a size for open once it has seen it change.
def _dynamic(resizable: bool) -> bool | None:
    return None if resizable else False


def _inductor(module: nn.Module, _args: Sequence[Any], _kwargs: Mapping[str, Any], resizable: bool) -> Runner:
    return torch.compile(module, backend="inductor", dynamic=_dynamic(resizable))


def _frozen(settings: Mapping[str, Any]) -> _Preparation:
    """What prepares a module with Inductor, weights frozen."""
    options = {"freezing": True, **settings}
    packs = options.get(_PACKS, True)

    def prepared(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], resizable: bool) -> Runner:
        from torch._inductor import config as inductor  # imported here: it takes as long as PyTorch itself
        from torch._inductor.fx_passes import freezing_patterns

        # The options keep what is compiled apart from what other forms have compiled of the same module.
        compiled = torch.compile(module, backend="inductor", dynamic=_dynamic(resizable), options={**options})

        def compiling(*args: Any, **kwargs: Any) -> Any:
            # Tracing asks the configuration whether weights are frozen, before the options are looked at: as an option
            # alone the setting is without effect.
            # What packs products is registered once a process, then applied whatever the configuration says, and takes
            # packed products of a plan for its own (PyTorch 2.13).
            patterns = nullcontext() if packs else patch.object(freezing_patterns, "pass_patterns", [], create=True)
            with inductor.patch(options), patterns:
                return running(*args, **kwargs)

        def running(*args: Any, **kwargs: Any) -> Any:
            # Weights are frozen only where no gradients can be asked for.
            with torch.no_grad():
                return compiled(*args, **kwargs)

        # Which kernels were measured is written to the terminal meanwhile.
        with redirect_stderr(StringIO()):
            compiling(*args, **kwargs)
        # Other sizes are compiled when they come.
        return compiling if resizable else running

    return prepared


def _frozen_and_captured(settings: Mapping[str, Any]) -> _Preparation:
    """What prepares a module with Inductor, weights frozen and what is compiled run as CUDA graphs."""
    frozen = _frozen({"triton.cudagraphs": True, **settings})

    def prepared(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], resizable: bool) -> Runner:
        _check_capturable(args, kwargs, resizable)
        running = frozen(module, args, kwargs, resizable)
        return lambda *args, **kwargs: _copied(running(*args, **kwargs))

    return prepared


def _cudagraph(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], resizable: bool) -> Runner:
    _check_capturable(args, kwargs, resizable)
    return _Captured(module, args, kwargs)


class _Captured:
    """One call of a module, captured; others copy their inputs into its, replay it, and return copies of its outputs.

    The next replay overwrites what was captured; so copies are what a caller can keep, and part of what a call takes.
    Threads may call it at once: they take turns, also on the GPU, where each may have a stream of its own.
    """

    def __init__(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        # A graph holds addresses, not tensors: it needs the module's weights for as long as it is replayed.
        self._module = module
        static_args, static_kwargs = pytree.tree_map_only(Tensor, Tensor.clone, (tuple(args), dict(kwargs)))
        self._leaves = _named(static_args, static_kwargs)
        self._structure = pytree.tree_structure((static_args, static_kwargs))
        tensors = (leaf for _, leaf in self._leaves if isinstance(leaf, Tensor))
        self._device = next((tensor.device for tensor in tensors), torch.device("cuda"))
        self._graph, self._outputs = captured(lambda: module(*static_args, **static_kwargs), self._device)
        self._turn = Lock()
        self._stream = torch.cuda.current_stream(self._device)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises ArgumentError where arguments are not like those that were captured: nothing is cast or broadcast."""
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
                # What the call before has asked for may still be running there, on the same memory.
                stream.wait_stream(self._stream)
                self._stream = stream
            for (_, leaf), value in zip(self._leaves, given, strict=True):
                if isinstance(leaf, Tensor):
                    leaf.copy_(value)
            self._graph.replay()
            return _copied(self._outputs)


def _check_capturable(args: Sequence[Any], kwargs: Mapping[str, Any], resizable: bool) -> None:
    if resizable:
        raise RuntimeError("its sizes are open, a captured graph has those of the example only")
    for name, leaf in _named(args, kwargs):
        if isinstance(leaf, Tensor) and not leaf.is_cuda:
            raise RuntimeError(f"{name} is on {leaf.device}, a captured graph reads the memory of a GPU only")


def _named(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The leaves of arguments, each with a name of the argument that it is in."""
    places = (*enumerate(args), *kwargs.items())
    return [(f"argument {place}", leaf) for place, value in places for leaf in pytree.tree_leaves(value)]


def _check_like(value: Any, example: Any, name: str) -> None:
    """Raises unless an argument is what was captured: a tensor of that shape and type, or else the same value."""
    if isinstance(value, Tensor) and isinstance(example, Tensor):
        check_tensor(value, name, example.shape, example.dtype)
    elif isinstance(value, Tensor) or isinstance(example, Tensor):
        wanted, found = ("tensor" if isinstance(x, Tensor) else type(x).__name__ for x in (example, value))
        raise ArgumentError(f"this module was captured with a {wanted} as {name}, not a {found}; pass that")
    elif value is not example:
        check_fixed(value, example)


def _copied(outputs: Any) -> Any:
    """Outputs with every tensor copied, once where it is there several times."""
    copies: dict[int, Tensor] = {}

    def copied(tensor: Tensor) -> Tensor:
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor.clone()
        return copies[id(tensor)]

    return pytree.tree_map_only(Tensor, copied, outputs)


_TUNED: Mapping[str, Any] = {"max_autotune": True, "autotune_num_choices_displayed": 0}
_PREPARE: Mapping[str, _Preparation] = {
    "eager": _eager,
    "inductor": _inductor,
    "inductor-freezing": _frozen({}),
    "inductor-max-autotune": _frozen(_TUNED),
    COMPILED_CAPTURED: _frozen_and_captured(_TUNED),
    # What the plan chose stays as it is: nothing else is packed, nor laid out otherwise.
    COMPILED_AROUND: _frozen({"layout_optimization": False, _PACKS: False}),
    "cudagraph": _cudagraph,
}
