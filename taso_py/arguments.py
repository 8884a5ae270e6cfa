"""Argument parser of the commands.

Invariant: a user's mistake is one line on standard error and exit status 2.
"""

from __future__ import annotations

import argparse
from typing import NoReturn


class CommandParser(argparse.ArgumentParser):
    """Parser that reports mistakes in one line, without the usage text; its subcommands inherit that."""

    def error(self, message: str) -> NoReturn:
        """Report a mistake and exit."""
        line = " ".join(message.splitlines())
        self.exit(2, f"{self.prog}: error: {line}; see {self.prog} --help\n")
