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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch._dynamo.exc import UserError
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from taso_py.backend import Program, build
from taso_py.backend.plan import NO_PLAN, Plan
from taso_py.backend.tracing import quiet, tracing_lock
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

_log = logging.getLogger(__name__)
VERSION = 5
"""Version of the format of ``plan.json``."""


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
            torch.export.save(exported, buffer)
        except Exception as error:  # torch.export raises errors of many kinds for values that it cannot save
            raise UnsavableError(f"torch.export cannot save it: {first_line(error).partition('. ')[0]}") from error
    return buffer.getvalue()


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
    return import_program(*exported_program(content))


def exported_program(content: bytes) -> tuple[ExportedProgram, tuple[Any, ...], dict[str, Any]]:
    """Return the exported program in a ``.pt2`` file's content, with its example inputs.

    Raises:
        ArtifactError: the file has no example inputs, so that it was not written by :func:`serialize`.
    """
    return _with_inputs(_read_back(content))


def _read_back(content: bytes) -> ExportedProgram:
    # torch.export.load reads tensors to the default device before it moves them to the one that the file states.
    with quiet(), torch.device("cpu"):
        try:
            return torch.export.load(io.BytesIO(content))
        except Exception as error:  # always a RuntimeError, which refers to a log for its cause
            raise UnsavableError("torch.export cannot read back what it has saved") from error


def _with_inputs(exported: ExportedProgram) -> tuple[ExportedProgram, tuple[Any, ...], dict[str, Any]]:
    if exported.example_inputs is None:
        raise ArtifactError(f"{MODEL} has no example inputs; optimize the model again")
    args, kwargs = exported.example_inputs
    return exported, args, kwargs


def deserialize(content: bytes, plan: Mapping[str, Any] | None = None) -> fx.GraphModule:
    """Return the module in the content written by :func:`serialize`, built by a plan if there is one.

    Raises:
        UnsavableError: the content cannot be read back.
        ImportRefusal: the program cannot be imported again.
    """
    return _build(_read_back(content), partial(restore_plan, plan))


def _build(exported: ExportedProgram, planned: Callable[[Program], Plan]) -> fx.GraphModule:
    program = import_program(*_with_inputs(exported))
    return build(program, planned(program))


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
) -> Mapping[str, Any]:
    """Write a result without its page, and delete the files of an earlier result.

    Args:
        directory: the folder.
        content: the ``.pt2`` file.
        report: the report.
        trace: the trace as text.
        plan: the kernels; None for plain ATen calls.
        others: the program in other formats, files by name; an archive is given report, trace and plan.

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
    }
    told = {REPORT: as_json(report.as_dict()), TRACE: trace.encode()}
    files = {MODEL: content, **told, **(others or {})}
    if ARCHIVE in files:
        files[ARCHIVE] = with_extra(files[ARCHIVE], {**told, PLAN: as_json(said)})
    return write_result(directory, files, said)


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
    if saved.other_threads is not None:
        warnings.warn(saved.other_threads, stacklevel=2)
    # Tensors made in inference mode cannot be written to outside of it.
    with torch.inference_mode(mode=False):
        exported = _load_program(saved)
        runner = _prepare(saved, exported)
        if sizes:
            warm_up(runner, OpenInputs.of(import_program(*_with_inputs(exported))), sizes)
        return runner


def _load_program(saved: SavedResult) -> ExportedProgram:
    try:
        with tracing_lock(), torch.device("cpu"):  # as in _read_back
            exported = torch.export.load(saved.program)
    except Exception as error:  # torch raises errors of many kinds for a damaged archive
        raise ArtifactError(f"{saved.program} cannot be read: {first_line(error)}; optimize the model again") from error
    saved.check()
    return exported


def _prepare(saved: SavedResult, exported: ExportedProgram) -> Runner:
    engine = ENGINES[saved.runtime]
    if engine.file:
        try:
            return engine.restore(import_program(*_with_inputs(exported)), saved.folder)
        except EngineUnavailableError as error:
            _log.warning("%s; %s is run by PyTorch instead", error, saved.folder)
            return _build(exported, lambda program: saved.plan_for(program).eager())
    module = _build(exported, saved.plan_for)
    if saved.runtime == "eager" or exported.example_inputs is None:
        return module
    args, kwargs = exported.example_inputs
    with preserve_buffers([module]), preserve_inputs((args, kwargs)):
        return engine.prepare(module, args, kwargs, resizable=bool(exported.range_constraints))
