"""The eager engine: PyTorch runs the module as it was built, call by call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from taso_py.engines.engine import Engine, Runner
from taso_py.kernels.table import TILES


class Eager(Engine):
    """PyTorch, without a compiler."""

    name = "eager"
    tiles = TILES

    def prepare(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], resizable: bool = False
    ) -> Runner:
        """Return the module itself; errors on the example inputs are the module's own."""
        with torch.no_grad():
            module(*args, **kwargs)
        return module

    def _runner(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], resizable: bool) -> Runner:
        return module
