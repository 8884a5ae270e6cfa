"""The saved result: a folder with the program, how to run it, the report and the trace.

``model.pt2`` is plain ATen and loads with ``torch.export.load`` anywhere; ``plan.json`` says which runtime it is for,
and which kernels compute it there. Packed weights are not saved: they are packed anew when the plan is applied.

Invariant: the program that is loaded and the plan that is applied to it are of one run.
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
from taso_py.backend.program import Fixed
from taso_py.backend.tracing import alone, quiet
from taso_py.checking.kept import kept
from taso_py.checking.resize import OpenInputs
from taso_py.engines.engine import EngineUnavailableError, Runner
from taso_py.engines.table import ENGINES
from taso_py.frontend import import_program
from taso_py.frontend.export import distinct_arguments
from taso_py.frontend.higher_order import without_attention_operator
from taso_py.ir.errors import first_line
from taso_py.ir.operator import Input
from taso_py.ir.size import Open, Poly, choose, open_size
from taso_py.kernels.saved import restore
from taso_py.report.optimization import Report
from taso_py.saving.folder import MODEL, PLAN, REPORT, TRACE, ArtifactError, as_json, check_whole, put
from taso_py.saving.warmup import Sizes, warm

_log = logging.getLogger(__name__)
VERSION = 5
"""Of the form of ``plan.json``."""


class UnsavableError(ArtifactError):
    """A program of which there is no file, or none that reads back as the same."""


def serialize(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: dict[str, Any] | None = None
) -> bytes:
    """The module as the content of a ``.pt2`` file; it is exported again for that.

    Args:
        module: what to save.
        args: positional example inputs.
        kwargs: keyword example inputs.
        shapes: which sizes are open, as :func:`open_shapes` gives it.

    Raises:
        UnsavableError: it has no such form.
    """
    buffer, (given, named) = io.BytesIO(), distinct_arguments(args, kwargs)
    with quiet():
        try:
            plain = without_attention_operator(module)
            exported = torch.export.export(plain, given, named, dynamic_shapes=shapes)
            if plain is not module:
                # What it is made of was traced with functions that have no form in a file; taken apart, they are gone.
                exported = exported.run_decompositions({})
        except UserError as error:
            raise UnsavableError(f"torch.export cannot keep these sizes open: {first_line(error)}") from error
        try:
            _check_structures(exported.call_spec.in_spec, exported.call_spec.out_spec)
            torch.export.save(exported, buffer)
        except Exception as error:  # torch.export raises errors of many kinds for what it has no form for
            raise UnsavableError(f"torch.export cannot save it: {first_line(error).partition('. ')[0]}") from error
    return buffer.getvalue()


def _check_structures(arguments: pytree.TreeSpec | None, result: pytree.TreeSpec | None) -> None:
    """Makes sure that the structures of arguments and result are the same when they are read back."""
    if result is not None and not result.num_leaves:
        raise ValueError("the model returns nothing")
    for spec in (arguments, result):
        # Keys that are tuples, for example, are written without complaint, and come back as lists.
        if spec is not None and pytree.treespec_loads(pytree.treespec_dumps(spec)) != spec:
            raise ValueError("the keys of a dict are read back as something else")


def open_shapes(program: Program) -> dict[str, Any] | None:
    """The open dimensions of a program's arguments as ``torch.export.export`` takes them; None if there are none."""
    if not program.open:
        return None
    types = {node.op.key: node.types[0] for node in program.graph.inputs if isinstance(node.op, Input)}
    dims = {size: _named(size, place) for place, size in enumerate(program.open)}

    def axes(leaf: str | Fixed) -> dict[int, Any] | None:
        shape = () if isinstance(leaf, Fixed) else types[leaf].shape
        return {axis: _dimension(size, dims) for axis, size in enumerate(shape) if isinstance(size, Poly)} or None

    signature = program.signature
    args, kwargs = pytree.tree_unflatten(map(axes, signature.inputs), signature.in_spec)
    return dict(zip(signature.argument_names, [*args, *kwargs.values()], strict=True))


def _named(size: Open, place: int) -> Any:
    return torch.export.Dim(f"open_{place}", min=size.least, max=size.most)


def _dimension(size: Poly, dims: Mapping[Open, Any]) -> Any:
    """A dimension as torch.export writes it.

    Named ones may be 1, and be parts of others, but may be under no further condition; the export finds out the range
    and the conditions of the others from the checks in the module.
    """
    (variable, *more), rest = size.open, choose(size, dict.fromkeys(size.open, 0))
    factor = choose(size, {variable: 1}) - rest
    is_linear = isinstance(rest, int) and isinstance(factor, int) and size == factor * open_size(variable) + rest
    if more or not is_linear or (factor == 1 and not rest and variable.least > 1):
        return torch.export.Dim.DYNAMIC
    dimension = dims[variable] if factor == 1 else factor * dims[variable]
    return dimension + rest if rest else dimension


def reimport(content: bytes) -> Program:
    """The program that a ``.pt2`` file's content holds; a plan for it names its nodes.

    Raises:
        ArtifactError: the file has no example inputs, so that it was not written by :func:`serialize`.
    """
    return import_program(*exported_program(content))


def exported_program(content: bytes) -> tuple[ExportedProgram, tuple[Any, ...], dict[str, Any]]:
    """What a ``.pt2`` file's content holds, with its example inputs.

    Raises:
        ArtifactError: it has none, so that it was not written by :func:`serialize`.
    """
    return _with_inputs(_read_back(content))


def _read_back(content: bytes) -> ExportedProgram:
    # On the default device, torch looks for the tensors in the file; what they are moved to is in the file itself.
    with quiet(), torch.device("cpu"):
        try:
            return torch.export.load(io.BytesIO(content))
        except Exception as error:  # of one kind, which refers to a log for what it is
            raise UnsavableError("torch.export cannot read back what it has saved") from error


def _with_inputs(exported: ExportedProgram) -> tuple[ExportedProgram, tuple[Any, ...], dict[str, Any]]:
    if exported.example_inputs is None:
        raise ArtifactError(f"{MODEL} has no example inputs; optimize the model again")
    args, kwargs = exported.example_inputs
    return exported, args, kwargs


def deserialize(content: bytes, plan: Mapping[str, Any] | None = None) -> fx.GraphModule:
    """The module that :func:`serialize` gave the content of, built as a plan says if there is one.

    Raises:
        UnsavableError: it cannot be read back.
        ImportRefusal: it cannot be imported again.
    """
    return _built(_read_back(content), partial(_restored, plan))


def _built(exported: ExportedProgram, planned: Callable[[Program], Plan]) -> fx.GraphModule:
    program = import_program(*_with_inputs(exported))
    return build(program, planned(program))


def _restored(plan: Mapping[str, Any] | None, program: Program) -> Plan:
    return NO_PLAN if plan is None else restore(program.graph, plan, program.device)


def save(
    directory: Path,
    content: bytes,
    report: Report,
    trace: str,
    plan: Mapping[str, Any] | None = None,
    others: Mapping[str, bytes] | None = None,
) -> Mapping[str, Any]:
    """Writes a result without its page; what the folder has of an earlier one goes.

    Args:
        directory: the folder.
        content: the ``.pt2`` file.
        report: what happened.
        trace: the steps.
        plan: how it is computed, if not plainly.
        others: the same program in other forms, files by name.

    Returns:
        What ``plan.json`` says.

    Raises:
        ArtifactError: the folder cannot be written.
    """
    files = {MODEL: content, REPORT: as_json(report.as_dict()), TRACE: trace.encode(), **(others or {})}
    said = {
        "version": VERSION,
        "model": MODEL,
        "runtime": report.runtime,
        "device": report.device,
        "threads": report.environment.get("threads"),
        "plan": plan,
    }
    return put(directory, files, said)


@dataclass(frozen=True)
class Saved:
    """A saved result: where its program is, and how that is computed."""

    folder: Path
    program: Path
    runtime: str
    files: Mapping[str, str]
    """The digests of the files in the folder."""
    threads: int | None
    """With how many threads it was measured; None on a GPU, or where that is not known."""
    plan: Any
    """As :func:`taso_py.kernels.saved.dump` gives it; None for plain ATen calls."""

    @property
    def other_threads(self) -> str | None:
        """What there is to say where PyTorch has another number of threads than it was measured with."""
        here = torch.get_num_threads()
        if self.threads in (None, here):
            return None
        return (
            f"{self.folder} was measured with PyTorch's number of threads at {self.threads}, which is {here} here: its "
            "kernels need not be the fastest; call torch.set_num_threads, or optimize the model again"
        )

    def applied(self, program: Program) -> Plan:
        """The plan for the program, imported here.

        Raises:
            ArtifactError: it is not one.
        """
        try:
            return _restored(self.plan, program)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            place = f"{self.folder / PLAN} has no plan for {self.program.name}"
            raise ArtifactError(f"{place}: {error!r}; optimize the model again") from error

    def check(self) -> None:
        """Makes sure, once the program was read, that it is of the same run as what was read before.

        Raises:
            ArtifactError: it is not.
        """
        check_whole(self.folder, self.files, ENGINES[self.runtime].file)


def read(directory: str | os.PathLike[str]) -> Saved:
    """What a folder says of the result that it holds.

    Raises:
        ArtifactError: it holds none.
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
        raise ArtifactError(f"{folder / PLAN} asks for the unknown runtime {runtime!r}; there are {', '.join(ENGINES)}")
    return Saved(folder, program, runtime, files, saved.get("threads") or None, saved.get("plan"))


def load(directory: str | os.PathLike[str], *, warmup: Iterable[Sizes] = ()) -> Runner:
    """Loads a saved result, ready to run as it was measured; a warning says where PyTorch has other threads than then.

    Args:
        directory: the folder.
        warmup: open sizes to call it at once, since the first call at a size takes longer than others: numbers where
            one size is open, dicts by the names in the report where several are.

    Raises:
        ArtifactError: the folder does not hold one, or a file of it is damaged.
        WarmupError: the result does not have these sizes.
    """
    saved, sizes = read(directory), list(warmup)
    if saved.other_threads is not None:
        warnings.warn(saved.other_threads, stacklevel=2)
    # What is made in inference mode cannot be written to outside of it.
    with torch.inference_mode(mode=False):
        exported = _loaded(saved)
        runner = _prepared(saved, exported)
        if sizes:
            warm(runner, OpenInputs.of(import_program(*_with_inputs(exported))), sizes)
        return runner


def _loaded(saved: Saved) -> ExportedProgram:
    try:
        with alone(), torch.device("cpu"):  # as where it was read back for the first time
            exported = torch.export.load(saved.program)
    except Exception as error:  # torch raises errors of many kinds for a damaged archive
        raise ArtifactError(f"{saved.program} cannot be read: {first_line(error)}; optimize the model again") from error
    saved.check()
    return exported


def _prepared(saved: Saved, exported: ExportedProgram) -> Runner:
    engine = ENGINES[saved.runtime]
    if engine.file:
        try:
            return engine.restore(import_program(*_with_inputs(exported)), saved.folder)
        except EngineUnavailableError as error:
            _log.warning("%s; %s is run by PyTorch instead", error, saved.folder)
            return _built(exported, saved.applied)
    module = _built(exported, saved.applied)
    if saved.runtime == "eager" or exported.example_inputs is None:
        return module
    args, kwargs = exported.example_inputs
    with kept([module]):
        return engine.prepare(module, args, kwargs, resizable=bool(exported.range_constraints))
