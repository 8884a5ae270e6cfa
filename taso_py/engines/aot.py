"""AOTInductor: Inductor ahead of time, into an archive that runs without compiling, in Python and in C++.

The archive is a PT2 file (https://docs.pytorch.org/docs/stable/torch.compiler_aot_inductor.html): machine code for the
processor that it was compiled on, weights included, oneDNN's packed ones in their own layout.
``torch._inductor.aoti_load_package`` reads it without this package. MKL's packed weights cannot be inside, since where
they lie in their buffer depends on its address; oneDNN computes those layers instead.

Invariant: an archive is loaded only by the release of PyTorch, and on a processor with all the instructions, that it
was compiled with; this is checked before any of its code runs.
"""

from __future__ import annotations

import importlib
import io
import logging
import zipfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from taso_py.backend import NO_PLAN, Fixed, Plan, Program, build, fold
from taso_py.backend.bits import resolved
from taso_py.backend.division import written_before
from taso_py.backend.plan import PlanStep
from taso_py.backend.schema import storage_of
from taso_py.backend.tracing import quiet, silent
from taso_py.backend.weights import assemble
from taso_py.backend.writes import Writes, state_of
from taso_py.engines.engine import CompiledGraph, Engine, EngineUnavailableError, Runner
from taso_py.engines.inductor import PACKS, packing
from taso_py.engines.names import AOT_INDUCTOR
from taso_py.frontend import import_module
from taso_py.frontend.reexport import example_arguments, open_shapes, reexport
from taso_py.ir.errors import first_line
from taso_py.ir.node import Node
from taso_py.kernels.table import PACKABLE, covers
from taso_py.ops.nested import with_pure_control_flow

ARCHIVE = "model.aot.pt2"
"""The name of the archive in the folder of a result."""
MODEL = "model"
"""The name of the compiled model in an archive, which is also the default of PyTorch's loaders."""
RELEASE, INSTRUCTIONS, THREADS = "TASO_PY_TORCH", "TASO_PY_INSTRUCTIONS", "TASO_PY_THREADS"
"""Keys of an archive's metadata: the release of PyTorch, the processor's instruction sets, the number of threads."""
_FIELD = ","
_EXTRA = "extra"
"""The folder in an archive for files that are not PyTorch's."""

_log = logging.getLogger(__name__)


class AotInductor(Engine):
    """Inductor ahead of time, for the CPU."""

    name = AOT_INDUCTOR
    devices = ("cpu",)
    tiles = PACKABLE
    is_compiler = True
    is_ahead_of_time = True
    file = ARCHIVE

    def absence(self, device: torch.device) -> str | None:
        if device.type == "cpu":
            return None
        return f"{self.name} compiles for the CPU here; use --device cpu, or --runtime inductor or auto"

    def plan_for(self, plan: Plan) -> Plan:
        return packable(plan).compiled()

    def build(self, program: Program, plan: Plan = NO_PLAN) -> nn.Module:
        self._check_effects(program.graph)
        return self._around(program, compile_archive(_purely(program), plan))

    def files(self, module: nn.Module) -> Mapping[str, bytes]:
        graph = CompiledGraph.of(module)
        return {self.file: graph.content} if isinstance(graph, CompiledArchive) else {}

    def restore(self, program: Program, folder: Path) -> nn.Module:
        reason = self.absence(program.device)
        if reason is not None:
            raise EngineUnavailableError(reason)
        try:
            content = (folder / self.file).read_bytes()
        except OSError as error:
            raise EngineUnavailableError(f"{folder / self.file} cannot be read: {error.strerror or error}") from error
        return self._around(program, content)

    def _around(self, program: Program, content: bytes) -> nn.Module:
        program = _purely(program)
        return self.build_around(program, CompiledArchive(content, program), written_before(program.graph))

    def _runner(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], resizable: bool) -> Runner:
        if resizable:
            raise RuntimeError("its open sizes are known only to a program that was imported")
        return self.build(fold(import_module(module, tuple(args), dict(kwargs))))


def _purely(program: Program) -> Program:
    """Return a program whose control flow is pure where it has no other effects, and dropped where nothing reads it."""
    return replace(program, graph=with_pure_control_flow(program.graph))


class CompiledArchive(CompiledGraph):
    """A loaded archive: called with the graph's inputs and state in order, it returns the graph's outputs in order.

    It writes to inputs and state itself. It was compiled with state of its own, whose place that of each call takes.
    """

    def __init__(self, content: bytes, program: Program) -> None:
        """Load an archive.

        Args:
            content: the archive.
            program: the program that it computes.

        Raises:
            EngineUnavailableError: it cannot be loaded here, or computes another program.
        """
        super().__init__()
        self.content = content
        self._loader = load_archive(content, program).loader
        # A call waits for the one before it, and would wait forever where that one needs Python's lock (PyTorch 2.13).
        self._turn = Lock()
        signature = program.signature
        keys = [node.op.key for node in program.graph.inputs]  # pyright: ignore[reportAttributeAccessIssue]
        taken = [leaf for leaf in signature.inputs if isinstance(leaf, str)]
        self._taken = [keys.index(key) for key in taken]
        """For each of the archive's inputs, the place among the graph's."""
        self._given = [signature.outputs.index(place) for place in range(len(program.graph.outputs))]
        """For each of the graph's outputs, the place among the archive's."""
        self._formats = [_memory_format(program.example_inputs[place]) for place in self._taken]
        self._names = _names_of_state(program)
        """For each of the graph's state, the archive's name and the strides that it was compiled for."""
        self._inputs, writes, state = len(keys), Writes.of(program.graph), state_of(program.graph)
        self._is_written = [*(key in writes.inputs for key in taken), *(key in writes.buffers for key in state)]
        """For each of the archive's inputs, and of the graph's state, whether it is written to."""
        unknown = {name for name, _ in self._names} - set(self._loader.get_constant_fqns())
        if unknown:
            raise EngineUnavailableError(f"{ARCHIVE} has no state {min(unknown)}; optimize the model again")

    def forward(self, *tensors: Tensor) -> Sequence[Tensor]:
        """Compute the outputs from the inputs and the state, and write to these."""
        read = [tensors[place] for place in self._taken]
        given = [_laid(tensor, fmt) for tensor, fmt in zip(read, self._formats, strict=True)]
        state = tensors[self._inputs :]
        held = {name: _strided(tensor, by) for tensor, (name, by) in zip(state, self._names, strict=True)}
        with self._turn:
            if held:
                self._loader.load_constants(held, use_inactive=False, check_full_update=False, user_managed=True)
            results = self._loader.boxed_run([*given])
        if not (held or any(self._is_written)):
            return [results[place] for place in self._given]
        for tensor, used, is_written in zip((*read, *state), (*given, *held.values()), self._is_written, strict=True):
            if is_written and used.data_ptr() != tensor.data_ptr():
                tensor.copy_(used)
        theirs = {storage_of(tensor) for tensor in (*given, *held.values())}
        own = [result.clone() if storage_of(result) in theirs else result for result in results]
        return [own[place] for place in self._given]


def _names_of_state(program: Program) -> list[tuple[str, tuple[int, ...]]]:
    """Return the names in an archive of the state of its program, in order, and the strides that it is read with."""
    _, places = assemble(program.graph, program.weights, program.parameters)
    return [(places[key], program.weights[key].stride()) for key in state_of(program.graph)]


def _strided(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Return a tensor if it has these strides, else a copy that has them."""
    tensor = resolved(tensor.detach())
    return tensor if tensor.stride() == strides else tensor.new_empty_strided(tensor.shape, strides).copy_(tensor)


def packable(plan: Plan) -> Plan:
    """Return a plan with the kernels whose packed weights an archive can hold, in place of those for which it cannot.

    Nodes that no such kernel computes in the same memory formats become plain calls.
    """
    steps = {node: step for node, old in plan.steps.items() if (step := _packable_step(node, old)) is not None}
    return replace(plan, steps=steps)


def _packable_step(node: Node, step: PlanStep) -> PlanStep | None:
    if step.kernel is None or step.kernel.name in {tile.name for tile in PACKABLE}:
        return step
    formats = step.reads, step.gives
    found = [cover for cover in covers(node, torch.device("cpu"), PACKABLE) if cover.nodes == step.kernel.nodes]
    steps = [cover.step(formats) for cover in found if formats in cover.formats]
    return max(steps, key=lambda step: step.kernel is not None, default=None)


def compile_archive(program: Program, plan: Plan = NO_PLAN) -> bytes:
    """Return a program as an archive, which takes the original's arguments and returns the same tree.

    It reads tensors as they lie in the example inputs, in channels last or row-major order, and does not check that.
    If the kernels of the plan cannot be inside, Inductor packs what it can.

    Args:
        program: the program; it may draw random numbers, and write to its inputs and buffers.
        plan: the kernels, as :meth:`AotInductor.plan_for` returns them.

    Raises:
        EngineUnavailableError: AOTInductor cannot compile it.
    """
    fixed = [leaf.value for leaf in program.signature.outputs if isinstance(leaf, Fixed) and leaf.value is not None]
    if fixed:
        reason = f"it returns {fixed[0]!r}, and an archive returns tensors only; return tensors"
        raise EngineUnavailableError(f"{AOT_INDUCTOR} cannot run this module: {reason}")
    plans = [NO_PLAN] if not plan.steps or state_of(program.graph) else [plan, NO_PLAN]
    for attempt in plans:
        try:
            return _compiled(program, attempt)
        except Exception as error:  # compilers raise errors of many kinds
            said = f"{AOT_INDUCTOR} cannot run this module: {first_line(error)}"
            if attempt is NO_PLAN:
                raise EngineUnavailableError(said) from error
            _log.warning("%s; Inductor's own kernels take the place of those that were chosen", said)
    raise AssertionError("the last attempt returns or raises")


def _compiled(program: Program, plan: Plan) -> bytes:
    """Return the archive of a program, computed by a plan."""
    from torch._inductor import aoti_compile_and_package  # imported here: it takes as long as PyTorch itself

    module = build(program, plan)
    args, kwargs = pytree.tree_map_only(Tensor, as_read, example_arguments(program))
    with quiet():
        exported = reexport(module, args, kwargs, open_shapes(program))
    with silent(), torch.no_grad(), TemporaryDirectory() as folder:
        path = str(Path(folder) / ARCHIVE)
        settings = _settings(program, plan)
        with _packed_constants(), packing(settings[PACKS]):
            aoti_compile_and_package(exported, package_path=path, inductor_configs=settings)
        return Path(path).read_bytes()


def _settings(program: Program, plan: Plan) -> dict[str, Any]:
    """Return the settings of Inductor for a program."""
    has_state = bool(state_of(program.graph))
    return {
        # Either takes what a buffer holds now for a constant, whatever is written to it (PyTorch 2.13).
        "freezing": not has_state,
        "joint_graph_constant_folding": not has_state,
        # As PyTorch draws them.
        "fallback_random": True,
        "aot_inductor.metadata": {
            RELEASE: _release(torch.__version__),
            INSTRUCTIONS: _FIELD.join(sorted(instruction_sets())),
            THREADS: str(torch.get_num_threads()),
        },
        # What is not left to Inductor is in the plan. Where None is returned, its own layouts fail (PyTorch 2.13).
        "layout_optimization": not plan.steps and Fixed(None) not in program.signature.outputs,
        PACKS: not plan.steps,
    }


@contextmanager
def _packed_constants() -> Generator[None]:
    """Let packed weights be constants: Inductor copies buffers, and a packed one has no strides (PyTorch 2.13)."""
    from torch._inductor import compile_fx
    from torch._inductor.utils import clone_preserve_strides as copy

    def kept(tensor: Tensor) -> Tensor:
        return tensor if tensor.is_mkldnn else copy(tensor)

    with patch.object(compile_fx, "clone_preserve_strides", kept):
        yield


def load_archive(content: bytes, program: Program) -> Any:
    """Return PyTorch's runner of an archive, which is called as the original was.

    Raises:
        EngineUnavailableError: it cannot be loaded here, or computes another program.
    """
    from torch._inductor import aoti_load_package

    with TemporaryDirectory() as folder:
        path = Path(folder) / ARCHIVE
        path.write_bytes(content)
        try:
            with silent():
                bindings: Any = importlib.import_module("torch._C._aoti")
                misfit = misfit_of(bindings.AOTIModelPackageLoader.load_metadata_from_package(str(path), MODEL))
                if misfit is not None:
                    raise EngineUnavailableError(misfit)
                runner: Any = aoti_load_package(str(path))
        except RuntimeError as error:
            raise EngineUnavailableError(f"{ARCHIVE} cannot be read: {first_line(error)}") from error
    if pytree.treespec_loads(runner.loader.get_call_spec()[0]) != program.signature.in_spec:
        raise EngineUnavailableError(f"{ARCHIVE} takes the arguments of another program; optimize the model again")
    return runner


def misfit_of(metadata: Mapping[str, str]) -> str | None:
    """Return why an archive with this metadata cannot be loaded here, in one line; None if it can."""
    release, here = metadata.get(RELEASE), _release(torch.__version__)
    if release != here:
        return f"{ARCHIVE} was compiled by PyTorch {release}, and this is {here}; optimize the model again"
    missing = set(metadata.get(INSTRUCTIONS, "").split(_FIELD)) - instruction_sets()
    if missing:
        named = ", ".join(sorted(missing))
        return f"{ARCHIVE} was compiled for a processor with {named}, unlike this one; optimize the model again"
    return None


def instruction_sets() -> set[str]:
    """Return the processor's architecture and the instruction sets that it has, by PyTorch's names."""
    found: Mapping[str, Any] = torch.cpu.get_capabilities()
    return {str(found.get("architecture")), *(name for name, has in found.items() if has is True)}


def _release(version: str) -> str:
    """Return a version of PyTorch without the name of its build."""
    return version.partition("+")[0]


def as_read(tensor: Tensor) -> Tensor:
    """Return a tensor as an archive that was compiled for it reads it: in channels last or row-major order."""
    return _laid(tensor, _memory_format(tensor))


def _laid(tensor: Tensor, memory_format: torch.memory_format) -> Tensor:
    return resolved(tensor.detach()).contiguous(memory_format=memory_format)


def _memory_format(tensor: Tensor) -> torch.memory_format:
    is_image = tensor.dim() == 4 and not tensor.is_contiguous()
    is_last = is_image and tensor.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if is_last else torch.contiguous_format


def with_extra(archive: bytes, files: Mapping[str, bytes]) -> bytes:
    """Return an archive with further files in its folder ``extra``."""
    buffer = io.BytesIO(archive)
    with zipfile.ZipFile(buffer, "a") as written:
        root = written.namelist()[0].partition("/")[0]
        for name, content in files.items():
            written.writestr(f"{root}/{_EXTRA}/{name}", content)
    return buffer.getvalue()
