"""Says in one line what to install where the libraries of the zoo do not fit each other; nothing where they do."""

from __future__ import annotations

import sys

from taso_py.runtime.zoo.libraries import misfit

if (line := misfit()) is not None:
    sys.stderr.write(f"note: {line}\n")
