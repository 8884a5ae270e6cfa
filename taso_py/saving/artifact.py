"""The saved result: a folder with the program, its plan, the report and the trace.

``model.pt2`` is plain ATen and loads with ``torch.export.load`` anywhere; ``plan.json`` names the runtime and the
kernels that compute it. Packed weights are not saved: they are packed again when the plan is applied.

Invariant: a loaded program and the plan that is applied to it were saved by the same run.
"""

from __future__ import annotations

import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, fx, nn
from torch._dynamo.exc import UserError
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from taso_py.backend import Program, build
from taso_py.backend.plan import NO_PLAN, Plan
from taso_py.backend.tracing import quiet, silent
from taso_py.backend.weights import STATE, tie
from taso_py.checking.preserve import preserve_buffers, preserve_inputs
from taso_py.checking.resize import OpenInputs
from taso_py.engines.aot import ARCHIVE, with_extra
from taso_py.engines.engine import EngineUnavailableError, Runner
from taso_py.engines.table import ENGINES
from taso_py.frontend import import_program
from taso_py.frontend.reexport import reexport
from taso_py.ir.errors import first_line
from taso_py.kernels.saved import restore
from taso_py.report.optimization import Report
from taso_py.saving.folder import MODEL, PLAN, REPORT, TRACE, ArtifactError, as_json, check_digests, write_result
from taso_py.saving.warmup import Sizes, warm_up
from taso_py.saving.weights_file import read_weights

_log = logging.getLogger(__name__)
VERSION = 5
"""Version of the format of ``plan.json``."""
LIVE = "live.json"
"""The part of a ``.pt2`` file that names the buffers that only other entry points write to."""


class UnsavableError(ArtifactError):
    """Raised for a program that cannot be written to a file, or whose file cannot be read back."""


def serialize(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: dict[str, Any] | None = None
) -> bytes:
    """Export a module again and return it as the content of a ``.pt2`` file.

    Args:
        module: the module to save.
        args: positional example inputs.
        kwargs: keyword example inputs.
        shapes: the open sizes, as returned by :func:`taso_py.frontend.reexport.open_shapes`.

    Raises:
        UnsavableError: the module cannot be saved.
    """
    buffer = io.BytesIO()
    with quiet():
        try:
            exported = reexport(module, args, kwargs, shapes)
        except UserError as error:
            raise UnsavableError(f"torch.export cannot keep these sizes open: {first_line(error)}") from error
        try:
            _check_structures(exported.call_spec.in_spec, exported.call_spec.out_spec)
            torch.export.save(exported, buffer, extra_files={LIVE: json.dumps(_live_names(module, exported))})
        except Exception as error:  # torch.export raises errors of many kinds for values that it cannot save
            raise UnsavableError(f"torch.export cannot save it: {first_line(error).partition('. ')[0]}") from error
    return buffer.getvalue()


def _live_names(module: nn.Module, exported: ExportedProgram) -> list[str]:
    """Return the names of a built module's buffers that only other entry points write to."""
    places: Mapping[str, str] = getattr(module, "meta", {}).get(STATE, {})
    return sorted(set(places.values()) - set(exported.graph_signature.buffers_to_mutate.values()))


def _check_structures(arguments: pytree.TreeSpec | None, result: pytree.TreeSpec | None) -> None:
    """Check that the structures of arguments and result are unchanged when they are read back."""
    if result is not None and not result.num_leaves:
        raise ValueError("the model returns nothing")
    for spec in (arguments, result):
        # Tuples as keys, for example, are written without an error and come back as lists.
        if spec is not None and pytree.treespec_loads(pytree.treespec_dumps(spec)) != spec:
            raise ValueError("the keys of a dict are read back as something else")


def reimport(content: bytes) -> Program:
    """Import the program in a ``.pt2`` file's content; a plan for it refers to its nodes.

    Raises:
        ArtifactError: the file has no example inputs, so that it was not written by :func:`serialize`.
    """
    return _read_back(content).imported()


def exported_program(content: bytes) -> tuple[ExportedProgram, tuple[Any, ...], dict[str, Any]]:
    """Return the exported program in a ``.pt2`` file's content, with its example inputs.

    Raises:
        ArtifactError: the file has no example inputs, so that it was not written by :func:`serialize`.
    """
    saved = _read_back(content)
    return saved.exported, *saved.inputs


@dataclass(frozen=True)
class SavedProgram:
    """The program of a saved result, as ``torch.export`` reads it."""

    exported: ExportedProgram
    live: Collection[str] = ()
    """Names of buffers that only other entry points of its model write to."""

    @classmethod
    def read(cls, file: Path | io.BytesIO) -> Self:
        """Read the program in a ``.pt2`` file, which raises errors of many kinds."""
        beside = {LIVE: ""}
        # torch.export.load reads tensors to the default device before it moves them to the one that the file states.
        with torch.device("cpu"):
            exported = torch.export.load(file, extra_files=beside)
        return cls(exported, json.loads(beside[LIVE] or "[]"))

    @property
    def inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The example inputs.

        Raises:
            ArtifactError: there are none, so that the file was not written by :func:`serialize`.
        """
        if self.exported.example_inputs is None:
            raise ArtifactError(f"{MODEL} has no example inputs; optimize the model again")
        return self.exported.example_inputs

    def imported(self) -> Program:
        """Import the program; the saved plan refers to the nodes of its graph.

        Raises:
            ArtifactError: it has no example inputs.
            ImportRefusal: it cannot be imported again.
        """
        return import_program(self.exported, *self.inputs, self.live)

    def fill(self, weights: Mapping[str, Tensor]) -> None:
        """Give the program the tensors that it was saved without, by name; they are not copied."""
        state = self.exported.state_dict
        for name, tensor in weights.items():
            is_parameter = isinstance(state[name], nn.Parameter)
            state[name] = nn.Parameter(tensor, state[name].requires_grad) if is_parameter else tensor

    def content(self) -> bytes:
        """Return the content of a ``.pt2`` file."""
        buffer = io.BytesIO()
        with quiet():
            torch.export.save(self.exported, buffer, extra_files={LIVE: json.dumps(sorted(self.live))})
        return buffer.getvalue()


def _read_back(content: bytes) -> SavedProgram:
    with quiet():
        try:
            return SavedProgram.read(io.BytesIO(content))
        except Exception as error:  # always a RuntimeError, which refers to a log for its cause
            raise UnsavableError("torch.export cannot read back what it has saved") from error


def without_weights(content: bytes) -> tuple[bytes, Mapping[str, Tensor]]:
    """Return the content of a ``.pt2`` file whose program has no weights, and the weights by name.

    Each is replaced by a single number, so that a program that was not given its weights cannot be run.
    """
    saved = _read_back(content)
    weights = dict(saved.exported.state_dict)
    saved.fill({name: torch.zeros(1, dtype=tensor.dtype) for name, tensor in weights.items()})
    return saved.content(), weights


def deserialize(content: bytes, plan: Mapping[str, Any] | None = None) -> fx.GraphModule:
    """Return the module in the content written by :func:`serialize`, built by a plan if there is one.

    Raises:
        UnsavableError: the content cannot be read back.
        ImportRefusal: the program cannot be imported again.
    """
    return _build(_read_back(content), partial(restore_plan, plan))


def _build(saved: SavedProgram, planned: Callable[[Program], Plan]) -> fx.GraphModule:
    program = saved.imported()
    module = build(program, planned(program))
    # What was read from a file belongs to this module alone, or to all entry points that it was saved with.
    tie(module, saved.exported.state_dict)
    return module


def restore_plan(plan: Mapping[str, Any] | None, program: Program) -> Plan:
    """Return a plan in the form of ``plan.json`` for the program that the file was imported as."""
    return NO_PLAN if plan is None else restore(program.graph, plan, program.device)


def save(
    directory: Path,
    content: bytes,
    report: Report,
    trace: str,
    plan: Mapping[str, Any] | None = None,
    others: Mapping[str, bytes] | None = None,
    weights: WeightsPlace | None = None,
) -> Mapping[str, Any]:
    """Write a result without its page, and delete the files of an earlier result.

    Args:
        directory: the folder.
        content: the ``.pt2`` file.
        report: the report.
        trace: the trace as text.
        plan: the kernels; None for plain ATen calls.
        others: the program in other formats, files by name; an archive is given report, trace and plan.
        weights: where the program's weights are if it was saved without them, as :class:`WeightsPlace` has it.

    Returns:
        The content of ``plan.json``.

    Raises:
        ArtifactError: the folder cannot be written.
    """
    said = {
        "version": VERSION,
        "model": MODEL,
        "runtime": report.runtime,
        "device": report.device,
        "threads": report.environment.get("threads"),
        "plan": plan,
        "weights": weights and asdict(weights),
    }
    told = {REPORT: as_json(report.as_dict()), TRACE: trace.encode()}
    files = {MODEL: content, **told, **(others or {})}
    if ARCHIVE in files:
        files[ARCHIVE] = with_extra(files[ARCHIVE], {**told, PLAN: as_json(said)})
    return write_result(directory, files, said)


@dataclass(frozen=True)
class WeightsPlace:
    """Where the weights of a program are that was saved without them."""

    file: str
    """The file, relative to the folder of the result."""
    program: str
    """The program's name in the file."""
    digest: str
    """The digest of the file."""


@dataclass(frozen=True)
class SavedResult:
    """A saved result: its program, and how that is computed."""

    folder: Path
    program: Path
    runtime: str
    files: Mapping[str, str]
    """The digests of the files in the folder."""
    threads: int | None
    """The number of threads that it was measured with; None on a GPU, or if unknown."""
    plan: Any
    """The plan as :func:`taso_py.kernels.saved.dump` returns it; None for plain ATen calls."""
    weights: WeightsPlace | None = None
    """Where its weights are, if its program was saved without them."""

    @property
    def other_threads(self) -> str | None:
        """A warning if PyTorch uses another number of threads than the result was measured with; else None."""
        here = torch.get_num_threads()
        if self.threads in (None, here):
            return None
        return (
            f"{self.folder} was measured with {self.threads} threads, and PyTorch uses {here} here, so that its "
            "kernels may not be the fastest; call torch.set_num_threads, or optimize the model again"
        )

    def warn_of_threads(self, stacklevel: int) -> None:
        """Warn if PyTorch uses another number of threads than it was measured with."""
        if self.other_threads is not None:
            warnings.warn(self.other_threads, stacklevel=stacklevel + 1)

    def plan_for(self, program: Program) -> Plan:
        """Return the plan for the program as it was imported here.

        Raises:
            ArtifactError: the plan is not for this program.
        """
        try:
            return restore_plan(self.plan, program)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            problem = f"{self.folder / PLAN} has no plan for {self.program.name}"
            raise ArtifactError(f"{problem}: {error!r}; optimize the model again") from error

    def read_weights(self) -> Mapping[str, Tensor]:
        """Read the weights that the program was saved without; none if it has them.

        Raises:
            ArtifactError: their file is damaged, or of another run.
        """
        place = self.weights
        return {} if place is None else read_weights(self.folder / place.file, place.digest)[place.program]

    def check(self) -> None:
        """Check, after the program was read, that its file is of the same run as the plan.

        Raises:
            ArtifactError: it is of another run.
        """
        check_digests(self.folder, self.files, ENGINES[self.runtime].file)


def read(directory: str | os.PathLike[str]) -> SavedResult:
    """Read the description of a saved result from its folder.

    Raises:
        ArtifactError: the folder holds no saved result.
    """
    folder = Path(directory)
    try:
        saved = json.loads((folder / PLAN).read_text())
        version, runtime, program = saved["version"], saved["runtime"], folder / str(saved["model"])
        program.open("rb").close()
        files = dict(saved["files"]) if version == VERSION else {}
        weights = WeightsPlace(**saved["weights"]) if saved.get("weights") else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{folder} holds no saved result: {error!r}; it needs {PLAN} and {MODEL}") from error
    if version != VERSION:
        raise ArtifactError(f"{folder / PLAN} is of version {version}, not {VERSION}; optimize the model again")
    if runtime not in ENGINES:
        raise ArtifactError(f"{folder / PLAN} names the unknown runtime {runtime!r}; there are {', '.join(ENGINES)}")
    return SavedResult(
        folder=folder,
        program=program,
        runtime=runtime,
        files=files,
        threads=saved.get("threads") or None,
        plan=saved.get("plan"),
        weights=weights,
    )


def load(directory: str | os.PathLike[str], *, warmup: Iterable[Sizes] = ()) -> Runner:
    """Load a saved result, ready to run; warn if PyTorch uses another number of threads than it was measured with.

    Args:
        directory: the folder.
        warmup: open sizes to call it with once, since the first call at a size is slow: numbers if one size is open,
            dicts by the names in the report if there are several.

    Raises:
        ArtifactError: the folder holds no saved result, or a file of it is damaged.
        WarmupError: the result does not have these sizes.
    """
    saved, sizes = read(directory), list(warmup)
    saved.warn_of_threads(stacklevel=3)  # the caller of the public function, which calls this one
    return run_saved(saved, saved.read_weights(), sizes)


def run_saved(saved: SavedResult, weights: Mapping[str, Tensor], warmup: Iterable[Sizes] = ()) -> Runner:
    """Return a saved result ready to run.

    Args:
        saved: the result.
        weights: the tensors by name that its program was saved without. The runner reads them, and writes its state to
            them; they are not copied.
        warmup: open sizes to call it with once.

    Raises:
        ArtifactError: a file of it is damaged.
        WarmupError: the result does not have these sizes.
    """
    # Tensors made in inference mode cannot be written to outside of it.
    with torch.inference_mode(mode=False):
        program = _load_program(saved)
        program.fill(weights)
        runner = _prepare(saved, program)
        if warmup:
            warm_up(runner, OpenInputs.of(program.imported()), warmup)
        return runner


def _load_program(saved: SavedResult) -> SavedProgram:
    try:
        with silent():
            program = SavedProgram.read(saved.program)
    except Exception as error:  # torch raises errors of many kinds for a damaged archive
        raise ArtifactError(f"{saved.program} cannot be read: {first_line(error)}; optimize the model again") from error
    saved.check()
    return program


def _prepare(saved: SavedResult, program: SavedProgram) -> Runner:
    engine = ENGINES[saved.runtime]
    if engine.file:
        try:
            return engine.restore(program.imported(), saved.folder)
        except EngineUnavailableError as error:
            _log.warning("%s; %s is run by PyTorch instead", error, saved.folder)
            return _build(program, lambda imported: saved.plan_for(imported).eager())
    module = _build(program, saved.plan_for)
    exported = program.exported
    if saved.runtime == "eager" or exported.example_inputs is None:
        return module
    args, kwargs = exported.example_inputs
    with preserve_buffers([module]), preserve_inputs((args, kwargs)):
        return engine.prepare(module, args, kwargs, resizable=bool(exported.range_constraints))
