"""Arguments of commands.

Invariant: a mistake in them is one line on standard error and exit status 2.
"""

from __future__ import annotations

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """A parser, as are those of its subcommands, that says what is wrong without the usage above it."""

    def error(self, message: str) -> NoReturn:
        """Ends the process."""
        line = " ".join(message.splitlines())
        self.exit(2, f"{self.prog}: error: {line}; see {self.prog} --help\n")
