"""OpenVINO on the CPU (https://docs.openvino.ai), Intel's engine, which also runs on other x86 and Arm processors.

It is set to compute in the precision of the model; by default it may use a lower one that is faster.
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

from taso_py.backend.division import Division
from taso_py.engines.engine import EngineUnavailableError
from taso_py.engines.openvino_models import read_model
from taso_py.engines.precision import check_range, most_given, other_precision
from taso_py.engines.session import WRITES, NodeTime, OnnxModel, Session, SessionEngine, dense, input_names_in
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
"""OpenVINO's names of element types."""
_ORDERS = re.compile(r"_(a[a-zA-Z0-9]*)_(a[a-zA-Z0-9]*)_")
"""Two axis orders in the name of a reordering node: ``x_abcd_acdb_conv``, ``conv_aBcd8b_abcd_output``."""


class OpenVino(SessionEngine):
    """OpenVINO, configured for the lowest latency of one request."""

    name = "openvino"
    library = "openvino"
    file, beside = "openvino_model.xml", ("openvino_model.bin", WRITES)

    def _session(self, model: OnnxModel, threads: int) -> Session:
        return OpenVinoSession(model, threads)

    def misfit(self, graph: Graph, weights: Mapping[str, Tensor]) -> str | None:
        return super().misfit(graph, weights) or other_precision(graph, weights)

    def most_given(self, division: Division, weights: Mapping[str, Tensor]) -> int | None:
        return most_given(division.pure, weights)

    @property
    def version(self) -> str:
        import openvino

        return f"openvino {openvino.__version__}"

    def bind(self, model: OnnxModel, tensors: Sequence[Tensor]) -> Callable[[], object]:
        session = self._open_session(model, {})
        operands = [dense(tensor) for tensor in tensors]
        request, results = session.request(operands)

        def run() -> object:
            request.infer()
            return session, operands, results  # the memory that is read and written, for as long as there may be runs

        return run

    def profile(self, model: OnnxModel, tensors: Sequence[Tensor], runs: int) -> Sequence[NodeTime]:
        session = self._open_session(model, {"PERF_COUNT": True})
        operands = [dense(tensor) for tensor in tensors]
        request, _results = session.request(operands)
        made = _composition(session.compiled.get_runtime_model())
        totals: dict[tuple[str, str], list[float]] = {}
        for done in range(1, runs + 2):
            request.infer()
            if done.bit_count() == 1:
                for node in request.profiling_info:
                    if node.status.name == "EXECUTED":
                        total = node.real_time.total_seconds() * done
                        totals.setdefault((node.node_name, node.node_type), []).append(total)
        return [
            NodeTime(name, kind, _stretch_means(found), _reorder_direction(name, kind), *made.get(name, ((name,), 0)))
            for (name, kind), found in totals.items()
        ]

    def _open_session(self, model: OnnxModel, settings: Mapping[str, Any]) -> OpenVinoSession:
        try:
            return OpenVinoSession(model, torch.get_num_threads(), settings)
        except Exception as error:  # OpenVINO's errors have no common class
            raise EngineUnavailableError(f"{self.name} cannot run this module: {first_line(error)}") from error

    def _files(self, session: Session) -> Mapping[str, bytes]:
        """Return the model in OpenVINO's own format: operators in XML, and weights in a second file, not compressed."""
        import openvino

        with TemporaryDirectory() as folder:
            path = Path(folder) / self.file
            model = read_model(openvino.Core(), session.model.content, compile_settings(session.threads))
            openvino.save_model(model, path, compress_to_fp16=False)
            return {file.name: file.read_bytes() for file in (path, path.with_suffix(".bin"))}


def compile_settings(threads: int) -> dict[str, Any]:
    """Return the settings of compiled models: one request at a time, computed in float32 or more."""
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,
        "CPU_DENORMALS_OPTIMIZATION": False,
    }


class OpenVinoSession(Session):
    """A model compiled by OpenVINO; each thread that calls it has its own request."""

    def __init__(self, model: OnnxModel, threads: int, settings: Mapping[str, Any] | None = None) -> None:
        """Compile a model.

        Args:
            model: the model.
            threads: the number of threads.
            settings: settings that override those from :func:`compile_settings`.
        """
        import openvino

        super().__init__(model, threads)
        core = openvino.Core()
        chosen = {**compile_settings(threads), **(settings or {})}
        read = read_model(core, model.content, compile_settings(threads))
        self.compiled = core.compile_model(read, "CPU", chosen)
        ports = {name: place for place, port in enumerate(self.compiled.inputs) for name in port.get_names()}
        self._places = [ports.get(name) for name in model.inputs]
        """Position of each input among the compiled model's inputs; None if nothing reads it."""
        if len(set(self._places) - {None}) < len(self.compiled.inputs):
            read = [port.get_any_name() for port in self.compiled.inputs]
            self._places = [ports.get(name) for name in input_names_in(read, model)]
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
        """Return this thread's request, bound to dense operands and new results, and the results.

        The request holds addresses: operands and results must be kept alive until after the run. A result is None if
        its size is only known afterwards.
        """
        request = self._request()
        for name, place, tensor in zip(self.model.inputs, self._places, operands, strict=True):
            if place is not None:
                check_range(name, tensor, self.model.most)
                request.set_input_tensor(place, self._shared(tensor))
        results: list[Tensor | None] = []
        for place, (dtype, shape) in enumerate(self._outputs):
            result = None if shape is None else torch.empty(shape, dtype=dtype, device="cpu")
            results.append(result)
            if result is not None:
                request.set_output_tensor(place, self._shared(result))
        return request, results

    def _request(self) -> Any:
        """Return this thread's request."""
        if not hasattr(self._own, "request"):
            self._own.request = self.compiled.create_infer_request()
        return self._own.request

    def _shared(self, tensor: Tensor) -> Any:
        """Return an OpenVINO tensor that shares the memory of a PyTorch tensor."""
        import openvino

        # NumPy has no bfloat16, so the engine is told the element type.
        array = (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
        return openvino.Tensor(array, tensor.shape, self._types[tensor.dtype])

    @staticmethod
    def _copied(value: Any, dtype: torch.dtype) -> Tensor:
        """Return a copy of an OpenVINO tensor, which the next call overwrites."""
        array = value.data
        return torch.from_numpy(array.view("int16") if dtype is torch.bfloat16 else array).view(dtype).clone()


def _composition(runtime_model: Any) -> Mapping[str, tuple[tuple[str, ...], int]]:
    """Return the model's operators that each of the engine's operators is made of, and the bytes that it moves."""
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


def _stretch_means(totals: Sequence[float]) -> tuple[float, ...]:
    """Return mean times of a run in the stretches between the 1st, 2nd, 4th, 8th ... run.

    The engine reports the average of all runs so far, in whole microseconds. Differences of totals exclude the first
    run, which touches memory for the first time; growing stretches keep the error by rounding below two microseconds.

    Args:
        totals: total seconds of the first run, of the first 2, of the first 4 and so on.
    """
    stretches = [max(0.0, after - before) for before, after in pairwise(totals)]
    return tuple(stretch / 2**place for place, stretch in enumerate(stretches)) or tuple(totals)


def _reorder_direction(name: str, kind: str) -> str:
    """Return the direction in which a node reorders, by the axis orders in its name: ``in``, ``out`` or empty.

    A dense order lists the axes alphabetically, none of them blocked.
    """
    if kind != "Reorder":
        return ""
    orders = _ORDERS.search(name)
    return "out" if orders is not None and list(orders[2]) == sorted(set(orders[2])) else "in"


def _fixed_shape(shape: Any) -> list[int] | None:
    """Return a shape that is known before the run; None for others."""
    return [int(size) for size in shape.to_shape()] if shape.is_static else None
