"""ONNX Runtime on the CPU (https://onnxruntime.ai), the engine that most exported models are deployed with.

Its thread pool spins for a while after each run, to be ready for the next one; a run reads and writes the caller's
memory (I/O binding), so that nothing is copied.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from taso_py.backend.onnx_call import TYPES, session_options
from taso_py.engines.engine import EngineUnavailableError
from taso_py.engines.session import (
    MODEL_FILE,
    WEIGHTS_FILE,
    WRITES,
    NodeTime,
    OnnxModel,
    Session,
    SessionEngine,
    bytes_of,
    dense,
    input_names_in,
    weights_of,
)
from taso_py.ir.errors import first_line
from taso_py.ir.graph import Graph

_ELEMENT_TYPES: Mapping[torch.dtype, int] = {
    torch.float32: 1,
    torch.uint8: 2,
    torch.int8: 3,
    torch.int16: 5,
    torch.int32: 6,
    torch.int64: 7,
    torch.bool: 9,
    torch.float16: 10,
    torch.float64: 11,
    torch.bfloat16: 16,
}
"""ONNX's ``TensorProto.DataType`` by PyTorch's dtype."""

_KERNEL_TIME = "_kernel_time"
"""Suffix of event names that are times of operators."""
_SIZES = ("activation_size", "parameter_size", "output_size")
"""Fields of an event with bytes of operands and results."""
_REORDERS = {"ReorderInput": "in", "ReorderOutput": "out"}


class OnnxRuntime(SessionEngine):
    """ONNX Runtime with all graph optimizations."""

    name = "onnxruntime"
    library = "onnxruntime"
    file, beside = MODEL_FILE, (WRITES, WEIGHTS_FILE)

    def _session(self, model: OnnxModel, threads: int) -> Session:
        return OnnxRuntimeSession(model, threads)

    def held_bytes(self, graph: Graph) -> int:
        """Return the bytes of weights that a run reads; operators that share a weight each pack a copy."""
        return sum(bytes_of(value) for node in graph.nodes for value in weights_of(node))

    @property
    def version(self) -> str:
        import onnxruntime

        return f"onnxruntime {onnxruntime.__version__}"

    def bind(self, model: OnnxModel, tensors: Sequence[Tensor]) -> Callable[[], object]:
        options = session_options(torch.get_num_threads())
        options.add_session_config_entry("session.force_spinning_stop", "1")
        session = self._open_session(model, options)
        operands = [dense(tensor) for tensor in tensors]
        binding, results = session.binding(operands, are_distinct=False)

        def run() -> object:
            session.session.run_with_iobinding(binding)
            return operands, results  # keeps the bound memory alive

        return run

    def profile(self, model: OnnxModel, tensors: Sequence[Tensor], runs: int) -> Sequence[NodeTime]:
        with TemporaryDirectory() as folder:
            options = session_options(torch.get_num_threads())
            options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "profile")
            session = self._open_session(model, options)
            for _ in range(1 + runs):
                session(*tensors)
            events = json.loads(Path(session.session.end_profiling()).read_text())
        return _node_times(events)

    def _open_session(self, model: OnnxModel, options: Any) -> OnnxRuntimeSession:
        try:
            return OnnxRuntimeSession(model, options.intra_op_num_threads, options)
        except Exception as error:  # ONNX Runtime's errors have no common class
            raise EngineUnavailableError(f"{self.name} cannot run this module: {first_line(error)}") from error

    def _files(self, session: Session) -> Mapping[str, bytes]:
        return session.model.files


class OnnxRuntimeSession(Session):
    """A model compiled by ONNX Runtime."""

    def __init__(self, model: OnnxModel, threads: int, options: Any = None) -> None:
        """Compile a model.

        Args:
            model: the model.
            threads: the number of threads.
            options: settings in place of those from :func:`session_options`.
        """
        import onnxruntime

        super().__init__(model, threads)
        chosen = options or session_options(threads)
        self.session = onnxruntime.InferenceSession(model.content, chosen, providers=["CPUExecutionProvider"])
        arguments = [*self.session.get_inputs(), *self.session.get_outputs()]
        if any(TYPES.get(argument.type) is torch.float64 for argument in arguments):
            # What it fuses beyond the basics it computes by factors in single precision.
            chosen.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
            self.session = onnxruntime.InferenceSession(model.content, chosen, providers=["CPUExecutionProvider"])
        read = [argument.name for argument in self.session.get_inputs()]
        self._read, self._inputs = frozenset(read), input_names_in(read, model)
        outputs = [(result.name, TYPES[result.type], result.shape) for result in self.session.get_outputs()]
        self._returned = tuple([name for name, _, _ in outputs])
        # A user's file may return an input, or a value twice, for which a binding has no place to write to.
        computed = {output[0]: output for output in outputs if output[0] not in self._read}
        self._outputs = [
            (name, dtype, shape if all(isinstance(size, int) and size > 0 for size in shape) else None)
            for name, dtype, shape in computed.values()
        ]

    def forward(self, *tensors: Tensor) -> Sequence[Tensor]:
        operands = [dense(tensor) for tensor in tensors]
        binding, results = self.binding(operands)
        self.session.run_with_iobinding(binding)
        found = [result for result in results if result is not None]
        if len(found) < len(results):
            found = [
                # Booleans are returned as bytes.
                torch.from_dlpack(value).view(dtype) if result is None else result
                for value, result, (_, dtype, _) in zip(binding.get_outputs(), results, self._outputs, strict=True)
            ]
        return found if len(found) == len(self._returned) else self._all_returned(operands, found)

    def _all_returned(self, operands: Sequence[Tensor], computed: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the outputs in order, given those that are computed: copies of inputs are among them."""
        values = dict(zip(self._inputs, operands, strict=True))
        values |= {name: value for (name, _, _), value in zip(self._outputs, computed, strict=True)}
        return [values[name].clone() if name in self._read else values[name] for name in self._returned]

    def binding(self, operands: Sequence[Tensor], *, are_distinct: bool = True) -> tuple[Any, Sequence[Tensor | None]]:
        """Return a binding of dense operands and new results for a run, and the results, each that is computed once.

        The binding holds addresses: operands and results must be kept alive until after the run. A result is None if
        its size is only known afterwards.

        Args:
            operands: the operands.
            are_distinct: whether each result has its own memory; otherwise results overwrite each other.
        """
        memory: dict[tuple[torch.dtype, tuple[int, ...]], Tensor] = {}
        binding = self.session.io_binding()
        for name, tensor in zip(self._inputs, operands, strict=True):
            place = tensor.data_ptr()
            if name in self._read:
                binding.bind_input(name, "cpu", 0, _ELEMENT_TYPES[tensor.dtype], tensor.shape, place)
        results: list[Tensor | None] = []
        for name, dtype, shape in self._outputs:
            if shape is None:  # its size is only known after the run
                binding.bind_output(name)
                results.append(None)
            else:
                result = torch.empty(shape, dtype=dtype, device="cpu")
                if not are_distinct:
                    result = memory.setdefault((dtype, tuple(shape)), result)
                binding.bind_output(name, "cpu", 0, _ELEMENT_TYPES[dtype], shape, result.data_ptr())
                results.append(result)
        return binding, results


def _node_times(events: Sequence[Mapping[str, Any]]) -> Sequence[NodeTime]:
    """Return the times of operators from the events of a profile, the first run left out."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for event in events:
        name = str(event["name"])
        if event["cat"] == "Node" and name.endswith(_KERNEL_TIME):
            found.setdefault((name.removesuffix(_KERNEL_TIME), event["args"]["node_index"]), []).append(event)
    return [_node_time(name, told[1:] or told) for (name, _), told in found.items()]


def _node_time(name: str, events: Sequence[Mapping[str, Any]]) -> NodeTime:
    told = events[0]["args"]
    kind = str(told["op_name"])
    return NodeTime(
        name,
        kind,
        tuple(event["dur"] * 1e-6 for event in events),
        _REORDERS.get(kind, ""),
        names=(name,),
        moved_bytes=sum(int(told[size]) for size in _SIZES if size in told),
    )
