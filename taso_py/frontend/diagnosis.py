"""Why a model cannot be exported, found by running it once more and looking: what torch says of it is often no reason.

Invariant: nothing is said of a model that was not seen in it; what it holds may change, which the caller undoes.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from taso_py.backend.contract import random_state_kept
from taso_py.backend.frozen import FrozenModule
from taso_py.backend.tensors import unsupported
from taso_py.frontend.errors import ImportRefusal
from taso_py.frontend.source import place_in_model

_GRADIENTS = (
    "it computes gradients while it runs (by torch.autograd, backward or torch.func), of which an export has no form; "
    "write the derivative with tensor operators, or leave this part of the model as it is and optimize the rest"
)


def check_tensors(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Makes sure that what a model is given and what it holds are tensors that a graph has a form for.

    Raises:
        ImportRefusal: one is sparse, nested, packed or quantized; or a part of the model has packed its weights.
    """
    for path, part in module.named_modules():
        if isinstance(part, FrozenModule) and part.has_kernels:
            what = f"the model's {path}" if path else "the model"
            raise ImportRefusal(
                f"{what} is the result of an optimization, with weights packed for its kernels; optimize the module "
                "that it was made of"
            )
    for leaf in pytree.tree_leaves((args, kwargs)):
        if (problem := unsupported(leaf)) is not None:
            raise ImportRefusal(f"an example input is {problem}")
    for name, value in _held(module):
        if (problem := unsupported(value)) is not None:
            raise ImportRefusal(f"the model's {name} is {problem}")


def _held(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Parameters, buffers and plain attributes, by name."""
    for path, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            continue
        own = vars(part)
        for key, value in {**own, **own["_buffers"], **own["_parameters"]}.items():
            yield f"{path}.{key}" if path else key, value


def diagnosis(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """What in a model has no form in an export, in one line with the place; empty where nothing was seen."""
    watch = _Watch()
    with random_state_kept(), torch.no_grad():
        try:
            with torch.autograd.graph.saved_tensors_hooks(_as_it_is, watch.note_gradients), watch:
                module(*args, **kwargs)
        except Exception as error:  # under the watch a model may raise anything, and what was seen was seen
            if "saved tensor hooks" in str(error):
                # Functional transforms have none, and refuse to begin.
                watch.note(_GRADIENTS, traceback.extract_tb(error.__traceback__))
    return watch.seen


class _Watch(TorchDispatchMode):
    """Notes the first thing that has no form in an export."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = ""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Calls an operator, and looks at what it returns."""
        result = func(*args, **(kwargs or {}))
        problem = next((p for p in map(unsupported, pytree.tree_leaves(result)) if p is not None), None)
        if problem is not None:
            self.note(f"{func} makes {problem}", traceback.extract_stack())
        return result

    def note_gradients(self, saved: Tensor) -> Tensor:
        """Notes that a derivative is computed, for which what was saved is asked for."""
        self.note(_GRADIENTS, traceback.extract_stack())
        return saved

    def note(self, problem: str, frames: Sequence[traceback.FrameSummary]) -> None:
        """Notes a problem, at the innermost place in the model."""
        self.seen = self.seen or f"cannot export the model: {problem}{place_in_model(frames)}"


def _as_it_is(saved: Tensor) -> Tensor:
    return saved
