"""The folder of a saved result: writing its files, and checking that they belong together.

Invariant: the files that are read from a folder were written by the same run. ``plan.json`` holds the digests of the
other files and is written last, so that a folder that a killed run left half replaced is recognized; runs that save to
the same folder wait for each other.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

from taso_py.files import encoded, folder_lock, replace_files
from taso_py.ir.errors import TasoError, first_line, in_a_line
from taso_py.saving.triton import FILES

MODEL, PLAN, REPORT, TRACE, PAGE = "model.pt2", "plan.json", "report.json", "trace.rules", "report.html"
ENTRIES = "entries.json"
"""The file that a folder with several entry points has in place of a plan; see :mod:`taso_py.saving.together`."""
ENTRIES_VERSION = 1
"""The version of its format."""
_KEYS = {PLAN: ("version", "model", "runtime"), ENTRIES: ("version", "folder", "entries")}
"""Keys by which a file that lists others is known to be a result's, whatever its version."""
ONNX, CODE = "model.onnx", "model.py"
"""The program in other formats, if asked for; users may change these files, and those of a model repository."""


class ArtifactError(TasoError):
    """Raised for a folder that cannot be written, or that holds no saved result."""


class WarmupError(TasoError):
    """Raised for sizes at which a result cannot be warmed up."""


def write_result(directory: Path, files: Mapping[str, bytes], plan: Mapping[str, Any]) -> Mapping[str, Any]:
    """Write a result without its page, and delete the files of an earlier result.

    Args:
        directory: the folder.
        files: contents by file name.
        plan: the content of ``plan.json`` without digests.

    Returns:
        The content of ``plan.json`` with the digests of the files.

    Raises:
        ArtifactError: the folder cannot be written.
    """
    said = {**plan, "files": {name: content_digest(data) for name, data in files.items()}}
    with writing(directory), folder_lock(directory):
        # A file that no earlier result lists, as a model.py, belongs to the user.
        gone = file_digests(directory).keys() - files.keys()
        replace_files(directory, {**files, PLAN: as_json(said)}, gone)
    return said


def add_page(directory: Path, said: Mapping[str, Any], page: str) -> bool:
    """Add the page to a result and return True; False if another run has replaced the result meanwhile.

    Args:
        directory: the folder.
        said: the return value of :func:`write_result`.
        page: the content of the page.

    Raises:
        ArtifactError: the folder cannot be written.
    """
    files = {**said["files"], PAGE: content_digest(encoded(page))}
    with writing(directory), folder_lock(directory):
        if (directory / PLAN).read_bytes() != as_json(said):
            return False
        # The plan first: a listed page may be missing, but a page must not exist without being listed.
        replace_files(directory, {PLAN: as_json({**said, "files": files}), PAGE: page})
    return True


def content_digest(data: bytes) -> str:
    """Return the digest of a file with this content."""
    return hashlib.sha256(data).hexdigest()


def file_digest(path: Path) -> str:
    """Return the digest of a file.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_digests(directory: Path) -> Mapping[str, str]:
    """Return the digests of the files of the result in a folder; empty if there is none.

    Names of files outside the folder, which no result has, are left out.
    """
    try:
        found = dict(json.loads((directory / PLAN).read_text())["files"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return {name: digest for name, digest in found.items() if _is_inside(PurePath(name))}


def _is_inside(name: PurePath) -> bool:
    return not name.is_absolute() and ".." not in name.parts


def check_digests(directory: Path, files: Mapping[str, str], engine_file: str | None = None) -> None:
    """Check that the files of a folder, as far as they exist, are those that its plan was saved with.

    Call this after reading them, since another run may replace them until then.

    Args:
        directory: the folder.
        files: digests of files by name.
        engine_file: the file that the result's engine reads; it is checked even if users may change it otherwise.

    Raises:
        ArtifactError: a file has another digest.
    """
    for name in sorted(files.keys() - ({ONNX, CODE, *FILES} - {engine_file})):
        if (directory / name).is_file() and file_digest(directory / name) != files[name]:
            mixed = f"{directory} has files of several runs: {PLAN} belongs to another {name}"
            raise ArtifactError(f"{mixed}; optimize the model again")


def write_files(directory: Path, files: Mapping[str, bytes | str]) -> None:
    """Write files into a folder, which is created if necessary.

    Raises:
        ArtifactError: the folder cannot be written.
    """
    with writing(directory):
        replace_files(directory, files)


def folder_of(given: str | os.PathLike[str], argument: str = "output") -> Path:
    """Return the folder that a user gives as an argument.

    Raises:
        ArtifactError: it is no path, or empty, which would mean the current folder and is often a mistake.
    """
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):  # pyright: ignore[reportUnnecessaryIsInstance]
        said = f"{argument} must be the path of a folder, not {in_a_line(given)}"
        raise ArtifactError(f"{said}; the current folder is '.'")
    return Path(given)


def check_writable(directory: Path, names: Collection[str] = (), own: Collection[str] = ()) -> None:
    """Check that files can be written to a folder, before minutes are spent on their content.

    Args:
        directory: the folder.
        names: the files.
        own: those of them that may be replaced if they exist, since an earlier run wrote them.

    Raises:
        ArtifactError: the folder cannot be written to, or a file with such a name belongs to the user.
    """
    with writing(directory), tempfile.TemporaryFile(dir=directory):
        pass
    for name in names:
        if (directory / name).exists() and name not in own:
            theirs = f"{directory / name} does not belong to a saved result, and would be replaced"
            raise ArtifactError(f"{theirs}; move it away, or choose another --output")


def check_result_writable(directory: Path, names: Collection[str] = (), index: str = PLAN) -> None:
    """Check that a result can be written to a folder, before minutes are spent on it.

    Args:
        directory: the folder.
        names: files that the result will replace, which is allowed for those of an earlier result only.
        index: the file that will list the others: ``PLAN``, or ``ENTRIES`` for several entry points.

    Raises:
        ArtifactError: the folder cannot be written to, or a file with such a name belongs to the user.
    """
    check_writable(directory)
    other = ENTRIES if index == PLAN else PLAN
    if (directory / other).exists():
        raise ArtifactError(f"{directory} holds a result of another form ({other}); choose another --output")
    own: Collection[str] = ()
    if has_keys(directory / index, _KEYS[index]):
        # One of an earlier version lists no files.
        own = {index, *(file_digests(directory) or names)}
    check_writable(directory, (index, *names), own)


def has_keys(path: Path, keys: Collection[str]) -> bool:
    """Return whether a file exists and is a JSON object with some keys, as one that an earlier run has written.

    Raises:
        ArtifactError: it cannot be read; then nobody knows whose it is, nor whose the files beside it are.
    """
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError, RecursionError) as error:
        problem = f"{path} cannot be read, so that it and the files beside it may be your own: {first_line(error)}"
        raise ArtifactError(f"{problem}; move them away, or choose another --output") from error
    return isinstance(found, dict) and found.keys() >= set(keys)


@contextmanager
def writing(directory: Path) -> Generator[None]:
    """Make a folder if there is none, and turn failures to write to it into an :class:`ArtifactError`."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise ArtifactError(
            f"cannot write to {directory}: {error.strerror or error}; choose another --output"
        ) from error


def as_json(document: Any) -> bytes:
    """Return a document as the content of a JSON file."""
    return (json.dumps(document, indent=2, allow_nan=False) + "\n").encode()
