"""``taso-py refresh``: make a saved result again with other weights."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from taso_py.commands.common import command, some_path
from taso_py.ir.errors import TasoError, first_line


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

    refresh(parsed.folder, _read(parsed.weights), output=parsed.output)
    print(
        f"{parsed.output or parsed.folder} computes the model with the weights in {parsed.weights}, compared in float64"
    )
    return 0


def _read(path: Path) -> dict[str, Any]:
    """Read a state dict.

    Raises:
        TasoError: the file cannot be read, or holds something else.
    """
    import torch

    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except ImportError as error:
        raise TasoError(f"{path} needs safetensors, which is not installed: pip install safetensors") from error
    except Exception as error:  # torch raises errors of many kinds for what it cannot read
        raise TasoError(f"cannot read {path}: {first_line(error)}") from error
    if not isinstance(found, dict):
        raise TasoError(f"{path} holds a {type(found).__name__}, not a state dict; save model.state_dict()")
    return found
