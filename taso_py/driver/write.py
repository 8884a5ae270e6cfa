"""Writing a result to a folder: the program, the engine's own files, other forms, and the page last.

Invariant: whatever goes wrong with a later part, the parts before it are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from taso_py.driver.evidence import gather
from taso_py.driver.prepare import Prepared
from taso_py.driver.result import Optimized
from taso_py.judging.trial import ORIGINAL, Judgement
from taso_py.report.optimization_page import optimization_page
from taso_py.saving.artifact import save
from taso_py.saving.emit import check_forms, emit, file_of_form, names_of
from taso_py.saving.folder import ONNX, PAGE, add_page, check_writable
from taso_py.search.trace import write_trace


def check_output(output: Path | None, forms: Sequence[str]) -> None:
    """Make sure that a result can be written, before it is looked for.

    Raises:
        TasoError: there is no such form, or the folder cannot be written to.
    """
    check_forms(forms)
    if output is not None:
        check_writable(output, names_of(forms))


def write(
    optimized: Optimized, prepared: Prepared, judgement: Judgement, output: Path, forms: Sequence[str]
) -> Optimized:
    """Return the result, having written it to a folder.

    Args:
        optimized: the result.
        prepared: what it was made of.
        judgement: what won.
        output: the folder.
        forms: in which forms beside ``model.pt2``.
    """
    winner, onnx, phases = judgement.winner, prepared.source.onnx, prepared.phases
    own = winner.engine.files(winner.module)
    if onnx is not None:
        forms = [*forms, "onnx"]
    others = [form for form in forms if file_of_form(form) not in own]
    with phases.phase("emit", "the result in other forms") if len(others) > 1 else nullcontext():
        emitted, missing = emit(judgement.content, others)
    report = replace(
        optimized.report,
        saved=str(output),
        notes=(*optimized.report.notes, *missing),
        phases=dict(phases.seconds),
    )
    files = {**emitted, **own}
    if onnx is not None and winner.name != ORIGINAL and ONNX in files:
        files[ONNX] = onnx.renamed(files[ONNX])
    said = save(output, judgement.content, report, write_trace(optimized.trace), judgement.plan, files)
    try:
        with phases.phase("page", f"{PAGE}, with a profile of both"):
            evidence = gather(prepared.source, prepared.program, judgement, progress=prepared.options.progress)
        if not add_page(output, said, optimization_page(report, evidence)):
            replaced = f"another run has saved its result to {output} since, which is there in place of this one"
            report = replace(report, notes=(*report.notes, replaced), saved=None)
    except KeyboardInterrupt:
        report = replace(report, notes=(*report.notes, f"interrupted before {PAGE} was made; all else is saved"))
    return replace(optimized, report=report)
