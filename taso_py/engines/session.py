"""Engines that take a whole graph as an ONNX model and compute it in their own runtime.

Such an engine compiles a graph to a session: a callable from tensors to tensors. Dense operands are passed without a
copy.

Invariant: several threads may call one session; results are in memory that belongs to the caller.
"""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from taso_py.backend import NO_PLAN, Plan, Program
from taso_py.backend.division import Division, divided
from taso_py.backend.guard import ArgumentError
from taso_py.backend.identifiers import identifiers, input_names
from taso_py.backend.storage import COMPUTES
from taso_py.backend.tensors import TORCH_DTYPES, tensors_in
from taso_py.backend.tracing import quiet
from taso_py.backend.writes import state_of
from taso_py.engines.engine import CompiledGraph, Engine, EngineUnavailableError, Runner
from taso_py.files import ScratchFolder
from taso_py.ir.errors import first_line
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.ir.text import print_graph
from taso_py.kernels.layout import is_weight
from taso_py.ops.nested import types_in
from taso_py.ops.table import parse_graph

EXTRA = "pip install 'taso-py[engines]'"
"""How to install what these engines need."""
LARGE = 1 << 24
"""Bytes of weights from which models are written to files, with the weights in one of their own, which engines map. In
memory a model is copied twice before an engine has it, which takes seconds for a gigabyte, and has 2 GB at most."""
MODEL_FILE, WEIGHTS_FILE = "model.onnx", "model.onnx.data"
"""The names of such files, and of those that ONNX Runtime's results are saved in."""
WRITER = "onnx_ir"
"""The Python package that models are written with; those that are written are run without it."""
WRITES = "writes.graph"
"""The name of the file beside an engine's own that says what is written where, if anything is. Results of earlier
releases have none; their engines return whole contents."""


@dataclass(frozen=True)
class OnnxModel:
    """A graph in a format that engines read."""

    content: bytes | Path
    """The ONNX model, its file, or a file in an engine's own format."""
    inputs: tuple[str, ...]
    """The names of the graph's inputs in order; engines may drop those that nothing reads."""
    late: Graph | None = None
    """Makes what is written of what it returns (:func:`~taso_py.backend.division.divided`); None if nothing is, or if
    it returns whole contents."""
    most: int | None = None
    """The largest magnitude of integers that it may be given; None if that is no matter."""
    folder: ScratchFolder | None = None
    """The folder of its file, unless that is a user's."""

    @property
    def as_bytes(self) -> bytes:
        """The ONNX model in one piece, weights included.

        Raises:
            EngineUnavailableError: the weights are too large for that.
        """
        first, *others = self.files.values()
        if others:
            raise EngineUnavailableError(f"an ONNX model of {len(others[0]) / 2**30:.1f} GB does not fit into one file")
        return first

    @property
    def files(self) -> Mapping[str, bytes]:
        """The ONNX model as files by name: one, and another with the weights if these are too large for that."""
        if isinstance(self.content, bytes):
            return {MODEL_FILE: self.content}
        from taso_py.backend.onnx import NotInOnnx, onnx_bytes, with_weights

        content, weights = self.content.read_bytes(), self.content.with_name(WEIGHTS_FILE)
        if not weights.is_file():
            return {MODEL_FILE: content}
        try:
            return {MODEL_FILE: onnx_bytes(with_weights(self.content))}
        except NotInOnnx:
            return {MODEL_FILE: content, WEIGHTS_FILE: weights.read_bytes()}


class Session(CompiledGraph):
    """A compiled ONNX model."""

    def __init__(self, model: OnnxModel, threads: int) -> None:
        """Store the model that it is compiled from.

        Args:
            model: the model.
            threads: the number of threads.
        """
        super().__init__()
        self.model, self.threads = model, threads


class FileModule(nn.Module):
    """A user's ONNX file in a session: called with tensors, it returns one, or a tuple of several."""

    def __init__(self, session: Session) -> None:
        """Wrap a session."""
        super().__init__()
        self.add_module(COMPUTES, session)

    def forward(self, *tensors: Tensor) -> Any:
        """Compute the outputs."""
        session = CompiledGraph.of(self)
        assert session is not None
        results = tuple(session(*tensors))
        return results[0] if len(results) == 1 else results


@dataclass(frozen=True)
class NodeTime:
    """Times of one operator from an engine's profiler."""

    name: str
    """Name in the engine's graph."""
    kind: str
    """The engine's name for the operation."""
    samples: tuple[float, ...]
    """Seconds in each run."""
    reorders: str = ""
    """``in`` if it reorders a value into the engine's own order, ``out`` if back; else empty."""
    names: tuple[str, ...] = ()
    """Names of the model's operators and outputs that it computes, as far as the engine reports them; an operator's
    begins with the name and digest of a node of our graph."""
    moved_bytes: int = 0
    """Bytes of its operands and results; 0 if unknown."""

    @cached_property
    def seconds(self) -> float:
        """The median of the runs."""
        return median(self.samples)

    @cached_property
    def quartiles(self) -> tuple[float, float]:
        """The quartiles of the runs, in seconds."""
        if len(self.samples) == 1:
            return self.seconds, self.seconds
        low, _, high = quantiles(self.samples, n=4, method="inclusive")
        return low, high


class SessionEngine(Engine):
    """An engine that compiles ONNX models for the CPU."""

    devices = ("cpu",)
    has_own_threads = True
    library: str
    """The Python package that runs models."""

    @property
    def prices(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride] -- its own, always
        """The engine's name, since its latencies are its own."""
        return self.name

    def absence(self, device: torch.device) -> str | None:
        return self._lack(device, (self.library, WRITER))

    def _lack(self, device: torch.device, packages: Sequence[str]) -> str | None:
        """Return why the engine cannot be used on a device with some Python packages, in one line; None if it can."""
        if device.type != "cpu":
            return f"{self.name} runs on the CPU here; use --device cpu, or another runtime"
        for package in packages:
            try:
                importlib.import_module(package)
            except ImportError as error:
                return f"{self.name} needs {package} ({first_line(error)}); {EXTRA}"
            except Exception as error:  # a library of another version, or for another processor
                return f"{package} does not load here: {first_line(error)}"
        return None

    def build(self, program: Program, plan: Plan = NO_PLAN) -> nn.Module:
        session = self.compile(self.model_of(program.graph, program.weights))
        return self.build_around(program, session, session.model.late)

    def files(self, module: nn.Module) -> Mapping[str, bytes]:
        session = CompiledGraph.of(module)
        if not isinstance(session, Session):
            return {}
        late = session.model.late
        return {**self._files(session), **({} if late is None else {WRITES: (print_graph(late) + "\n").encode()})}

    def restore(self, program: Program, folder: Path) -> nn.Module:
        reason = self._lack(program.device, (self.library,))
        if reason is not None:
            raise EngineUnavailableError(reason)
        session = self.compile(self.saved_model(program, folder / self.file))
        return self.build_around(program, session, session.model.late)

    def model_of(self, graph: Graph, weights: Mapping[str, Tensor]) -> OnnxModel:
        """Return a graph as an ONNX model, weights included; what it writes to is taken and returned.

        Raises:
            EngineUnavailableError: the graph cannot be expressed, or would be computed differently.
        """
        # Imported here, with all rows: what was saved is run without.
        from taso_py.backend.onnx import NotInOnnx, onnx_model

        self._check_effects(graph)
        division = divided(graph)
        late = division.late if division.graph.effects else None
        count, graph = len(graph.outputs), division.pure
        outputs = [f"output_{place}" for place in range(count)]
        outputs += [f"written_{place}" for place in range(len(graph.outputs) - count)]
        try:
            model = onnx_model(graph, weights, output_names=outputs)
            reason = self.misfit(graph, weights)
            if reason is not None:
                raise EngineUnavailableError(f"{self.name} cannot run this module: {reason}")
            content, folder = _written(model)
            return OnnxModel(content, input_names(graph), late, self.most_given(division, weights), folder)
        except NotInOnnx as error:
            raise EngineUnavailableError(f"{self.name} cannot run this module: {error}") from error

    def misfit(self, graph: Graph, weights: Mapping[str, Tensor]) -> str | None:
        """Return why the engine would not compute the graph as stated, in a few words; None if it would.

        Engines fail on tensors without elements, or return other sizes.
        """
        empty = next((type_ for type_ in types_in(graph) if 0 in type_.shape), None)
        return None if empty is None else f"it has values without elements ({empty.text})"

    def most_given(self, division: Division, weights: Mapping[str, Tensor]) -> int | None:
        """Return the largest magnitude of integers that the pure part of a graph may be given; None for any."""
        return None

    def saved_model(self, program: Program, path: Path) -> OnnxModel:
        """Return the engine's file of a saved result as a model, given the program that it computes."""
        writes, division = path.with_name(WRITES), divided(program.graph)
        late = parse_graph(writes.read_text()) if division.graph.effects and writes.is_file() else None
        most = self.most_given(division, program.weights)
        return OnnxModel(path, input_names(Graph(division.inputs, ())), late, most)

    def compile(self, model: OnnxModel, threads: int | None = None) -> Session:
        """Compile an ONNX model, or the file of a saved result; by default on PyTorch's number of threads.

        Raises:
            EngineUnavailableError: the engine refuses the model.
        """
        try:
            return self._session(model, threads or torch.get_num_threads())
        except Exception as error:  # these libraries' errors have no common class
            raise EngineUnavailableError(f"{self.name} cannot run this module: {first_line(error)}") from error

    def held_bytes(self, graph: Graph) -> int:
        """Return the bytes of weights that a run of a graph reads, each weight counted once."""
        return sum(bytes_of(value) for value in {value for node in graph.nodes for value in weights_of(node)})

    @property
    @abstractmethod
    def version(self) -> str:
        """Name and version, under which latencies are stored."""

    @abstractmethod
    def bind(self, model: OnnxModel, tensors: Sequence[Tensor]) -> Callable[[], object]:
        """Return a function that runs a model on tensors in place, after which the engine's threads are soon idle.

        Raises:
            EngineUnavailableError: the engine refuses the model.
        """

    def count(self, model: OnnxModel, tensors: Sequence[Tensor]) -> int:
        """Return the number of operators that an engine compiles a model to, without reordering."""
        return sum(not time.reorders for time in self.profile(model, tensors, 1))

    @abstractmethod
    def profile(self, model: OnnxModel, tensors: Sequence[Tensor], runs: int) -> Sequence[NodeTime]:
        """Return the times of the engine's operators for a model, in the order of a run.

        Args:
            model: the model.
            tensors: its inputs, in order.
            runs: the number of runs; a further first run may be left out.

        Raises:
            EngineUnavailableError: the engine refuses the model.
        """

    @abstractmethod
    def _session(self, model: OnnxModel, threads: int) -> Session: ...

    @abstractmethod
    def _files(self, session: Session) -> Mapping[str, bytes]: ...

    def export_module(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> OnnxModel:
        """Return a module exported by PyTorch's own ONNX exporter, which is what users of the engine do without us.

        Raises:
            EngineUnavailableError: the module is too large for an ONNX model in a single file.
        """
        with quiet():
            program = torch.onnx.export(module, tuple(args), kwargs=dict(kwargs), dynamo=True, verbose=False)
        assert program is not None
        try:
            proto = program.model_proto
            return OnnxModel(proto.SerializeToString(), tuple(value.name for value in proto.graph.input))
        except Exception as error:  # beyond protobuf's limit; its errors have no common class
            raise EngineUnavailableError(f"{self.name} cannot run this module: {first_line(error)}") from error

    def _runner(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], resizable: bool) -> Runner:
        """Export a module by PyTorch's ONNX exporter; results are returned in the module's structure."""
        session = self.compile(self.export_module(module, args, kwargs))
        structure = pytree.tree_structure(module(*args, **kwargs))

        def run(*args: Any, **kwargs: Any) -> Any:
            return pytree.tree_unflatten(list(session(*tensors_in(args, kwargs))), structure)

        return run


def _written(model: Any) -> tuple[bytes | Path, ScratchFolder | None]:
    """Return the content of a model; or its file and the file's folder if it is large.

    Raises:
        NotInOnnx: it is too large for memory, and there is no room for its file.
    """
    from taso_py.backend.onnx import onnx_bytes, save, weight_bytes

    if weight_bytes(model) < LARGE:
        return onnx_bytes(model), None
    try:
        folder = ScratchFolder()
        save(model, folder.path / MODEL_FILE, WEIGHTS_FILE)
    except OSError:  # the disk is full, or read only
        return onnx_bytes(model), None
    return folder.path / MODEL_FILE, folder


def model_inputs(program: Program) -> Sequence[Tensor]:
    """Return example inputs of a program's model: those of the program, and its state."""
    return [*program.example_inputs, *(program.weights[key] for key in state_of(program.graph))]


def weights_of(node: Node) -> Sequence[Value]:
    """Return the operands of a node that are weights read from memory, if it is computed at run time."""
    return [] if node.is_static else [value for value in node.inputs if is_weight(value)]


def bytes_of(value: Value) -> int:
    """Return the number of bytes of a value."""
    return value.type.elements * TORCH_DTYPES[value.type.dtype].itemsize


def input_names_in(found: Sequence[str], model: OnnxModel) -> tuple[str, ...]:
    """Return the names that an engine has for a model's inputs, in order.

    Args:
        found: the names of the inputs that the engine asks for. A file with the names of a user's ONNX model may have
            some that Python does not allow, in whose place programs have others.
        model: the model.

    Raises:
        ValueError: the engine asks for an input that the model does not have.
    """
    if set(found) <= set(model.inputs):
        return model.inputs
    given = dict(zip(identifiers(found), found, strict=True))
    names = tuple(given.get(name, name) for name in model.inputs)
    strange = sorted(set(found) - set(names))
    if strange:
        raise ValueError(f"the saved model has inputs of another program: {', '.join(strange)}")
    return names


def dense(tensor: Tensor) -> Tensor:
    """Return a tensor in row-major order without gradient history; unchanged if it is so already.

    Raises:
        ArgumentError: it is on another device, where the engine would read something else.
    """
    if not tensor.is_cpu:
        raise ArgumentError(f"this module computes on the CPU, and was given a tensor on {tensor.device}")
    return tensor.detach().contiguous().resolve_conj().resolve_neg()
