"""The engines that run ONNX models in tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from taso_py.backend.onnx import onnx_bytes, onnx_model
from taso_py.ir.graph import Graph


def _run_onnxruntime(content: bytes, inputs: Mapping[str, Any]) -> Sequence[Any]:
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(inputs))


@cache
def _core() -> Any:
    return pytest.importorskip("openvino").Core()


def _run_openvino(content: bytes, inputs: Mapping[str, Any]) -> Sequence[Any]:
    core = _core()
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    model = core.compile_model(core.read_model(content), "CPU", settings)
    # It forgets inputs that nothing reads.
    found = model({name: inputs[name] for given in model.inputs for name in given.names if name in inputs})
    return [np.array(found[output]) for output in model.outputs]


ENGINES: Mapping[str, Callable[[bytes, Mapping[str, Any]], Sequence[Any]]] = {
    "onnxruntime": _run_onnxruntime,
    "openvino": _run_openvino,
}
"""What runs a serialized model, by the name of the engine; skips the test where it is not installed."""


def run_onnx(
    engine: str, graph: Graph, inputs: Sequence[Tensor], weights: Mapping[str, Tensor] | None = None
) -> list[Tensor]:
    """The outputs of a graph in an engine."""
    model = onnx_model(graph, weights or {})
    names = [str(value.name) for value in model.graph.inputs]
    arrays = [tensor.contiguous().numpy() for tensor in inputs]
    found = ENGINES[engine](onnx_bytes(model), dict(zip(names, arrays, strict=True)))
    return [torch.as_tensor(np.ascontiguousarray(array)).reshape(array.shape) for array in found]
