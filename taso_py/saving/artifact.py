"""The saved result: a folder with the program, its plan, the report and the trace.

``model.pt2`` is plain ATen and loads with ``torch.export.load`` anywhere; ``plan.json`` names the runtime and the
kernels that compute it; ``program.json``, where there is one, makes it load faster. Packed weights are not saved: they
are packed again when the plan is applied.

Invariant: a loaded program and the plan that is applied to it were saved by the same run.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, fx, nn
from torch._dynamo.exc import UserError
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from taso_py.backend import Program, build
from taso_py.backend.plan import Plan
from taso_py.backend.tracing import quiet, silent
from taso_py.backend.weights import STATE, tie
from taso_py.checking.preserve import preserve_buffers, preserve_inputs
from taso_py.checking.resize import OpenInputs
from taso_py.engines.aot import ARCHIVE, with_extra
from taso_py.engines.engine import Runner
from taso_py.engines.table import ENGINES
from taso_py.frontend import import_program
from taso_py.frontend.reexport import reexport
from taso_py.ir.errors import first_line
from taso_py.saving.compact import COMPACT, describe
from taso_py.saving.folder import MODEL, PLAN, REPORT, TRACE, ArtifactError, as_json, check_digests, write_result
from taso_py.saving.result import VERSION, SavedResult, WeightsPlace, restore_plan
from taso_py.saving.warmup import Sizes, warm_up

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
            check_structures(exported.call_spec.in_spec, exported.call_spec.out_spec)
            torch.export.save(exported, buffer, extra_files={LIVE: json.dumps(_live_names(module, exported))})
        except Exception as error:  # torch.export raises errors of many kinds for values that it cannot save
            raise UnsavableError(f"torch.export cannot save it: {first_line(error).partition('. ')[0]}") from error
    return buffer.getvalue()


def _live_names(module: nn.Module, exported: ExportedProgram) -> list[str]:
    """Return the names of a built module's buffers that only other entry points write to."""
    places: Mapping[str, str] = getattr(module, "meta", {}).get(STATE, {})
    return sorted(set(places.values()) - set(exported.graph_signature.buffers_to_mutate.values()))


def check_structures(arguments: pytree.TreeSpec | None, result: pytree.TreeSpec | None) -> None:
    """Check that the structures of arguments and result are unchanged when they are read back.

    Errors are of many kinds: containers have functions of their own for it.
    """
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
    saved = _read_back(content)
    program = saved.imported()
    return _built(saved, program, restore_plan(plan, program))


@dataclass(frozen=True)
class SavedForm:
    """A program as it is saved."""

    content: bytes = b""
    """The content of its ``.pt2`` file; empty if it was not written to one."""
    plan: Mapping[str, Any] | None = None
    """The plan for the graph that the file is imported as; None for plain ATen calls."""
    compact: Mapping[str, Any] | None = None
    """Its compact form, if there is one and it was asked for; see :mod:`taso_py.saving.compact`."""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """The engine's own files, by name."""


def read_back(
    content: bytes, choose: Callable[[Program], Mapping[str, Any] | None], *, describes: bool = False
) -> tuple[SavedForm, Program, fx.GraphModule]:
    """Return the saved form of a program with the content written by :func:`serialize`, and what is read from it.

    That is the program as it is imported again, and its module.

    Args:
        content: the content of the file.
        choose: returns the plan for the program as it was imported; None for plain ATen calls.
        describes: true to describe its compact form.

    Raises:
        UnsavableError: the content cannot be read back.
        ImportRefusal: the program cannot be imported again.
    """
    saved = _read_back(content)
    program = saved.imported()
    form = SavedForm(content, choose(program), describe(program, content) if describes else None)
    return form, program, _built(saved, program, restore_plan(form.plan, program))


def _built(saved: SavedProgram, program: Program, plan: Plan) -> fx.GraphModule:
    """Return the module of a program as it was imported from its saved form."""
    module = build(program, plan)
    # What was read from a file belongs to this module alone, or to all entry points that it was saved with.
    tie(module, saved.exported.state_dict)
    return module


def save(
    directory: Path,
    content: bytes,
    report: Mapping[str, Any],
    trace: str,
    plan: Mapping[str, Any] | None = None,
    others: Mapping[str, bytes] | None = None,
    weights: WeightsPlace | None = None,
    compact: Mapping[str, Any] | None = None,
) -> Mapping[str, Any]:
    """Write a result without its page, and delete the files of an earlier result.

    Args:
        directory: the folder.
        content: the ``.pt2`` file.
        report: the report as data for JSON.
        trace: the trace as text.
        plan: the kernels; None for plain ATen calls.
        others: the program in other formats, files by name; an archive is given report, trace and plan.
        weights: where the program's weights are if it was saved without them, as :class:`WeightsPlace` has it.
        compact: the compact form of the program with its weights.

    Returns:
        The content of ``plan.json``.

    Raises:
        ArtifactError: the folder cannot be written.
    """
    said = {
        "version": VERSION,
        "model": MODEL,
        "runtime": report["runtime"],
        "device": report["device"],
        "threads": report["environment"].get("threads"),
        "plan": plan,
        "weights": weights and asdict(weights),
    }
    told = {REPORT: as_json(report), TRACE: trace.encode()}
    files = {MODEL: content, **told, **(others or {})}
    if compact is not None:
        files[COMPACT] = as_json(compact)
    if ARCHIVE in files:
        files[ARCHIVE] = with_extra(files[ARCHIVE], {**told, PLAN: as_json(said)})
    return write_result(directory, files, said)


def run_saved(saved: SavedResult, weights: Mapping[str, Tensor], warmup: Sequence[Sizes] = ()) -> Runner:
    """Return a saved result ready to run, whatever it needs for that.

    Arguments and errors are those of :func:`taso_py.saving.loading.run_result`, which calls this outside of inference
    mode.
    """
    if not warmup and (runner := _run_compact(saved, weights)) is not None:
        return runner
    program = load_program(saved)
    program.fill(weights)
    imported = program.imported()
    runner = _prepare(saved, program, imported)
    if warmup:
        warm_up(runner, OpenInputs.of(imported), warmup)
    return runner


def _run_compact(saved: SavedResult, weights: Mapping[str, Tensor]) -> Runner | None:
    """Return a saved result ready to run, from the compact form of its program; None if that is not enough."""
    engine = ENGINES[saved.runtime]
    if not engine.file:
        return None  # what is compiled here is so for the example inputs
    program = saved.compact_program(weights)
    if program is None:
        return None
    return saved.module_in(engine, program, program.weights)


def check_files(saved: SavedResult) -> None:
    """Check, after the program was read, that the files are of the same run as the plan.

    Raises:
        ArtifactError: one is of another run.
    """
    check_digests(saved.folder, saved.files, ENGINES[saved.runtime].file)


def load_program(saved: SavedResult) -> SavedProgram:
    """Read the program of a saved result, and check that the files are of one run.

    Raises:
        ArtifactError: it cannot be read, or a file is of another run.
    """
    try:
        with silent():
            program = SavedProgram.read(saved.program)
    except Exception as error:  # torch raises errors of many kinds for a damaged archive
        raise ArtifactError(f"{saved.program} cannot be read: {first_line(error)}; optimize the model again") from error
    check_files(saved)
    return program


def _prepare(saved: SavedResult, program: SavedProgram, imported: Program) -> Runner:
    engine = ENGINES[saved.runtime]
    if engine.file:
        return saved.module_in(engine, imported, program.exported.state_dict)
    module = saved.module_of(imported, program.exported.state_dict)
    exported = program.exported
    if saved.runtime == "eager" or exported.example_inputs is None:
        return module
    args, kwargs = exported.example_inputs
    with preserve_buffers([module]), preserve_inputs((args, kwargs)):
        return engine.prepare(module, args, kwargs, resizable=bool(exported.range_constraints))
