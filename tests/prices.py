"""Invented prices of kernels and conversions: choices are tested without measuring, and plans drawn at random."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from fuzz.prices import InventedCost
from taso_py.backend.plan import Format, is_formatted
from taso_py.cost.labelling import Prices
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, is_running
from taso_py.kernels.layout import Layouts
from taso_py.kernels.tile import Cover, Formats


class Typed(InventedCost):
    """Prices that depend on what latencies depend on: the kernel, and how its operands lie in memory."""

    def cover_seconds(self, cover: Cover, formats: Formats) -> float:
        share = 1.0 if cover.binder is None else self.fused
        operands = [Layouts().signature([value], formats[0]) for value in cover.operands]
        if len(cover.nodes) == 1 and cover.root.op.commutative:
            operands.sort()
        return self.draw((cover.name, cover.text, *operands, formats[0].value), share)

    def conversion_seconds(self, value: Value, format_: Format) -> float:
        return self.draw((value.type.text, format_.value), 0.6)


def coverings(graph: Graph, prices: Prices) -> Iterator[tuple[Cover, ...]]:
    """Every way to compute each node once, nothing computed inside being read outside."""
    running = [node for node in graph.nodes if is_running(node)]
    outputs = {value.node for value in graph.outputs}

    def fits(cover: Cover) -> bool:
        inner = set(cover.nodes[:-1])
        return not inner & outputs and all(user in cover.nodes for node in inner for user in graph.users[node])

    usable = [cover for node in running for cover in prices.covers(node) if fits(cover)]

    def extend(left: frozenset[Node], taken: tuple[Cover, ...]) -> Iterator[tuple[Cover, ...]]:
        if not left:
            yield taken
            return
        first = next(node for node in running if node in left)
        for cover in usable:
            if first in cover.nodes and left.issuperset(cover.nodes):
                yield from extend(left - set(cover.nodes), (*taken, cover))

    yield from extend(frozenset(running), ())


def plan_seconds(graph: Graph, taken: Sequence[Cover], pairs: Sequence[Formats], prices: Prices) -> float:
    """The latency of a plan, from what it means."""
    gives = {v: p[1] for c, p in zip(taken, pairs, strict=True) for v in c.root.outputs if is_formatted(v)}
    wanted = {(v, p[0]) for c, p in zip(taken, pairs, strict=True) for v in c.operands if is_formatted(v)}
    wanted |= {(value, Format.DENSE) for value in graph.outputs if is_formatted(value)}
    conversions = [(v, f) for v, f in wanted if gives.get(v, Format.DENSE) is not f]
    own = sum(prices.cover_seconds(cover, pair) for cover, pair in zip(taken, pairs, strict=True))
    return own + sum(prices.conversion_seconds(*conversion) for conversion in conversions)


def least_seconds(
    graph: Graph, prices: Prices, formats: Sequence[Format], covering: Sequence[Cover] | None = None
) -> float:
    """The latency of the best plan of all, or of the best with certain covers, by trying each."""
    tried = coverings(graph, prices) if covering is None else [covering]
    return min(
        plan_seconds(graph, taken, pairs, prices)
        for taken in tried
        for pairs in itertools.product(*(allowed(cover, formats) for cover in taken))
    )


def allowed(cover: Cover, formats: Sequence[Format]) -> Sequence[Formats]:
    """What a cover can choose from."""
    return [pair for pair in cover.formats if set(pair) <= set(formats)] or cover.formats[:1]
