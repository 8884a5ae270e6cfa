"""Sites: what stays of a node while only what it is computed from changes.

A step makes everything downstream of it anew, but node for node. A site is a number that a node hands down to its
image, so that whatever is known by site stays as it is however many steps are taken elsewhere.

Invariant: in a graph every node has exactly one site; a number is never given again to what is no image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from taso_py.ir.node import Node
from taso_py.rules.index import GraphIndex


class Sites:
    """The sites of the nodes of one graph."""

    def __init__(self, number: Mapping[Node, int]) -> None:
        self.number = number

    @staticmethod
    def fresh(index: GraphIndex, numbers: Iterator[int]) -> Sites:
        """New sites for a whole graph."""
        return Sites(dict(zip(index.place, numbers, strict=False)))

    @cached_property
    def node(self) -> Mapping[int, Node]:
        """The nodes by site."""
        return dict(zip(self.number.values(), self.number, strict=True))


class Inheritance:
    """How the sites of a graph become those of the graph after a step."""

    def __init__(self, before: Sites, index: GraphIndex, images: Mapping[Node, Node], numbers: Iterator[int]) -> None:
        """Hand sites down.

        Args:
            before: the sites of the graph before.
            index: the graph after.
            images: what nodes became that are the same but for their operands.
            numbers: what new nodes are numbered by.
        """
        self.dead: list[Node] = []
        """The nodes before of which there is no image."""
        self.merged: set[int] = set()
        """The sites of nodes that became one node; it has the first of them."""
        place, number = index.place, dict[Node, int]()
        for node, site in before.number.items():
            now = images.get(node, node)
            if now not in place:
                self.dead.append(node)
            elif number.setdefault(now, site) != site:
                self.merged |= {number[now], site}
        self.fresh = {node for node in place if node not in number}
        """Nodes that have a site of their own now. Some were there before: a step may put ``f(x)`` in place of ``x``
        where there is an ``f(x)``, whose image is ``f(f(x))`` then."""
        number.update(zip((node for node in place if node in self.fresh), numbers, strict=False))
        self.sites = Sites(number)
