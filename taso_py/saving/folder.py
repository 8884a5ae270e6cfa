"""The folder that a result is saved to: how its files get there, and whether they belong together.

Invariant: what is read from a folder is of one run. ``plan.json`` has the digests of the other files and comes last, so
that a folder which a killed run left half replaced is seen to be one; runs that save to one folder wait for each other.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from taso_py.files import locked, replace_files
from taso_py.ir.errors import TasoError

MODEL, PLAN, REPORT, TRACE, PAGE = "model.pt2", "plan.json", "report.json", "trace.rules", "report.html"
ONNX, CODE = "model.onnx", "model.py"
"""The same program in other forms, if they are asked for; they are the user's to change."""


class ArtifactError(TasoError):
    """A folder that cannot be written, or that does not hold a saved result."""


def put(directory: Path, files: Mapping[str, bytes], plan: Mapping[str, Any]) -> Mapping[str, Any]:
    """Writes a result without its page; what the folder has of an earlier one goes.

    Args:
        directory: the folder.
        files: by name.
        plan: what ``plan.json`` is to say.

    Returns:
        What it says, the digests of the files included.

    Raises:
        ArtifactError: the folder cannot be written.
    """
    said = {**plan, "files": {name: _digest(data) for name, data in files.items()}}
    with _writing(directory), locked(directory):
        # A model.py that is of no earlier result is the user's own.
        for name in {PAGE, *(listed(directory).keys() - files.keys())}:
            (directory / name).unlink(missing_ok=True)
        replace_files(directory, {**files, PLAN: as_json(said)})
    return said


def add_page(directory: Path, said: Mapping[str, Any], page: str) -> bool:
    """Adds the page to a result, unless the folder has another run's by now; returns whether it did.

    Args:
        directory: the folder.
        said: what :func:`put` returned.
        page: its content.

    Raises:
        ArtifactError: the folder cannot be written.
    """
    files = {**said["files"], PAGE: _digest(page.encode())}
    with _writing(directory), locked(directory):
        if (directory / PLAN).read_bytes() != as_json(said):
            return False
        # The plan first: a page that it lists may be missing, but one that it does not list would be of no run.
        replace_files(directory, {PLAN: as_json({**said, "files": files}), PAGE: page})
    return True


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def listed(directory: Path) -> Mapping[str, str]:
    """The digests of the files of the result that a folder holds; empty if it holds none."""
    try:
        return dict(json.loads((directory / PLAN).read_text())["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def check_whole(directory: Path, files: Mapping[str, str], engine_file: str | None = None) -> None:
    """Makes sure that the files of a folder, as far as they are there, are those that its plan was saved with.

    To be called after they were read: another run may replace them until then.

    Args:
        directory: the folder.
        files: digests of files by name.
        engine_file: the file that the result's engine reads, which is not the user's to change then.

    Raises:
        ArtifactError: they are not.
    """
    for name in sorted(files.keys() - ({ONNX, CODE} - {engine_file})):
        if (directory / name).is_file():
            with (directory / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != files[name]:
                mixed = f"{directory} has files of several runs: {PLAN} was saved with another {name}"
                raise ArtifactError(f"{mixed}; optimize the model again")


def write_files(directory: Path, files: Mapping[str, bytes]) -> None:
    """Writes files into a folder, which is made if need be.

    Raises:
        ArtifactError: the folder cannot be written.
    """
    with _writing(directory):
        replace_files(directory, files)


def check_writable(directory: Path, names: Sequence[str] = ()) -> None:
    """Makes sure that a result can be written, before minutes are spent on it.

    Args:
        directory: the folder.
        names: files that it would replace; those of an earlier result it may.

    Raises:
        ArtifactError: it cannot, or a file of such a name is the user's own.
    """
    with _writing(directory), tempfile.TemporaryFile(dir=directory):
        pass
    earlier = listed(directory)
    if not earlier and (directory / PLAN).exists():
        return  # a result that is damaged, or of an earlier version: to be made again
    for name in names:
        if (directory / name).exists() and name not in earlier:
            own = f"{directory / name} is of no saved result, and would be replaced"
            raise ArtifactError(f"{own}; move it away, or choose another --output")


@contextmanager
def _writing(directory: Path) -> Generator[None]:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise ArtifactError(
            f"cannot write to {directory}: {error.strerror or error}; choose another --output"
        ) from error


def as_json(document: Any) -> bytes:
    """A document as the content of a file."""
    return (json.dumps(document, indent=2, allow_nan=False) + "\n").encode()
