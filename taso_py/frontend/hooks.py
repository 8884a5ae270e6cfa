"""Hooks on a user's modules while the model is imported, compared and timed: they observe none of it.

A hook that changes the computation, such as that of a weight normalization, is part of model and result. One call with
real tensors tells such hooks from those that seem only to observe; the latter are removed until the end, unless the
model returns something else without them, as where it reads what a hook stores. State that hooks keep in lists, dicts,
attributes, closures and global names is then restored to its content before these calls.

Invariant: afterwards modules have the hooks that they had, and state that hooks keep in such places is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from operator import is_
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from taso_py.backend.generators import random_state_kept
from taso_py.backend.input_cases import inputs_near
from taso_py.frontend.errors import ImportRefusal
from taso_py.frontend.original import copy_arguments
from taso_py.frontend.snapshot import CONTAINERS, Snapshot, copy_value, equal, refill

_KINDS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_Hooks: TypeAlias = dict[int, Callable[..., Any]]
_Key: TypeAlias = tuple[int, int]
"""Identity of the dict that a hook is in, and its key there."""
CLOSE, ROUNDINGS = 3e-4, 64
"""Largest difference of equal results relative to the greatest value: the greater of this and as many roundings."""


@contextmanager
def hooks_set_aside(
    model: object, args: Sequence[Any], kwargs: Mapping[str, Any], *, around: bool = False
) -> Generator[Sequence[str]]:
    """Remove hooks that only observe, judged by one call on these arguments; yield notes about all hooks.

    An object that is not a module, or has no hooks, is not called.

    Args:
        model: the model.
        args: positional arguments.
        kwargs: keyword arguments.
        around: whether the model's own hooks run around what is made of it, so that they are no part of it: they are
            removed, and the notes are about those of its parts.

    Raises:
        ImportRefusal: hooks of its parts only observe, for who goes on using the model around its result.
    """
    found = _hook_tables(model) if isinstance(model, nn.Module) else []
    own = [table for table in found if around and table.module is model]
    tables = [table for table in found if not around or table.module is not model]
    if not any(table.known for table in found):
        yield ()
        return
    assert isinstance(model, nn.Module)
    hooks = [hook for table in tables for hook in table.known.values()]
    state, held = _State(hooks), Snapshot(model)

    def restore() -> None:
        for table in tables:
            table.restore()
        held.restore()
        state.restore()

    try:
        for table in own:
            table.keep(())
        acting = _acting_hooks(model, tables, args, kwargs, restore)
        restore()
        for table in tables:
            table.keep(acting)
        looking = len(hooks) - len(acting)
        if looking and around:
            raise ImportRefusal("others may read what hooks of its parts store, which would not run")
        yield _notes(looking, len(acting))
    finally:
        for table in own:
            table.restore()
        restore()


@dataclass(frozen=True)
class _Table:
    """The hooks of one kind of a module."""

    module: nn.Module
    kind: type[nn.Module]
    """The class of the module; a lazy one changes it once it knows its sizes, and drops the hook that found them."""
    home: _Hooks
    """Where the module has them; handles that remove hooks refer to this very dict."""
    known: _Hooks
    """The hooks that it had at first."""

    def restore(self) -> None:
        """Give the module the hooks that it had at first."""
        self._replace(self.known)

    def keep(self, keys: Collection[_Key]) -> None:
        """Remove all hooks but those with given keys."""
        self._replace({key: hook for key, hook in self.known.items() if (id(self.home), key) in keys})

    def report(self, report: Callable[[_Key], None]) -> None:
        """Let each hook report its key whenever it changes something."""
        self._replace(
            {key: _reporting_hook(hook, partial(report, (id(self.home), key))) for key, hook in self.known.items()}
        )

    def _replace(self, hooks: _Hooks) -> None:
        if type(self.module) is self.kind:
            self.home.clear()
            self.home.update(hooks)


def _hook_tables(model: nn.Module) -> list[_Table]:
    modules = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
    places = [(module, cast(_Hooks, vars(module)[kind])) for module in modules for kind in _KINDS]
    return [_Table(module, type(module), home, dict(home)) for module, home in places]


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


def _acting_hooks(
    model: nn.Module,
    tables: Sequence[_Table],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    restore: Callable[[], None],
) -> set[_Key]:
    """Return the hooks, by table and key, that change what is computed.

    These are the ones that change something in a call with the arguments. If the model returns something else without
    the others, in a call with the arguments or others, these are all hooks.

    Args:
        model: the model.
        tables: its hooks.
        args: positional arguments.
        kwargs: keyword arguments.
        restore: restores hooks and state.
    """
    found: set[_Key] = set()
    everything = {(id(table.home), key) for table in tables for key in table.known}
    if not everything:
        return found
    for table in tables:
        table.report(found.add)
    result = _result(model, args, kwargs)
    # A model that fails is refused by the import, which says why.
    if result is None or found == everything:
        return found
    for place, (given, named) in enumerate([(args, kwargs), inputs_near(args, kwargs, seed=0)]):
        restore()
        wanted = _result(model, given, named) if place else result
        restore()
        for table in tables:
            table.keep(found)
        if wanted is not None and not _are_alike(wanted, _result(model, given, named)):
            return everything
    return found


def _result(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any] | None:
    """Return structure and leaves of the result of a call on copies of the arguments; None if it fails."""
    with torch.no_grad(), random_state_kept(), suppress(Exception):
        copies = copy_arguments(args, kwargs)
        leaves, structure = pytree.tree_flatten(model(*copies[0], **copies[1]))
        return [structure, *map(copy_value, leaves)]
    return None


def _are_alike(wanted: Sequence[Any], result: Sequence[Any] | None) -> bool:
    """Return whether two results are of the same structure and, but for roundings, equal.

    Modules with hooks take other paths: multi-head attention, for one, does not take its fused one.
    """
    if result is None or wanted[0] != result[0]:
        return False
    return all(map(_is_close, wanted[1:], result[1:]))


def _is_close(wanted: Any, result: Any) -> bool:
    if equal(wanted, result):
        return True
    if not isinstance(wanted, Tensor) or not isinstance(result, Tensor) or wanted.shape != result.shape:
        return False
    if wanted.dtype is not result.dtype or not wanted.is_floating_point() or not wanted.numel():
        return False
    limit = max(CLOSE, ROUNDINGS * torch.finfo(wanted.dtype).eps) * float(wanted.nan_to_num().abs().max())
    return torch.allclose(wanted.double(), result.double(), rtol=0.0, atol=limit, equal_nan=True)


def _reporting_hook(hook: Callable[..., Any], report: Callable[[], None]) -> Callable[..., Any]:
    """Wrap a hook to report calls that returned a value, wrote to a tensor, changed a container or set an attribute."""

    def reporting(module: nn.Module, *given: Any) -> Any:
        before, attributes = _content(module, given), _attributes(module)
        result = hook(module, *given)
        now = _attributes(module)
        is_set = any(now.get(name) is not value for name, value in attributes.items())
        if (result is not None and result is not given[-1]) or is_set or _is_changed(before, _content(module, given)):
            report()
        return result

    return reporting


def _content(module: nn.Module, given: Any) -> tuple[pytree.TreeSpec, list[Any], list[int]]:
    """Return the structure of what a hook is given, its leaves, and the counts of writes to them and to the module."""
    leaves, structure = pytree.tree_flatten(given)
    tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False), *leaves]
    counted = [x for x in tensors if isinstance(x, Tensor) and not is_lazy(x) and not x.is_inference()]
    return structure, leaves, [tensor._version for tensor in counted]


def _is_changed(
    before: tuple[pytree.TreeSpec, list[Any], list[int]], now: tuple[pytree.TreeSpec, list[Any], list[int]]
) -> bool:
    return before[0] != now[0] or not all(map(is_, before[1], now[1])) or before[2] != now[2]


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
