"""The state of an exported program: parameters, buffers and lifted constants under one key per tensor.

Invariant: tied tensors have one key, that of the first name; a key is written to if any of its names is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from taso_py.backend.bits import PLAIN, bits_of, memory_of, resolved
from taso_py.backend.schema import place_of
from taso_py.frontend.errors import ImportRefusal


@dataclass(frozen=True)
class ProgramState:
    """The tensors of a program."""

    tensors: Mapping[str, Tensor]
    """Tensors by key, as the program has them."""
    keys: Mapping[str, str]
    """Key of each name."""
    parameters: Mapping[str, bool]
    """Keys of parameters, and whether they require gradients."""
    written: frozenset[str]
    """Keys of buffers that the program, or another entry point of its model, writes to."""
    views: frozenset[str]
    """Names of conjugate and negative views of a tensor that has a key."""

    def tensor(self, key: str) -> Tensor:
        """Return a tensor to compute with: detached, resolved, and a copy if it is written to."""
        tensor = resolved(self.tensors[key].detach())
        return tensor.clone() if key in self.written else tensor


def find_state(exported: ExportedProgram, live: Collection[str] = ()) -> ProgramState:
    """Return the state of a program.

    Args:
        exported: the program.
        live: names of buffers that other entry points of its model write to.

    Raises:
        ImportRefusal: something in it is not a plain tensor.
    """
    signature = exported.graph_signature
    found = {str(spec.target): _tensor(exported, str(spec.target)) for spec in signature.input_specs if _is_state(spec)}
    tensors: dict[str, Tensor] = {}
    keys: dict[str, str] = {}
    known: dict[object, str] = {}
    views: set[str] = set()
    # What conjugate and negative views are views of comes first.
    for name, tensor in sorted(found.items(), key=lambda item: bits_of(item[1]) != PLAIN):
        memory = known.get(place_of(memory_of(tensor))) if bits_of(tensor) != PLAIN else None
        if memory is not None:
            views.add(name)
        key = keys[name] = memory or known.setdefault(place_of(tensor), name)
        tensors.setdefault(key, tensor)
    named = [str(spec.target) for spec in signature.input_specs if spec.kind is InputKind.PARAMETER]
    parameters = {keys[name]: found[name].requires_grad for name in named if name not in views}
    for name in views.intersection(signature.buffers_to_mutate.values()):
        raise ImportRefusal(f"the model writes to its {name}, a view of another tensor; make it a tensor of its own")
    written = frozenset(keys[name] for name in (*signature.buffers_to_mutate.values(), *live) if name in keys)
    return ProgramState(tensors, keys, parameters=parameters, written=written, views=frozenset(views))


def _is_state(spec: InputSpec) -> bool:
    is_tensor = spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    return is_tensor and spec.target is not None


def _tensor(exported: ExportedProgram, name: str) -> Tensor:
    tensor = exported.state_dict.get(name, exported.constants.get(name))
    if not isinstance(tensor, Tensor) or is_traceable_wrapper_subclass(tensor):
        kind = type(tensor).__name__
        raise ImportRefusal(f"the model's {name} is a {kind}, not a plain tensor; convert it to one first")
    if tensor.layout is not torch.strided:
        raise ImportRefusal(f"the model's {name} has layout {tensor.layout}; call .to_dense() on it first")
    return tensor
