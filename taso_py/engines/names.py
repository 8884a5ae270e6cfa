"""Names by which users choose runtimes; torch-free, since ``--help`` shows them.

Invariant: every engine of :mod:`taso_py.engines.table` can be chosen by a name here.
"""

from __future__ import annotations

AUTO, INDUCTOR = "auto", "inductor"
"""Names for several engines: all of the device, and all variants of Inductor there."""
SESSION_ENGINES = ("onnxruntime", "openvino")
"""Engines that take whole graphs as ONNX models."""
CHOICES = ("eager", "cudagraph", INDUCTOR, *SESSION_ENGINES, "tensorrt", AUTO)
"""Choices of the command line; in Python also the names of single variants of Inductor."""
