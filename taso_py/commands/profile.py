"""``taso-py profile``: show where a model's time and memory go."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from taso_py.commands.common import LATENCIES_KEPT, MODEL_HELP, add_model, answer, command, some_path

SAVED_HELP = """MODEL may also be the folder that 'optimize --output' wrote: then the chosen kernels
are timed in place of plain operators. For a result that runs in onnxruntime or
openvino, the engine's own profiler measures the times; there is no trace.json."""


def add(commands: Any) -> None:
    """Add the subcommand to the parser."""
    parser = command(
        commands,
        "profile",
        _profile,
        "Show where a model's time goes, and what bounds each operator.",
        kept=LATENCIES_KEPT,
        epilog=f"{MODEL_HELP}\n\n{SAVED_HELP}",
    )
    add_model(parser)
    parser.add_argument("--seconds", metavar="S", type=float, default=5.0, help="seconds of timed runs (%(default)s)")
    parser.add_argument(
        "--output", metavar="DIR", type=some_path, help="write profile.html, profile.json, trace.json here"
    )
    parser.add_argument("--json", action="store_true", help="print the profile as one JSON document")


def _profile(parsed: argparse.Namespace) -> int:
    from taso_py.profiling.profile import ProfileOptions, profile_source
    from taso_py.saving.folder import ArtifactError
    from taso_py.saving.result import read

    options = ProfileOptions(seconds=parsed.seconds, seed=parsed.seed, progress=True)
    saved = read(parsed.model) if parsed.model and Path(parsed.model).is_dir() else None
    if saved is not None:
        if saved.weights is not None:
            raise ArtifactError(f"{parsed.model} shares its weights with other entry points; give the model itself")
        parsed.model = str(saved.program)
    return answer(parsed, lambda source: profile_source(source, options, parsed.output, saved))
