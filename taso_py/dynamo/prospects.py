"""Record of gains and losses of optimized graphs in this process, which decides whether further graphs are tried.

A model may be captured as many graphs, and each again at every new size, until the recompile limit of ``torch.compile``
and beyond it in the functions that it calls. If the first ones gained nothing, the others are not worth the wait.

Invariant: a graph that is skipped has a reason of one line; a family of graphs that gained before is never skipped.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable
from threading import Lock

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from taso_py.dynamo.captured import placeholders, varying_axes
from taso_py.options import Options

LOSSES = 2
"""Number of sizes at which a family of graphs may gain nothing before other sizes are skipped."""


class Prospects:
    """Gains and losses so far; thread-safe."""

    def __init__(self) -> None:
        """Start without any."""
        self._lock = Lock()
        self._refused: dict[str, str] = {}
        self._losses: Counter[str] = Counter()
        self._gained: set[str] = set()
        self._spent, self._graphs = 0.0, 0

    def why_not(self, family: str, patience: float) -> str:
        """Return why a graph is not to be optimized; empty if it is.

        Args:
            family: the graph's family, see :func:`family_of`.
            patience: seconds that may be spent, since the last gain, on graphs that gain nothing.
        """
        with self._lock:
            if family in self._gained:
                return ""
            if family in self._refused:
                return self._refused[family]
            if self._losses[family] >= LOSSES:
                return f"nothing was gained for it at {self._losses[family]} other sizes"
            if self._spent > patience:
                return (
                    f"nothing was gained in {self._graphs} graphs and {self._spent:.0f} seconds "
                    "(options={'patience': SECONDS} allows for more)"
                )
        return ""

    def note(self, family: str, seconds: float, *, gained: bool) -> None:
        """Record a graph that was optimized."""
        with self._lock:
            if gained:
                self._gained.add(family)
                self._spent, self._graphs = 0.0, 0
            else:
                self._losses[family] += 1
                self._lose(seconds)

    def refuse(self, family: str, seconds: float, reason: str) -> None:
        """Record a graph that cannot be imported, nor at other sizes."""
        with self._lock:
            self._refused[family] = reason
            self._lose(seconds)

    def _lose(self, seconds: float) -> None:
        self._spent += seconds
        self._graphs += 1


def family_of(graph: fx.GraphModule, options: Options) -> str:
    """Return a digest that is equal for captured graphs that differ only in fixed sizes and numbers.

    Args:
        graph: the captured graph, whose inputs may vary in size.
        options: what it is optimized by; other ones may gain where these do not.
    """
    places = {node: place for place, node in enumerate(graph.graph.nodes)}
    examples = [node.meta.get("example_value") for node in placeholders(graph)]
    kinds = [(str(x.dtype), x.device.type) if isinstance(x, Tensor) else () for x in examples]
    found: list[Hashable] = [repr(options), tuple(kinds), tuple(map(tuple, varying_axes(graph)))]
    for node in graph.graph.nodes:
        given = pytree.tree_leaves((node.args, node.kwargs))
        words = tuple([str(leaf) for leaf in given if isinstance(leaf, str | bool | torch.dtype)])
        found.append((node.op, str(node.target), tuple([places[operand] for operand in node.all_input_nodes]), words))
    return hashlib.blake2b(repr(found).encode(), digest_size=16).hexdigest()
