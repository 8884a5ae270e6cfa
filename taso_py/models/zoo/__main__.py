"""Says in one line what to install where libraries of the zoo are missing or do not fit each other; else nothing."""

from __future__ import annotations

import sys

from taso_py.models.zoo.libraries import advice

if (line := advice()) is not None:
    sys.stderr.write(f"note: {line}\n")
