"""The saved form of several entry points of one model: a saved result for each, and the weights of all in one file.

::

    DIR/entries.json           the run that counts, and the names of its entry points
    DIR/run-.../weights.pt     their weights, each tensor once
    DIR/run-.../NAME/          a saved result, whose program was saved without weights

Invariant: ``entries.json`` is replaced last, and all at once. A run that is interrupted leaves the earlier result as it
was, and its own folder to the next one to delete.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from taso_py.engines.engine import Runner
from taso_py.files import folder_lock, replace_files
from taso_py.ir.errors import first_line
from taso_py.report.optimization import Report
from taso_py.saving.artifact import run_saved, save
from taso_py.saving.folder import ENTRIES, ArtifactError, as_json, writing
from taso_py.saving.result import WeightsPlace, read
from taso_py.saving.warmup import Sizes, WarmupError
from taso_py.saving.weights_file import WEIGHTS, TensorsByProgram, read_weights, write_weights

VERSION = 1
"""Version of the format of ``entries.json``."""
_RUN = re.compile(r"run-[0-9a-f]{16}")


@dataclass(frozen=True)
class SavableEntry:
    """An optimized entry point in the form in which it is written."""

    content: bytes
    """The ``.pt2`` file of the program without weights."""
    weights: Mapping[str, Tensor]
    """The program's weights by name; state that entry points share is one tensor in all of them."""
    state: Collection[str]
    """The names of weights that this entry point, or another one, writes to."""
    report: Report
    trace: str
    plan: Mapping[str, Any] | None
    """The kernels; None for plain ATen calls."""
    others: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Further files by name: those of the engine, and the page."""

    def write(self, directory: Path, weights: WeightsPlace | None) -> None:
        """Write the files of this entry point to a folder of its own.

        Args:
            directory: the folder.
            weights: where its weights are; None if whoever loads it knows.

        Raises:
            ArtifactError: the folder cannot be written.
        """
        save(directory, self.content, self.report, self.trace, plan=self.plan, others=self.others, weights=weights)


def write_shared_weights(path: Path, entries: Mapping[str, SavableEntry]) -> str:
    """Write the weights of several entry points, and return the digest of the file.

    Raises:
        OSError: it cannot be written.
    """
    tensors = {name: entry.weights for name, entry in entries.items()}
    return write_weights(path, tensors, {name: entry.state for name, entry in entries.items()})


def write_entries(directory: Path, entries: Mapping[str, SavableEntry]) -> None:
    """Write several entry points to a folder, in place of those that are there.

    Raises:
        ArtifactError: the folder cannot be written; then an earlier result is as it was.
    """
    with writing(directory):
        run = directory / f"run-{secrets.token_hex(8)}"
        try:
            run.mkdir()
            digest = write_shared_weights(run / WEIGHTS, entries)
            for name, entry in entries.items():
                entry.write(run / name, WeightsPlace(f"../{WEIGHTS}", name, digest))
            said = {"version": VERSION, "folder": run.name, "weights": digest, "entries": list(entries)}
            with folder_lock(directory):
                replace_files(directory, {ENTRIES: as_json(said)})
        except BaseException:
            shutil.rmtree(run, ignore_errors=True)
            raise
        _delete_others(directory, run)


def _delete_others(directory: Path, kept: Path) -> None:
    """Delete the folders of all other runs, as far as that can be done."""
    with folder_lock(directory), suppress(OSError):
        for path in directory.iterdir():
            if _RUN.fullmatch(path.name) and path != kept:
                shutil.rmtree(path, ignore_errors=True)


def load_entries(folder: Path, names: Iterable[str], weights: TensorsByProgram) -> Mapping[str, Runner]:
    """Return saved entry points, ready to run; warn if PyTorch uses other threads than they were measured with.

    Args:
        folder: each is in a folder of its name there.
        names: their names.
        weights: the weights of each, which are not copied: what they share in memory, the runners share.

    Raises:
        ArtifactError: a file is missing or damaged.
    """
    found = {name: read(folder / name) for name in names}
    for saved in found.values():
        saved.warn_of_threads(stacklevel=4)
    return MappingProxyType({name: run_saved(saved, weights[name]) for name, saved in found.items()})


def load_together(directory: str | os.PathLike[str], warmup: Sequence[Sizes] = ()) -> Mapping[str, Runner]:
    """Load the entry points in a folder, ready to run, by name; see :func:`taso_py.saving.loading.load`.

    Raises:
        ArtifactError: a file of them is missing or damaged.
        WarmupError: sizes are given.
    """
    if warmup:
        raise WarmupError(f"{directory} holds several entry points; call each of them at the sizes that you need")
    index = Path(directory) / ENTRIES
    try:
        said = json.loads(index.read_text())
        version, folder, digest, names = said["version"], said["folder"], said["weights"], list(said["entries"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{index} cannot be read: {first_line(error)}; optimize the model again") from error
    if version != VERSION:
        raise ArtifactError(f"{index} is of version {version}, not {VERSION}; optimize the model again")
    run = index.parent / folder
    return load_entries(run, names, read_weights(run / WEIGHTS, digest))
