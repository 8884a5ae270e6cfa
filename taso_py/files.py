"""Writing files so that nobody ever finds half of one.

Invariant: under a file's name there is its old content or all of the new, whatever interrupts the writing.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def replace_file(path: Path, content: bytes | str) -> None:
    """Writes a file whole or not at all; text as UTF-8.

    Raises:
        OSError: it cannot be written; what was there is there still.
    """
    # Not a temporary file of the library: those are for their owner alone, whatever the umask says.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with draft.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
