"""Refresh of a saved result: the same graph and kernels with other weights, folded and packed again without a search.

Weights change when a model is trained further, or an adapter is merged into it. What was found for it depends on sizes
and types only: rules hold for all values, and latencies do not depend on them. So the steps of the saved trace are
taken again on the model's original program with the new weights.

Invariant: every step was compared in float64 where it is taken, and the result with the original program, both with the
new weights, before anything is written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import torch

from taso_py.backend import UNLIMITED, Program, build, fold
from taso_py.backend.overwrite import poison
from taso_py.checking.cases import program_cases
from taso_py.checking.compare import Comparison
from taso_py.checking.oracles import float64_oracles
from taso_py.checking.preserve import preserve_state
from taso_py.driver.replay import check_steps, load_trace
from taso_py.engines.engine import Runner
from taso_py.engines.table import ENGINES
from taso_py.ir.errors import TasoError
from taso_py.lock import optimization_lock
from taso_py.options import Options
from taso_py.saving.artifact import SavedForm, load_program, read_back, save, serialize
from taso_py.saving.compact import with_examples
from taso_py.saving.emit import emit_beside, forms_of
from taso_py.saving.folder import ENTRIES, MODEL, PAGE, REPORT, TRACE, ArtifactError, check_result_writable, folder_of
from taso_py.saving.loading import load
from taso_py.saving.original import PROGRAM, OriginalProgram
from taso_py.saving.result import SavedResult, read
from taso_py.search.trace import Trace, replay, write_trace
from taso_py.unexpected import report_unexpected


class RefreshError(TasoError):
    """Raised if a result cannot be made again, or does not compute what the original does with the new weights."""


def refresh(
    directory: str | os.PathLike[str],
    state_dict: Mapping[str, Any],
    *,
    output: str | os.PathLike[str] | None = None,
    seed: int = 0,
) -> Runner:
    """Make a saved result again with other weights, within seconds, and return it ready to run.

    Its graph, kernels and engine stay the same; speeds are not measured again. The page of the result is not written
    again, and files in other formats are.

    Args:
        directory: the folder of the saved result.
        state_dict: the new weights, as ``state_dict()`` of the model that was optimized returns them.
        output: the folder to write to; by default the result is replaced, at once.
        seed: the seed of the random inputs on which results are compared.

    Raises:
        TasoError: an argument is wrong, the folder holds no such result, the weights are not of the model, or the
            result does not compute what the original does; nothing is written then.
    """
    folder, seed = folder_of(directory, "directory"), Options(seed=seed).seed
    target = folder if output is None else folder_of(output)
    if (folder / ENTRIES).is_file():
        raise ArtifactError(
            f"{folder} holds several entry points, whose weights cannot be replaced; optimize them again"
        )
    saved = read(folder)
    check_result_writable(target, [*(saved.files.keys() - {PAGE}), MODEL])
    with (
        optimization_lock(),
        report_unexpected(f"refreshing {folder}"),
        torch.inference_mode(mode=False),
        torch.no_grad(),
    ):
        original = OriginalProgram.read(folder / PROGRAM)
        trace = load_trace(folder / TRACE)
        program = original.with_state(state_dict)
        inputs = load_program(saved).inputs
        program = with_examples(program, *inputs)
        check_steps(program.graph, trace, seed, program.device)
        made = _make(saved, program, inputs, trace=trace, seed=seed)
        report = _report(saved, made.comparison)
        files, missing = emit_beside(made.files, made.form, forms_of(saved.files), program)
        report["notes"] = [*report["notes"], *missing]
        save(
            target,
            content=made.form.content,
            report=report,
            trace=write_trace(trace),
            plan=made.form.plan,
            others={**files, PROGRAM: original.as_bytes()},
            compact=made.form.compact,
        )
    return load(target)


@dataclass(frozen=True)
class _Made:
    """A result that was made again."""

    form: SavedForm
    files: Mapping[str, bytes]
    """The engine's own files."""
    comparison: Comparison


def _make(
    saved: SavedResult, program: Program, inputs: tuple[tuple[Any, ...], dict[str, Any]], trace: Trace, seed: int
) -> _Made:
    """Make the result of a program from its example inputs, and compare it.

    Raises:
        RefreshError: it does not compute what the program does.
    """
    args, kwargs = inputs
    rewritten = fold(replace(program, graph=replay(program.graph, trace)), UNLIMITED)
    content = serialize(build(rewritten), args, kwargs)
    form, again, module = read_back(content, lambda _: saved.plan, describes=True)
    engine = ENGINES[saved.runtime]
    (oracle,), _ = float64_oracles(program, build(program), (args, kwargs), program_cases(program, args, kwargs, seed))
    candidates: dict[str, Any] = {"the saved program": module if saved.plan is None else poison(module)}
    files: Mapping[str, bytes] = {}
    if engine.file:
        built = engine.build(again, saved.plan_for(again))
        files, candidates[engine.name] = engine.files(built), built
    compared: list[Comparison] = []
    for name, candidate in candidates.items():
        with preserve_state(program, [candidate], (args, kwargs)):
            compared.append(oracle.compare(candidate))
        if not compared[-1].passed:
            raise RefreshError(f"refused {name} with these weights: {compared[-1].reason}; optimize the model again")
    return _Made(form, files, compared[0])


def _report(saved: SavedResult, comparison: Comparison) -> dict[str, Any]:
    """Return the report of the earlier result with the new errors and a note.

    Raises:
        ArtifactError: it cannot be read.
    """
    path = saved.folder / REPORT
    try:
        report = dict(json.loads(path.read_text()))
        notes = list(report["notes"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{path} cannot be read: {error}; optimize the model again") from error
    day = datetime.now(UTC).date().isoformat()
    told = f"weights were replaced on {day}; latencies are those of the first ones, and errors those of the new ones"
    report["notes"] = [*(note for note in notes if not note.startswith("weights were replaced")), told]
    return {**report, "error": comparison.error, "original_error": comparison.original_error}
