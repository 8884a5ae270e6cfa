"""The original program of a saved result, without the weights of its model: with new ones, the result is made again.

Invariant: with the model's own weights it is the program that the trace of the result begins with; this was checked
when it was written.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from taso_py.backend.bits import content_of
from taso_py.backend.program import Program
from taso_py.backend.schema import copy_once, place_of
from taso_py.ir.errors import TasoError, first_line
from taso_py.models.huggingface import HuggingFaceModule
from taso_py.saving.compact import are_equal, describe_without_weights, restore_without_weights
from taso_py.saving.folder import ArtifactError

PROGRAM = "original.pt"
"""The name of the file in the folder of a result."""


class StateError(TasoError):
    """Raised for a state dict that is not one of the model that a result was made from."""


@dataclass(frozen=True)
class OriginalProgram:
    """A program and the names of its weights in the state dict of its model."""

    said: Mapping[str, Any]
    """Its compact form without weights."""
    names: Mapping[str, str]
    """For each name in the state dict, the key of the weight; empty if the program does not use it."""
    kept: Mapping[str, Tensor]
    """By key, weights that are in no state dict, as constants and some buffers are."""
    types: Mapping[str, tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]]
    """For each key the element type, the shape and the strides."""

    @classmethod
    def of(cls, program: Program, module: nn.Module | ExportedProgram) -> Self | None:
        """Describe the program of a model; None if it cannot be described, as with open sizes."""
        if program.open or program.conditions is not None:
            return None
        try:
            said = json.loads(json.dumps(describe_without_weights(program), allow_nan=False))
            found = restore_without_weights(said, program.weights)
        except (ArithmeticError, LookupError, TypeError, ValueError, TasoError):
            return None
        names = _names(module, program)
        given = set(names.values())
        kept = {key: tensor.detach() for key, tensor in program.weights.items() if key not in given}
        types = {key: (t.dtype, tuple(t.shape), tuple(t.stride())) for key, t in program.weights.items()}
        return cls(said, names, kept, types) if are_equal(program, found) else None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file of a saved result.

        Raises:
            ArtifactError: there is none, or it cannot be read.
        """
        if not path.is_file():
            raise ArtifactError(
                f"{path.parent} does not hold the model's original program ({path.name}), without which weights cannot "
                "be replaced; optimize the model again"
            )
        try:
            said, names, kept, types = torch.load(path, weights_only=True)
            return cls(json.loads(said), names, kept, types)
        except Exception as error:  # torch raises errors of many kinds for a damaged archive
            raise ArtifactError(f"{path} cannot be read: {first_line(error)}; optimize the model again") from error

    def as_bytes(self) -> bytes:
        """Return the content of the file."""
        buffer = io.BytesIO()
        kept = {key: tensor.clone() for key, tensor in self.kept.items()}  # without what surrounds them in memory
        torch.save((json.dumps(self.said), dict(self.names), kept, dict(self.types)), buffer)
        return buffer.getvalue()

    def with_state(self, state: Mapping[str, Any]) -> Program:
        """Return the program with the weights of a state dict, which are copied.

        Raises:
            StateError: it is no state dict, a tensor is missing, unknown, or of another shape or type, or tensors that
                are tied in the model differ.
        """
        if not isinstance(state, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] -- a user's
            kind = type(state).__name__
            raise StateError(f"the new weights are given as a {kind}, not as a state dict; give model.state_dict()")
        given = {name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor)}
        missing, unknown = self.names.keys() - given.keys(), given.keys() - self.names.keys()
        if missing or unknown:
            name = min(missing or unknown, key=str)
            what = f"has {name}, which the model does not have" if name in unknown else f"lacks {name}"
            if name in missing and name in state:
                what = f"has {name} as a {type(state[name]).__name__}, not as a tensor"
            raise StateError(f"the state dict {what}; give the whole one of the model that was optimized")
        weights = dict(self.kept)
        source: dict[str, str] = {}
        for name, key in self.names.items():
            if not key:
                continue
            tensor = given[name].detach()
            dtype, shape, strides = self.types[key]
            if (tensor.dtype, tuple(tensor.shape)) != (dtype, shape):
                found = f"the type {tensor.dtype} and the shape {list(tensor.shape)}"
                raise StateError(f"{name} has {found}, not {dtype} and {list(shape)}")
            if key not in source:
                source[key] = name
                laid = torch.empty_strided(shape, strides, dtype=dtype, device=self.said["device"])
                weights[key] = copy_once(laid, tensor)
                if 0 in strides and not torch.equal(content_of(laid), content_of(tensor.to(laid.device))):
                    raise StateError(f"{name} repeats elements in the model that was optimized, but not here")
            elif not torch.equal(weights[key], tensor.to(weights[key].device)):
                raise StateError(f"{name} and {source[key]} are one tensor in the model that was optimized, but differ")
        return restore_without_weights(self.said, {key: weights[key] for key in self.types})


def read_state(path: Path) -> dict[str, Any]:
    """Read a state dict from a file of ``torch.save``, without running code, or of safetensors.

    Raises:
        StateError: the file cannot be read, or holds something else.
    """
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file  # a library of those who have such files

            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except ImportError as error:
        raise StateError(f"{path} needs safetensors, which is not installed: pip install safetensors") from error
    except Exception as error:  # torch raises errors of many kinds for what it cannot read
        raise StateError(f"cannot read {path}: {first_line(error)}") from error
    if not isinstance(found, dict):
        raise StateError(f"{path} holds a {type(found).__name__}, not a state dict; save model.state_dict()")
    return found


def _names(module: nn.Module | ExportedProgram, program: Program) -> dict[str, str]:
    """Return the key of the weight for each name in a module's state dict; empty if the program has no such weight."""
    prefix = "model." if isinstance(module, HuggingFaceModule) else ""
    named = dict(_state(module))
    keys = {place_of(tensor): name for name, tensor in named.items() if name in program.weights}
    return {name.removeprefix(prefix): keys.get(place_of(tensor), "") for name, tensor in named.items()}


def _state(module: nn.Module | ExportedProgram) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a state dict, without calling hooks that a module may have on making one."""
    if isinstance(module, ExportedProgram):
        yield from module.state_dict.items()
        return
    for prefix, part in module.named_modules(remove_duplicate=False):
        transient: set[str] = part._non_persistent_buffers_set  # pyright: ignore[reportPrivateUsage] -- there is no other
        parameters = part.named_parameters(recurse=False, remove_duplicate=False)
        for name, tensor in (*parameters, *part.named_buffers(recurse=False, remove_duplicate=False)):
            if name not in transient:
                yield f"{prefix}.{name}" if prefix else name, tensor
