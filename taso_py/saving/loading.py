"""Loading of saved results, by as little as each needs.

Invariant: importing this module imports neither PyTorch's compiler nor the optimizer.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from taso_py.saving.folder import ENTRIES
from taso_py.saving.result import read


def load(directory: str | os.PathLike[str], *, warmup: Iterable[int | Mapping[str, int]] = ()) -> Any:
    """Load a saved result, ready to run: a runner, or for several entry points a mapping of their names to runners.

    It warns if PyTorch uses another number of threads than a result was measured with.

    Args:
        directory: the folder.
        warmup: open sizes to call it with once, since the first call at a size is slow: numbers if one size is open,
            dicts by the names in the report if there are several.

    Raises:
        ArtifactError: the folder holds no saved result, or a file of it is damaged.
        WarmupError: the result does not have these sizes, or has several entry points.
    """
    sizes = list(warmup)
    if (Path(directory) / ENTRIES).is_file():
        from taso_py.saving.together import load_together  # imported here, as below: it imports PyTorch's compiler

        return load_together(directory, sizes)
    saved = read(directory)
    saved.warn_of_threads(stacklevel=2)
    # Tensors made in inference mode cannot be written to outside of it.
    with torch.inference_mode(mode=False):
        program = saved.compact_program() if saved.runtime == "eager" and not sizes else None
        if program is not None:
            return saved.module_of(program)
    from taso_py.saving.artifact import run_saved

    return run_saved(saved, saved.read_weights(), sizes)
