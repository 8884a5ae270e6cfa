"""Joint search for substitutions and memory formats, compared with separate decisions.

The graph is computed with dense values throughout, original and rewritten; with memory formats chosen for the original
and for the graph found with dense prices; rewritten with formats that were decided beforehand; and rewritten at prices
that include the choice of formats, which is what the search does. memory_formats asks how formats should be chosen for
a graph; here they are always chosen in the best way, and the question is when.

Formats decided beforehand hold by kind of operator: one with the attributes and shape of one of the original gets the
format that most of its kind had there, and one of a new kind the format that most values had.

Invariant: all prices come from one set of latencies, all ways have the best kernels, and the ratios are paired.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from matplotlib.figure import Figure

from experiments.drawing import grouped_bars
from experiments.harness import Experiment, Row, Settings
from experiments.subject import Subject, subject
from experiments.ways import ORIGINAL, speedups
from taso_py.backend.plan import NO_PLAN, Format, Plan, is_formatted
from taso_py.cost.model import CostModel
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, is_running
from taso_py.ir.operator import Operator
from taso_py.ir.types import TensorType
from taso_py.kernels.tile import Cover, Formats
from taso_py.rules.database import read_database
from taso_py.rules.match import Matcher
from taso_py.search.backtracking import search
from taso_py.search.result import Limits

QUICK = ("squeezenet1_1",)
FULL = (
    *("resnet50", "resnext50_32x4d", "inception_v3", "squeezenet1_1", "mobilenet_v3_large", "efficientnet_b0"),
    *("densenet121", "convnext_tiny", "nasnetalarge"),
)
WAYS = ("neither", "substitutions", "layout", "substitutions_then_layout", "layout_then_substitutions", "jointly")
FORBIDDEN = 1e3
"""Factor on the price of a kernel that returns another format than was decided: nothing outweighs it."""

Kind: TypeAlias = tuple[Operator, tuple[TensorType, ...]]


class DecidedCost(CostModel):
    """Prices with memory formats decided beforehand; without a decision, the usual ones."""

    _decided: Mapping[Kind, Format] | None = None
    _usual = Format.DENSE

    def decide(self, graph: Graph, plan: Plan) -> None:
        """Fix the formats to those of a plan for a graph."""
        votes: dict[Kind, Counter[Format]] = {}
        for root, node in _computed(graph, plan):
            if any(map(is_formatted, node.outputs)):
                votes.setdefault(_kind(node), Counter())[plan.step(root).gives] += 1
        self._decided = {kind: counts.most_common(1)[0][0] for kind, counts in votes.items()}
        every = sum(votes.values(), Counter[Format]())
        self._usual = every.most_common(1)[0][0] if every else Format.DENSE
        self.rescale(self.scale)

    def cover_seconds(self, cover: Cover, formats: Formats) -> float:
        """Return the usual price, multiplied for formats other than the decided one."""
        seconds = super().cover_seconds(cover, formats)
        if self._decided is None or not any(map(is_formatted, cover.root.outputs)):
            return seconds
        wanted = self._decided.get(_kind(cover.root), self._usual)
        can_give = {gives for other in self.covers(cover.root) for _, gives in other.formats}
        return seconds * FORBIDDEN if formats[1] is not wanted and wanted in can_give else seconds


def _computed(graph: Graph, plan: Plan) -> list[tuple[Node, Node]]:
    """Return the nodes that run, each after the last node of the step that computes it."""
    inside = {node: root for root, step in plan.steps.items() if step.kernel for node in step.kernel.nodes}
    return [(inside.get(node, node), node) for node in graph.nodes if is_running(node)]


def _kind(node: Node) -> Kind:
    return node.op, node.types


def _measure(name: str, settings: Settings) -> Sequence[Row]:
    with subject(name, settings) as model:
        made = _ways(model, Limits(seconds=6.0 if settings.quick else 90.0, seed=settings.seed))
        calls = {ORIGINAL: model.call(NO_PLAN), **{way: call for way, (_, call) in made.items()}}
        predicted = {f"{way}_predicted_ms": seconds * 1e3 for way, (seconds, _) in made.items()}
        return [{"model": name, **speedups(calls, settings, quick_s=10), **predicted}]


def _ways(model: Subject, limits: Limits) -> Mapping[str, tuple[float, Callable[[], Any]]]:
    """Return the predicted latency and a call of the model for each way."""
    graph, free = model.imported.graph, model.cost
    dense, decided = model.repriced(formats=[Format.DENSE]), model.repriced(DecidedCost)
    decided.decide(model.program.graph, free.plan(model.program.graph))
    matcher = Matcher(read_database())

    def found(cost: CostModel) -> Graph:
        return search(graph, matcher, cost, limits).best.graph

    first = found(dense)
    graphs = (
        (graph, dense),
        (first, dense),
        (graph, free),
        (first, free),
        (found(decided), decided),
        (found(free), free),
    )
    return dict(zip(WAYS, (model.build_graph(*chosen) for chosen in graphs), strict=True))


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    grouped_bars(figure, rows, WAYS, "speed-up over the original computed by plain operators (medians, 95% intervals)")


EXPERIMENT = Experiment(
    "joint_layout",
    "What is searching for substitutions and memory formats together worth?",
    reading=(
        "each column is the speed-up of one order over plain calls, all with the best kernels: `neither` keeps the "
        "graph and dense values, `jointly` is what the optimizer does and should be at least each other within its "
        "interval; the `predicted_ms` compare the orders without the noise of a race"
    ),
    parts=lambda settings: settings.choose(QUICK, FULL),
    measure=_measure,
    plot=_plot,
)
