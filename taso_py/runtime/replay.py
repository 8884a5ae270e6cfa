"""Deriving a result again from its trace, checking every step.

Invariant: a replay that succeeds has matched each rule where the trace says, compared both sides in float64, and
arrived at the graph that the trace names.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.export import ExportedProgram

from taso_py.frontend import Program, import_module, import_program
from taso_py.frontend.hooks import hooks_set_aside
from taso_py.ir.errors import TasoError
from taso_py.ir.graph import Graph
from taso_py.runtime.folder import check_whole, listed
from taso_py.runtime.regions import RegionError, check_regions
from taso_py.runtime.source import Source
from taso_py.runtime.turn import in_turn
from taso_py.search.trace import Trace, read_trace, replay_steps


class ReplayError(TasoError):
    """A trace that cannot be read, or a step whose two sides differ."""


def import_source(source: Source) -> Program:
    """The program of what MODEL names; hooks of a module that only look on see nothing of this."""
    if isinstance(source.module, ExportedProgram):
        return import_program(source.module, source.args, source.kwargs)
    with hooks_set_aside(source.module, source.args, source.kwargs):
        return import_module(source.module, source.args, source.kwargs)


def load_trace(path: Path) -> Trace:
    """The trace that a file holds.

    Raises:
        TasoError: it cannot be read, or holds none.
    """
    files = listed(path.parent)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ReplayError(f"cannot read {path}: {error}") from error
    if path.name in files:
        check_whole(path.parent, files)
    return read_trace(text)


def replay_trace(path: Path, source: Source, seed: int = 0) -> int:
    """Replays a trace on the model it was made from; gives the number of steps.

    Raises:
        TasoError: the file cannot be read, the trace is of another model, or a step does not hold.
    """
    trace = load_trace(path)
    with in_turn():
        program = import_source(source)
    check_steps(program.graph, trace, seed, program.device)
    return len(trace.steps)


def check_steps(graph: Graph, trace: Trace, seed: int, device: torch.device) -> None:
    """Derives a trace's result again from its graph, both sides of each rule compared where it was applied.

    Raises:
        TasoError: the trace is of another graph, or a step does not hold.
    """
    wrong = first_wrong(graph, trace, seed, device)
    if wrong is not None:
        raise ReplayError(str(wrong))


def first_wrong(graph: Graph, trace: Trace, seed: int, device: torch.device) -> RegionError | None:
    """The first region of a trace's steps in which the two sides of the rule differ, if there is one.

    Raises:
        TasoError: the trace is of another graph, or has a step that cannot be taken.
    """
    matches = [match for match, _ in replay_steps(graph, trace)]
    return next((region for region in check_regions(matches, seed, device) if not region.passed), None)
