"""OpenVINO on the CPU (https://docs.openvino.ai): Intel's engine, which also runs on other x86 and Arm processors.

It computes in the precision of the model: by default it may lower that where the processor is quicker so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from taso_py.engines.engine import EngineUnavailableError
from taso_py.engines.precision import check_range, other_precision
from taso_py.engines.session import NodeTime, OnnxModel, Session, SessionEngine, check_inputs, dense
from taso_py.ir.errors import first_line
from taso_py.ir.graph import Graph

_TYPE_NAMES: Mapping[torch.dtype, str] = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.bool: "boolean",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
}
"""Names of the engine's element types."""


class OpenVino(SessionEngine):
    """OpenVINO, for the least latency of one request."""

    name = "openvino"
    packages = ("openvino", "onnx_ir")
    file = "openvino_model.xml"

    def _session(self, model: OnnxModel, threads: int) -> Session:
        return OpenVinoSession(model, threads)

    def misfit(self, graph: Graph, weights: Mapping[str, Tensor]) -> str | None:
        return super().misfit(graph, weights) or other_precision(graph, weights)

    @property
    def version(self) -> str:
        import openvino

        return f"openvino {openvino.__version__}"

    def bound(self, model: OnnxModel, tensors: Sequence[Tensor]) -> Callable[[], object]:
        session = self._made(model, {})
        operands = [dense(tensor) for tensor in tensors]
        request, results = session.request(operands)

        def run() -> object:
            request.infer()
            return session, operands, results  # the memory that is read and written, for as long as there may be runs

        return run

    def profile(self, model: OnnxModel, tensors: Sequence[Tensor], runs: int) -> Sequence[NodeTime]:
        session = self._made(model, {"PERF_COUNT": True})
        operands = [dense(tensor) for tensor in tensors]
        request, _results = session.request(operands)
        found: dict[tuple[str, str], list[float]] = {}
        for _ in range(1 + runs):
            request.infer()
            for node in request.profiling_info:
                if node.status.name == "EXECUTED":
                    found.setdefault((node.node_name, node.node_type), []).append(node.real_time.total_seconds())
        order = list(found)
        return [
            NodeTime(name, kind, median(seconds[1:]), _way(kind, place, len(order)))
            for place, ((name, kind), seconds) in enumerate(found.items())
        ]

    def _made(self, model: OnnxModel, settings: Mapping[str, Any]) -> OpenVinoSession:
        try:
            return OpenVinoSession(model, torch.get_num_threads(), settings)
        except Exception as error:  # OpenVINO's errors have no common class
            raise EngineUnavailableError(f"{self.name} cannot run this module: {first_line(error)}") from error

    def _files(self, session: Session) -> Mapping[str, bytes]:
        """The model in OpenVINO's own form: operators in XML, weights beside it in their own precision."""
        import openvino

        with TemporaryDirectory() as folder:
            path = Path(folder) / self.file
            openvino.save_model(openvino.Core().read_model(session.model.content), path, compress_to_fp16=False)
            return {file.name: file.read_bytes() for file in (path, path.with_suffix(".bin"))}


def compile_settings(threads: int) -> dict[str, Any]:
    """Return the settings that models are compiled with: one request at a time, computed in float32 or more."""
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,
        "CPU_DENORMALS_OPTIMIZATION": False,
    }


class OpenVinoSession(Session):
    """A model in OpenVINO; each thread that calls it has a request of its own."""

    def __init__(self, model: OnnxModel, threads: int, settings: Mapping[str, Any] | None = None) -> None:
        """Compile a model.

        Args:
            model: what it computes.
            threads: on how many threads it computes.
            settings: what is set otherwise than :func:`compile_settings` says.
        """
        import openvino

        super().__init__(model, threads)
        core = openvino.Core()
        chosen = {**compile_settings(threads), **(settings or {})}
        self.compiled = core.compile_model(core.read_model(model.content), "CPU", chosen)
        ports = {name: place for place, port in enumerate(self.compiled.inputs) for name in port.get_names()}
        self._places = [ports.get(name) for name in model.inputs]
        """Of inputs among those that the engine has kept; None where nothing reads one."""
        if len(set(self._places) - {None}) < len(self.compiled.inputs):
            check_inputs(ports, model)
        self._own = threading.local()
        self._types = {dtype: getattr(openvino.Type, name) for dtype, name in _TYPE_NAMES.items()}
        names = {type_.get_type_name(): dtype for dtype, type_ in self._types.items()}
        self._outputs = [
            (names[port.get_element_type().get_type_name()], _fixed_shape(port.get_partial_shape()))
            for port in self.compiled.outputs
        ]

    def forward(self, *tensors: Tensor) -> Sequence[Tensor]:
        operands = [dense(tensor) for tensor in tensors]
        request, results = self.request(operands)
        request.infer()
        return [
            self._copied(request.get_output_tensor(place), self._outputs[place][0]) if result is None else result
            for place, result in enumerate(results)
        ]

    def request(self, operands: Sequence[Tensor]) -> tuple[Any, Sequence[Tensor | None]]:
        """Return this thread's request, set to read dense operands and to write its results, and these.

        The request holds addresses: operands and results have to be kept until after the run. A result is None where
        its size is known only then.
        """
        request = self._request()
        for name, place, tensor in zip(self.model.inputs, self._places, operands, strict=True):
            if place is not None:
                check_range(name, tensor)
                request.set_input_tensor(place, self._shared(tensor))
        results: list[Tensor | None] = []
        for place, (dtype, shape) in enumerate(self._outputs):
            result = None if shape is None else torch.empty(shape, dtype=dtype)
            results.append(result)
            if result is not None:
                request.set_output_tensor(place, self._shared(result))
        return request, results

    def _request(self) -> Any:
        """The request of this thread: its operands are its own."""
        if not hasattr(self._own, "request"):
            self._own.request = self.compiled.create_infer_request()
        return self._own.request

    def _shared(self, tensor: Tensor) -> Any:
        """The engine's tensor on the memory of one of PyTorch's."""
        import openvino

        # NumPy has no bfloat16; which type it is, the engine is told.
        array = (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
        return openvino.Tensor(array, tensor.shape, self._types[tensor.dtype])

    @staticmethod
    def _copied(value: Any, dtype: torch.dtype) -> Tensor:
        """A tensor of PyTorch's own with the elements of one of the engine's, which the next call overwrites."""
        array = value.data
        return torch.from_numpy(array.view("int16") if dtype is torch.bfloat16 else array).view(dtype).clone()


def _way(kind: str, place: int, count: int) -> str:
    """Which way a node reorders, if it does: in the first half of a run to the engine's own order, as a rule."""
    return "" if kind != "Reorder" else "in" if 2 * place < count else "out"


def _fixed_shape(shape: Any) -> list[int] | None:
    """A shape that is known before anything is computed; None for others."""
    return [int(size) for size in shape.to_shape()] if shape.is_static else None
