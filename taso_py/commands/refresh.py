"""``taso-py refresh``: make a saved result again with other weights."""

from __future__ import annotations

import argparse
from typing import Any

from taso_py.commands.common import command, some_path


def add(commands: Any) -> None:
    """Add the subcommand to the parser."""
    parser = command(
        commands,
        "refresh",
        _refresh,
        "Make a saved result again with other weights, without a search.",
        epilog="WEIGHTS holds a state dict of the model that was optimized: a file of torch.save, read without running "
        "code, or of safetensors.",
    )
    parser.add_argument("folder", metavar="DIR", type=some_path, help="a folder that optimize --output wrote")
    parser.add_argument("weights", metavar="WEIGHTS", type=some_path, help="the new weights")
    parser.add_argument("--output", metavar="DIR", type=some_path, help="write here (default: replace the result)")


def _refresh(parsed: argparse.Namespace) -> int:
    from taso_py.driver.refresh import refresh
    from taso_py.saving.original import read_state

    refresh(parsed.folder, read_state(parsed.weights), output=parsed.output)
    print(
        f"{parsed.output or parsed.folder} computes the model with the weights in {parsed.weights}, compared in float64"
    )
    return 0
