"""What subcommands share: how one is added, the arguments that name a model, and how results are written.

Invariant: with ``--json`` standard output is one JSON document and nothing else.
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

from taso_py.effort import EFFORTS, NORMAL
from taso_py.rules.verdict import Numerics

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
"""The MODEL that asks for a list."""
FILE_WIDTH = 80
"""Columns that a result has at least where it is not written to a terminal, whatever that of the shell has."""
LATENCIES_KEPT = "latencies measured on a calm machine are kept"
"""What an interrupt leaves of commands that measure."""


def command(
    commands: Any, name: str, run: Any, summary: str, *, kept: str = "", **more: Any
) -> argparse.ArgumentParser:
    """Adds a subcommand.

    Args:
        commands: what it is added to.
        name: of the subcommand.
        run: takes the parsed arguments and returns the exit status.
        summary: what it does.
        kept: what an interrupt leaves, if anything.
        more: for the parser.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=summary, formatter_class=argparse.RawDescriptionHelpFormatter, **more
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of whatever goes wrong")
    parser.set_defaults(run=run, kept=kept)
    return parser


def print_json(document: Any) -> None:
    """Writes a document to standard output."""
    print(json.dumps(document, indent=2, allow_nan=False))


def answer(parsed: argparse.Namespace, make: Callable[[Source], Any]) -> int:
    """Loads MODEL and prints what is made of it: its ``as_dict`` with ``--json``, otherwise as people read it.

    Raises:
        TasoError: the model cannot be loaded, or whatever ``make`` raises.
    """
    if parsed.model == ZOO:
        return _list_zoo(as_json=parsed.json)
    with redirect_stdout(sys.stderr), model_of(parsed) as source:  # what a model prints is no result
        made = make(source)
    if parsed.json:
        print_json(made.as_dict())
    else:
        show(made)
    return 0


def _list_zoo(*, as_json: bool) -> int:
    """Prints what models of the zoo there are."""
    from taso_py.models import zoo

    if as_json:
        print_json(list(zoo.names()))
    else:
        print("\n".join(f"zoo:{name}" for name in zoo.names()))
    return 0


@contextmanager
def model_of(parsed: argparse.Namespace) -> Generator[Source]:
    """What MODEL names, as the options of :func:`add_model` say; what it imports when it is called is found inside.

    Raises:
        TasoError: it cannot be loaded.
    """
    from taso_py.models.source import importing_beside, load_source

    with importing_beside(parsed.model):
        yield load_source(parsed.model, parsed.input, device=parsed.device, dtype=parsed.dtype, seed=parsed.seed)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leaves it to the command line, as everything else that is printed does; rich would exit with status 1."""
        raise BrokenPipeError


def show(what: RenderableType) -> None:
    """Writes a result for people to standard output; lines are broken for a terminal only."""
    console = _Console()
    if not console.is_terminal:
        console.width = max(console.width, FILE_WIDTH)
    # A terminal breaks what is too wide for it all the same; cut off, it would be lost.
    console.print(what, soft_wrap=not console.is_terminal, crop=False)


def seed(text: str) -> int:
    """A seed: a whole number that PyTorch's generators take."""
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number below 2**63")
    return int(text)


def some_path(text: str) -> Path:
    """A path; an empty text, which a variable of a script may be, would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty; write . for the current folder")
    return Path(text)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Adds MODEL, and the options that say on which inputs and where it runs."""
    parser.add_argument("model", metavar="MODEL", help="see below")
    parser.add_argument("--input", metavar="SPEC", action="append", default=[], help="an example input; once per input")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--dtype", metavar="D", help="cast the model to bf16, fp16, fp32 or fp64 first")
    parser.add_argument("--seed", type=seed, default=0, help="of weights, random inputs and the order of timing")


def add_search(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say how to search; ``--seed`` comes with the model."""
    parser.add_argument(
        "--search",
        choices=("backtracking", "greedy", "saturation", "templates", "templates-measured"),
        default="backtracking",
        help="how rules are chosen (%(default)s); templates are hand-made fusions, applied wherever they match",
    )
    parser.add_argument(
        "--alpha",
        type=float,
        default=1.05,
        help="keep graphs within this factor of the best, or within two small operators (%(default)s)",
    )
    parser.add_argument(
        "--budget",
        metavar="N",
        type=int,
        default=2000,
        help="graphs to build at most in a search (%(default)s); there are up to four, while prices that decide change "
        "when they are measured again",
    )
    parser.add_argument(
        "--effort",
        choices=tuple(EFFORTS),
        default=NORMAL,
        help="how long searching and timing may take (%(default)s); results are checked alike at every level",
    )
    parser.add_argument(
        "--within", metavar="S", type=float, help="seconds that all of it may take, more or less, in place of --effort"
    )
    seconds = f"seconds of search, without what it takes to measure kernels ({_seconds('search_s')})"
    parser.add_argument("--time-limit", metavar="S", type=float, help=seconds)
    parser.add_argument(
        "--numerics",
        metavar="CLASS",
        choices=[numerics.label for numerics in Numerics],
        help="the most that results may differ: %(choices)s (default: mask; zero-terms in fp16)",
    )
    parser.add_argument(
        "--rules",
        metavar="PATH",
        type=some_path,
        help="a rule file or folder (default: the shipped database, or templates)",
    )


def _seconds(limit: str) -> str:
    """A limit at each level of effort, for help."""
    return ", ".join(f"{name}: {getattr(effort, limit):g}" for name, effort in EFFORTS.items())


def search_options(parsed: argparse.Namespace) -> dict[str, Any]:
    """What these options say, as fields of :class:`taso_py.driver.optimize.Options`."""
    names = ("search", "alpha", "budget", "effort", "within", "time_limit", "seed")
    return {**{name: getattr(parsed, name) for name in names}, "numerics": parsed.numerics, "progress": True}
