"""What subcommands share: how one is added, the arguments that name a model, and how results are written.

Invariant: with ``--json`` standard output is one JSON document and nothing else.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

MODEL_HELP = """MODEL is one of
  package.module:factory    a function without arguments that returns a module, or (module, example inputs)
  path/to/file.py:factory   the same, from a file; it is your own code and is executed
  path/to/program.pt2       an exported program (torch.export.save)
  zoo:NAME                  a model of the zoo with random weights; 'zoo:?' lists them
SPEC is a shape, 1x3x224x224, optionally with an element type, 1x128:int64."""


def command(commands: Any, name: str, run: Any, summary: str, **more: Any) -> argparse.ArgumentParser:
    """Adds a subcommand; ``run`` takes the parsed arguments and returns the exit status."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=summary, formatter_class=argparse.RawDescriptionHelpFormatter, **more
    )
    parser.set_defaults(run=run)
    return parser


def print_json(document: Any) -> None:
    """Writes a document to standard output."""
    print(json.dumps(document, indent=2, allow_nan=False))


def add_model(parser: argparse.ArgumentParser) -> None:
    """Adds MODEL, and the options that say on which inputs and where it runs."""
    parser.add_argument("model", metavar="MODEL", help="see below")
    parser.add_argument("--input", metavar="SPEC", action="append", default=[], help="an example input; once per input")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--dtype", metavar="D", help="cast the model to bf16, fp16, fp32 or fp64 first")
    parser.add_argument("--seed", type=int, default=0, help="of weights, random inputs and the order of timing")
