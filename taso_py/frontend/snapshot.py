"""What a model holds at some moment: buffers, parameters and plain attributes of all modules in it.

Invariant: a snapshot does not change the model, nor does what becomes of the model change the snapshot.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from taso_py.backend.schema import storage_of
from taso_py.frontend.state import place_of


@dataclass(frozen=True)
class _Place:
    """Where a module holds a value: among its parameters, its buffers, or as a plain attribute."""

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


_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}
_NOTHING = object()
"""Stands for what is not there."""


def _held(model: nn.Module) -> dict[str, tuple[_Place, Any]]:
    """Everything that a model and the modules in it hold, by name."""
    found: dict[str, tuple[_Place, Any]] = {}
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        own = vars(module)
        for home in (own["_parameters"], own["_buffers"], own):
            for key, value in home.items():
                if home is not own or key not in _OF_EVERY_MODULE:
                    found[f"{path}.{key}" if path else key] = _Place(module, type(module), home, key), value
    return found


class Snapshot:
    """What a model holds at some moment, to tell what became of it, and to restore it.

    Values that are neither tensors nor numbers count as a whole: what is put into a list is not seen. Nor are writes to
    parameters, of which there would have to be copies; models that have any are refused for them.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._seen = {
            name: (place, value, None if place.is_parameter else copied(value))
            for name, (place, value) in _held(model).items()
        }

    def developed(self) -> list[str]:
        """The names of the state that a call may develop: what was written to or, as an export has it, assigned."""
        return [*self.written(), *self.assigned()]

    def written(self) -> list[str]:
        """The names of tensors that were written to."""
        found = {
            name: place
            for name, (place, value, content) in self._seen.items()
            if isinstance(content, Tensor) and not equal(value, content)
        }
        # An attribute may be a view of a buffer.
        buffers = {storage_of(self._seen[name][1]) for name, place in found.items() if place.is_buffer}
        return [name for name in found if found[name].is_buffer or storage_of(self._seen[name][1]) not in buffers]

    def assigned(self) -> list[str]:
        """The names of buffers in whose place is another tensor of the same type, which an export takes for a write.

        So it does, in torch 2.13, for those of the model itself, not for those of modules in it.
        """
        return [
            name
            for name, (place, old, _) in self._seen.items()
            if place.is_buffer and place.module is self._model and _is_moved(old, place.home.get(place.key))
        ]

    def replaced(self, *, opaque: bool = True) -> list[str]:
        """The names of places that hold another value now.

        Args:
            opaque: whether to name those too where neither value can be compared.
        """
        now = {name: value for name, (_, value) in _held(self._model).items()}
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
        """Puts values and the contents of tensors back.

        Args:
            names: of which; by default of all, and what is there besides is removed. Parameters that a module made at
                its first call stay: they are what it computes with from then on.
        """
        for name, (place, value, content) in self._seen.items():
            if (names is not None and name not in names) or type(place.module) is not place.kind:
                continue
            if place.home.get(place.key, _NOTHING) is not value:
                place.home[place.key] = value
            if isinstance(content, Tensor) and not equal(value, content):
                with torch.inference_mode(value.is_inference()), torch.no_grad():
                    _refill(value, content)
        if names is None:
            for name, (place, _) in _held(self._model).items():
                if name not in self._seen and not place.is_parameter:
                    del place.home[place.key]


_PLAIN = (type(None), bool, int, float, complex, str)


def _is_plain(value: Any) -> bool:
    return value is _NOTHING or isinstance(value, (*_PLAIN, Tensor))


def _is_alike(old: Any, new: Any) -> bool:
    """Whether two values are tensors of the same type."""
    tensors = isinstance(old, Tensor) and isinstance(new, Tensor)
    return tensors and old.shape == new.shape and old.dtype is new.dtype and old.device == new.device


def _is_moved(old: Any, new: Any) -> bool:
    """Whether two values are tensors of the same type in other places."""
    if old is new or not _is_alike(old, new):
        return False
    return not _is_readable(old) or not _is_readable(new) or place_of(old) != place_of(new)


def _refill(tensor: Tensor, content: Tensor) -> None:
    if _is_alike(tensor, content):
        tensor.copy_(content)
    else:
        # It was given another size in place.
        tensor.data = content


def copied(value: Any) -> Any:
    """A value, of a tensor a copy, if its elements can be compared."""
    return value.detach().clone() if isinstance(value, Tensor) and _is_readable(value) else value


def _is_readable(tensor: Tensor) -> bool:
    """Whether a tensor has elements that can be compared."""
    if is_lazy(tensor) or tensor.is_meta or isinstance(tensor, FakeTensor) or is_traceable_wrapper_subclass(tensor):
        return False
    return tensor.layout is torch.strided and not tensor.is_nested


def equal(one: Any, other: Any) -> bool:
    """Whether two values are the same, as far as that can be told; NaN is equal to NaN."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if not _is_readable(one) or not _is_readable(other):
            return True
        if not _is_alike(one, other):
            return False
        return torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all())
    if not _is_plain(one) and not _is_plain(other):
        return True
    return type(one) is type(other) and (one is other or bool(one == other or (one != one and other != other)))
