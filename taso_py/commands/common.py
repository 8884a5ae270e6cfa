"""Parts that subcommands share: adding one, the arguments that name a model, and the output of results.

Invariant: with ``--json``, standard output is a single JSON document.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType

from taso_py.options import SHOWN, kind_of

if TYPE_CHECKING:
    from taso_py.models.source import Source

MODEL_HELP = """MODEL is one of
  package.module:factory    a function without arguments that returns a module, or (module, example inputs)
  path/to/file.py:factory   the same, from a file; it is your own code and is executed
  path/to/program.pt2       an exported program (torch.export.save)
  path/to/model.onnx        an ONNX model, of opset 13 or newer
  zoo:NAME[@BATCH]          a model of the zoo with random weights; 'zoo:?' lists them
SPEC is a shape, 1x3x224x224, optionally with an element type, 1x128:int64."""


ZOO = "zoo:?"
"""The MODEL that lists the zoo."""
FILE_WIDTH = 80
"""Least width of output that is not written to a terminal, in columns."""
LATENCIES_KEPT = "latencies that were measured undisturbed are stored"
"""Message on what remains after an interrupt of commands that measure."""


def command(
    commands: Any, name: str, run: Any, summary: str, *, kept: str = "", **more: Any
) -> argparse.ArgumentParser:
    """Add a subcommand and return its parser.

    Args:
        commands: the subparsers to add it to.
        name: the name of the subcommand.
        run: takes the parsed arguments and returns the exit status.
        summary: a description.
        kept: a message on what remains after an interrupt, if anything.
        more: further arguments of the parser.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=summary, formatter_class=argparse.RawDescriptionHelpFormatter, **more
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.set_defaults(run=run, kept=kept)
    return parser


def print_json(document: Any) -> None:
    """Write a document to standard output."""
    print(json.dumps(document, indent=2, allow_nan=False))


def answer(parsed: argparse.Namespace, make: Callable[[Source], Any]) -> int:
    """Load MODEL and print the result for it: its ``as_dict`` with ``--json``, otherwise its text.

    Raises:
        TasoError: the model cannot be loaded, or whatever ``make`` raises.
    """
    if parsed.model == ZOO:
        return _list_zoo(as_json=parsed.json)
    with redirect_stdout(sys.stderr), model_of(parsed) as source:  # for what the model's code prints
        made = make(source)
    if parsed.json:
        print_json(made.as_dict())
    else:
        show(made)
    return 0


def _list_zoo(*, as_json: bool) -> int:
    """Print the names of the zoo's models."""
    from taso_py.models import zoo

    if as_json:
        print_json(list(zoo.names()))
    else:
        print("\n".join(f"zoo:{name}" for name in zoo.names()))
    return 0


@contextmanager
def model_of(parsed: argparse.Namespace) -> Generator[Source]:
    """Load MODEL by the options of :func:`add_model`; the body runs with the model's own import path.

    Raises:
        TasoError: the model cannot be loaded.
    """
    from taso_py.models.source import importing_beside, load_source

    with importing_beside(parsed.model):
        yield load_source(
            parsed.model,
            parsed.input,
            device=parsed.device,
            dtype=parsed.dtype,
            seed=parsed.seed,
            positive=parsed.positive,
        )


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise for the command line to handle, as for other output; rich would exit with status 1."""
        raise BrokenPipeError


def show(what: RenderableType) -> None:
    """Write a result as text to standard output; lines are only wrapped for a terminal."""
    console = _Console()
    if not console.is_terminal:
        console.width = max(console.width, FILE_WIDTH)
    # A terminal wraps wide lines itself; cropping would lose text.
    console.print(what, soft_wrap=not console.is_terminal, crop=False)


_SEARCH = ("search", "alpha", "budget", "effort", "within", "time_limit", "numerics")
"""The options of searches."""


def seed(text: str) -> int:
    """Return a seed: a whole number that PyTorch's generators accept."""
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number below 2**63")
    return int(text)


def some_path(text: str) -> Path:
    """Return a path; an empty text, which would mean the current folder, is refused, since it is often a mistake."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty; write . for the current folder")
    return Path(text)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add MODEL, and the options for its inputs, device and type."""
    parser.add_argument("model", metavar="MODEL", help="see below")
    parser.add_argument("--input", metavar="SPEC", action="append", default=[], help="an example input; once per input")
    parser.add_argument(
        "--positive",
        metavar="NAME",
        action="append",
        default=[],
        help="an input without elements that are zero or negative, on which rules may then rely; once per input",
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--dtype", metavar="D", help="cast the model to bf16, fp16, fp32 or fp64 first")
    parser.add_argument(
        "--seed", type=seed, default=0, help="seed of weights, inputs and order of timing (%(default)s)"
    )


def add_search(parser: argparse.ArgumentParser) -> None:
    """Add the options of the search; ``--seed`` comes with the model."""
    for name in _SEARCH:
        add_option(parser, name)
    parser.add_argument(
        "--rules",
        metavar="PATH",
        type=some_path,
        help="a rule file or folder (default: the shipped database, or templates)",
    )


def add_option(parser: argparse.ArgumentParser, name: str, default: Any = ...) -> None:
    """Add an option as :mod:`taso_py.options` states it, with another default if one is given."""
    option = SHOWN[name]
    kind = kind_of(option)
    parser.add_argument(
        f"--{name.replace('_', '-')}",
        type=str if kind is None else kind.python,
        default=option.default if default is ... else default,
        **{key: value for key, value in option.metadata.items() if value is not None},
    )


def search_options(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return these options as fields of :class:`taso_py.options.Options`."""
    return {**{name: getattr(parsed, name) for name in (*_SEARCH, "seed")}, "progress": True}
