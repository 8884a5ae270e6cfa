"""Writes a result to a folder: the program, the engine's files, other formats, and last the page.

Invariant: a failure of a later part leaves the earlier parts written.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from taso_py.driver.evidence import gather_evidence
from taso_py.driver.prepare import PreparedSource
from taso_py.driver.result import Optimized
from taso_py.engines.names import AUTO
from taso_py.engines.table import ENGINES
from taso_py.judging.evaluation import EvaluationOutcome
from taso_py.report.optimization_page import optimization_page
from taso_py.saving.artifact import save
from taso_py.saving.compact import COMPACT
from taso_py.saving.emit import ONNX_FORM, check_forms, emit_beside, forms_to_emit, names_of
from taso_py.saving.folder import PAGE, REPORT, TRACE, add_page, check_result_writable
from taso_py.saving.original import PROGRAM, OriginalProgram
from taso_py.search.trace import write_trace


def check_output(output: Path | None, forms: Sequence[str], runtime: str, is_onnx: bool) -> None:
    """Check before the search that the result can be written.

    Args:
        output: the folder, if any.
        forms: formats to write beside ``model.pt2``.
        runtime: the name of an engine, whose files are written too, or of several.
        is_onnx: true if the model is an ONNX file, as which the result is written again.

    Raises:
        TasoError: a format does not exist, the folder cannot be written to, or it has files of the user's own that the
            result would replace.
    """
    check_forms(forms)
    if output is not None:
        engines = [engine for name, engine in ENGINES.items() if runtime in (AUTO, name)]
        own = [name for engine in engines for name in (engine.file, *engine.beside) if name]
        forms = [*forms, ONNX_FORM] if is_onnx else forms
        check_result_writable(output, [*names_of(forms), *own, REPORT, TRACE, PAGE, PROGRAM, COMPACT])


def write(
    optimized: Optimized, prepared: PreparedSource, outcome: EvaluationOutcome, output: Path, forms: Sequence[str]
) -> Optimized:
    """Write a result to a folder, and return it with an updated report.

    Args:
        optimized: the result.
        prepared: the prepared source.
        outcome: the outcome of the evaluation.
        output: the folder.
        forms: formats to write beside ``model.pt2``.
    """
    winner, onnx, phases = outcome.winner, prepared.source.onnx, prepared.phases
    own = outcome.saved.files
    if onnx is not None:
        forms = [*forms, ONNX_FORM]
    named = onnx.renamed if onnx is not None and not winner.is_original else None
    emits = bool(forms_to_emit(forms, own))
    with phases.phase("emit", "the result in other formats") if emits else nullcontext():
        files, missing = emit_beside(own, outcome.saved, forms, prepared.program, named)
    report = replace(
        optimized.report,
        saved=str(output),
        notes=(*optimized.report.notes, *missing),
        phases=dict(phases.seconds),
    )
    original = OriginalProgram.of(prepared.program, prepared.source.module) if onnx is None else None
    if original is not None:
        files[PROGRAM] = original.as_bytes()
    said = save(
        output,
        content=outcome.saved.content,
        report=report.as_dict(),
        trace=write_trace(optimized.trace),
        plan=outcome.saved.plan,
        others=files,
        compact=outcome.saved.compact,
    )
    try:
        if not add_page(output, said, optimization_page(report, gather_evidence(prepared, outcome))):
            replaced = f"another run has saved its result to {output} meanwhile and has replaced this one"
            report = replace(report, notes=(*report.notes, replaced), saved=None)
    except KeyboardInterrupt:
        report = replace(report, notes=(*report.notes, f"interrupted before {PAGE} was made; everything else is saved"))
    return replace(optimized, report=report)
