"""Running the original once on the example inputs, to record what its callers can observe beside values.

Invariant: the run leaves no trace: inputs are copies, buffers are restored, the random state stays as it was.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from taso_py.backend.contract import random_state_kept
from taso_py.frontend.errors import ImportRefusal


@dataclass(frozen=True)
class OriginalRun:
    """What the original was called with and what it returned."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: list[Any]
    """The leaves."""
    written: frozenset[int]
    """Which tensors among the leaves of the arguments were written to, by their identity."""

    def arguments(self, in_spec: pytree.TreeSpec) -> list[Any]:
        """The leaves of the arguments in the order of a tree, which may have the keywords in another order."""
        names: Sequence[str] = in_spec.child(1).context
        return pytree.tree_leaves((self.args, {name: self.kwargs[name] for name in names}))

    def wrote_to(self, argument: Any) -> bool:
        """Whether a leaf of the arguments was written to."""
        return id(argument) in self.written


def run_original(
    module: Callable[..., Any], state: Sequence[Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> OriginalRun:
    """Calls the original on copies of its arguments.

    Args:
        module: what is called.
        state: the buffers it may write to, restored afterwards.
        args: positional arguments.
        kwargs: keyword arguments.

    Raises:
        ImportRefusal: the call fails.
    """
    copied_args, copied_kwargs = _copied(args, kwargs)
    leaves = pytree.tree_leaves((copied_args, copied_kwargs))
    versions = [(leaf, leaf._version) for leaf in leaves if isinstance(leaf, Tensor)]
    with restored(state), random_state_kept(), torch.no_grad():
        try:
            result = module(*copied_args, **copied_kwargs)
        except Exception as error:  # a model may raise anything
            first = (str(error).strip().splitlines() or [""])[0]
            message = (
                f"the model fails on the example inputs ({type(error).__name__}: {first}); check their shapes and types"
            )
            raise ImportRefusal(message) from error
    written = frozenset([id(leaf) for leaf, version in versions if leaf._version != version])
    return OriginalRun(copied_args, copied_kwargs, pytree.tree_leaves(result), written)


def _copied(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with tensors copied, strides and sharing of storage included."""
    detached = pytree.tree_map_only(Tensor, Tensor.detach, (tuple(args), dict(kwargs)))
    # Fake tensors hold nothing that could be written to, and their copies would belong to another mode.
    is_fake = any(isinstance(leaf, FakeTensor) for leaf in pytree.tree_leaves(detached))
    return detached if is_fake else copy.deepcopy(detached)


@contextmanager
def restored(state: Sequence[Tensor]) -> Generator[None]:
    """Puts tensors back to what they were if the body wrote to them.

    Not every write counts as a new version: batch normalisation in training mode updates its statistics without one.
    """
    saved = [(tensor, tensor._version, tensor.detach().clone()) for tensor in state]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, version, content in saved:
                if tensor._version != version or not _equal(tensor, content):
                    tensor.copy_(content)


def _equal(tensor: Tensor, content: Tensor) -> bool:
    return tensor.is_meta or isinstance(tensor, FakeTensor) or torch.equal(tensor, content)
