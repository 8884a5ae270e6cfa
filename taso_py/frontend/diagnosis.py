"""Diagnosis of a model that torch.export refuses: it is run once more under observation.

The message of torch.export often does not name the reason.

Invariant: a diagnosis names only what was observed in the model; the run may change the model's state, which the caller
restores.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from taso_py.backend.frozen import FrozenModule
from taso_py.backend.generators import random_state_kept
from taso_py.backend.tensors import unsupported
from taso_py.backend.tracing import OperatorWatch
from taso_py.frontend.errors import ImportRefusal
from taso_py.frontend.source import place_in_model

_GRADIENTS = (
    "it computes gradients while it runs (by torch.autograd, backward or torch.func), of which an export has no form; "
    "write the derivative with tensor operators, or leave this part of the model as it is and optimize the rest"
)


def check_tensors(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse a model whose inputs or state are tensors that a graph cannot represent.

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
    for name, value in _named_state(module):
        if (problem := unsupported(value)) is not None:
            raise ImportRefusal(f"the model's {name} is {problem}")


def _named_state(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield parameters, buffers and plain attributes with their names."""
    for path, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            continue
        own = vars(part)
        for key, value in {**own, **own["_buffers"], **own["_parameters"]}.items():
            yield f"{path}.{key}" if path else key, value


def diagnosis(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return one line that names what in a model cannot be exported, and where; empty if nothing was observed."""
    watch = _Watch()
    with random_state_kept(), torch.no_grad():
        try:
            with torch.autograd.graph.saved_tensors_hooks(_unchanged, watch.note_gradients), watch:
                module(*args, **kwargs)
        except Exception as error:  # a watched model may raise anything; earlier observations count all the same
            if "saved tensor hooks" in str(error):
                # Functional transforms have none, and refuse to begin.
                watch.note(_GRADIENTS, traceback.extract_tb(error.__traceback__))
    return watch.seen


class _Watch(OperatorWatch):
    """Records the first operation that cannot be exported."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = ""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call an operator and check its results."""
        result = func(*args, **(kwargs or {}))
        problem = next((p for p in map(unsupported, pytree.tree_leaves(result)) if p is not None), None)
        if problem is not None:
            self.note(f"{func} makes {problem}", traceback.extract_stack())
        return result

    def note_gradients(self, saved: Tensor) -> Tensor:
        """Record that a derivative is computed: a tensor saved for one was read."""
        self.note(_GRADIENTS, traceback.extract_stack())
        return saved

    def note(self, problem: str, frames: Sequence[traceback.FrameSummary]) -> None:
        """Record a problem with the innermost frame in the model, unless there is one already."""
        self.seen = self.seen or f"cannot export the model: {problem}{place_in_model(frames)}"


def _unchanged(saved: Tensor) -> Tensor:
    return saved
