"""The command line: the parser and dispatch; the subcommands are in :mod:`taso_py.commands`.

Invariant: a user's mistake is one line on standard error and exit status 2, without a traceback unless ``--debug`` is
given. Results go to standard output (with ``--json``, a single JSON document), progress to standard error.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from taso_py.arguments import CommandParser
from taso_py.commands import generate, latencies, optimize, predict, profile, refresh, replay, rules, verify
from taso_py.ir.errors import TasoError, first_line
from taso_py.unexpected import UnexpectedError, shows_tracebacks, tracebacks_shown, unexpected_error

COMMANDS = (optimize, refresh, profile, generate, verify, rules, replay, latencies, predict)
"""Subcommands, in the order of the help text."""
UNEXPECTED, MISTAKE = 1, 2
"""Exit statuses: an internal error, and a mistake of the user."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files and modules that it has no characters for
    parsed = parser().parse_args(arguments)
    with tracebacks_shown(parsed.debug or shows_tracebacks()):
        return _run(parsed)


def _run(parsed: argparse.Namespace) -> int:
    try:
        status = parsed.run(parsed)
        print(end="", flush=True)  # write errors show here rather than at the exit of the interpreter
        return status
    except TasoError as error:
        return _explain(error)
    except KeyboardInterrupt:
        print("; ".join(filter(None, ("taso-py: interrupted", parsed.kept))), file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, less) has closed the pipe.
        _give_up_output()
        return 0
    except OSError as error:
        # A full disk, most likely that of standard output.
        _give_up_output()
        return _explain(error)
    except Exception as error:  # an internal error
        return _explain(unexpected_error(error, "running taso-py"))


def _explain(error: Exception) -> int:
    """Print an error and return the exit status."""
    if shows_tracebacks():
        traceback.print_exception(error)
    print(f"taso-py: error: {error if isinstance(error, TasoError) else first_line(error)}", file=sys.stderr)
    return UNEXPECTED if isinstance(error, UnexpectedError) else MISTAKE


def _give_up_output() -> None:
    """Discard output that cannot be written, which the interpreter would try to write again at exit."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Version(argparse.Action):
    """Looks versions up only if they are asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(f"taso-py {_version('taso-py')}, PyTorch {_version('torch')}")
        parser.exit()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"


def parser() -> CommandParser:
    """Return the parser of the command line."""
    whole = CommandParser(
        prog="taso-py",
        description="Superoptimize PyTorch models with proved substitutions and measured latencies.",
        epilog="Start with: taso-py optimize zoo:nasrnn --output out",
    )
    whole.add_argument("--version", action=_Version, nargs=0, help="print the versions of taso-py and PyTorch")
    commands = whole.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in COMMANDS:
        module.add(commands)
    return whole


if __name__ == "__main__":
    sys.exit(main())
