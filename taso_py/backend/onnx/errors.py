"""The error of graphs that have no form in ONNX."""

from __future__ import annotations

from taso_py.ir.errors import TasoError


class NotInOnnx(TasoError):
    """A graph cannot be written as ONNX; the message names the operator, element type or effect that is the reason."""
