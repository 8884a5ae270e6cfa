"""Names by which users choose runtimes; torch-free, since ``--help`` shows them.

Invariant: every engine of :mod:`taso_py.engines.table` can be chosen by a name here.
"""

from __future__ import annotations

AUTO, INDUCTOR = "auto", "inductor"
"""Names for several engines: all of the device, and all variants of Inductor there."""
AOT_INDUCTOR = "aot-inductor"
"""Inductor ahead of time."""
SESSION_ENGINES = ("onnxruntime", "openvino")
"""Engines that take whole graphs as ONNX models."""
RUNTIME_CHOICES = ("eager", "cudagraph", INDUCTOR, AOT_INDUCTOR, *SESSION_ENGINES, "tensorrt", AUTO)
"""Choices of the command line."""
ENGINE_NAMES = (
    "eager",
    *SESSION_ENGINES,
    INDUCTOR,
    "inductor-freezing",
    "inductor-max-autotune",
    "inductor-kernels",
    AOT_INDUCTOR,
    "cudagraph",
    "inductor-cudagraph",
    "inductor-max-autotune-cudagraph",
    "inductor-kernels-cudagraph",
    "tensorrt",
)
"""All engines, single variants of Inductor among them, in the order of the table; Python accepts these besides."""
