"""Rows of opaque operators: calls of PyTorch that the table of operators does not know, by their target."""

from __future__ import annotations

from collections.abc import Mapping

from taso_py.backend.onnx.aten import creation, elementwise, image, indexing, movement, recurrent, reduction
from taso_py.backend.onnx.row import OpaqueRow

ATEN: Mapping[str, OpaqueRow] = {
    **elementwise.ROWS,
    **reduction.ROWS,
    **movement.ROWS,
    **indexing.ROWS,
    **creation.ROWS,
    **image.ROWS,
    **recurrent.ROWS,
}
"""By the name of the overload."""
