"""The engines that take whole graphs as ONNX models.

Invariant: importing this module imports neither PyTorch's compiler nor an engine's own library, so that their saved
results load in a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Mapping

from taso_py.engines.onnxruntime import OnnxRuntime
from taso_py.engines.openvino import OpenVino
from taso_py.engines.session import SessionEngine

SESSIONS: Mapping[str, SessionEngine] = {engine.name: engine for engine in (OnnxRuntime(), OpenVino())}
"""The engines by name, in the order of :data:`taso_py.engines.table.ENGINES`."""
