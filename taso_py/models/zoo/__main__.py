"""Print one line on what to install if libraries of the zoo are missing or incompatible; print nothing otherwise."""

from __future__ import annotations

import sys

from taso_py.models.zoo.libraries import advice

if (line := advice()) is not None:
    sys.stderr.write(f"note: {line}\n")
