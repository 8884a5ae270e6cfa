"""The best number of groups for ResNeXt's convolutions on this device.

A grouped convolution equals one with fewer groups whose kernel has zeros between them: more arithmetic, but of a form
that libraries are better at. Each shape of ResNeXt-50 is timed with 32 groups and fewer, by the best kernel for each,
as the optimizer would use it.

Invariant: all numbers of groups compute the same function; latencies come from the latency database as in a search.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.figure import Figure

from experiments.drawing import STYLES
from experiments.harness import Experiment, Row, Settings
from taso_py.cost.model import CostModel
from taso_py.ir.node import make
from taso_py.ir.operator import Input, Weight
from taso_py.ir.types import DType, TensorType
from taso_py.latency.database import LatencyDatabase
from taso_py.ops.contraction import Conv2d

SHAPES = ((128, 56, 1), (256, 56, 2), (256, 28, 1), (512, 28, 2), (512, 14, 1), (1024, 14, 2), (1024, 7, 1))
"""Channels, height and width of the image, and stride."""
GROUPS = (32, 16, 8, 4, 2, 1)


def _parts(settings: Settings) -> Sequence[str]:
    return ["x".join(map(str, shape)) for shape in (SHAPES[::3] if settings.quick else SHAPES)]


def _measure(part: str, settings: Settings) -> Sequence[Row]:
    with torch.no_grad(), LatencyDatabase() as database:
        device = torch.device(settings.device)
        cost = CostModel(device, database, weight_bytes=2**26, captured=device.type == "cuda")
        return [_row(cost, *map(int, part.split("x")))]


def _row(cost: CostModel, channels: int, size: int, stride: int) -> Row:
    image = make(Input("x", TensorType(DType.F32, (1, channels, size, size)))).value
    row: dict[str, Any] = {"channels": channels, "size": size, "stride": stride}
    for groups in GROUPS:
        weight = make(Weight("w", TensorType(DType.F32, (channels, channels // groups, 3, 3)))).value
        node = make(Conv2d((stride, stride), (1, 1), (1, 1), groups), [image, weight])
        row[f"groups_{groups}_ms"] = cost.node_cost(node) * 1e3
    best = min(GROUPS, key=lambda groups: row[f"groups_{groups}_ms"])
    return {**row, "best": best, "gain": row[f"groups_{GROUPS[0]}_ms"] / row[f"groups_{best}_ms"]}


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    figure.set_size_inches(8, 5)
    axes = figure.subplots()
    for row, (line, mark) in zip(rows, STYLES, strict=False):
        first = row[f"groups_{GROUPS[0]}_ms"]
        gains = [first / row[f"groups_{groups}_ms"] for groups in GROUPS]
        label = f"{row['channels']} channels, {row['size']}x{row['size']}, stride {row['stride']}"
        axes.plot(range(len(GROUPS)), gains, linestyle=line, marker=mark, color="black", label=label)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(GROUPS)), list(map(str, GROUPS)))
    axes.set_xlabel("groups")
    axes.set_ylabel(f"speed-up over {GROUPS[0]} groups")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


EXPERIMENT = Experiment(
    "grouped_convolutions",
    "How many groups should ResNeXt's convolutions have?",
    reading=(
        "the latency of each shape of ResNeXt-50 by number of groups, by the best kernel for each; `gain` is that of "
        "the `best` number over 32, and where it lies differs between devices"
    ),
    parts=_parts,
    measure=_measure,
    plot=_plot,
)
