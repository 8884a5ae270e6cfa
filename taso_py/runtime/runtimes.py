"""The runtimes a module can be prepared for: eager, CUDA graphs, Inductor.

Inductor comes in four forms: as ``torch.compile`` has it by default; with ``freezing``, which folds weights and picks
packed kernels for them; with ``max_autotune`` besides, which measures kernels; and, on the CPU, behind the kernels and
memory formats of a plan, where it compiles only what lies between them. Which is fastest depends on the model.

What freezing compiles was computed of the weights once; writes to a weight in place show afterwards only where it is
read as it is, which is the compiler's choice and, around the kernels of a plan, the plan's.

Invariant: a prepared module computes what the module computes, for inputs of the shapes of the example inputs; if it
is prepared as resizable, for all that the module takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stderr
from io import StringIO
from typing import Any, TypeAlias
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

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
COMPILED = (*COMPILERS, COMPILED_AROUND)
"""The runtimes that compile, which takes a while."""
RUNTIMES = ("eager", "cudagraph", *COMPILED)
"""The names of the runtimes."""
TILES_FOR: Mapping[str, tuple[Tile, ...]] = {
    "eager": TILES,
    "cudagraph": TILES,
    COMPILED_AROUND: TRACED,
    **dict.fromkeys(COMPILERS, PLAIN),
}
"""The kernels that a plan for a runtime may name; compilers of all of a module choose their own."""


class RuntimeUnavailableError(TasoError):
    """A runtime that this device or machine does not have."""


def runtimes_to_try(name: str, device: torch.device) -> tuple[str, ...]:
    """The runtimes that a choice stands for; ``auto`` is all that the device has, ``inductor`` all its forms.

    Raises:
        RuntimeUnavailableError: the device does not have the one asked for.
    """
    if name == "cudagraph" and device.type != "cuda":
        raise RuntimeUnavailableError("CUDA graphs need a GPU; use --runtime eager, inductor or auto")
    if name == COMPILED_AROUND and device.type != "cpu":
        raise RuntimeUnavailableError(f"the kernels of {name} are those of the CPU; use --runtime inductor or auto")
    forms = COMPILED if device.type == "cpu" else COMPILERS
    if name == "auto":
        return ("eager", *forms) if device.type == "cpu" else ("eager", "cudagraph", *forms)
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


def _cudagraph(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], resizable: bool) -> Runner:
    """Captures one call; replays copy their inputs into the captured ones and return the captured outputs."""
    if resizable:
        raise RuntimeError("its sizes are open, a captured graph has those of the example only")
    static_args, static_kwargs = pytree.tree_map(
        lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, (tuple(args), dict(kwargs))
    )
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            module(*static_args, **static_kwargs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = module(*static_args, **static_kwargs)
    slots = [leaf for leaf in pytree.tree_leaves((static_args, static_kwargs)) if isinstance(leaf, Tensor)]

    def replay(*new_args: Any, **new_kwargs: Any) -> Any:
        given = (leaf for leaf in pytree.tree_leaves((new_args, new_kwargs)) if isinstance(leaf, Tensor))
        for slot, value in zip(slots, given, strict=True):
            slot.copy_(value)
        graph.replay()
        return outputs

    return replay


_PREPARE: Mapping[str, _Preparation] = {
    "eager": _eager,
    "inductor": _inductor,
    "inductor-freezing": _frozen({}),
    "inductor-max-autotune": _frozen({"max_autotune": True, "autotune_num_choices_displayed": 0}),
    # What the plan chose stays as it is: nothing else is packed, nor laid out otherwise.
    COMPILED_AROUND: _frozen({"layout_optimization": False, _PACKS: False}),
    "cudagraph": _cudagraph,
}
