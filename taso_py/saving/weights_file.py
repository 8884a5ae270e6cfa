"""The file with the weights of several programs that are saved together.

A mapping of each program's name to its tensors by name, as ``torch.save`` writes it: memory that tensors share is
written once, and is shared again when it is read.

Invariant: tensors that nothing writes to and whose bits are equal are one in the file; state is one where it was one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from taso_py.backend.bits import content_of
from taso_py.backend.schema import copy_once, place_of
from taso_py.files import replacing
from taso_py.ir.errors import first_line
from taso_py.saving.folder import ArtifactError, file_digest

WEIGHTS = "weights.pt"
TensorsByProgram: TypeAlias = Mapping[str, Mapping[str, Tensor]]
"""Tensors by name, by the name of the program that they belong to."""


def write_weights(path: Path, tensors: TensorsByProgram, state: Mapping[str, Collection[str]]) -> str:
    """Write the weights of several programs, completely or not at all, and return the digest of the file.

    Args:
        path: the file.
        tensors: the tensors of each program.
        state: the names, in each program, of tensors that it or another one writes to.

    Raises:
        OSError: it cannot be written.
    """
    store = _Store()
    content = {
        program: {
            name: tensor.detach() if name in state[program] else store.constant(tensor.detach())
            for name, tensor in named.items()
        }
        for program, named in tensors.items()
    }
    with replacing(path) as draft:
        torch.save(content, draft)
    return file_digest(path)


def read_weights(path: Path, digest: str) -> TensorsByProgram:
    """Read the weights of several programs.

    Raises:
        ArtifactError: the file is damaged, or of another run than its digest.
    """
    try:
        found = torch.load(path, weights_only=True)
        if file_digest(path) == digest:
            return found
    except Exception as error:  # torch raises errors of many kinds for a damaged archive
        raise ArtifactError(f"{path} cannot be read: {first_line(error)}; optimize the model again") from error
    raise ArtifactError(f"{path} belongs to another run than the programs beside it; optimize the model again")


class _Store:
    """Tensors that nothing writes to, each kept once."""

    def __init__(self) -> None:
        self._by_place: dict[object, Tensor] = {}
        self._by_content: dict[object, Tensor] = {}
        self._held: list[Tensor] = []

    def constant(self, tensor: Tensor) -> Tensor:
        """Return the tensor of the store that has the bits of another, which is added if there is none."""
        place = place_of(tensor)
        if place not in self._by_place:
            self._held.append(tensor)  # or another one may take its place
            content = hashlib.sha256(content_of(tensor).cpu().numpy().tobytes()).digest()
            layout = tensor.device, tensor.dtype, tensor.shape, tensor.stride()
            self._by_place[place] = self._by_content.setdefault((*layout, content), _without_surroundings(tensor))
        return self._by_place[place]


def _without_surroundings(tensor: Tensor) -> Tensor:
    """Return a tensor with the strides of another, in memory that ends where it ends; a copy if that is less."""
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (reach + 1) * tensor.element_size() if tensor.numel() else 0
    if needed == tensor.untyped_storage().nbytes():
        return tensor
    alone = torch.empty(needed // tensor.element_size(), dtype=tensor.dtype, device=tensor.device)
    return copy_once(alone.as_strided(tensor.shape, tensor.stride()), tensor)
