"""Optimized forms of a module in the place of its ``forward``.

The module stays the object that it was, with its attributes, parameters and hooks; only calls that an optimized form
was made for run that.

Invariant: a call that no form was made for, one that needs gradients or is made in training mode, one that a compiler
traces or that runs under autocast, and every call after weights, parts or attributes of the module have changed run the
module's own ``forward``. What that stores in attributes changes nothing: a module whose results depend on it is not
imported.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import is_, methodcaller
from types import CodeType, MethodType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.jit._trace import is_tracing
from torch.utils import _pytree as pytree

from taso_py.backend.frozen import FrozenError
from taso_py.backend.guard import ArgumentError
from taso_py.dynamo.captured import FrozenWeights
from taso_py.engines.engine import Runner
from taso_py.frontend.snapshot import OF_EVERY_MODULE, PLAIN, equal, is_readable

FORWARD = "forward"
_log = logging.getLogger(__name__)
_values = methodcaller("values")


class Replacement:
    """Callable in the place of a module's ``forward``."""

    def __init__(self, module: nn.Module, runners: Sequence[Runner]) -> None:
        """Take the place of a module's ``forward``.

        Args:
            module: the module, whose weights are frozen in the runners.
            runners: optimized forms, each for some arguments; for others it raises an `ArgumentError` or a `TypeError`.
        """
        self._module, self._runners = module, list(runners)
        self._own: Any = vars(module).get(FORWARD)
        """A ``forward`` of the instance, as some libraries set."""
        self._forward = module.forward
        functools.update_wrapper(self, self._forward, updated=())  # an export binds arguments by its signature
        self._parts = [*module.modules()]
        self._homes = [home for part in self._parts for home in _homes(part)]
        self._hook_homes = [home for part in self._parts[1:] for home in _hook_homes(part)]
        self._makeup, self._hooks = self._makeup_now(), self._hooks_now()
        self._tensors = [held for held in self._makeup if isinstance(held, Tensor)]
        self._weights = FrozenWeights(dict(enumerate(self._tensors)))
        self._kinds = {"cpu", *(tensor.device.type for tensor in self._tensors)}
        self._has_other_hooks = False
        self._attributes = _Attributes(self._parts)
        self._stores = True
        """Whether the module's own ``forward`` may store something in attributes."""
        self.is_on = True
        module.forward = self

    @property
    def __code__(self) -> CodeType:
        """The code of the module's own ``forward``, which exports name in their messages."""
        return self._forward.__code__

    def undo(self) -> None:
        """Give the module its own ``forward`` back.

        If another optimized form has taken this one's place since, that one runs the own ``forward`` from now on.
        """
        self._runners.clear()
        if vars(self._module).get(FORWARD) is not self:
            return
        if self._own is None:
            vars(self._module).pop(FORWARD, None)
        else:
            self._module.forward = self._own

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the first form that takes the arguments, or the module's own ``forward``."""
        if not self._runners or torch.compiler.is_compiling() or is_tracing():
            return self._forward(*args, **kwargs)
        if self.is_on and self._may_serve(args, kwargs):
            for runner in self._runners:
                try:
                    return runner(*args, **kwargs)
                except (ArgumentError, TypeError):  # before anything is computed; Python's own for other keywords
                    continue
        if not self.is_on and not self._stores:  # what is timed costs nothing more
            return self._forward(*args, **kwargs)
        are_current = self._attributes.are_current()
        result = self._forward(*args, **kwargs)
        self._stores = not self._attributes.are_untouched()
        if are_current and self._stores:
            self._attributes.record()
        return result

    def _may_serve(self, args: Any, kwargs: Any) -> bool:
        if self._module.training or self._needs_gradients(args, kwargs):
            return False
        if any(map(torch.is_autocast_enabled, self._kinds)):
            return False
        kind, before = type(self._module).__name__, self._has_other_hooks
        self._has_other_hooks = not _are_identical(self._hooks_now(), self._hooks)
        if self._has_other_hooks:  # as while the pipeline is inspected again
            if not before:
                _log.warning("hooks of parts of a %s have changed; it runs as it is while they are there", kind)
            return False
        if not self._is_as_it_was():
            _log.warning("weights, parts or attributes of a %s have changed; it runs as it is", kind)
            self._runners.clear()
        return bool(self._runners)

    def _is_as_it_was(self) -> bool:
        """Return whether the module consists of the same parts as before, and their content has not changed."""
        return (
            _are_identical(self._makeup_now(), self._makeup)
            and self._weights.are_current(self._tensors)
            and self._attributes.are_current()
        )

    def _makeup_now(self) -> list[object]:
        """Return the classes of the module and its parts, their tensors and parts.

        Adapters exchange parts, and parametrizations change their class.
        """
        return [*map(type, self._parts), *chain.from_iterable(map(_values, self._homes))]

    def _hooks_now(self) -> list[object]:
        """Return the hooks of the module's parts; its own run around whatever is called."""
        return [*chain.from_iterable(map(_values, self._hook_homes))]

    def _needs_gradients(self, args: Any, kwargs: Any) -> bool:
        if not torch.is_grad_enabled():
            return False
        leaves = pytree.tree_leaves((args, kwargs))
        return any(leaf.requires_grad for leaf in (*leaves, *self._tensors) if isinstance(leaf, Tensor))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return the own ``forward`` of the module's copy, whose weights will be its own."""
        copied = memo.get(id(self._module))
        if copied is None:
            raise FrozenError("an optimized forward cannot be copied without its module; copy the module")
        if self._own is not None:
            return copy.deepcopy(self._own, memo)
        return MethodType(type(self._module).forward, copied)

    def __reduce__(self) -> NoReturn:
        raise FrozenError(
            "a module with an optimized forward cannot be pickled; call undo() of the optimized parts first"
        )


class _Attributes:
    """Attributes of a module and its parts at one moment, their modes among them.

    Numbers, texts, tensors and tuples of them are compared by value. Other objects count as a whole: changes of their
    own attributes and elements are not seen.
    """

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        """Take a module, which is the first part, and the others."""
        self._whole, *self._below = map(vars, parts)
        self.record()

    def record(self) -> None:
        """Record the attributes as they are now."""
        # Another optimized form may take the place of this one in turn.
        places = [(self._whole, name) for name in self._whole if name != FORWARD]
        places += [(home, name) for home in self._below for name in home]
        places = [(home, name) for home, name in places if name not in OF_EVERY_MODULE]
        self._owners, self._names = [home for home, _ in places], [name for _, name in places]
        self._kept = self._now()
        self._tensors = [x for x in self._kept if isinstance(x, Tensor) and not x.is_inference()]
        self._versions = [tensor._version for tensor in self._tensors]

    def are_current(self) -> bool:
        """Return whether the attributes are those that were recorded, or equal ones."""
        if self.are_untouched():
            return True
        if not self._are_unwritten() or not all(map(_is_same, self._now(), self._kept)):
            return False
        self.record()  # the next comparison is a fast one
        return True

    def are_untouched(self) -> bool:
        """Return whether the attributes are those that were recorded, the same objects."""
        return _are_identical(self._now(), self._kept) and self._are_unwritten()

    def _are_unwritten(self) -> bool:
        return [tensor._version for tensor in self._tensors] == self._versions

    def _now(self) -> list[object]:
        """Return how many attributes each part has, and those that were recorded."""
        count = len(self._whole) - (FORWARD in self._whole)
        return [count, *map(len, self._below), *map(dict[str, Any].get, self._owners, self._names)]


def _are_identical(now: Sequence[object], before: Sequence[object]) -> bool:
    return len(now) == len(before) and all(map(is_, now, before))


def _is_same(new: Any, old: Any) -> bool:
    """Return whether two attributes surely have the same value."""
    if new is old:
        return True
    if type(new) is not type(old):
        return False
    if isinstance(new, tuple):
        return len(new) == len(old) and all(map(_is_same, new, old))
    if isinstance(new, Tensor):
        return is_readable(new) and is_readable(old) and equal(new, old)
    return isinstance(new, PLAIN) and equal(new, old)


def _homes(part: nn.Module) -> Iterable[Mapping[str, Any]]:
    """Return the dicts of tensors and parts that tell what a module computes by."""
    own = vars(part)
    return own["_parameters"], own["_buffers"], own["_modules"]


def _hook_homes(part: nn.Module) -> Iterable[Mapping[int, Any]]:
    """Return the dicts of hooks that tell what a module computes."""
    own = vars(part)
    return own["_forward_pre_hooks"], own["_forward_hooks"]
