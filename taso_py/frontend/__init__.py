"""Importer: from PyTorch modules and exported programs to graphs.

Invariant: what cannot be imported faithfully is refused in one line, never approximated; operators outside the table
are carried through as opaque nodes.
"""

from taso_py.backend.program import Program
from taso_py.frontend.errors import ImportRefusal
from taso_py.frontend.program import import_module, import_program

__all__ = ["ImportRefusal", "Program", "import_module", "import_program"]
