"""``taso-py replay``: derive a result again and check every step."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from taso_py.commands.common import MODEL_HELP, add_model, command, model_of


def add(commands: Any) -> None:
    """Add the subcommand to the parser."""
    parser = command(
        commands, "replay", _replay, "Derive a result again from the original and check every step.", epilog=MODEL_HELP
    )
    parser.add_argument("trace", metavar="TRACE", type=Path, help="a trace.rules file that optimize wrote")
    add_model(parser)


def _replay(parsed: argparse.Namespace) -> int:
    from taso_py.driver.replay import replay_trace

    with model_of(parsed) as source:
        steps = replay_trace(parsed.trace, source, parsed.seed)
    print(f"{steps} steps replayed: each rule matched, its sides agree in float64, and the result is the recorded one")
    return 0
