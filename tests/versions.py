"""What tests expect of PyTorch, and older versions that the project supports do otherwise."""

from __future__ import annotations

import pytest
import torch
from torch.torch_version import TorchVersion


def need(version: str, why: str) -> None:
    """Skips a test with a PyTorch older than that, which ``why`` describes."""
    if TorchVersion(torch.__version__) < version:
        pytest.skip(f"before PyTorch {version}, {why}")
