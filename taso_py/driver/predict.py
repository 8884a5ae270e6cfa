"""Search for a device that is not here, by latencies that were measured on it.

Nothing is timed, so the predicted gain is only an estimate: the answer is a trace, which ``taso-py optimize --trace``
evaluates on the device as it evaluates the finalists of a search.

Invariant: a predicted graph uses only kernels whose latencies were measured on the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from taso_py.backend import Program
from taso_py.backend.convert import graph_on
from taso_py.backend.schema import stored_bytes
from taso_py.cost.model import CostModel
from taso_py.driver.calibrating import scale_to_runs
from taso_py.driver.planning import tiles_for
from taso_py.driver.replay import check_steps, load_trace
from taso_py.engines.table import ENGINES
from taso_py.ir.errors import TasoError
from taso_py.ir.graph import Graph
from taso_py.latency.database import LatencyDatabase
from taso_py.latency.environment import Environment
from taso_py.lock import optimization_lock
from taso_py.models.importing import import_source
from taso_py.models.source import Source
from taso_py.options import Options
from taso_py.report.prediction import Prediction
from taso_py.rules.substitution import Substitution
from taso_py.saving.folder import TRACE, check_writable, file_digests, write_files
from taso_py.search.strategies import search
from taso_py.search.trace import write_trace
from taso_py.unexpected import report_unexpected


class PredictionError(TasoError):
    """Raised if the latency database lacks a device, or latencies that a prediction needs."""


def find_environment(database: LatencyDatabase, key: str) -> Environment:
    """Return the one environment in the database whose key begins with a text.

    Raises:
        PredictionError: there is none, or several.
    """
    known = database.environments()
    found = [name for name in known if name.startswith(key)]
    if len(found) != 1:
        problem = f"{key!r} fits several devices" if found else f"there are no latencies of a device {key!r}"
        names = ", ".join(f"{name} ({known[name]['device_name']})" for name in found or known)
        advice = f"name one of {names}" if names else "bring latencies here with 'taso-py latencies import FILE'"
        raise PredictionError(f"{problem}; {advice}; 'taso-py latencies devices' lists what is known")
    return Environment.from_dict(known[found[0]])


def predict(
    source: Source, options: Options, rules: Sequence[Substitution], environment: str, output: Path | None = None
) -> Prediction:
    """Search a model's graphs by the latencies of a device that need not be here.

    Args:
        source: the model, on a device that is here.
        options: the options of the search; the others have no effect but for ``progress``.
        rules: the rules that may be applied.
        environment: the beginning of the device's key in the user's latency database.
        output: the folder to write the trace to, if any.

    Raises:
        PredictionError: too little is known of the device, or the folder holds a saved result.
        ArtifactError: the folder cannot be written to, or has a file of the trace's name that is no trace.
    """
    if output is not None:
        if file_digests(output):
            raise PredictionError(f"{output} holds a saved result with a trace of its own; choose another --output")
        check_writable(output, [TRACE], [TRACE] if _is_trace(output / TRACE) else ())
    with (
        optimization_lock(),
        report_unexpected(f"predicting {source.name}"),
        torch.no_grad(),
        LatencyDatabase() as database,
    ):
        there = find_environment(database, environment)
        program = import_source(source)
        graph, cost = _graph_and_cost(program, options, there, database)
        found = search(graph, rules, cost, options.search, options.limits(), progress=options.progress)
        best = found.best
        check_steps(graph, best.trace, options.seed, program.device)
    if output is not None:
        write_files(output, {TRACE: write_trace(best.trace).encode()})
    return Prediction(
        model=source.name,
        environment=there.as_dict(),
        predicted_ms=(found.original.seconds * 1e3, best.seconds * 1e3),
        applied=best.applied,
        candidates=found.built,
        unknown=cost.latencies.unknown,
        search_seconds=found.seconds,
        stop_reason=found.stop_reason.value,
        saved=None if output is None else str(output / TRACE),
    )


def _is_trace(path: Path) -> bool:
    try:
        load_trace(path)
    except TasoError:
        return False
    return True


def _graph_and_cost(
    program: Program, options: Options, there: Environment, database: LatencyDatabase
) -> tuple[Graph, CostModel]:
    """Return a program's graph as it would be on a device, and the cost model of that device."""
    device = torch.device(there.device, 0) if there.device == "cuda" else torch.device(there.device)
    graph = graph_on(program.graph, device)
    weight_bytes = stored_bytes(program.weights.values())
    tiles = tiles_for([ENGINES["eager"]], options.numerics)
    cost = CostModel(device, database, weight_bytes=weight_bytes, tiles=tiles, environment=there)
    scale_to_runs(cost)
    unknown = [node.op.name for node in graph.nodes if cost.node_cost(node) == math.inf]
    if unknown or cost.graph_cost(graph) == math.inf:
        first = f"{len(unknown)} of its operators, the first of them {unknown[0]}," if unknown else "a conversion in it"
        raise PredictionError(
            f"the model's time on {there.device_name} cannot be predicted: {first} {'were' if unknown else 'was'} "
            "never measured there; optimize it there once with --effort thorough, and bring the latencies here with "
            "'taso-py latencies export' and 'import'"
        )
    return graph, cost
