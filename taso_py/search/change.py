"""What a step changed, as seen from the graph after it.

Invariant: a match that the change spares can be applied as before, unless it became circular, and changes as much (in
memory up to weights that are read by nodes outside the match which die with it).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from taso_py.ir.node import Node, Value
from taso_py.rules.index import GraphIndex
from taso_py.rules.match import Match
from taso_py.search.cost import created_nodes
from taso_py.search.sites import Inheritance
from taso_py.search.state import Dormant, Option, Remembered, Step


class Change:
    """What a step changed."""

    def __init__(self, step: Step, index: GraphIndex, numbers: Iterator[int]) -> None:
        """Find out.

        Args:
            step: the step.
            index: the graph after it.
            numbers: what new nodes are numbered by.
        """
        self.index = index
        self._step, self._place = step, index.place
        inheritance = Inheritance(step.before.sites, index, step.images, numbers)
        self.sites = inheritance.sites
        before, image, dead = step.before.index, step.image, inheritance.dead
        created = set(created_nodes(before, step.replaced)) | inheritance.fresh
        readers = {image(user) for old in step.replaced for user in before.users[old.node] if old in user.inputs}
        remaining = {old.node for old in step.replaced}
        turned = {now for node, now in step.images.items() if node.is_static != now.is_static}
        self.changed = self._alive(created | readers | remaining | turned | _merged_readers(step, created, index))
        """A match that is new contains one of these."""
        lost = {image(operand) for node in dead for operand, _ in node.inputs}
        won = {operand for node in created for operand, _ in node.inputs}
        won.update(node for node, _ in step.replaced.values())
        self.touched = self.changed | self._alive(lost | won)
        """These, and the nodes that lost or won readers."""
        came = {node for node in created if created.isdisjoint(operand for operand, _ in node.inputs)}
        weights = {node for node in self.touched if node.is_static}
        operands = [set(node.inputs) for node in (*came, *weights) if node.inputs]
        operands += [set(map(step.value, node.inputs)) for node in dead if node.inputs]
        self._operands = operands
        """What nodes are computed from that came or went, or are stored or no longer: targets may contain them."""
        self.forms = self._formed(step, inheritance.fresh)
        """The forms of the nodes by site."""
        self._locate(step, inheritance, weights)

    def _formed(self, step: Step, fresh: Set[Node]) -> Mapping[int, int]:
        before, now = step.before.sites.number, self.sites.number
        forms = {**step.before.forms}
        for node in fresh & before.keys():
            forms[now[node]] = step.before.forms[before[node]]
        for node, form in step.outline.forms.items():
            site = before.get(node, now.get(node))
            if site is not None:
                forms[site] = form
        return forms

    def _locate(self, step: Step, inheritance: Inheritance, weights: set[Node]) -> None:
        """Says where all this is by sites."""
        before, now = step.before.sites.number, self.sites.number
        replaced = {before[old.node] for old in step.replaced}
        self._gone = replaced.union([before[node] for node in inheritance.dead])
        """Sites of which no match is left that contains them."""
        self._lost = self._gone | inheritance.merged
        """These, and the sites of nodes that became one: ways through all others lead where they led."""
        self._matched = self._lost.union([now[node] for node in self.touched])
        """Sites whose matches are to be looked at again."""
        self._read = replaced | inheritance.merged
        """Sites of which matches are to be looked at again that read them."""
        self._kept = {now[node]: self._keepers(node) for node in weights}
        """The sites of touched weights; matches that read one and contain all its keepers are to be looked at again."""
        sites = (frozenset([now.get(node, -1) for node, _ in values]) for values in self._operands)
        self._together = {places for places in sites if -1 not in places}
        """Sites of which matches are to be looked at again that read them all."""
        self._any = frozenset[int]().union(*self._together)

    def _keepers(self, weight: Node) -> frozenset[int]:
        """The sites of the nodes that read a weight at run time before and after: as long as one does, it is stored."""
        before, now = self._step.before, self.sites.number
        old = {before.sites.number[user] for user in before.index.users.get(weight, ()) if not user.is_static}
        return frozenset([now[user] for user in self.index.users[weight] if not user.is_static]) & old

    @property
    def zone(self) -> frozenset[int]:
        """The sites of what was touched, weights apart."""
        return frozenset([self.sites.number[node] for node in self.touched if not node.is_static])

    def _alive(self, nodes: set[Node]) -> set[Node]:
        return {node for node in nodes if node in self._place}

    def spares(self, option: Option) -> bool:
        """Whether an option of the state before is surely one still, with the same difference."""
        nodes, operands = option.nodes, option.operands
        if not (self._matched.isdisjoint(nodes) and self._read.isdisjoint(operands)):
            return False
        if any(self._kept[site].issubset(nodes) for site in operands if site in self._kept):
            return False
        return self._any.isdisjoint(operands) or not any(sites.issubset(operands) for sites in self._together)

    def leaves(self, dormant: Dormant) -> bool:
        """Whether a dormant match of the state before surely is one still, and is not found anew."""
        return self._matched.isdisjoint(dormant.nodes) and self._lost.isdisjoint(dormant.ground)

    def destroys(self, match: Remembered) -> bool:
        """Whether something is gone that a match in the graph before is matched to."""
        return not self._gone.isdisjoint(match.nodes)

    def carried(self, match: Match) -> Match | None:
        """A match in the graph before that the step does not destroy, carried over; None if its outputs became one."""
        step = self._step
        nodes = tuple([step.image(node) for node in match.nodes])
        values = {name: step.value(value) for name, value in match.values.items()}
        outputs = tuple([Value(step.image(node), output) for node, output in match.outputs])
        if len(set(outputs)) < len(set(match.outputs)):
            return None
        return Match(match.rule, nodes, values, match.sizes, match.dtype, outputs)


def _merged_readers(step: Step, created: set[Node], index: GraphIndex) -> set[Node]:
    """The readers of nodes that several different nodes became: only now have they an operand in common."""
    seen, merged = set(created), set[Node]()
    for node in step.images.values():
        (merged if node in seen or node in step.before.index.place else seen).add(node)
    return {user for node in merged for user in index.users.get(node, ())}
