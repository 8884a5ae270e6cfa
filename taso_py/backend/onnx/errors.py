"""The error of graphs that have no form in ONNX."""

from __future__ import annotations

from taso_py.ir.errors import TasoError


class NotInOnnx(TasoError):
    """A graph has no form in ONNX: an operator without a row, an element type, an effect; the message names it."""
