"""The saved form of several entry points of one model: a saved result for each, and the weights of all in one file.

::

    DIR/entries.json           the run that counts, and the names of its entry points
    DIR/run-.../weights.pt     their weights, each tensor once
    DIR/run-.../NAME/          a saved result, whose program was saved without weights

Invariant: ``entries.json`` is replaced last, and all at once. A run that is interrupted leaves the earlier result as it
was, and its own folder to the next one to delete.
"""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from taso_py.files import folder_lock, replace_files
from taso_py.report.optimization import Report
from taso_py.saving.artifact import save
from taso_py.saving.folder import ENTRIES, ENTRIES_VERSION, as_json, writing
from taso_py.saving.result import WeightsPlace
from taso_py.saving.sized import Shapes
from taso_py.saving.weights_file import WEIGHTS, write_weights

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
    compact: Mapping[str, Any] | None = None
    """The compact form of the program without weights, if there is one."""

    def write(self, directory: Path, weights: WeightsPlace | None) -> None:
        """Write the files of this entry point to a folder of its own.

        Args:
            directory: the folder.
            weights: where its weights are; None if whoever loads it knows.

        Raises:
            ArtifactError: the folder cannot be written.
        """
        save(
            directory,
            self.content,
            self.report.as_dict(),
            self.trace,
            plan=self.plan,
            others=self.others,
            weights=weights,
            compact=self.compact,
        )


def write_shared_weights(path: Path, entries: Mapping[str, SavableEntry]) -> str:
    """Write the weights of several entry points, and return the digest of the file.

    Raises:
        OSError: it cannot be written.
    """
    tensors = {name: entry.weights for name, entry in entries.items()}
    return write_weights(path, tensors, {name: entry.state for name, entry in entries.items()})


def write_entries(
    directory: Path, entries: Mapping[str, SavableEntry], sizes: Mapping[str, Shapes] | None = None
) -> None:
    """Write several entry points to a folder, in place of those that are there, after other runs that write to it.

    Args:
        directory: the folder.
        entries: the entry points by name.
        sizes: the sizes that each is for, if they are one model at several sizes.

    Raises:
        ArtifactError: the folder cannot be written; then an earlier result is as it was.
    """
    with writing(directory), folder_lock(directory):
        run = directory / f"run-{secrets.token_hex(8)}"
        try:
            run.mkdir()
            digest = write_shared_weights(run / WEIGHTS, entries)
            for name, entry in entries.items():
                entry.write(run / name, WeightsPlace(f"../{WEIGHTS}", name, digest))
            said = {
                "version": ENTRIES_VERSION,
                "folder": run.name,
                "weights": digest,
                "entries": list(entries),
                "sizes": sizes,
            }
            replace_files(directory, {ENTRIES: as_json(said)})
        except BaseException:
            shutil.rmtree(run, ignore_errors=True)
            raise
        _delete_others(directory, run)


def _delete_others(directory: Path, kept: Path) -> None:
    """Delete the folders of all other runs, as far as that can be done."""
    with suppress(OSError):
        for path in directory.iterdir():
            if _RUN.fullmatch(path.name) and path != kept:
                shutil.rmtree(path, ignore_errors=True)
