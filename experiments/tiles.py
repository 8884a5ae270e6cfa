"""Correctness of every kernel on this device, and its gain over plain calls.

Convolutions and linear layers of the sizes that models have, with operators that often follow them, by every kernel
that covers them at once, in each memory format that it reads. Each is compared with plain operators on the operands
that it is measured on; a wrong kernel has no latency.

Invariant: latencies come from the latency database as in a search, those of plain calls as the sum of one call per
node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from matplotlib.figure import Figure

from experiments.drawing import name_rows
from experiments.harness import Experiment, Row, Settings
from taso_py.backend.plan import Format
from taso_py.cost.model import CostModel
from taso_py.ir.errors import first_line
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, is_running
from taso_py.kernels.check import FAILURES, WrongKernelError, check
from taso_py.kernels.table import PLAIN, covers
from taso_py.kernels.tile import Cover
from taso_py.latency.database import LatencyDatabase
from taso_py.ops.table import parse_graph

DTYPES = ("f32", "bf16", "f16")
CONVOLUTIONS = {
    "3x3": (64, 64, 56, 3, 1),
    "3x3 wide": (256, 256, 28, 3, 1),
    "1x1": (256, 64, 56, 1, 1),
    "3x3 late": (512, 512, 7, 3, 1),
    "32 groups": (128, 128, 28, 3, 32),
    "depthwise": (240, 240, 14, 5, 240),
}
"""Channels before and after, height and width, size of the filter, groups."""
CONVOLUTION_RESULTS = ("p", "relu(p)", "silu(p)", "relu(n)", "add(p, z)", "relu(add(n, z))", "norm(z)")
NORM = "batch_norm({}, g, s, m, v){{eps=0.00001}}"
LINEARS = {"attention": (128, 768, 768), "wide": (128, 768, 3072), "narrow": (128, 3072, 768), "head": (1, 2048, 1000)}
"""Rows, columns of the operand and of the result."""
LINEAR_RESULTS = (
    *("linear(x, w)", "linear(x, w, b)", "relu(linear(x, w, b))", "gelu(linear(x, w, b))"),
    *('gelu(linear(x, w, b)){approximate="tanh"}', "add(linear(x, w, b), z)", "mul(linear(x, w, b), z)"),
)
WEIGHT_BYTES = 2**26
"""Bytes of distinct weights that are read in turns: beyond the caches, as in a model."""


def _convolution(name: str, result: str, dtype: str) -> Graph:
    before, after, size, window, groups = CONVOLUTIONS[name]
    weights = {"w": f"[{after},{before // groups},{window},{window}]", **dict.fromkeys("bgmsv", f"[{after}]")}
    lines = [f'{key} = weight{{key="{key}", type={dtype}{shape}}}' for key, shape in weights.items()]
    lines.append(f"p = conv2d(x, w, b){{padding=[{window // 2},{window // 2}], groups={groups}}}")
    lines += [f"n = {NORM.format('p')}", f"return {result.replace('norm(z)', NORM.format('z'))}"]
    image = f"{dtype}[1,{{}},{size},{size}]"
    inputs = f"x: {image.format(before)}, z: {image.format(after)}"
    return parse_graph(f"graph({inputs}) {{ {' '.join(lines)} }}")


def _linear(name: str, result: str, dtype: str) -> Graph:
    rows, before, after = LINEARS[name]
    weights = f'w = weight{{key="w", type={dtype}[{after},{before}]}} b = weight{{key="b", type={dtype}[{after}]}}'
    inputs = f"x: {dtype}[{rows},{before}], z: {dtype}[{rows},{after}]"
    return parse_graph(f"graph({inputs}) {{ {weights} return {result} }}")


def _graphs(dtype: str) -> Iterator[tuple[str, Graph]]:
    """Yield the graphs to compute, with their names."""
    for name in CONVOLUTIONS:
        yield from ((f"{name}: {result}", _convolution(name, result, dtype)) for result in CONVOLUTION_RESULTS)
    for name in LINEARS:
        yield from ((f"{name}: {result}", _linear(name, result, dtype)) for result in LINEAR_RESULTS)


def _measure(part: str, settings: Settings) -> Sequence[Row]:
    device = torch.device(settings.device)
    with torch.no_grad(), LatencyDatabase() as database:
        # On a GPU, launching small kernels takes longer than running them, and would dominate.
        cost = CostModel(device, database, weight_bytes=WEIGHT_BYTES, captured=device.type == "cuda")
        return [
            {"computes": name, "dtype": part, **_row(cost, graph, cover)}
            for name, graph in _graphs(part)
            for cover in _kernels(graph, device)
        ]


def _kernels(graph: Graph, device: torch.device) -> list[Cover]:
    """Return the covers of the whole graph at once that are not plain calls."""
    count = len(_running(graph))
    found = covers(graph.outputs[0].node, device)
    return [cover for cover in found if cover.binder is not None and len(cover.nodes) == count]


def _running(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if is_running(node)]


def _row(cost: CostModel, graph: Graph, cover: Cover) -> Row:
    plain = _plain_seconds(cost, graph)
    row = {"tile": cover.name, "plain_ms": plain * 1e3}
    try:
        for reads, _ in cover.formats:
            check(cover, reads, cost.device)
    except WrongKernelError as error:
        return {**row, "passed": False, "problem": first_line(error)}
    except FAILURES as error:  # a library may lack a kernel for some sizes; then none is chosen there
        return {**row, "problem": f"not available: {first_line(error)}"}
    seconds = min(cost.latencies.of_cover(cover, reads) for reads, _ in cover.formats)
    return {**row, "passed": True, "kernel_ms": seconds * 1e3, "gain": plain / seconds}


def _plain_seconds(cost: CostModel, graph: Graph) -> float:
    """Return the latency of one call per node, all dense or all channels last, whichever is less."""
    plain = [cover for node in _running(graph) for cover in covers(node, cost.device, PLAIN)]
    return min(sum(cost.latencies.of_cover(cover, reads) for cover in plain) for reads in Format)


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    place = {name: number for number, name in enumerate(dict.fromkeys(map(_name, rows)))}
    failed = {_name(row) for row in rows if row.get("passed") is False}
    figure.set_size_inches(9, 1.5 + 0.16 * len(place))
    axes = figure.subplots()
    right = [row for row in rows if row.get("passed")]
    dtypes = [dtype for dtype in DTYPES if any(row["dtype"] == dtype for row in right)]
    for dtype, mark in zip(dtypes, "ox^", strict=False):
        mine = [row for row in right if row["dtype"] == dtype]
        places = [place[_name(row)] for row in mine]
        axes.plot([row["gain"] for row in mine], places, mark, color="black", fillstyle="none", label=dtype)
    axes.axvline(1, color="black", linewidth=0.8)
    name_rows(axes, [f"{name} FAILED" if name in failed else name for name in place])
    axes.tick_params(axis="y", labelsize=7)
    axes.grid(axis="y", color="0.9")
    axes.set_xlabel("times as fast as plain calls")
    if dtypes:
        figure.legend(loc="outside upper center", ncols=len(dtypes), frameon=False)


def _name(row: Row) -> str:
    return f"{row['computes']}, {row['tile']}"


EXPERIMENT = Experiment(
    "tiles",
    "Is every kernel right on this device, and what does it gain over plain calls?",
    reading=(
        "one row a kernel, element type, and what it `computes` at once; `passed` must be yes wherever a kernel is "
        "available: in each memory format that it reads, the result is that of plain operators; `gain` is over the "
        "latencies of plain calls, one a node, both in the better memory format, without conversions"
    ),
    parts=lambda _: DTYPES,
    measure=_measure,
    plot=_plot,
)
