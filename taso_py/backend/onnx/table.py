"""The table of rows of the lowering to ONNX."""

from __future__ import annotations

from collections.abc import Mapping

from taso_py.backend.onnx import carried, choice, contraction, elementwise, movement, normalization, pooling, selection
from taso_py.backend.onnx.aten import ATEN
from taso_py.backend.onnx.row import Row, opaque_row
from taso_py.ir.operator import Operator
from taso_py.ops.opaque import Opaque

ROWS: Mapping[type[Operator], Row] = {
    **elementwise.ROWS,
    **choice.ROWS,
    **contraction.ROWS,
    **pooling.ROWS,
    **normalization.ROWS,
    **movement.ROWS,
    **selection.ROWS,
    Opaque: opaque_row({**ATEN, **carried.ROWS}),
}
"""All rows, by the class of the operator."""

LOWERED_TO_ONNX: frozenset[type[Operator]] = frozenset(ROWS)
"""The operators that have a row; for opaque ones see :data:`OPAQUE_IN_ONNX`."""

OPAQUE_IN_ONNX: frozenset[str] = frozenset(ATEN)
"""The targets of opaque operators of PyTorch's that have a row."""
