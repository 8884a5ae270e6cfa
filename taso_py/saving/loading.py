"""Loading of saved results, by as little as each needs.

Invariant: importing this module imports neither PyTorch's compiler nor the optimizer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from taso_py.engines.names import SESSION_ENGINES
from taso_py.files import folder_lock
from taso_py.ir.errors import first_line, in_a_line
from taso_py.saving.folder import ENTRIES, ENTRIES_VERSION, ArtifactError, WarmupError, folder_of
from taso_py.saving.result import SavedResult, read
from taso_py.saving.sized import SizedModule
from taso_py.saving.weights_file import WEIGHTS, read_weights


def load(directory: str | os.PathLike[str], *, warmup: Iterable[int | Mapping[str, int]] = ()) -> Any:
    """Load a saved result, ready to run: a runner, or for several entry points a mapping of their names to runners.

    A model that was optimized for several sizes is one runner, which refuses other sizes.

    It warns if PyTorch uses another number of threads than a result was measured with.

    Damage to a file is recognized by its digest. Of a ``model.pt2`` beyond 64 MiB, whose weights are read when they are
    first used, only the size and the directory of its entries may be compared.

    Args:
        directory: the folder.
        warmup: open sizes to call it with once, since the first call at a size is slow: numbers if one size is open,
            dicts by the names in the report if there are several.

    Raises:
        ArtifactError: the folder holds no saved result, or a file of it is damaged.
        WarmupError: the result does not have these sizes, or has several entry points; or they are no list.
    """
    if not isinstance(warmup, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] -- a user's
        raise WarmupError(f"warmup must be a list of sizes, not {in_a_line(warmup)}")
    folder, sizes = folder_of(directory, "directory"), list(warmup)
    # A run that saves to the folder meanwhile would leave files of two runs to be read.
    with folder_lock(folder, shared=True) if folder.is_dir() else nullcontext():
        if (folder / ENTRIES).is_file():
            return _load_together(folder, sizes)
        saved = read(folder)
        saved.warn_of_threads(stacklevel=2)
        return run_result(saved, saved.read_weights(), sizes)


def run_result(
    saved: SavedResult, weights: Mapping[str, Tensor], warmup: Sequence[int | Mapping[str, int]] = ()
) -> Callable[..., Any]:
    """Return a saved result ready to run.

    Args:
        saved: the result.
        weights: the tensors by name that its program was saved without. The runner reads them, and writes its state to
            them; they are not copied.
        warmup: open sizes to call it with once.

    Raises:
        ArtifactError: a file of it is damaged.
        WarmupError: the result does not have these sizes.
    """
    # Tensors made in inference mode cannot be written to outside of it.
    with torch.inference_mode(mode=False):
        is_light = saved.runtime in ("eager", *SESSION_ENGINES) and not warmup
        program = saved.compact_program(weights) if is_light else None
        if program is not None and saved.runtime == "eager":
            return saved.module_of(program, program.weights)
        if program is not None:
            from taso_py.engines.session_table import SESSIONS  # imported here: most results need none of them

            return saved.module_in(SESSIONS[saved.runtime], program, program.weights)
        from taso_py.saving.artifact import run_saved  # imported here: it imports PyTorch's compiler

        return run_saved(saved, weights, warmup)


def _load_together(folder: Path, sizes: Sequence[object]) -> Any:
    """Return the entry points in a folder, ready to run; they share weights and state in memory."""
    if sizes:
        raise WarmupError(f"{folder} holds several entry points; call each of them at the sizes that you need")
    index = folder / ENTRIES
    try:
        said = json.loads(index.read_text())
        version, run, digest, names = said["version"], folder / said["folder"], said["weights"], list(said["entries"])
        shapes = {tuple(map(tuple, said["sizes"][name])): name for name in names} if said.get("sizes") else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{index} cannot be read: {first_line(error)}; optimize the model again") from error
    if version != ENTRIES_VERSION:
        raise ArtifactError(f"{index} is of version {version}, not {ENTRIES_VERSION}; optimize the model again")
    weights, found = read_weights(run / WEIGHTS, digest), {name: read(run / name) for name in names}
    for saved in found.values():
        saved.warn_of_threads(stacklevel=3)
    runners = {name: run_result(saved, weights[name]) for name, saved in found.items()}
    if shapes is None:
        return MappingProxyType(runners)
    return SizedModule({shape: runners[name] for shape, name in shapes.items()})
