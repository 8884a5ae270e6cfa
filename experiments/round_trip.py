"""Round trip: models go into a graph and come out computing the same bits, on this device.

Invariant: a model that is refused is a row like any other, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure

from experiments.drawing import name_rows
from experiments.harness import Experiment, Row, Settings
from taso_py.checking.roundtrip import round_trip
from taso_py.ir.errors import TasoError
from taso_py.models import zoo


def _measure(name: str, settings: Settings) -> Sequence[Row]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        result = round_trip(zoo.get(name), small=settings.quick, device=settings.device)
    except TasoError as error:
        return [{"model": name, "identical": False, "reason": str(error)}]
    opaque = {"opaque": result.opaque.total(), "opaque_kinds": " ".join(sorted(result.opaque))}
    return [{"model": name, "identical": result.identical, "nodes": result.nodes, **opaque, "seconds": result.seconds}]


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    done = [row for row in rows if "nodes" in row]
    axes = figure.subplots()
    places = range(len(done))
    axes.barh(places, [row["nodes"] for row in done], color="0.85", edgecolor="0.3", label="nodes")
    axes.barh(places, [row["opaque"] for row in done], color="0.2", label="of these opaque, at run time")
    labels = [row["model"] if row["identical"] else f"{row['model']} DIFFERS" for row in done]
    name_rows(axes, labels)
    axes.set_xlabel("nodes of the imported graph")
    axes.legend(loc="lower right")


EXPERIMENT = Experiment(
    "round_trip",
    "Do models come out of the graph computing the same bits?",
    reading="`identical` must be yes everywhere; `opaque` counts operators outside the table that run",
    parts=lambda _: zoo.names(),
    measure=_measure,
    plot=_plot,
    is_check=True,
)
