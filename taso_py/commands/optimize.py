"""``taso-py optimize``: rewrite a model into a faster one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from taso_py.commands.common import MODEL_HELP, add_model, command, print_json
from taso_py.rules.verdict import Numerics


def add(commands: Any) -> None:
    """Adds the subcommand to the parser."""
    parser = command(commands, "optimize", _optimize, "Rewrite a model into a faster one.", epilog=MODEL_HELP)
    add_model(parser)
    parser.add_argument("--runtime", choices=("eager", "cudagraph", "inductor", "auto"), default="eager")
    parser.add_argument(
        "--search",
        choices=("backtracking", "greedy", "saturation", "templates", "templates-measured"),
        default="backtracking",
        help="how rules are chosen (%(default)s); templates are hand-made fusions, applied wherever they match",
    )
    parser.add_argument(
        "--alpha", type=float, default=1.05, help="keep graphs within this factor of the best (%(default)s)"
    )
    parser.add_argument("--budget", metavar="N", type=int, default=2000, help="graphs to build at most (%(default)s)")
    parser.add_argument("--time-limit", metavar="S", type=float, default=60.0, help="seconds of search (%(default)s)")
    parser.add_argument(
        "--race-seconds",
        metavar="S",
        type=float,
        default=20.0,
        help="seconds to time the best graphs against the original (%(default)s); what wins is timed again",
    )
    parser.add_argument(
        "--numerics",
        metavar="CLASS",
        choices=[numerics.name.lower().replace("_", "-") for numerics in Numerics],
        help="the most that results may differ: %(choices)s (default: mask; zero-terms in half precision)",
    )
    parser.add_argument(
        "--rules", metavar="PATH", type=Path, help="a rule file or folder (default: the shipped database, or templates)"
    )
    parser.add_argument("--output", metavar="DIR", type=Path, help="write model.pt2, plan, report and trace here")
    parser.add_argument(
        "--emit",
        metavar="FORMS",
        default="pt2",
        help="forms to write, with commas between: pt2, onnx, code (%(default)s); code is Python to read",
    )
    parser.add_argument("--json", action="store_true", help="print the report as one JSON document")


def _numerics(name: str | None) -> Numerics | None:
    return None if name is None else Numerics[name.upper().replace("-", "_")]


def _optimize(parsed: argparse.Namespace) -> int:
    from taso_py.runtime.optimize import OptimizeError, Options, optimize_source, read_rules
    from taso_py.runtime.source import load_source

    forms = tuple(parsed.emit.split(","))
    if parsed.output is None and forms != ("pt2",):
        raise OptimizeError("--emit says what to write; --output DIR says where")
    options = Options(
        device=parsed.device,
        runtime=parsed.runtime,
        search=parsed.search,
        alpha=parsed.alpha,
        budget=parsed.budget,
        time_limit=parsed.time_limit,
        numerics=_numerics(parsed.numerics),
        seed=parsed.seed,
        race_seconds=parsed.race_seconds,
        progress=True,
    )
    rules = read_rules(options, parsed.rules)
    source = load_source(parsed.model, parsed.input, device=parsed.device, dtype=parsed.dtype, seed=parsed.seed)
    optimized = optimize_source(source, options, rules, output=parsed.output, forms=forms)
    if parsed.json:
        print_json(optimized.report.as_dict())
    else:
        Console().print(optimized.report)
    return 0
