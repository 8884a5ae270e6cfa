"""The state of an exported program: parameters, buffers and lifted constants under one key per tensor.

Invariant: tied tensors have one key, that of the first name; a key is written to if any of its names is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from taso_py.backend.schema import storage_of
from taso_py.frontend.errors import ImportRefusal


@dataclass(frozen=True)
class State:
    """The tensors of a program."""

    tensors: Mapping[str, Tensor]
    """By key, as the program has them."""
    keys: Mapping[str, str]
    """Name -> key."""
    parameters: Mapping[str, bool]
    """The keys of parameters, and whether they require gradients."""
    written: frozenset[str]
    """The keys of buffers that the program writes to."""

    def tensor(self, key: str) -> Tensor:
        """A tensor to compute with: detached, and a copy if the program writes to it."""
        tensor = self.tensors[key].detach()
        return tensor.clone() if key in self.written else tensor


def place_of(tensor: Tensor) -> object:
    """Where in memory a tensor lies and how it is read: equal for tensors that are the same one."""
    lies = (storage_of(tensor), tensor.storage_offset(), tensor.shape, tensor.stride())
    return *lies, tensor.dtype, tensor.is_conj(), tensor.is_neg()


def find_state(exported: ExportedProgram) -> State:
    """Finds the state of a program.

    Raises:
        ImportRefusal: something in it is not a plain tensor.
    """
    signature = exported.graph_signature
    tensors: dict[str, Tensor] = {}
    keys: dict[str, str] = {}
    known: dict[object, str] = {}
    parameters: dict[str, bool] = {}
    for spec in signature.input_specs:
        if spec.target is None or spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            continue
        tensor = exported.state_dict.get(spec.target, exported.constants.get(spec.target))
        if not isinstance(tensor, Tensor) or is_traceable_wrapper_subclass(tensor):
            kind = type(tensor).__name__
            raise ImportRefusal(f"the model's {spec.target} is a {kind}, not a plain tensor; convert it to one first")
        if tensor.layout is not torch.strided:
            raise ImportRefusal(f"the model's {spec.target} has layout {tensor.layout}; call .to_dense() on it first")
        key = keys[spec.target] = known.setdefault(place_of(tensor), spec.target)
        tensors[key] = tensor
        if spec.kind is InputKind.PARAMETER:
            parameters[key] = tensor.requires_grad
    written = frozenset(keys[name] for name in signature.buffers_to_mutate.values())
    return State(tensors, keys, parameters, written)
