"""The rows that compute ONNX operators in PyTorch, joined."""

from __future__ import annotations

from collections.abc import Mapping

from taso_py.frontend.onnx import elementwise, movement, sums, windows
from taso_py.frontend.onnx.call import Row

ROWS: Mapping[str, Row] = {**elementwise.ROWS, **windows.ROWS, **sums.ROWS, **movement.ROWS}
"""Rows of the default domain by the name of the ONNX operator."""
