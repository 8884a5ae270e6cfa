"""From ONNX models to PyTorch modules, which are imported like any other module.

Invariant: a model that cannot be computed faithfully in PyTorch is refused in one line that names the operator.
"""

from taso_py.frontend.onnx.model import OnnxFile, read_onnx

__all__ = ["OnnxFile", "read_onnx"]
