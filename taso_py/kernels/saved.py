"""Plans as data: the kernels of a plan as ``plan.json`` holds them.

Invariant: a restored plan has only kernels that exist on this machine, which may not be the one they were chosen on,
fit the graph, and are correct here; plain ATen calls replace the others, and one message says so.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

from taso_py.backend.plan import Format, Plan, PlanStep
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node
from taso_py.kernels.check import KernelChecks
from taso_py.kernels.table import covers
from taso_py.kernels.tile import Cover, Formats

_log = logging.getLogger(__name__)


def dump(plan: Plan) -> dict[str, Any]:
    """Return a plan as a JSON object; nodes are named by their digests."""
    steps = [
        {
            "tile": step.kernel.name if step.kernel is not None else "aten",
            "nodes": [inner.digest for inner in (step.kernel.nodes if step.kernel is not None else (node,))],
            "reads": step.reads.value,
            "gives": step.gives.value,
        }
        for node, step in sorted(plan.steps.items(), key=lambda item: item[0].digest)
    ]
    return {"overwrites": plan.overwrites, "direct": plan.direct, "traced": plan.traced, "steps": steps}


def restore(graph: Graph, plan: Mapping[str, Any], device: torch.device) -> Plan:
    """Return the plan that :func:`dump` gave, for a graph that was imported from the same file."""
    nodes = {node.digest: node for node in graph.nodes}
    restored: dict[Node, PlanStep] = {}
    trials, lost = KernelChecks(device), 0
    for saved in plan["steps"]:
        node = nodes.get(saved["nodes"][-1])
        reads, gives = Format(saved["reads"]), Format(saved["gives"])
        cover = None if node is None else _cover(node, saved, (reads, gives), device)
        if cover is None or not trials.runs(cover, reads):
            lost += 1
        else:
            restored[cover.root] = cover.step((reads, gives))
    if lost:
        _log.warning("%d kernels of the saved plan are not available here; plain operators take their place", lost)
    return Plan(
        restored,
        overwrites=bool(plan["overwrites"]),
        direct=bool(plan.get("direct")),
        traced=bool(plan.get("traced")),
    )


def _cover(node: Node, saved: Mapping[str, Any], formats: Formats, device: torch.device) -> Cover | None:
    for cover in covers(node, device):
        same = cover.name == saved["tile"] and [inner.digest for inner in cover.nodes] == list(saved["nodes"])
        if same and formats in cover.formats:
            return cover
    return None
