"""Incremental cost estimates: after a rewrite, only the changed nodes and their surroundings are covered anew.

An estimate records which covers compute a graph, in which formats, and the cost of each. A substitution rebuilds
everything downstream of it, but node for node: there the covers, the formats and the prices stay.

Invariant: an estimate is the cost of a feasible plan, hence never below that of the best plan. A fresh one is that of
:func:`taso_py.cost.choice.choose`; a revised one may be higher if other covers and formats far from the changes would
now be better.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from math import fsum

from taso_py.backend.plan import Format, is_formatted
from taso_py.cost.choice import (
    DENSE_RIM,
    SURELY,
    Costs,
    Prices,
    Problem,
    Rim,
    allowed,
    is_usable,
    labelled,
    ways,
)
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, is_running
from taso_py.kernels.tile import Cover, Formats

REACH = 3
"""The most nodes that a cover has before its last: product, normalisation, sum, activation."""

AMID = tuple(Format)
"""The formats assumed everywhere around the affected nodes, one after the other, when covers are chosen for them."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A chosen cover, reduced to the facts that later changes around it need."""

    nodes: tuple[Node, ...]
    """The nodes that it computes; the last is the one whose outputs others read."""
    pairs: Sequence[Formats]
    """The formats to choose from: one or two."""
    own: Sequence[float]
    """The cost in each of them."""
    label: int
    """The index of the chosen formats."""
    matters: bool
    """True if the memory format may matter here."""


@dataclass(frozen=True)
class Appraisal:
    """The cost estimate of a graph, with the covers, formats and conversions it is based on."""

    slots: Mapping[Node, Slot]
    """The placements, by the last node of each."""
    homes: Mapping[Node, Node]
    """For nodes inside a placement, its last node."""
    conversions: Mapping[Value, float]
    """The converted values, and the cost of each conversion."""
    seconds: float

    def gives(self, value: Value) -> Format:
        """Return the format in which a value is given."""
        slot = self.slots.get(value.node)
        return Format.DENSE if slot is None else slot.pairs[slot.label][1]


def appraise(graph: Graph, prices: Prices, formats: Iterable[Format] = Format, rim: Rim = DENSE_RIM) -> Appraisal:
    """Return the estimate of a graph, computed from scratch."""
    problem = Problem(graph, prices, frozenset(formats))
    seconds, labelling, labels = labelled(problem, rim)
    slots = {
        cover.root: Slot(cover.nodes, pairs, own, label, cover.root in problem.images)
        for cover, pairs, own, label in zip(labelling.covers, labelling.pairs, labelling.own, labels, strict=True)
    }
    homes = {node: cover.root for cover in labelling.covers for node in cover.nodes[:-1]}
    return Appraisal(slots, homes, labelling.conversions(labels), seconds)


def revise(
    before: Appraisal,
    graph: Graph,
    images: Mapping[Node, Node],
    touched: Set[Node],
    prices: Prices,
    formats: Iterable[Format] = Format,
    rim: Rim = DENSE_RIM,
) -> Appraisal:
    """Return the estimate of a graph that was made from another by a rewrite.

    Args:
        before: the estimate of the other graph.
        graph: the new graph.
        images: maps nodes to the new nodes that differ from them in their operands only.
        touched: the nodes that are new, read something else than before, or lost or gained readers.
        prices: the latencies.
        formats: the memory formats to choose from.
        rim: the formats of the graph's inputs and outputs.
    """
    revision = _Revision(before, graph, images, prices, frozenset(formats), rim)
    zone = revision.dissolve(revision.zone(touched))
    values = {value for node in {*touched, *zone} for value in node.outputs if is_formatted(value)}
    least = {way: way.least() for way in revision.filled(zone)}
    first, *others = sorted(least, key=least.__getitem__)  # the one that is likely to win
    best = first.settled(values)
    for way in others:
        if least[way] * SURELY < best.seconds:
            best = min(best, way.settled(values), key=lambda appraisal: appraisal.seconds)
    return best


class _Revision:
    """A revision of an estimate in progress."""

    def __init__(
        self,
        before: Appraisal,
        graph: Graph,
        images: Mapping[Node, Node],
        prices: Prices,
        formats: frozenset[Format],
        rim: Rim,
    ) -> None:
        self._before, self._graph, self._images = before, graph, images
        self._prices, self._formats = prices, formats
        self._users = graph.users
        self._returned, self._rim, self._wanted = set(graph.outputs), rim, rim.returned(graph)
        self._slots: dict[Node, Slot] = {}
        self._homes: dict[Node, Node] = {}
        self._filled: list[Node] = []
        self._known_around: dict[Node, list[Value]] = {}
        self._known_readers: dict[Value, list[Node]] = {}
        for slot in before.slots.values():
            self._keep(slot)

    def _keep(self, slot: Slot) -> None:
        """Take over a placement, unless nodes of it are gone or have become nodes that another placement computes."""
        images, slots, homes = self._images, self._slots, self._homes
        if len(slot.nodes) == 1:
            node = images.get(slot.nodes[0], slot.nodes[0])
            if node in self._users and node not in slots and node not in homes:
                is_same = node is slot.nodes[0]
                slots[node] = slot if is_same else Slot((node,), slot.pairs, slot.own, slot.label, slot.matters)
            return
        nodes = tuple([images.get(node, node) for node in slot.nodes])
        for node in nodes:
            if node not in self._users or node in slots or node in homes:
                return
        *inner, root = nodes
        slots[root] = slot if nodes == slot.nodes else Slot(nodes, slot.pairs, slot.own, slot.label, slot.matters)
        for node in inner:
            homes[node] = root

    def zone(self, touched: Set[Node]) -> dict[Node, None]:
        """Return the nodes to cover anew: touched or uncovered ones, and those that a cover computes with them."""
        start = dict.fromkeys(
            node
            for node in self._graph.nodes
            if (node in touched or (node not in self._slots and node not in self._homes)) and is_running(node)
        )
        waiting = list(start)
        while waiting:
            node = waiting.pop()
            # A value that is read through views may have another layout than before.
            if node.op.is_view:
                more = [user for user in self._users[node] if user not in start]
                start.update(dict.fromkeys(more))
                waiting += more
        zone, reached = dict(start), list(start)
        roots = dict(start)
        for _ in range(REACH):
            reached = [user for node in reached for user in self._users[node] if user not in roots]
            roots.update(dict.fromkeys(reached))
        for root in roots:
            for cover in self._prices.covers(root):
                if len(cover.nodes) > 1 and not start.keys().isdisjoint(cover.nodes) and self._is_usable(cover):
                    zone.update(dict.fromkeys(cover.nodes))
        return zone

    def dissolve(self, zone: dict[Node, None]) -> list[Node]:
        """Remove the placements that meet the affected nodes; return all nodes that have no placement then."""
        waiting = list(zone)
        while waiting:
            node = waiting.pop()
            slot = self._slots.pop(self._homes.get(node, node), None)
            for inner in slot.nodes if slot is not None else ():
                self._homes.pop(inner, None)
                if inner in self._users and inner not in zone:
                    zone[inner] = None
                    waiting.append(inner)
        return [node for node in self._graph.nodes if node in zone]

    def filled(self, zone: Sequence[Node]) -> list[_Revision]:
        """Return one revision for each way to cover the nodes without placement; there is at least one."""
        inside = set(zone)
        matter = self._mattering(zone)
        alone: dict[Node, list[Cover]] = {}
        fused: list[Cover] = []
        for node in zone:
            covers = self._prices.covers(node)
            alone[node] = [cover for cover in covers if len(cover.nodes) == 1]
            fused += [c for c in covers if len(c.nodes) > 1 and inside.issuperset(c.nodes) and self._is_usable(c)]

        @cache
        def costs(cover: Cover) -> Costs:
            pairs = self._pairs(cover, matter)
            return pairs, [self._prices.cover_seconds(cover, pair) for pair in pairs]

        def slot(cover: Cover) -> Slot:
            return Slot(cover.nodes, *costs(cover), 0, cover.root in matter)

        taken = ways(alone, fused, costs, self._prices, AMID if matter else (Format.DENSE,))
        return [self._with(map(slot, covers)) for covers in taken]

    def _with(self, slots: Iterable[Slot]) -> _Revision:
        """Return this revision with more placements."""
        way = copy(self)
        way._slots, way._homes, way._filled = dict(self._slots), dict(self._homes), []
        way._known_around, way._known_readers = {}, {}
        for slot in slots:
            *inner, root = slot.nodes
            way._slots[root] = slot
            way._homes.update(dict.fromkeys(inner, root))
            way._filled.append(root)
        return way

    def _is_usable(self, cover: Cover) -> bool:
        return is_usable(cover, self._users, self._returned)

    def _pairs(self, cover: Cover, matter: Set[Node]) -> Sequence[Formats]:
        if len(cover.formats) > 1 and cover.root not in matter:
            return cover.formats[:1]
        return allowed(cover, self._formats)

    def _mattering(self, zone: Sequence[Node]) -> set[Node]:
        """Return the affected nodes whose memory format may matter: image operators, and nodes connected to them."""
        if Format.CHANNELS_LAST not in self._formats:
            return set()
        inside, found = set(zone), set[Node]()
        waiting = [node for node in zone if node.op.has_channels or self._meets_mattering(node)]
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting += [other for other in self._connected(node) if other in inside and other not in found]
        return found

    def _connected(self, node: Node) -> list[Node]:
        """Return the nodes connected with a node by values of rank 4."""
        below = [value.node for value in node.inputs if is_formatted(value)]
        return below + [
            user for user in self._users[node] if any(v.node is node and is_formatted(v) for v in user.inputs)
        ]

    def _meets_mattering(self, node: Node) -> bool:
        slots = (self._slots.get(self._homes.get(other, other)) for other in self._connected(node))
        return any(slot is not None and slot.matters for slot in slots)

    def least(self) -> float:
        """Return a lower bound of the cost of the placements, whatever their formats."""
        return fsum([min(slot.own) for slot in self._slots.values()])

    def settled(self, values: Set[Value]) -> Appraisal:
        """Choose formats, of new placements and of others as far as that pays, and return the estimate.

        Args:
            values: the values whose conversion cost may have changed, whatever is chosen.
        """
        free = [root for root in self._filled if len(self._slots[root].pairs) > 1]
        labellings = self._labellings(free)
        changed = set(self._filled).union(*labellings)
        around = set[Value]().union(*map(self._around, changed))
        if labellings:
            best = min(labellings, key=lambda labels: self._seconds(changed, around, labels))
            self._slots.update((root, replace(self._slots[root], label=label)) for root, label in best.items())
        return self._result(values | around)

    def _labellings(self, free: Sequence[Node]) -> list[dict[Node, int]]:
        """Return local optima of the labels, one per start; only one if it is fastest everywhere without conversion."""
        found: list[dict[Node, int]] = []
        for label in (1, 0) if free else ():
            found.append(labels := self._descended(free, label))
            around = set[Value]().union(*map(self._around, labels))
            least = fsum([min(self._slots[root].own) for root in labels])
            if self._seconds(labels.keys(), around, labels) * SURELY <= least:
                break
        return found

    def _descended(self, free: Sequence[Node], start: int) -> dict[Node, int]:
        """Return labels that no single change improves, for free placements, equal at first, and their neighbours."""
        labels = dict.fromkeys(free, start)
        waiting = dict.fromkeys(free)
        while waiting:
            root = next(iter(waiting))
            del waiting[root]
            label, stays = labels.get(root, self._slots[root].label), self._seconds_at(root, labels)
            if self._seconds_at(root, {**labels, root: label ^ 1}) < stays * SURELY:
                labels[root] = label ^ 1
                waiting.update(dict.fromkeys(self._free_neighbours(self._around(root))))
        return labels

    def _free_neighbours(self, values: Iterable[Value]) -> list[Node]:
        nodes = [node for value in values for node in (value.node, *self._users[value.node])]
        roots = [self._homes.get(node, node) for node in nodes]
        return [root for root in roots if root in self._slots and len(self._slots[root].pairs) > 1]

    def _around(self, root: Node) -> list[Value]:
        """Return the values of rank 4 that a placement reads and gives, remembered."""
        known = self._known_around.get(root)
        if known is None:
            nodes = self._slots[root].nodes
            read = [value for node in nodes for value in node.inputs if is_formatted(value) and value.node not in nodes]
            found = dict.fromkeys([*read, *(value for value in root.outputs if is_formatted(value))])
            known = self._known_around[root] = list(found)
        return known

    def _readers(self, value: Value) -> list[Node]:
        """Return the placements that read a value from another, remembered."""
        known = self._known_readers.get(value)
        if known is None:
            known = self._known_readers[value] = []
            for user in self._users[value.node]:
                slot = self._slots.get(root := self._homes.get(user, user))
                if slot is not None and value in user.inputs and value.node not in slot.nodes:
                    known.append(root)
        return known

    def _seconds(self, roots: Set[Node], values: Set[Value], labels: Mapping[Node, int]) -> float:
        """Return the cost of placements and conversions under labels; the sum does not depend on set order."""
        slots = [(root, self._slots[root]) for root in roots]
        own = fsum([slot.own[labels.get(root, slot.label)] for root, slot in slots])
        return own + fsum([self._converting(value, labels) for value in values])

    def _seconds_at(self, root: Node, labels: Mapping[Node, int]) -> float:
        """Return the cost of a placement under labels, with the conversions of the values it reads and gives."""
        slot = self._slots[root]
        seconds = slot.own[labels.get(root, slot.label)]
        for value in self._around(root):
            seconds += self._converting(value, labels)
        return seconds

    def _converting(self, value: Value, labels: Mapping[Node, int]) -> float:
        """Return the cost of converting a value: once, if any reader needs another format than it is given in."""
        slots, node = self._slots, value.node
        maker = slots.get(node)
        given = self._rim.gives(value) if maker is None else maker.pairs[labels.get(node, maker.label)][1]
        is_wanted = value in self._wanted and given.other in self._wanted[value]
        for root in () if is_wanted else self._readers(value):
            slot = slots[root]
            if slot.pairs[labels.get(root, slot.label)][0] is not given:
                is_wanted = True
                break
        return self._prices.conversion_seconds(value, given.other) if is_wanted else 0.0

    def _result(self, changed: Set[Value]) -> Appraisal:
        """Return the estimate, with the conversion cost of the changed values recomputed."""
        conversions: dict[Value, float] = {}
        for (node, output), seconds in self._before.conversions.items():
            value = Value(self._images.get(node, node), output)
            if value.node in self._users and value not in changed:
                conversions[value] = seconds
        conversions.update((value, seconds) for value in changed if (seconds := self._converting(value, {})))
        own = sum([slot.own[slot.label] for slot in self._slots.values()])
        return Appraisal(self._slots, self._homes, conversions, own + fsum(conversions.values()))
