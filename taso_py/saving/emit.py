"""The result in other formats than ``model.pt2``: ONNX, an archive of AOTInductor, Python code, a model repository.

Invariant: every file that is written was run on the example inputs and agreed with the saved program: code bit for bit,
the others within a tolerance for roundings, ONNX provided that ONNX Runtime is installed to run it.
"""

from __future__ import annotations

import re
import runpy
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from taso_py.backend import NO_PLAN, Fixed, Program
from taso_py.backend.frozen import KeywordCodeGen
from taso_py.backend.input_cases import EXAMPLE
from taso_py.backend.onnx import NotInOnnx, onnx_bytes, onnx_model
from taso_py.backend.tensors import tensors_in
from taso_py.backend.tracing import quiet
from taso_py.backend.writes import Writes
from taso_py.checking.compare import compare_output, outputs_of, roundings, to_float64
from taso_py.checking.roundtrip import equal_outputs
from taso_py.engines.aot import ARCHIVE, AotInductor, as_read, compile_archive, load_archive
from taso_py.engines.session import WEIGHTS_FILE
from taso_py.frontend import ImportRefusal, import_program
from taso_py.ir.errors import TasoError, first_line
from taso_py.saving.artifact import SavedForm, exported_program
from taso_py.saving.folder import CODE, MODEL, ONNX
from taso_py.saving.result import restore_plan
from taso_py.saving.triton import FILES, REPOSITORY, repository

ONNX_FORM, TRITON = "onnx", "triton"
NEEDED = ("onnx", "onnxscript")
"""Packages that PyTorch's ONNX exporter needs."""
ROUNDINGS = 4096
"""Tolerance for results of other runtimes, in roundings, since their kernels differ; limited by ``MOST_SLACK``."""
CALLS = 2
"""Number of calls in which an archive is compared, since a call shows what the one before it has written to buffers."""


class EmitError(TasoError):
    """Raised if the result cannot be written in a format."""


def emit(
    content: bytes, forms: Sequence[str], plan: Mapping[str, Any] | None = None
) -> tuple[dict[str, bytes], list[str]]:
    """Return the result in other formats.

    Args:
        content: the ``.pt2`` file.
        forms: some of :data:`FORMS`.
        plan: the kernels as ``plan.json`` has them, for formats that may hold some; None for plain ATen calls.

    Returns:
        Files by name, and a note for each format that the result cannot be written in.
    """
    files: dict[str, bytes] = {}
    notes: list[str] = []
    for form in forms:
        if form in _WRITERS:
            name, write = _WRITERS[form]
            try:
                files[name] = write(content, plan)
            except TasoError as error:
                notes.append(f"{name} was not written: {error}")
    return files, notes


def forms_to_emit(forms: Collection[str], own: Collection[str] = ()) -> Sequence[str]:
    """Return the formats that :func:`emit` writes if some are asked for, also those that others are made of.

    Args:
        forms: formats that are asked for.
        own: files of the engine, which need not be written again.
    """
    needed = {*forms, *([ONNX_FORM] if TRITON in forms else [])}
    return [form for form in _WRITERS if form in needed and file_of_form(form) not in own]


def emit_beside(
    own: Mapping[str, bytes],
    form: SavedForm,
    forms: Collection[str],
    program: Program,
    named: Callable[[bytes], bytes] | None = None,
) -> tuple[dict[str, bytes], list[str]]:
    """Return the files of a result beside its ``.pt2`` file, and a note for each format that it cannot be written in.

    Args:
        own: the files of its engine.
        form: the result as it is saved.
        forms: formats that are asked for.
        program: the program.
        named: gives the names of the original's inputs and outputs to an ONNX model.
    """
    emitted, missing = emit(form.content, forms_to_emit(forms, own), form.plan)
    files = {**emitted, **own}
    if named is not None and ONNX in files:
        files[ONNX] = named(files[ONNX])
    files, unserved = with_repository(files, forms, program, keep=own)
    return files, [*missing, *unserved]


def with_repository(
    files: Mapping[str, bytes], forms: Collection[str], program: Program, keep: Collection[str] = ()
) -> tuple[dict[str, bytes], list[str]]:
    """Return the files of a result with those of a model repository, if that is asked for, and notes.

    Args:
        files: the result in other formats, by name.
        forms: formats that are asked for.
        program: the program.
        keep: files of the engine, which stay even if the repository has them too.
    """
    if TRITON not in forms:
        return dict(files), []
    if ONNX not in files:
        return dict(files), [f"{REPOSITORY}/ was not written, since there is no {ONNX}"]
    if WEIGHTS_FILE in files:
        return dict(files), [f"{REPOSITORY}/ was not written, since {ONNX} is too large for one file"]
    # Tensors of an archive are named by position among everything that is given or returned.
    leaves = (*program.signature.inputs, *program.signature.outputs)
    archive = None if any(isinstance(leaf, Fixed) for leaf in leaves) else files.get(ARCHIVE)
    is_gpu = program.device.type == "cuda"
    others = {name: data for name, data in files.items() if name != ONNX or ONNX_FORM in forms or name in keep}
    try:
        made = repository(files[ONNX], archive, threads=torch.get_num_threads(), is_gpu=is_gpu)
    except TasoError as error:
        return others, [f"{REPOSITORY}/ was not written: {error}"]
    return {**others, **made}, []


def file_of_form(form: str) -> str:
    """Return the name of the file that holds the result in a format; of several the one that is always there."""
    return _WRITERS[form][0] if form in _WRITERS else FILES[0] if form == TRITON else MODEL


def names_of(forms: Sequence[str]) -> Sequence[str]:
    """Return the names of the files that hold the result in these formats."""
    return [MODEL, *(_WRITERS[form][0] for form in forms if form in _WRITERS), *(FILES if TRITON in forms else ())]


def forms_of(names: Collection[str]) -> Sequence[str]:
    """Return the formats whose files are among these."""
    return [form for form in FORMS if form != FORMS[0] and file_of_form(form) in names]


def check_forms(forms: Sequence[str]) -> None:
    """Raise `EmitError` unless all formats exist and the packages that they need are installed."""
    for form in forms:
        if form not in FORMS:
            raise EmitError(f"there is no format {form!r} to emit; there are {', '.join(FORMS)}")
    for form in (ONNX_FORM, TRITON):
        missing = [name for name in NEEDED if form in forms and find_spec(name) is None]
        if missing:
            needed = " and ".join(missing)
            raise EmitError(f"emitting {form} needs {needed}, not installed here: pip install 'taso-py[onnx]'")


def to_onnx(content: bytes) -> bytes:
    """Return the program as an ONNX model: by the project's own lowering, or by ``torch.onnx`` if an operator has none.

    Raises:
        EmitError: it cannot be exported, or the ONNX model returns other results.
    """
    exported, args, kwargs = exported_program(content)
    try:
        model = _lower(exported, args, kwargs)
    except (NotInOnnx, ImportRefusal):
        model = _export_by_torch(exported, args, kwargs)
    _check_onnx(model, exported, args, kwargs)
    return model


def _lower(exported: ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    """Return the ONNX model of the program's graph, with an output for each tensor that the program returns.

    Raises:
        ImportRefusal: the program cannot be imported faithfully.
        NotInOnnx: an operator has no lowering to ONNX.
    """
    program = import_program(exported, args, kwargs)
    leaves = [leaf for leaf in program.signature.outputs if isinstance(leaf, int)]
    outputs = tuple(program.graph.outputs[leaf] for leaf in leaves)
    return onnx_bytes(onnx_model(replace(program.graph, outputs=outputs), program.weights))


def _export_by_torch(exported: ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    try:
        with quiet():
            written = torch.onnx.export(exported, args, kwargs=dict(kwargs), dynamo=True, verbose=False)
        assert written is not None
        return written.model_proto.SerializeToString()
    except ImportError as error:
        raise EmitError(f"{first_line(error)}; pip install 'taso-py[onnx]'") from error
    except Exception as error:  # the exporter raises errors of many kinds
        raise EmitError(f"torch.onnx cannot export it: {first_line(error)}") from error


def _check_onnx(model: bytes, exported: ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    try:
        import onnxruntime
    except ImportError:
        return
    try:
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        tensors = tensors_in(args, kwargs)
        names = [argument.name for argument in session.get_inputs()]
        given = {name: tensor.cpu().numpy() for name, tensor in zip(names, tensors, strict=True)}
        found = [torch.as_tensor(array) for array in session.run(None, given)]
    except Exception as error:  # ONNX Runtime's errors have no common class
        raise EmitError(f"ONNX Runtime cannot run it: {first_line(error)}") from error
    wanted = [leaf.cpu() for leaf in outputs_of(exported.module(), args, kwargs) if isinstance(leaf, Tensor)]
    if len(wanted) != len(found):
        raise EmitError(f"it has {len(found)} results there, not {len(wanted)}: it writes to its buffers")
    _check_results("ONNX Runtime", wanted, found)


def _check_results(runtime: str, wanted: Sequence[Tensor], found: Sequence[Tensor]) -> None:
    """Raise `EmitError` unless the results of a runtime are the wanted ones, but for roundings."""
    for place, (before, after) in enumerate(zip(wanted, found, strict=True)):
        compared = compare_output(
            place, EXAMPLE, before=before.contiguous(), after=after.contiguous(), truth=to_float64(before)
        )
        allowed = roundings(before.dtype, ROUNDINGS) if before.is_floating_point() else 0.0
        if compared.problem or compared.error > allowed:
            problem = compared.problem or f"off by {compared.error:.1e}, allowed {allowed:.1e}"
            raise EmitError(f"{runtime} gives another result {place}: {problem}")


def to_archive(content: bytes, plan: Mapping[str, Any] | None = None) -> bytes:
    """Return the program compiled by AOTInductor, with those kernels of the plan whose weights it can hold.

    Raises:
        EmitError: the archive returns other results, or writes something else to its arguments or buffers.
        EngineUnavailableError: AOTInductor cannot compile it.
        ImportRefusal: the program cannot be imported faithfully.
    """
    exported, args, kwargs = exported_program(content)
    program = import_program(exported, args, kwargs)
    # Its kernels with packed weights are the processor's.
    kernels = AotInductor().plan_for(restore_plan(plan, program)) if program.device.type == "cpu" else NO_PLAN
    archive = compile_archive(program, kernels)
    args, kwargs = pytree.tree_map_only(Tensor, as_read, (args, kwargs))
    # It has no buffers to look at; what is written to them shows in the results of the next call.
    writes = Writes(inputs=Writes.of(program.graph).inputs)

    def results(run: Callable[..., Any]) -> list[Tensor]:
        return tensors_in([outputs_of(run, args, kwargs, writes=writes) for _ in range(CALLS)])

    runner = load_archive(archive, program)
    try:
        found = results(runner)
    except RuntimeError as error:
        raise EmitError(f"AOTInductor cannot run it: {first_line(error)}") from error
    _check_results("AOTInductor", results(exported.module()), found)
    return archive


_CODE = '''\
"""A model that taso-py has optimized, as code to read; the weights are in model.pt2 beside this file."""

from pathlib import Path

import torch
from torch import device, inf, nan
from torch.fx import _pytree as fx_pytree
from torch.utils import _pytree as pytree


class Optimized(torch.nn.Module):
    def __init__(self):
        super().__init__()
        program = torch.export.load(Path(__file__).with_name("model.pt2"))
        self._in_spec, self._out_spec = program.call_spec
        for name, tensor in {{**program.state_dict, **program.constants}}.items():
            *path, last = name.split(".")
            place = self
            for part in path:
                if not hasattr(place, part):
                    place.add_module(part, torch.nn.Module())
                place = getattr(place, part)
            place.register_buffer(last, tensor.detach())

{forward}
'''


def to_code(content: bytes) -> bytes:
    """Return the program as a Python file with a class ``Optimized`` that reads its weights from ``model.pt2``.

    Raises:
        EmitError: the code computes something else.
    """
    exported, args, kwargs = exported_program(content)
    module = exported.module()
    assert isinstance(module, fx.GraphModule)
    codegen: Any = module.graph._codegen  # pyright: ignore[reportPrivateUsage]
    module.graph.set_codegen(KeywordCodeGen(codegen.pytree_info))
    module.recompile()
    text = _CODE.format(forward="\n".join(f"    {line}".rstrip() for line in _lines(module, exported.graph)))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / MODEL).write_bytes(content)
        path = Path(folder) / CODE
        path.write_text(text, encoding="utf-8")
        try:
            found = outputs_of(runpy.run_path(str(path))["Optimized"](), args, kwargs)
        except Exception as error:  # a name or a constant may not be valid as code
            raise EmitError(f"the code does not run: {first_line(error)}") from error
        if not equal_outputs(outputs_of(exported.module(), args, kwargs), found):
            raise EmitError("the code gives another result than the program")
    return text.encode()


def _lines(module: fx.GraphModule, graph: fx.Graph) -> list[str]:
    """Return the lines of ``forward``, with types of values as comments."""
    values = {node.name: node.meta.get("val") for node in graph.nodes if node.op == "call_function"}
    lines: list[str] = []
    for line in module.code.strip().splitlines():
        # Statements that free values and checks of arguments are not part of the computation.
        line = re.sub(r";  [\w\s=]+= None$", "", line)
        value = values.get(line.strip().partition(" = ")[0])
        if "_guards_fn" not in line:
            lines.append(f"{line}  # {_type(value)}" if isinstance(value, Tensor) else line)
    return lines


def _type(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


_WRITERS: Mapping[str, tuple[str, Callable[[bytes, Mapping[str, Any] | None], bytes]]] = {
    ONNX_FORM: (ONNX, lambda content, _: to_onnx(content)),
    "aot": (ARCHIVE, to_archive),
    "code": (CODE, lambda content, _: to_code(content)),
}
FORMS = ("pt2", *_WRITERS, TRITON)
"""Choices of ``--emit``; ``model.pt2`` is always written."""
