"""OpenVINO on the CPU (https://docs.openvino.ai): Intel's engine, which also runs on other x86 and Arm processors.

It computes in the precision of the model: by default it may lower that where the processor is quicker so.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import prod
from pathlib import Path
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
_ORDERS = re.compile(r"_(a[a-zA-Z0-9]*)_(a[a-zA-Z0-9]*)_")
"""Two orders of axes in the name of a node that reorders: ``x_abcd_acdb_conv``, ``conv_aBcd8b_abcd_output``."""


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
        made = _made_of(session.compiled.get_runtime_model())
        totals: dict[tuple[str, str], list[float]] = {}
        for done in range(1, runs + 2):
            request.infer()
            if done.bit_count() == 1:
                for node in request.profiling_info:
                    if node.status.name == "EXECUTED":
                        total = node.real_time.total_seconds() * done
                        totals.setdefault((node.node_name, node.node_type), []).append(total)
        return [
            NodeTime(name, kind, _means(found), _way(name, kind), *made.get(name, ((name,), 0)))
            for (name, kind), found in totals.items()
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


def _made_of(runtime_model: Any) -> Mapping[str, tuple[tuple[str, ...], int]]:
    """The operators of a model that each operator of the engine is made of, and the bytes that it reads and writes."""
    made: dict[str, tuple[tuple[str, ...], int]] = {}
    for node in runtime_model.get_ops():
        name, told = node.get_friendly_name(), node.get_rt_info()
        names = str(told["originalLayersNames"].value).split(",") if "originalLayersNames" in told else []
        ports = [*node.inputs(), *node.outputs()]
        shapes = [_fixed_shape(port.get_partial_shape()) for port in ports]
        sizes = [
            prod(shape or ()) * port.get_element_type().size
            for port, shape in zip(ports, shapes, strict=True)
            if shape is not None
        ]
        made[name] = tuple(dict.fromkeys(filter(None, (name, *names)))), sum(sizes) if None not in shapes else 0
    return made


def _means(totals: Sequence[float]) -> tuple[float, ...]:
    """What a run takes on the average in each of the stretches that end with the 2nd, 4th, 8th ... run.

    The engine tells the average of all runs so far, in whole microseconds; by the difference of what two of them add up
    to, the first run, in which memory is touched for the first time, counts in none of the stretches. Stretches that
    grow keep what is lost in rounding below two microseconds.

    Args:
        totals: seconds of the first run, the first 2, the first 4 ... together.
    """
    stretches = [max(0.0, after - before) for before, after in pairwise(totals)]
    return tuple(stretch / 2**place for place, stretch in enumerate(stretches)) or tuple(totals)


def _way(name: str, kind: str) -> str:
    """Which way a node reorders, if it does, by its name: it has the order of axes that it reads, and that it writes.

    In a dense order the axes are in alphabetical order, and none is in blocks.
    """
    if kind != "Reorder":
        return ""
    orders = _ORDERS.search(name)
    return "out" if orders is not None and list(orders[2]) == sorted(set(orders[2])) else "in"


def _fixed_shape(shape: Any) -> list[int] | None:
    """A shape that is known before anything is computed; None for others."""
    return [int(size) for size in shape.to_shape()] if shape.is_static else None
