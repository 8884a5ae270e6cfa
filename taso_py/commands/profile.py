"""``taso-py profile``: where a model's time and memory go."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from taso_py.commands.common import MODEL_HELP, add_model, command, print_json, show


def add(commands: Any) -> None:
    """Adds the subcommand to the parser."""
    parser = command(
        commands,
        "profile",
        _profile,
        "Say where a model's time goes, and what bounds each operator.",
        epilog=MODEL_HELP,
    )
    add_model(parser)
    parser.add_argument("--seconds", metavar="S", type=float, default=5.0, help="of timed runs (%(default)s)")
    parser.add_argument("--output", metavar="DIR", type=Path, help="write profile.html, profile.json, trace.json here")
    parser.add_argument("--json", action="store_true", help="print the profile as one JSON document")


def _profile(parsed: argparse.Namespace) -> int:
    from taso_py.runtime.profile import ProfileOptions, profile_source
    from taso_py.runtime.source import load_source

    options = ProfileOptions(seconds=parsed.seconds, seed=parsed.seed, progress=True)
    with redirect_stdout(sys.stderr):  # what a model prints is no result
        source = load_source(parsed.model, parsed.input, device=parsed.device, dtype=parsed.dtype, seed=parsed.seed)
        profile = profile_source(source, options, parsed.output)
    if parsed.json:
        print_json(profile.as_dict())
    else:
        show(profile)
    return 0
