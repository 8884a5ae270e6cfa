"""Hooks on a user's modules while the model is imported, compared and timed: they observe none of it.

A hook that changes the computation, such as that of a weight normalization, is part of model and result. One call with
real tensors tells such hooks from those that only observe; the latter are removed until the end. State that hooks keep
in lists, dicts, attributes, closures and global names is then restored to its content before that call.

Invariant: afterwards modules have the hooks that they had, and state that hooks keep in such places is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from taso_py.backend.generators import random_state_kept
from taso_py.frontend.snapshot import CONTAINERS, Snapshot, refill

_KINDS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_Hooks: TypeAlias = dict[int, Callable[..., Any]]


@contextmanager
def hooks_set_aside(model: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Generator[Sequence[str]]:
    """Remove hooks that only observe, judged by one call on these arguments; yield notes about all hooks.

    An object that is not a module, or has no hooks, is not called.
    """
    homes = _hook_tables(model) if isinstance(model, nn.Module) else []
    if not homes:
        yield ()
        return
    assert isinstance(model, nn.Module)
    registered = [(home, dict(home)) for home in homes]
    hooks = [hook for _, known in registered for hook in known.values()]
    state, held = _State(hooks), Snapshot(model)
    try:
        acting = _changing_hooks(model, registered, args, kwargs)
        for home, known in registered:
            _replace_hooks(home, {key: hook for key, hook in known.items() if (id(home), key) in acting})
        yield _notes(len(hooks) - len(acting), len(acting))
    finally:
        for home, known in registered:
            _replace_hooks(home, {**known, **{key: hook for key, hook in home.items() if key not in known}})
        held.restore()
        state.restore()


def _hook_tables(model: nn.Module) -> list[_Hooks]:
    modules = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
    homes = [cast(_Hooks, vars(module)[kind]) for module in modules for kind in _KINDS]
    return [home for home in homes if home]


def _replace_hooks(home: _Hooks, hooks: _Hooks) -> None:
    # Handles that remove hooks refer to this very dict.
    home.clear()
    home.update(hooks)


def _notes(looking: int, acting: int) -> list[str]:
    notes: list[str] = []
    if looking:
        notes.append(f"{_hook_count(looking)} of the model that change nothing: an optimized module has none of them")
    if acting:
        notes.append(
            f"{_hook_count(acting)} of the model that change what is computed: an optimized module does the same"
        )
    return notes


def _hook_count(number: int) -> str:
    return f"{number} hook{'s' if number > 1 else ''}"


def _changing_hooks(
    model: nn.Module, registered: Sequence[tuple[_Hooks, _Hooks]], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> set[tuple[int, int]]:
    """Return the hooks, by table and key, that changed something in one call on copies of the arguments."""
    found: set[tuple[int, int]] = set()
    for home, known in registered:
        _replace_hooks(
            home, {key: _reporting_hook(hook, partial(found.add, (id(home), key))) for key, hook in known.items()}
        )
    copies = pytree.tree_map_only(Tensor, lambda leaf: leaf.detach().clone(), (tuple(args), dict(kwargs)))
    # A model that fails is refused by the import, which says why.
    with torch.no_grad(), random_state_kept(), suppress(Exception):
        model(*copies[0], **copies[1])
    return found


def _reporting_hook(hook: Callable[..., Any], report: Callable[[], None]) -> Callable[..., Any]:
    """Wrap a hook to report calls in which it returned or wrote to a tensor, or set an attribute."""

    def reporting(module: nn.Module, *given: Any) -> Any:
        before, attributes = _versions(module, given), _attributes(module)
        result = hook(module, *given)
        now = _attributes(module)
        is_set = any(now.get(name) is not value for name, value in attributes.items())
        if (result is not None and result is not given[-1]) or is_set or _versions(module, given) != before:
            report()
        return result

    return reporting


def _versions(module: nn.Module, given: Any) -> list[int]:
    tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False), *pytree.tree_leaves(given)]
    return [leaf._version for leaf in tensors if isinstance(leaf, Tensor) and not leaf.is_inference()]


def _attributes(module: nn.Module) -> dict[str, Any]:
    own = vars(module)
    return {**own, **own["_parameters"], **own["_buffers"]}


class _State:
    """The state that hooks keep: the containers, attributes, closures and global names that they can reach."""

    def __init__(self, hooks: Sequence[Callable[..., Any]]) -> None:
        self._containers: dict[int, tuple[Any, Any]] = {}
        self._cells: dict[int, tuple[Any, Any]] = {}
        self._names: dict[tuple[int, str], tuple[dict[str, Any], str, Any]] = {}
        waiting: list[Any] = list(hooks)
        known: set[int] = set()
        while waiting:
            value = waiting.pop()
            if id(value) not in known:
                known.add(id(value))
                waiting += self._visit(value)

    def _visit(self, value: Any) -> Sequence[Any]:
        """Record the content of a value; return further values to visit."""
        if isinstance(value, nn.Module | Tensor | type | ModuleType):
            return ()  # what modules hold is seen by a snapshot of the model
        if isinstance(value, MethodType):
            return (value.__self__, value.__func__)
        if isinstance(value, partial):
            return (value.func, *value.args, *value.keywords.values())
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, CONTAINERS):
            self._containers[id(value)] = value, dict(value) if isinstance(value, dict) else list(value)
            return list(value.values()) if isinstance(value, dict) else list(value)
        return (vars(value),) if hasattr(value, "__dict__") else ()

    def _function(self, function: FunctionType) -> Sequence[Any]:
        reached: list[Any] = list(function.__defaults__ or ())
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # an empty one
                self._cells[id(cell)] = cell, cell.cell_contents
                reached.append(cell.cell_contents)
        names = function.__globals__
        for name in _names(function.__code__):
            if name in names:
                self._names[id(names), name] = names, name, names[name]
                reached.append(names[name])
        # Functions of other files are not followed: libraries lead everywhere.
        return [x for x in reached if not isinstance(x, FunctionType) or x.__globals__ is names]

    def restore(self) -> None:
        """Restore everything that was recorded."""
        for container, content in self._containers.values():
            refill(container, content)
        for cell, content in self._cells.values():
            if cell.cell_contents is not content:
                cell.cell_contents = content
        for names, name, value in self._names.values():
            if names.get(name) is not value:
                names[name] = value


def _names(code: CodeType) -> set[str]:
    """Return the names that a function, and functions nested in it, may look up among globals."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)
