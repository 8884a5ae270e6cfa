"""Inductor, PyTorch's compiler, in the variants that users choose between.

The variants are: the defaults of ``torch.compile``; ``freezing``, which folds weights and chooses packed kernels for
them; ``max_autotune`` in addition, which measures kernels; and more for each kind of device. On the CPU one compiles
the operators between the kernels of a plan, whose kernels and memory formats are kept; on a GPU two capture the frozen
code, tuned or not, in CUDA graphs, and one does so around the kernels of a plan. Which variant is fastest depends on
the model.

Frozen code uses values that were computed from the weights once; later in-place writes to a weight take effect only
where the weight itself is read, which the compiler decides or, for the kernels of a plan, the plan.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from taso_py.backend import NO_PLAN, Plan, Program
from taso_py.backend.outside import with_own_constants
from taso_py.backend.tracing import silent
from taso_py.backend.writes import Writes, state_of
from taso_py.engines.cudagraph import NEEDS_GPU, check_capturable, clone_outputs
from taso_py.engines.engine import COMPILED_PRICES, Engine, EngineUnavailableError, Runner
from taso_py.kernels.table import TRACED, TRACED_ON_GPU

PACKS = "cpp.weight_prepack"
"""Inductor's setting for packing the weights of products."""
_TUNED: Mapping[str, Any] = {"max_autotune": True, "autotune_num_choices_displayed": 0}


@contextmanager
def packing(packs: bool) -> Generator[None]:
    """Let Inductor pack the weights of products, or keep it from that, while it compiles with frozen weights.

    Its setting is not enough (PyTorch 2.13): the patterns that pack are registered once per process, only if the first
    frozen model is to be packed; they are then applied to every model, and match packed products of a plan too.
    """
    from torch._inductor import config as inductor
    from torch._inductor.fx_passes import freezing_patterns

    with inductor.patch({PACKS: True}):
        freezing_patterns.lazy_init()
    with nullcontext() if packs else patch.object(freezing_patterns, "pass_patterns", [], create=True):
        yield


class Inductor(Engine):
    """Inductor with the defaults of ``torch.compile``."""

    name = "inductor"
    is_compiler = True

    def _runner(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], resizable: bool) -> Runner:
        return torch.compile(module, backend="inductor", dynamic=_dynamic(resizable))


class FrozenInductor(Engine):
    """Inductor with frozen weights and further settings."""

    is_compiler = True

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        """Name a variant, with settings of Inductor as its ``options`` take them."""
        self.name = name
        self._options = {"freezing": True, **settings}

    def build(self, program: Program, plan: Plan = NO_PLAN) -> nn.Module:
        only_read = set(state_of(program.graph)) - set(Writes.of(program.graph).buffers)
        if only_read:
            reason = f"it would freeze {min(only_read)}, which another entry point writes to"
            raise EngineUnavailableError(f"{self.name} cannot run this module: {reason}")
        return super().build(program, plan)

    def _runner(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], resizable: bool) -> Runner:
        from torch._inductor import config as inductor  # imported here: it takes as long as PyTorch itself

        # The options keep this code apart from that of other variants for the same module.
        compiled = torch.compile(module, backend="inductor", dynamic=_dynamic(resizable), options={**self._options})
        packs = self._options.get(PACKS, True)

        def compiling(*args: Any, **kwargs: Any) -> Any:
            # Tracing reads the configuration before the options, so that freezing as an option alone has no effect.
            # Exclusive, since the settings are process-wide; silent, since autotuning writes to the terminal.
            with silent(), inductor.patch(self._options), packing(packs):
                return running(*args, **kwargs)

        def running(*args: Any, **kwargs: Any) -> Any:
            # Weights are frozen only without gradients.
            with torch.no_grad():
                return compiled(*args, **kwargs)

        compiling(*args, **kwargs)
        return with_own_constants(module, _WhereCompiled(compiling, running, args, kwargs, resizable=resizable))


class _WhereCompiled:
    """Runner that compiles in circumstances that are new, and runs compiled code in known ones.

    PyTorch compiles again by itself at other sizes, with another number of threads, in inference mode, and for tensors
    that were made there; but what it compiles so is not frozen.
    """

    def __init__(
        self, compiling: Runner, running: Runner, args: Sequence[Any], kwargs: Mapping[str, Any], *, resizable: bool
    ) -> None:
        self._compiling, self._running, self._resizable = compiling, running, resizable
        self._known = {self._circumstances(args, kwargs)}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        now = self._circumstances(args, kwargs)
        if now in self._known:
            return self._running(*args, **kwargs)
        result = self._compiling(*args, **kwargs)
        self._known.add(now)
        return result

    def _circumstances(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[object, ...]:
        """Return all by which PyTorch may compile again for arguments of one structure and one type each."""
        is_flat = not kwargs and all(type(argument) is Tensor for argument in args)
        leaves = args if is_flat else pytree.tree_leaves((tuple(args), dict(kwargs)))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        return (
            torch.is_inference_mode_enabled(),
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
            *(tensor.is_inference() for tensor in tensors),
            *(tensor.shape for tensor in tensors if self._resizable),
        )


class InductorAroundKernels(FrozenInductor):
    """Inductor for the operators between the kernels of a plan; the plan's choices are kept."""

    devices = ("cpu",)
    tiles = TRACED

    def __init__(self) -> None:
        """Keep Inductor from packing weights and from changing memory formats."""
        super().__init__("inductor-kernels", {"layout_optimization": False, PACKS: False})

    def absence(self, device: torch.device) -> str | None:
        if device.type == "cpu":
            return None
        return f"{self.name} uses kernels of the CPU; use --runtime inductor or auto"


class CapturedInductor(FrozenInductor):
    """Inductor with frozen weights, run as CUDA graphs."""

    devices = ("cuda",)
    prices = COMPILED_PRICES

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        """Name a variant, whose compiled code may be captured, with further settings of Inductor."""
        super().__init__(name, {"triton.cudagraphs": True, **settings})

    def absence(self, device: torch.device) -> str | None:
        return None if device.type == "cuda" else NEEDS_GPU

    def _runner(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], resizable: bool) -> Runner:
        check_capturable(args, kwargs, resizable)
        running = super()._runner(module, args, kwargs, resizable)
        return lambda *args, **kwargs: clone_outputs(running(*args, **kwargs))


class CapturedAroundKernels(CapturedInductor):
    """Inductor for the operators between the kernels of a plan, run as CUDA graphs; the plan's choices are kept."""

    tiles = TRACED_ON_GPU

    def __init__(self) -> None:
        """Keep Inductor from changing memory formats."""
        super().__init__("inductor-kernels-cudagraph", {"layout_optimization": False})


# None lets torch.compile treat a size as open once it has changed.
def _dynamic(resizable: bool) -> bool | None:
    return None if resizable else False


WHOLE_MODULE_FORMS = (
    Inductor(),
    FrozenInductor("inductor-freezing", {}),
    FrozenInductor("inductor-max-autotune", _TUNED),
)
"""Variants that compile the whole module and choose its kernels, on any device."""
CAPTURED_FORMS = (
    CapturedInductor("inductor-cudagraph", {}),
    CapturedInductor("inductor-max-autotune-cudagraph", _TUNED),
    CapturedAroundKernels(),
)
"""Variants that a GPU has besides."""
