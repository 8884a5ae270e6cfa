"""The picture in the README: the graph of a small model as it is imported, and as the search rewrites it.

    python docs/picture.py            writes docs/picture.svg

The search goes by modelled prices, so much a call, an operation and a byte, so that the picture is the same everywhere.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

import torch
from torch import Tensor, nn

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from fuzz.prices import ModelledCost  # noqa: E402
from taso_py.frontend import import_module  # noqa: E402
from taso_py.ir.graph import Graph  # noqa: E402
from taso_py.ir.node import Node  # noqa: E402
from taso_py.report.drawing import Drawing, draw  # noqa: E402
from taso_py.rules.database import read_database  # noqa: E402
from taso_py.search.backtracking import search  # noqa: E402

PICTURE = ROOT / "docs" / "picture.svg"
MARGIN, TITLE = 24.0, 34.0
COLOURS = {
    "removed": ("#fbe9ea", "#b04a5a"),
    "added": ("#e6f3ea", "#2e7d4f"),
    "same": ("#ffffff", "#8a98a6"),
}
"""Fill and border of boxes, by state."""
BOLD = ' font-weight="600"'


class Attention(nn.Module):
    """Self-attention as it is often written: three layers, a scale, a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(64, 64) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        return (q @ k.transpose(-1, -2) / 8.0).softmax(-1) @ v


def graphs() -> tuple[Graph, Graph]:
    """Return the graph before and after."""
    torch.manual_seed(0)
    program = import_module(Attention().eval(), (torch.randn(2, 32, 64),))
    cost = ModelledCost(0, fused=1.0, device=program.device)
    return program.graph, search(program.graph, read_database(), cost).best.graph


def picture() -> str:
    """Return the picture as SVG."""
    before, after = graphs()
    shared = {node.digest for node in before.nodes} & {node.digest for node in after.nodes}

    def drawn(graph: Graph, other: str) -> Drawing:
        def state(node: Node) -> str:
            return "same" if node.digest in shared else other

        return draw([node for node in graph.nodes if not node.is_static], state)

    panes = [("before", drawn(before, "removed")), ("after", drawn(after, "added"))]
    width = sum(drawing.width for _, drawing in panes) + MARGIN * (len(panes) + 1)
    height = max(drawing.height for _, drawing in panes) + TITLE + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="10">',
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#f6f8fa"/>',
    ]
    left = MARGIN
    for name, drawing in panes:
        lines += [f'<g transform="translate({left:g} {TITLE:g})">', *_pane(name, drawing), "</g>"]
        left += drawing.width + MARGIN
    return "\n".join([*lines, "</svg>"]) + "\n"


def _pane(name: str, drawing: Drawing) -> list[str]:
    lines = [f'<text y="-12" font-size="13" fill="#1c2530">{name}</text>']
    lines += [f'<path d="{path}" fill="none" stroke="#8a98a6"/>' for path in drawing.paths]
    for box in drawing.boxes:
        fill, border = COLOURS[box.state]
        place = f'x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}"'
        lines.append(f'<rect {place} rx="5" fill="{fill}" stroke="{border}"/>')
        lines += [
            f'<text x="{box.x + box.width / 2:g}" y="{box.y + 16 + 14 * number:g}" text-anchor="middle" fill="#1c2530"'
            f"{BOLD if number == 0 else ''}>{escape(line)}</text>"
            for number, line in enumerate(box.lines)
        ]
    return lines


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
