"""Writing files so that nobody ever finds half of one.

Invariant: under a file's name there is its old content or all of the new, whatever interrupts the writing.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def replace_file(path: Path, content: bytes | str) -> None:
    """Writes a file whole or not at all; text as UTF-8.

    Raises:
        OSError: it cannot be written; what was there is there still.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
