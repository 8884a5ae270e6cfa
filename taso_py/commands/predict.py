"""``taso-py predict``: search for a device that is not here."""

from __future__ import annotations

import argparse
from typing import Any

from taso_py.commands.common import MODEL_HELP, add_model, add_search, answer, command, search_options, some_path


def add(commands: Any) -> None:
    """Add the subcommand to the parser."""
    summary = "Search for a device that is not here, by latencies that were measured on it."
    parser = command(commands, "predict", _predict, summary, epilog=MODEL_HELP)
    add_model(parser)
    parser.add_argument(
        "--environment",
        metavar="KEY",
        required=True,
        help="the beginning of the device's key; 'taso-py latencies devices' lists them",
    )
    add_search(parser)
    parser.add_argument("--output", metavar="DIR", type=some_path, help="write trace.rules here")
    parser.add_argument("--json", action="store_true", help="print the prediction as one JSON document")


def _predict(parsed: argparse.Namespace) -> int:
    from taso_py.driver.predict import predict
    from taso_py.driver.searches import rules_for
    from taso_py.options import Options

    options = Options(**search_options(parsed))
    rules = rules_for(options, parsed.rules)
    return answer(
        parsed,
        lambda source: predict(source, options, rules=rules, environment=parsed.environment, output=parsed.output),
    )
