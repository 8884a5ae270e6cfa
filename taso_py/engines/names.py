"""The names by which users choose where a result runs; torch-free, since ``--help`` shows them.

Invariant: every engine of :mod:`taso_py.engines.table` has its name here.
"""

from __future__ import annotations

AUTO, INDUCTOR = "auto", "inductor"
"""The names that stand for several engines: all that the device has, and all forms of Inductor there."""
SESSION_ENGINES = ("onnxruntime", "openvino")
"""The engines that take whole graphs as ONNX models."""
CHOICES = ("eager", "cudagraph", INDUCTOR, *SESSION_ENGINES, "tensorrt", AUTO)
"""The names to choose from at the command line; Python takes the single forms of Inductor too."""
