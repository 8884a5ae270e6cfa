"""A saved entry point as one file, beside one file with the weights of all: the form in which transformers saves.

Transformers saves and loads the components of a model one by one, each as a file. A component's file is an archive of
what :mod:`taso_py.saving.together` puts in a folder.

Invariant: components that were saved together share weights and state again if one thread loads them one after the
other; models that are loaded apart, or by several threads at once, share nothing.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import get_ident
from weakref import ReferenceType, ref

from taso_py.engines.engine import Runner
from taso_py.files import replace_file
from taso_py.ir.errors import first_line
from taso_py.saving.folder import ArtifactError, file_digest
from taso_py.saving.loading import run_result
from taso_py.saving.result import read
from taso_py.saving.together import SavableEntry
from taso_py.saving.weights_file import WEIGHTS, TensorsByProgram, read_weights, write_weights

_INDEX = "component.json"


@dataclass
class SharedWeights:
    """The weights of components that were optimized together."""

    tensors: TensorsByProgram
    state: Mapping[str, list[str]]
    """The names of weights, in each component, that it or another one writes to."""
    digest: str | None = None
    """The digest of the file that they were written to last, or read from."""

    def write(self, path: Path) -> str:
        """Write the weights unless the file has them already; return its digest."""
        if self.digest is None or not path.is_file() or file_digest(path) != self.digest:
            self.digest = write_weights(path, self.tensors, self.state)
        return self.digest


@dataclass(frozen=True)
class OptimizedProgram:
    """A component of an exported model: the program that transformers holds, saves and loads."""

    name: str
    """Its name among the components that it shares weights with."""
    module: Runner
    """Called like the exported program."""
    files: Mapping[str, bytes] = field(repr=False)
    """The files of its saved result, without weights."""
    weights: SharedWeights = field(repr=False)

    @classmethod
    def of(cls, name: str, module: Runner, entry: SavableEntry, weights: SharedWeights) -> OptimizedProgram:
        """Return an optimized entry point as a component."""
        with TemporaryDirectory() as folder:
            entry.write(Path(folder), None)
            return cls(name, module, {path.name: path.read_bytes() for path in Path(folder).iterdir()}, weights)

    def save(self, path: Path) -> None:
        """Write the component to a file, and the weights of all to one beside it.

        Raises:
            OSError: they cannot be written.
        """
        said = {"name": self.name, "weights": self.weights.write(path.with_name(WEIGHTS)), "state": self.weights.state}
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, content in {**self.files, _INDEX: json.dumps(said).encode()}.items():
                archive.writestr(name, content)
        replace_file(path, buffer.getvalue())


_unfinished: dict[tuple[Path, str, int], tuple[ReferenceType[SharedWeights], set[str]]] = {}
"""Weights by file, digest and thread, with the names of the components that are still to be loaded on them."""


def load_component(path: Path) -> OptimizedProgram:
    """Load a component, ready to run.

    Raises:
        ArtifactError: a file is missing or damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        said = json.loads(files.pop(_INDEX))
        name, digest, state = said["name"], said["weights"], dict(said["state"])
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ArtifactError(f"{path} cannot be read: {first_line(error)}; export the model again") from error
    weights = _weights_for(path.with_name(WEIGHTS), name, digest, state)
    with TemporaryDirectory() as folder:
        for file, content in files.items():
            (Path(folder) / file).write_bytes(content)
        module = run_result(read(folder), weights.tensors[name])
    return OptimizedProgram(name, module, files, weights)


def _weights_for(path: Path, name: str, digest: str, state: Mapping[str, list[str]]) -> SharedWeights:
    """Return the weights for a component: those that others of the same load were given, or else read anew."""
    key = path.resolve(), digest, get_ident()
    known, waiting = _unfinished.pop(key, (None, set[str]()))
    weights = None if known is None else known()
    if weights is None or name not in waiting:
        weights, waiting = SharedWeights(read_weights(path, digest), state, digest), set(state)
    waiting.discard(name)
    if waiting:
        _unfinished[key] = ref(weights), waiting
    return weights
