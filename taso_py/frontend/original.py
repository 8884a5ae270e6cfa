"""One run of the original on the example inputs, to record what its callers can observe besides values.

Invariant: the run leaves no trace but what a model makes at its first call and keeps from then on (caches, the
parameters of lazy modules): inputs are copies, buffers are restored. What the model draws, the import undoes, which
learns whether it draws. A model whose other attributes change from call to call, or that writes to its parameters, is
refused and restored.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from operator import is_
from traceback import extract_tb
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from taso_py.backend.generators import random_state_as_now, reseeding_watched
from taso_py.backend.input_cases import inputs_near
from taso_py.backend.program import leaves_in_order
from taso_py.backend.tensors import tensors_in
from taso_py.frontend.errors import ImportRefusal
from taso_py.frontend.snapshot import Snapshot, copy_value, equal
from taso_py.frontend.source import place_in_model
from taso_py.ir.errors import first_line

OTHERS = 3
"""Number of other inputs that a model with new attributes is called with."""


@dataclass(frozen=True)
class OriginalRun:
    """Arguments, results and writes of one run of the original."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: list[Any]
    """The leaves of the result."""
    written: frozenset[int]
    """Identities of those tensors among the leaves of the arguments that were written to."""
    before: tuple[tuple[Any, ...], Mapping[str, Any]]
    """Positional and keyword arguments as they were before the run; the same tensors where nothing was written to."""
    mutated: Sequence[str] = ()
    """Names of the state that was written to, by operators or, in the module itself, by assigning a tensor."""

    def arguments(self, in_spec: pytree.TreeSpec) -> list[Any]:
        """Return the leaves of the arguments in the order of a tree, which may order keywords differently."""
        return leaves_in_order(self.args, self.kwargs, in_spec)

    def arguments_before(self, in_spec: pytree.TreeSpec) -> list[Any]:
        """Return the leaves of the arguments as they were before the run."""
        return leaves_in_order(*self.before, in_spec)

    def wrote_to(self, argument: Any) -> bool:
        """Return whether a leaf of the arguments was written to."""
        return id(argument) in self.written


def run_original(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> OriginalRun:
    """Call the original on copies of its arguments.

    Args:
        module: the original.
        args: positional arguments.
        kwargs: keyword arguments.

    Raises:
        ImportRefusal: the call fails, or changes state that later calls depend on and an export would not.
    """
    before, as_before = Snapshot(module, parameters=True), random_state_as_now()
    try:
        run = _call(module, args, kwargs)
        mutated = before.mutated()
        _check_written(before, mutated)
        kept = [name for name in before.replaced() if name not in mutated]
        results = [copy_value(leaf) for leaf in run.results] if kept else []
        before.restore(mutated)
        if kept:
            _check_kept(module, args, kwargs, as_before, results=results, kept=kept, mutated=mutated)
    except BaseException:
        before.restore()
        raise
    return replace(run, mutated=mutated)


def _check_written(before: Snapshot, mutated: Sequence[str]) -> None:
    """Check that only buffers were written to: an export freezes all other tensors.

    Raises:
        ImportRefusal: another tensor was.
    """
    name = next((name for name in mutated if not before.is_buffer(name)), None)
    if name is not None:
        kind = "parameter " if before.is_parameter(name) else ""
        raise ImportRefusal(f"the model writes to its {kind}{name}; make it a buffer, and write to it without .data")


def _check_kept(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    as_before: Callable[[], AbstractContextManager[None]],
    results: Sequence[Any],
    kept: Sequence[str],
    mutated: Collection[str],
) -> None:
    """Call a model that stored new values in its attributes once more: it must store and return the same again.

    So it must after calls with other inputs, which tell a running maximum, or an average that has settled, from a
    cache. An export has either as a constant.

    Args:
        module: the model.
        args: positional arguments of the first call.
        kwargs: keyword arguments of the first call.
        as_before: makes contexts in which random numbers are those of the first call.
        results: leaves of the result of the first call.
        kept: names of the places where it stored new values.
        mutated: names of state that it may write to, which is as before the first call.

    Raises:
        ImportRefusal: it does not.
    """
    filled = Snapshot(module)

    def check_call() -> None:
        with as_before():
            again = _call(module, args, kwargs)
        changed = [n for n in (*filled.replaced(opaque=False), *filled.written()) if n not in mutated]
        is_same = len(again.results) == len(results) and all(map(equal, again.results, results))
        if changed or not is_same:
            raise ImportRefusal(
                f"the model changes its {[*changed, *kept][0]} from call to call, which an export would not; keep it "
                "in a buffer that is written to in place"
            )
        filled.restore(mutated)

    check_call()
    for seed in range(OTHERS):
        with as_before(), suppress(ImportRefusal):  # it may fail on other inputs
            _call(module, *inputs_near(args, kwargs, seed))
        filled.restore(mutated)
    check_call()


def _call(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> OriginalRun:
    """Call the original once.

    Raises:
        ImportRefusal: the call fails, sets the state of a random generator, or changes a container among the arguments.
    """
    copied_args, copied_kwargs = copy_arguments(args, kwargs)
    given, structure = pytree.tree_flatten((copied_args, copied_kwargs))
    leaves = tensors_in(given)
    # Nobody counts the versions of inference tensors.
    before = [copy_value(leaf) if leaf.is_inference() else leaf._version for leaf in leaves]
    with torch.no_grad(), reseeding_watched() as reseeding:
        try:
            result = module(*copied_args, **copied_kwargs)
        except Exception as error:  # a model may raise anything
            at = place_in_model(extract_tb(error.__traceback__))
            what = f"the model fails on the example inputs{at}: {type(error).__name__}: {first_line(error)}"
            raise ImportRefusal(f"{what}; check their shapes and types") from error
    if reseeding:
        raise ImportRefusal(
            f"the model sets the state of a random generator{place_in_model(reseeding[0])}, which an export would not; "
            "take the random numbers as an input, or keep them in a buffer"
        )
    now, structure_now = pytree.tree_flatten((copied_args, copied_kwargs))
    if structure_now != structure or not all(map(is_, now, given)):
        raise ImportRefusal(
            "the model changes a dict or list among its arguments, which an export would not; return the new values, "
            "or write to the tensors in it in place"
        )
    after = [leaf if leaf.is_inference() else leaf._version for leaf in leaves]
    written = [id(leaf) for leaf, old, new in zip(leaves, before, after, strict=True) if not equal(old, new)]
    as_before = copy_arguments(args, kwargs) if written else (copied_args, copied_kwargs)
    return OriginalRun(copied_args, copied_kwargs, pytree.tree_leaves(result), frozenset(written), as_before)


def copy_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with tensors copied, strides and shared storage included.

    Raises:
        ImportRefusal: they cannot be.
    """
    detached = pytree.tree_map_only(Tensor, Tensor.detach, (tuple(args), dict(kwargs)))
    # Fake tensors hold nothing that could be written to, and their copies would belong to another mode.
    is_fake = any(isinstance(leaf, FakeTensor) for leaf in pytree.tree_leaves(detached))
    if is_fake:
        return detached
    try:
        return copy.deepcopy(detached)
    except Exception as error:  # an object may raise anything, and so do tensors of some layouts
        raise ImportRefusal(
            f"an example input cannot be copied ({first_line(error)}); pass strided tensors and plain values"
        ) from error
