"""``taso-py predict``: search for a device that is not here."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from taso_py.commands.common import MODEL_HELP, add_model, add_search, command, print_json, search_options, show


def add(commands: Any) -> None:
    """Adds the subcommand to the parser."""
    summary = "Search for a device that is not here, by latencies that were measured there."
    parser = command(commands, "predict", _predict, summary, epilog=MODEL_HELP)
    add_model(parser)
    parser.add_argument(
        "--environment",
        metavar="KEY",
        required=True,
        help="what the device's key begins with; 'taso-py latencies devices' lists them",
    )
    add_search(parser)
    parser.add_argument("--output", metavar="DIR", type=Path, help="write trace.rules here")
    parser.add_argument("--json", action="store_true", help="print the prediction as one JSON document")


def _predict(parsed: argparse.Namespace) -> int:
    from taso_py.runtime.optimize import read_rules
    from taso_py.runtime.predict import predict
    from taso_py.runtime.result import Options
    from taso_py.runtime.source import load_source

    options = Options(**search_options(parsed))
    rules = read_rules(options, parsed.rules)
    with redirect_stdout(sys.stderr):  # what a model prints is no result
        source = load_source(parsed.model, parsed.input, device=parsed.device, dtype=parsed.dtype, seed=parsed.seed)
        prediction = predict(source, options, rules, parsed.environment, parsed.output)
    if parsed.json:
        print_json(prediction.as_dict())
    else:
        show(prediction)
    return 0
