"""Inductor, PyTorch's compiler, in the forms that users choose between.

It comes as ``torch.compile`` has it by default; with ``freezing``, which folds weights and picks packed kernels for
them; with ``max_autotune`` besides, which measures kernels; and with what the device offers beyond that. On the CPU
this is a plan, around whose kernels and memory formats only what lies between them is compiled; on a GPU it is CUDA
graphs of all that was frozen and measured. Which is fastest depends on the model.

What freezing compiles was computed of the weights once; writes to a weight in place show afterwards only where it is
read as it is, which is the compiler's choice and, around the kernels of a plan, the plan's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.utils import _pytree as pytree

from taso_py.backend import Plan
from taso_py.backend.tracing import silent
from taso_py.engines.cudagraph import NEEDS_GPU, check_capturable, copied
from taso_py.engines.engine import Engine, Runner
from taso_py.kernels.table import TRACED

_PACKS = "cpp.weight_prepack"
"""The setting of Inductor that says whether it packs products itself."""
_TUNED: Mapping[str, Any] = {"max_autotune": True, "autotune_num_choices_displayed": 0}


class Inductor(Engine):
    """Inductor as ``torch.compile`` has it."""

    name = "inductor"
    is_compiler = True

    def _prepared(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], resizable: bool) -> Runner:
        return torch.compile(module, backend="inductor", dynamic=_dynamic(resizable))


class FrozenInductor(Engine):
    """Inductor with weights frozen, and other settings besides."""

    is_compiler = True

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        """Name a form, with settings of Inductor as its ``options`` take them."""
        self.name = name
        self._options = {"freezing": True, **settings}

    def _prepared(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], resizable: bool) -> Runner:
        from torch._inductor import config as inductor  # imported here: it takes as long as PyTorch itself
        from torch._inductor.fx_passes import freezing_patterns

        # The options keep what is compiled apart from what other forms have compiled of the same module.
        compiled = torch.compile(module, backend="inductor", dynamic=_dynamic(resizable), options={**self._options})
        packs = self._options.get(_PACKS, True)

        def compiling(*args: Any, **kwargs: Any) -> Any:
            # Tracing asks the configuration whether weights are frozen, before the options are looked at: as an option
            # alone the setting is without effect.
            # What packs products is registered once a process, then applied whatever the configuration says, and takes
            # packed products of a plan for its own (PyTorch 2.13).
            patterns = nullcontext() if packs else patch.object(freezing_patterns, "pass_patterns", [], create=True)
            # Alone: the settings are those of the process. Which kernels were measured is written to the terminal.
            with silent(), inductor.patch(self._options), patterns:
                return running(*args, **kwargs)

        def running(*args: Any, **kwargs: Any) -> Any:
            # Weights are frozen only where no gradients can be asked for.
            with torch.no_grad():
                return compiled(*args, **kwargs)

        compiling(*args, **kwargs)
        return _Resizable(compiling, running, args, kwargs) if resizable else running


class _Resizable:
    """Calls that compile at sizes that come for the first time, and run what was compiled at others."""

    def __init__(self, compiling: Runner, running: Runner, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._compiling, self._running = compiling, running
        self._known = {_sizes(args, kwargs)}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        sizes = _sizes(args, kwargs)
        if sizes in self._known:
            return self._running(*args, **kwargs)
        result = self._compiling(*args, **kwargs)
        self._known.add(sizes)
        return result


def _sizes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[torch.Size | None, ...]:
    """The shapes of arguments."""
    return tuple([getattr(leaf, "shape", None) for leaf in pytree.tree_leaves((tuple(args), dict(kwargs)))])


class InductorAroundKernels(FrozenInductor):
    """Inductor for what lies between the kernels of a plan; what the plan chose stays as it is."""

    devices = ("cpu",)
    tiles = TRACED

    def __init__(self) -> None:
        """Let nothing else be packed, nor laid out otherwise."""
        super().__init__("inductor-kernels", {"layout_optimization": False, _PACKS: False})

    def absence(self, device: torch.device) -> str | None:
        if device.type == "cpu":
            return None
        return f"the kernels of {self.name} are those of the CPU; use --runtime inductor or auto"

    def plan_for(self, plan: Plan) -> Plan:
        return plan.compiled()


class CapturedInductor(FrozenInductor):
    """Inductor with weights frozen and kernels measured, run as CUDA graphs."""

    devices = ("cuda",)
    is_captured = True

    def __init__(self) -> None:
        """Let compiled code be captured."""
        super().__init__("inductor-cudagraph", {"triton.cudagraphs": True, **_TUNED})

    def absence(self, device: torch.device) -> str | None:
        return None if device.type == "cuda" else NEEDS_GPU

    def _prepared(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], resizable: bool) -> Runner:
        check_capturable(args, kwargs, resizable)
        running = super()._prepared(module, args, kwargs, resizable)
        return lambda *args, **kwargs: copied(running(*args, **kwargs))


# None lets torch.compile take a size for open once it has seen it change.
def _dynamic(resizable: bool) -> bool | None:
    return None if resizable else False


WHOLE_MODULE_FORMS = (
    Inductor(),
    FrozenInductor("inductor-freezing", {}),
    FrozenInductor("inductor-max-autotune", _TUNED),
)
"""The forms that compile all of a module and choose its kernels, on any device."""
