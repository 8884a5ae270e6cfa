"""Check that the imported graph of a model computes the same as the model.

Invariant: what passes differs from the model by no more than roundings do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from taso_py.backend import Program, build
from taso_py.backend.input_cases import rounded_inputs
from taso_py.checking.cases import program_cases
from taso_py.checking.compare import FACTOR, NEARBY, Comparison, Oracle
from taso_py.checking.preserve import preserve_state
from taso_py.checking.roundtrip import without_fused_attention
from taso_py.documents import page
from taso_py.ir.errors import TasoError
from taso_py.models.source import Source

IMPORT_ERROR, IMPORT_SLACK = 3e-4, 8
"""Largest error of the imported graph relative to the model's greatest value: the greater of this and ``IMPORT_SLACK``
times the tolerance for results, which is larger in half precision."""
AGAIN = "repeated example"
"""Name of the last case: the example inputs after all others, which show what a model keeps of those."""


class ImportCheckError(TasoError):
    """Raised if an imported graph computes something else than its model."""


def check_import(source: Source, program: Program, seed: int) -> Sequence[str]:
    """Check that the imported graph, computed by plain calls, agrees with the model; return notes on small differences.

    Results are compared with this graph in float64, which would not reveal an error of the import. Outside of exports
    multi-head attention may take a fused path, which rounds differently; without it the two usually agree bit for bit.

    Raises:
        ImportCheckError: the graph computes something else.
    """
    (found,) = _compared(source, program, [build(program)], seed)
    most = [max(IMPORT_SLACK * output.allowed, IMPORT_ERROR) for output in found.outputs]
    within = _limited(found, most)
    if not within.passed and source.onnx is not None:
        # A file that rounds to few bits inside decides each step by more digits than two engines have in common.
        within = _limited(found, map(max, most, _own_changes(source, program, seed)))
    if not within.passed and source.onnx is not None:
        raise ImportCheckError(
            f"the graph read from {source.name} computes something else than ONNX Runtime; please report this: "
            f"{within.reason}"
        )
    if not within.passed:
        raise ImportCheckError(
            f"the model computes something else than its export: {within.reason}; torch.nn.TransformerEncoder with a "
            "padding mask does, unless torch.backends.mha.set_fastpath_enabled(False) is called before, and so does a "
            f"model that depends on earlier calls; see {page('limits.md')}"
        )
    if not found.passed:
        with without_fused_attention():
            (found,) = _compared(source, program, [build(program)], seed)
    if found.passed:
        return ()
    return (f"the model differs slightly from its export, which the result is made of: {found.reason}",)


def _limited(found: Comparison, limits: Iterable[float]) -> Comparison:
    """Return a comparison with other limits, one for each output."""
    return Comparison(tuple(replace(o, allowed=limit) for o, limit in zip(found.outputs, limits, strict=True)))


def _own_changes(source: Source, program: Program, seed: int) -> Sequence[float]:
    """Return a multiple of how far each output of a model moves for inputs that differ by their rounding."""
    original, generator = source.callable(), torch.Generator().manual_seed(seed)

    def nearby(*args: Any, **kwargs: Any) -> Any:
        near, named = rounded_inputs((args, kwargs), generator)
        return original(*near, **named)

    trials = _compared(source, program, [nearby] * NEARBY, seed)
    by_output = zip(*(found.outputs for found in trials), strict=True)
    return [FACTOR * max(o.error for o in outputs) for outputs in by_output]


def _compared(
    source: Source, program: Program, candidates: Iterable[Callable[..., Any]], seed: int
) -> Sequence[Comparison]:
    """Return the comparison of each candidate with the model, which is run once for all of them."""
    original = source.callable()
    with preserve_state(program, [original], (source.args, source.kwargs)):
        cases = program_cases(program, source.args, source.kwargs, seed)
        cases.append((AGAIN, cases[0][1]))
        oracle = Oracle.of(program, original, None, cases)
        return [oracle.compare(candidate) for candidate in candidates]
