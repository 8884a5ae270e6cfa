"""The PyTorch operator for ONNX nodes that PyTorch has none for: wherever it is called, ONNX Runtime computes it.

Invariant: a call is a function of its operands, and its results have the types and sizes that its model states.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

NAMESPACE = "taso_py"
"""Namespace of the operator."""
TARGET = f"{NAMESPACE}.onnx_node.default"
"""Name of its overload."""
MOST_SESSIONS = 256
"""Most models that are kept ready to run."""

TYPES: Mapping[str, torch.dtype] = {
    "tensor(float)": torch.float32,
    "tensor(uint8)": torch.uint8,
    "tensor(int8)": torch.int8,
    "tensor(int16)": torch.int16,
    "tensor(int32)": torch.int32,
    "tensor(int64)": torch.int64,
    "tensor(bool)": torch.bool,
    "tensor(float16)": torch.float16,
    "tensor(double)": torch.float64,
    "tensor(bfloat16)": torch.bfloat16,
}
"""PyTorch's element types by the names that ONNX Runtime has for them."""

# torch.library removes an object's declarations when the object is freed.
_library = torch.library.Library(NAMESPACE, "FRAGMENT")
_library.define("onnx_node(Tensor[] operands, str kind, str model) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))


def encoded_model(content: bytes) -> str:
    """Return a serialized ONNX model as the text that the operator takes."""
    return base64.b64encode(content).decode()


def decoded_model(model: str) -> bytes:
    """Return the serialized ONNX model of a text from :func:`encoded_model`."""
    return base64.b64decode(model)


def call_onnx(operands: Sequence[Tensor], model: str) -> list[Tensor]:
    """Return the results of a model, in new memory.

    Operands in double precision that the model has in another are rounded to that, and its results are then in double
    precision too, so that a program can be computed in it as a reference.

    Args:
        operands: one for each input of the model, on the CPU.
        model: a text from :func:`encoded_model`.

    Raises:
        ValueError: a result has another size than the model states.
    """
    ready = _ready(model)
    given = {
        name: tensor.detach().to(dtype).contiguous().resolve_neg().numpy()
        for (name, dtype), tensor in zip(ready.inputs, operands, strict=True)
    }
    results = [torch.as_tensor(array) for array in ready.session.run(None, given)]
    for result, (_, sizes) in zip(results, ready.results, strict=True):
        if tuple(result.shape) != sizes:
            raise ValueError(f"a result has sizes {tuple(result.shape)}, and the model states {sizes}")
    return ready.widened(results, operands)


def stated_results(model: str) -> Sequence[tuple[torch.dtype, tuple[int, ...]]]:
    """Return element type and sizes of the results of a model.

    Raises:
        ValueError: sizes depend on more than those of the operands.
    """
    found = _ready(model).results
    if not all(isinstance(size, int) for _, sizes in found for size in sizes):
        raise ValueError("sizes of results depend on the data")
    return found


def session_options(threads: int) -> Any:
    """Return the settings of ONNX Runtime's sessions: all optimizations, one operator after the other."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised as well, and told in one line
    return options


@dataclass(frozen=True)
class _Ready:
    """A model that is ready to run."""

    session: Any
    inputs: Sequence[tuple[str, torch.dtype]]
    """Name and element type of each operand."""
    results: Sequence[tuple[torch.dtype, tuple[Any, ...]]]
    """Element type and sizes of each result; sizes that are not known are no integers."""

    def widened(self, results: list[Tensor], operands: Sequence[Tensor]) -> list[Tensor]:
        """Return results in double precision if an operand is in it that the model has in another."""
        if not any(x.dtype is torch.float64 is not dtype for x, (_, dtype) in zip(operands, self.inputs, strict=True)):
            return results
        return [result.double() if result.is_floating_point() else result for result in results]


@lru_cache(maxsize=MOST_SESSIONS)
def _ready(model: str) -> _Ready:
    import onnxruntime

    options = session_options(torch.get_num_threads())
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # PyTorch's own threads are awake
    # What it fuses beyond the basics it computes by factors in single precision.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session = onnxruntime.InferenceSession(decoded_model(model), options, providers=["CPUExecutionProvider"])
    return _Ready(
        session,
        [(argument.name, TYPES[argument.type]) for argument in session.get_inputs()],
        [(TYPES[result.type], tuple(result.shape)) for result in session.get_outputs()],
    )


def _call(operands: Sequence[Tensor], kind: str, model: str) -> list[Tensor]:
    return call_onnx(operands, model)


def _fake_call(operands: Sequence[Tensor], kind: str, model: str) -> list[Tensor]:
    made = [torch.empty(sizes, dtype=dtype, device="cpu") for dtype, sizes in stated_results(model)]
    return _ready(model).widened(made, operands)


_library.impl("onnx_node", _call, "CPU")
torch.library.register_fake(f"{NAMESPACE}::onnx_node", _fake_call, lib=_library)
