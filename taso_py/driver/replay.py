"""Replay of a trace: derive the result again from the model, checking every step.

Invariant: a replay that succeeds has matched each rule where the trace says, compared both sides in float64, and
reached the graph whose digest the trace records.
"""

from __future__ import annotations

from pathlib import Path

import torch

from taso_py.checking.regions import first_mismatch
from taso_py.ir.errors import TasoError
from taso_py.ir.graph import Graph
from taso_py.lock import optimization_lock
from taso_py.models.importing import import_source
from taso_py.models.source import Source
from taso_py.saving.folder import check_digests, file_digests
from taso_py.search.trace import Trace, read_trace


class ReplayError(TasoError):
    """Raised for a trace that cannot be read, and for a step whose two sides differ."""


def load_trace(path: Path) -> Trace:
    """Read the trace in a file.

    Raises:
        TasoError: the file cannot be read, or holds no trace.
    """
    files = file_digests(path.parent)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ReplayError(f"cannot read {path}: {error}") from error
    if path.name in files:
        check_digests(path.parent, files)
    return read_trace(text)


def replay_trace(path: Path, source: Source, seed: int = 0) -> int:
    """Replay a trace on the model it was made from, and return the number of steps.

    Raises:
        TasoError: the file cannot be read, the trace is of another model, or a step does not hold.
    """
    trace = load_trace(path)
    with optimization_lock():
        program = import_source(source)
    check_steps(program.graph, trace, seed, program.device)
    return len(trace.applied)


def check_steps(graph: Graph, trace: Trace, seed: int, device: torch.device) -> None:
    """Replay a trace on its graph and compare both sides of each rule where it was applied.

    Raises:
        TasoError: the trace is of another graph, or a step does not hold.
    """
    wrong = first_mismatch(graph, trace, seed, device)
    if wrong is not None:
        raise ReplayError(str(wrong))
