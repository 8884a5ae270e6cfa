"""Snapshots of a model: parameters, buffers and plain attributes of all its modules, with their elements.

Invariant: taking a snapshot does not change the model, and later changes of the model do not change the snapshot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from operator import is_
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from taso_py.backend.schema import place_of, storage_of


@dataclass(frozen=True)
class _Place:
    """Where a module stores a value: among its parameters, its buffers, or as a plain attribute."""

    module: nn.Module
    kind: type[nn.Module]
    """The class of the module; a lazy one changes it once it knows its sizes."""
    home: dict[str, Any]
    key: str

    @property
    def is_parameter(self) -> bool:
        return self.home is vars(self.module)["_parameters"]

    @property
    def is_buffer(self) -> bool:
        return self.home is vars(self.module)["_buffers"]


OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}
"""Names of the attributes by which modules keep their parameters, parts and hooks."""
_NOTHING = object()
"""Marks the absence of a value."""
_Container: TypeAlias = list[Any] | deque[Any] | set[Any] | dict[Any, Any]
CONTAINERS = (list, deque, set, dict)
"""Mutable containers whose elements are recorded."""


def _stored_values(model: nn.Module) -> dict[str, tuple[_Place | None, Any]]:
    """Return all that a model and its modules store, by name; elements of containers have no place of their own."""
    found: dict[str, tuple[_Place | None, Any]] = {}
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        own = vars(module)
        for home in (own["_parameters"], own["_buffers"], own):
            for key, value in home.items():
                if home is not own or key not in OF_EVERY_MODULE:
                    name = f"{path}.{key}" if path else key
                    found[name] = _Place(module, type(module), home, key), value
                    found.update((inner, (None, element)) for inner, element in _elements(name, value, set()))
    return found


def _elements(name: str, value: Any, known: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the elements of nested containers and tuples by name, skipping containers that were visited."""
    if not isinstance(value, (*CONTAINERS, tuple)) or id(value) in known:
        return
    known.add(id(value))
    for index, (key, element) in enumerate(value.items() if isinstance(value, dict) else enumerate(value)):
        inner = f"{name}[{_label(key, index)}]"
        yield inner, element
        yield from _elements(inner, element, known)


def _label(key: Any, index: int) -> str:
    """Return a key as text, or its position in the dict if its text may span several lines."""
    return repr(key) if isinstance(key, str | int) else f"#{index}"


class Snapshot:
    """The state of a model at one moment, to find later changes and to restore it.

    Tensors and numbers are seen where they are attributes of modules, or in lists, deques, tuples, sets and dicts that
    are. Other objects count as a whole: changes of their own attributes are not seen.
    """

    def __init__(self, model: nn.Module, *, parameters: bool = False) -> None:
        """Take a snapshot.

        Args:
            model: the model.
            parameters: whether to detect and undo writes to parameters, for which they are copied: version counters
                miss writes through ``.data``.
        """
        self._model = model
        self._seen: dict[str, tuple[_Place | None, Any, Any]] = {}
        copies: dict[int, Any] = {}
        for name, (place, value) in _stored_values(model).items():
            if id(value) not in copies and (parameters or not isinstance(value, nn.Parameter)):
                copies[id(value)] = _content(value)
            self._seen[name] = place, value, copies.get(id(value))

    def mutated(self) -> list[str]:
        """Return the names of state that a call wrote to or, in ways that an export supports, assigned."""
        return [*self.written(), *self.assigned()]

    def written(self) -> list[str]:
        """Return the names of tensors that were written to."""
        found = [
            name
            for name, (_, value, content) in self._seen.items()
            if isinstance(content, Tensor) and not equal(value, content)
        ]
        # An attribute may be a view of a buffer.
        buffers = {storage_of(self._seen[name][1]) for name in found if self.is_buffer(name)}
        return [name for name in found if self.is_buffer(name) or storage_of(self._seen[name][1]) not in buffers]

    def is_buffer(self, name: str) -> bool:
        """Return whether a buffer has this name."""
        place = self._seen[name][0]
        return place is not None and place.is_buffer

    def is_parameter(self, name: str) -> bool:
        """Return whether a parameter has this name."""
        return isinstance(self._seen[name][1], nn.Parameter)

    def assigned(self) -> list[str]:
        """Return the names of buffers replaced by another tensor of the same type, which an export treats as a write.

        torch 2.13 does so for buffers of the model itself, not for those of its submodules.
        """
        return [
            name
            for name, (place, old, _) in self._seen.items()
            if place is not None
            and place.is_buffer
            and place.module is self._model
            and _is_moved(old, place.home.get(place.key))
        ]

    def replaced(self, *, opaque: bool = True) -> list[str]:
        """Return the names of places that hold another value now.

        Args:
            opaque: whether to name those too where neither value can be compared.
        """
        now = {name: value for name, (_, value) in _stored_values(self._model).items()}
        return [name for name in {**self._seen, **now} if self._differs(name, now.get(name, _NOTHING), opaque)]

    def _differs(self, name: str, new: Any, opaque: bool) -> bool:
        place, old, content = self._seen.get(name, (None, _NOTHING, None))
        if old is new:
            return False
        if not isinstance(old, Tensor) or not isinstance(new, Tensor):
            return not equal(old, new) if _is_plain(old) or _is_plain(new) else opaque
        if place is not None and place.is_buffer:
            return not _is_alike(old, new) or _is_moved(old, new)
        return not equal(old if content is None else content, new)

    def restore(self, names: Collection[str] | None = None) -> None:
        """Restore values and the contents of tensors.

        Args:
            names: those to restore; by default all, and attributes added since are removed. Parameters that a module
                made at its first call stay: it computes with them from then on.
        """
        for name, (place, value, content) in self._seen.items():
            is_meant = names is None or name in names
            if not is_meant or (place is not None and type(place.module) is not place.kind):
                continue
            if place is not None and place.home.get(place.key, _NOTHING) is not value:
                place.home[place.key] = value
            if isinstance(value, CONTAINERS):
                refill(value, content)
            elif isinstance(content, Tensor) and not equal(value, content):
                with torch.inference_mode(value.is_inference()), torch.no_grad():
                    _rewrite(value, content)
        if names is None:
            for name, (place, _) in _stored_values(self._model).items():
                if name not in self._seen and place is not None and not place.is_parameter:
                    del place.home[place.key]


PLAIN = (type(None), bool, int, float, complex, str)
"""Classes of values that are compared by value."""


def _is_plain(value: Any) -> bool:
    return value is _NOTHING or isinstance(value, (*PLAIN, Tensor))


def _is_alike(old: Any, new: Any) -> bool:
    """Return whether two values are tensors of the same type."""
    tensors = isinstance(old, Tensor) and isinstance(new, Tensor)
    return tensors and old.shape == new.shape and old.dtype is new.dtype and old.device == new.device


def _is_moved(old: Any, new: Any) -> bool:
    """Return whether two values are tensors of the same type with different memory."""
    if old is new or not _is_alike(old, new):
        return False
    return not is_readable(old) or not is_readable(new) or place_of(old) != place_of(new)


def _rewrite(tensor: Tensor, content: Tensor) -> None:
    if _is_alike(tensor, content):
        tensor.copy_(content)
    else:
        # It was given another size in place.
        tensor.data = content


def refill(container: _Container, content: _Container) -> None:
    """Restore a container's former elements, the same objects, if it holds others now."""
    now, before = _flat(container), _flat(content)
    if len(now) == len(before) and all(map(is_, now, before)):
        return
    container.clear()
    if isinstance(container, dict | set):
        container.update(content)
    else:
        container.extend(content)


def _flat(container: _Container) -> list[Any]:
    return [*container, *container.values()] if isinstance(container, dict) else [*container]


def _content(value: Any) -> Any:
    """Return a value; for a tensor a copy, for a container a copy that holds the same objects."""
    if isinstance(value, CONTAINERS):
        return dict(value) if isinstance(value, dict) else [*value]
    return copy_value(value)


def copy_value(value: Any) -> Any:
    """Return a value; for a tensor whose elements can be compared, a copy."""
    return value.detach().clone() if isinstance(value, Tensor) and is_readable(value) else value


def is_readable(tensor: Tensor) -> bool:
    """Return whether a tensor has elements that can be compared."""
    if is_lazy(tensor) or tensor.is_meta or isinstance(tensor, FakeTensor) or is_traceable_wrapper_subclass(tensor):
        return False
    return tensor.layout is torch.strided and not tensor.is_nested


def _comparable(tensor: Tensor) -> Tensor:
    """Return a tensor that PyTorch can compare: complex numbers in half precision as their parts."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.dtype is torch.complex32 else tensor


def equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal as far as can be decided; NaN equals NaN."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if not is_readable(one) or not is_readable(other):
            return True
        if not _is_alike(one, other):
            return False
        one, other = _comparable(one), _comparable(other)
        return torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all())
    if not _is_plain(one) and not _is_plain(other):
        return True
    return type(one) is type(other) and (one is other or bool(one == other or (one != one and other != other)))
