"""What optimizing captured graphs has come to in this process, and when no more are tried.

A model may be captured as many graphs, and each again at every new size, until the recompile limit of ``torch.compile``
and beyond it in the functions that it calls. Where the first have gained nothing, the others are not worth the wait.

Invariant: what is left out is left out with a reason of one line; what has gained before is never left out.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable
from threading import Lock

from torch import fx

LOSSES = 2
"""At how many sizes graphs that are otherwise the same may gain nothing before other sizes are left as they are."""


class Prospects:
    """Gains and losses so far; threads may share it."""

    def __init__(self) -> None:
        """Nothing was tried yet."""
        self._lock = Lock()
        self._refused: dict[str, str] = {}
        self._losses: Counter[str] = Counter()
        self._gained: set[str] = set()
        self._spent, self._graphs = 0.0, 0

    def why_not(self, family: str, patience: float) -> str:
        """Why a graph is not to be optimized, or empty.

        Args:
            family: of the graph, as :func:`family_of` gives it.
            patience: how many seconds may be spent, since something gained, on graphs that do not.
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
        """Takes note of a graph that was optimized."""
        with self._lock:
            if gained:
                self._gained.add(family)
                self._spent, self._graphs = 0.0, 0
            else:
                self._losses[family] += 1
                self._lose(seconds)

    def refuse(self, family: str, seconds: float, reason: str) -> None:
        """Takes note of a graph that could not be imported; at other sizes it cannot either."""
        with self._lock:
            self._refused[family] = reason
            self._lose(seconds)

    def _lose(self, seconds: float) -> None:
        self._spent += seconds
        self._graphs += 1


def family_of(graph: fx.GraphModule) -> str:
    """What captured graphs have in common that differ in sizes and numbers only."""
    places = {node: place for place, node in enumerate(graph.graph.nodes)}
    found: list[Hashable] = []
    for node in graph.graph.nodes:
        found.append((node.op, str(node.target), tuple([places[operand] for operand in node.all_input_nodes])))
    return hashlib.blake2b(repr(found).encode(), digest_size=16).hexdigest()
