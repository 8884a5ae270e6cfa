"""Atomic replacement of files, and locks on folders and files.

Invariant: a file has either its old content or all of the new, whatever interrupts the writing.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterable, Mapping
from multiprocessing.util import Finalize
from pathlib import Path, PurePath
from typing import IO

if sys.platform != "win32":
    import fcntl


def encoded(text: str) -> bytes:
    """Return text as UTF-8; what has no such form, as a name of a file that is not text, is escaped."""
    return text.encode(errors="backslashreplace")


def replace_file(path: Path, content: bytes | str) -> None:
    """Write a file completely or not at all; text as :func:`encoded`.

    Raises:
        OSError: it cannot be written; the old file is unchanged.
    """
    replace_files(path.parent, {path.name: content})


def replace_files(folder: Path, files: Mapping[str, bytes | str], gone: Iterable[str] = ()) -> None:
    """Write files of a folder, each completely or not at all, and rename them in order once all are written.

    Names may have folders, which are made. The files in ``gone`` are removed before, once all are written, and the
    folders in their names that are empty then.

    Raises:
        OSError: one cannot be written; its old content is unchanged.
    """
    paths = {name: folder / name for name in files}
    drafts = {name: _draft_of(path) for name, path in paths.items()}
    try:
        for name, content in files.items():
            if paths[name].parent != folder:
                paths[name].parent.mkdir(parents=True, exist_ok=True)
            with drafts[name].open("xb") as file:
                file.write(encoded(content) if isinstance(content, str) else content)
        for name in gone:
            _remove(folder, name)
        for name, draft in drafts.items():
            os.replace(draft, paths[name])
    except BaseException:
        for draft in drafts.values():
            with contextlib.suppress(OSError):
                draft.unlink()
        raise


@contextlib.contextmanager
def replacing(path: Path) -> Generator[Path]:
    """Give the path of a draft to write to, which takes the place of a file once the body has ended without an error.

    Raises:
        OSError: it cannot be written; the old file is unchanged.
    """
    draft = _draft_of(path)
    try:
        yield draft
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def _draft_of(path: Path) -> Path:
    """Return a new name beside a file."""
    # Not from tempfile, whose files are readable by their owner only, whatever the umask.
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}")


def _remove(folder: Path, name: str) -> None:
    """Remove a file if there is one, and the folders in its name that are empty then."""
    (folder / name).unlink(missing_ok=True)
    for parent in list(PurePath(name).parents)[:-1]:
        with contextlib.suppress(OSError):
            (folder / parent).rmdir()


@contextlib.contextmanager
def folder_lock(folder: Path, *, shared: bool = False) -> Generator[None]:
    """Hold a lock on a folder, exclusive or shared by those who read it, and wait for it; no file is written for it.

    Windows and some network file systems have no such locks; there this does nothing.
    """
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def try_file_lock(file: IO[bytes]) -> bool:
    """Return whether no other holds a lock on an open file, and hold it until the file is closed if so.

    Where there are no such locks, as for :func:`folder_lock`, nobody holds one.
    """
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


class ScratchFolder:
    """A temporary folder, deleted with its files once nothing refers to this object, or when the process ends."""

    def __init__(self) -> None:
        """Create the folder.

        Raises:
            OSError: there is no place for one.
        """
        self.path = Path(tempfile.mkdtemp(prefix="taso_py_"))
        # Unlike weakref.finalize it also runs where a worker process ends, and never in a fork of the process.
        Finalize(self, shutil.rmtree, (self.path,), {"ignore_errors": True}, exitpriority=0)
