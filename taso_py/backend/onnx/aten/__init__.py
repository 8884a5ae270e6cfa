"""Rows of opaque operators: PyTorch calls outside the table of operators, by target."""

from __future__ import annotations

from collections.abc import Mapping

from taso_py.backend.onnx.aten import (
    attention,
    bags,
    creation,
    elementwise,
    functions,
    image,
    indexing,
    linear,
    losses,
    movement,
    recurrent,
    reduction,
    running,
    sorting,
    windows,
)
from taso_py.backend.onnx.row import OpaqueRow

ATEN: Mapping[str, OpaqueRow] = {
    **elementwise.ROWS,
    **functions.ROWS,
    **reduction.ROWS,
    **running.ROWS,
    **movement.ROWS,
    **indexing.ROWS,
    **linear.ROWS,
    **losses.ROWS,
    **creation.ROWS,
    **image.ROWS,
    **recurrent.ROWS,
    **attention.ROWS,
    **bags.ROWS,
    **sorting.ROWS,
    **windows.ROWS,
}
"""All rows, by the name of the overload."""
