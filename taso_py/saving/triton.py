"""A model repository for Triton Inference Server: the result as an ONNX model, and as an archive of AOTInductor.

The format is that of https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md;
archives are read by the server's PyTorch backend, from release 26.05 on, and their tensors are named by position.

Invariant: types and shapes in a configuration are those of the ONNX model, whose inputs and outputs are all the tensors
of a call, in order. Sizes are fixed as they are there, so the server makes no batches.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from taso_py.ir.errors import TasoError

if TYPE_CHECKING:
    from onnx import ValueInfoProto

REPOSITORY = "triton"
"""The folder of the repository in that of the result; its models can be moved and renamed."""
CONFIG = "config.pbtxt"
_ONNX, _ARCHIVE = f"{REPOSITORY}/model", f"{REPOSITORY}/model_aot"
FILES = (f"{_ONNX}/{CONFIG}", f"{_ONNX}/1/model.onnx", f"{_ARCHIVE}/{CONFIG}", f"{_ARCHIVE}/1/model.pt2")
"""Names of all files that a repository may have, relative to the folder of the result."""

_TYPES = {
    **{"FLOAT": "FP32", "FLOAT16": "FP16", "BFLOAT16": "BF16", "DOUBLE": "FP64", "BOOL": "BOOL", "STRING": "STRING"},
    **{name: name for bits in (8, 16, 32, 64) for name in (f"INT{bits}", f"UINT{bits}")},
}
"""Triton's names of types by ONNX's."""


def repository(model: bytes, archive: bytes | None, *, threads: int, is_gpu: bool = False) -> dict[str, bytes]:
    """Return the files of a repository, by name relative to the folder of the result.

    Args:
        model: an ONNX model.
        archive: the same as an archive of AOTInductor for the CPU, if there is one.
        threads: number of threads of a call.
        is_gpu: True if the ONNX model is to run on a GPU.

    Raises:
        TasoError: Triton has no tensors of a type.
    """
    from onnx import load_model_from_string

    graph = load_model_from_string(model).graph
    inputs, outputs = _tensors(graph.input), _tensors(graph.output)
    device = "KIND_GPU" if is_gpu else "KIND_CPU"
    text = _config({"backend": "onnxruntime"}, inputs, outputs, device, {"intra_op_thread_count": threads})
    config, onnx_file, archive_config, archive_file = FILES
    files = {config: text, onnx_file: model}
    if archive is not None:
        runs_in = {"backend": "pytorch", "platform": "torch_aoti"}
        inputs = [(f"INPUT__{place}", kind, sizes) for place, (_, kind, sizes) in enumerate(inputs)]
        outputs = [(f"OUTPUT__{place}", kind, sizes) for place, (_, kind, sizes) in enumerate(outputs)]
        text = _config(runs_in, inputs, outputs, "KIND_CPU", {"INTRA_OP_THREAD_COUNT": threads})
        files |= {archive_config: text, archive_file: archive}
    return files


def _tensors(values: Sequence[ValueInfoProto]) -> list[tuple[str, str, list[int]]]:
    """Return names, types and shapes of tensors; open sizes are -1."""
    from onnx import TensorProto

    found: list[tuple[str, str, list[int]]] = []
    for value in values:
        kind = TensorProto.DataType.Name(value.type.tensor_type.elem_type)
        if kind not in _TYPES:
            raise TasoError(f"Triton has no tensors of type {kind.lower()}, which {value.name} is")
        sizes = [size.dim_value if size.HasField("dim_value") else -1 for size in value.type.tensor_type.shape.dim]
        found.append((value.name, _TYPES[kind], sizes))
    return found


def _config(
    runs_in: Mapping[str, str],
    inputs: Sequence[tuple[str, str, list[int]]],
    outputs: Sequence[tuple[str, str, list[int]]],
    device: str,
    parameters: Mapping[str, int],
) -> bytes:
    """Return a configuration; the model's name is that of its folder, so that it can be renamed."""
    lines = [f"{name}: {json.dumps(value)}" for name, value in runs_in.items()]
    lines.append("max_batch_size: 0")
    for role, tensors in (("input", inputs), ("output", outputs)):
        lines += [f"{role} {{ {_tensor(*tensor)} }}" for tensor in tensors]
    lines.append(f"instance_group {{ count: 1 kind: {device} }}")
    lines += [f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters.items()]
    return ("\n".join(lines) + "\n").encode()


def _tensor(name: str, kind: str, sizes: list[int]) -> str:
    # A tensor without axes is sent as one with a single element.
    shape = f"dims: {sizes}" if sizes else "dims: [1] reshape { shape: [] }"
    return f"name: {json.dumps(name, ensure_ascii=False)} data_type: TYPE_{kind} {shape}"
