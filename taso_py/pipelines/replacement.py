"""Optimized forms of a module in the place of its ``forward``.

The module stays the object that it was, with its attributes, parameters and hooks; only calls that an optimized form
was made for run that.

Invariant: a call that no form was made for, one that needs gradients or is made in training mode, one that a compiler
traces or that runs under autocast, and every call after weights or parts of the module have changed run the module's
own ``forward``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MethodType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from taso_py.backend.frozen import FrozenError
from taso_py.backend.guard import ArgumentError
from taso_py.dynamo.captured import FrozenWeights
from taso_py.engines.engine import Runner

FORWARD = "forward"
_log = logging.getLogger(__name__)


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
        self._homes = [
            (home, name) for home in _tensor_homes(module) for name, held in home.items() if held is not None
        ]
        tensors = [tensor for tensor in self._tensors() if tensor is not None]
        self._weights = FrozenWeights(dict(enumerate(tensors)))
        self._kinds = {"cpu", *(tensor.device.type for tensor in tensors)}
        self._parts = [(part, _makeup(part)) for part in module.modules()][1:]
        self._class, self._children = type(module), [*module.children()]
        self.is_on = True
        module.forward = self

    def undo(self) -> None:
        """Give the module its own ``forward`` back."""
        if self._own is None:
            vars(self._module).pop(FORWARD, None)
        else:
            self._module.forward = self._own

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the first form that takes the arguments, or the module's own ``forward``."""
        if self.is_on and not torch.compiler.is_compiling() and self._may_serve(args, kwargs):
            for runner in self._runners:
                try:
                    return runner(*args, **kwargs)
                except (ArgumentError, TypeError):  # before anything is computed; Python's own for other keywords
                    continue
        return self._forward(*args, **kwargs)

    def _may_serve(self, args: Any, kwargs: Any) -> bool:
        if not self._runners or self._module.training or self._needs_gradients(args, kwargs):
            return False
        if any(map(torch.is_autocast_enabled, self._kinds)):
            return False
        if not self._is_as_it_was():
            _log.warning("weights or parts of a %s have changed; it runs as it is", self._class.__name__)
            self._runners.clear()
        return bool(self._runners)

    def _is_as_it_was(self) -> bool:
        """Return whether the module consists of the same parts as before, and their tensors have not changed."""
        return (
            type(self._module) is self._class
            and [*self._module.children()] == self._children
            and all(_makeup(part) == before for part, before in self._parts)
            and self._weights.are_current(self._tensors())
        )

    def _needs_gradients(self, args: Any, kwargs: Any) -> bool:
        if not torch.is_grad_enabled():
            return False
        leaves = pytree.tree_leaves((args, kwargs))
        return any(leaf.requires_grad for leaf in (*leaves, *self._tensors()) if isinstance(leaf, Tensor))

    def _tensors(self) -> list[Tensor | None]:
        """Return the tensors that it was made with, None in the place of one that is gone."""
        return [home.get(name) for home, name in self._homes]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return the own ``forward`` of the module's copy, whose weights will be its own."""
        copied = memo.get(id(self._module))
        if copied is None:
            raise FrozenError("an optimized forward cannot be copied without its module; copy the module")
        return MethodType(type(self._module).forward, copied)

    def __reduce__(self) -> NoReturn:
        raise FrozenError(
            "a module with an optimized forward cannot be pickled; call undo() of the optimized parts first"
        )


def _makeup(part: nn.Module) -> list[object]:
    """Return what a part of a module computes by, but for tensors: its class, parts, hooks, and ``forward`` if its own.

    Adapters exchange parts, and pruning and parametrizations change their class or add hooks.
    """
    own = vars(part)
    hooks = (*own["_forward_pre_hooks"].values(), *own["_forward_hooks"].values())
    return [type(part), own.get(FORWARD), *own["_modules"].values(), *hooks]


def _tensor_homes(module: nn.Module) -> list[Mapping[str, Any]]:
    """Return the dicts in which a module and its parts hold parameters and buffers."""
    return [
        home
        for part in module.modules()
        for home in (part._parameters, part._buffers)  # pyright: ignore[reportPrivateUsage]
    ]
