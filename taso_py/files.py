"""Writing files so that nobody ever finds half of one.

Invariant: under a file's name there is its old content or all of the new, whatever interrupts the writing.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Generator, Mapping
from pathlib import Path

if sys.platform != "win32":
    import fcntl


def replace_file(path: Path, content: bytes | str) -> None:
    """Writes a file whole or not at all; text as UTF-8.

    Raises:
        OSError: it cannot be written; what was there is there still.
    """
    replace_files(path.parent, {path.name: content})


def replace_files(folder: Path, files: Mapping[str, bytes | str]) -> None:
    """Writes files of a folder, each whole or not at all; they get their names in order once all are written.

    Raises:
        OSError: one cannot be written; what was there is there still.
    """
    # Not temporary files of the library: those are for their owner alone, whatever the umask says.
    drafts = {name: folder / f".{name}.{secrets.token_hex(8)}" for name in files}
    try:
        for name, content in files.items():
            with drafts[name].open("xb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
        for name, draft in drafts.items():
            os.replace(draft, folder / name)
    except BaseException:
        for draft in drafts.values():
            with contextlib.suppress(OSError):
                draft.unlink()
        raise


@contextlib.contextmanager
def locked(folder: Path) -> Generator[None]:
    """Waits for others that have the folder locked, and has it locked meanwhile; nothing is written for that.

    Windows and some network file systems have no such locks: there nobody waits.
    """
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
