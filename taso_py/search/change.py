"""What a step changed, as seen from the graph after it.

Invariant: a match that the change spares can be applied as before and changes as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace

from taso_py.ir.node import Node, Value
from taso_py.rules.index import GraphIndex
from taso_py.rules.match import Match
from taso_py.search.cost import created_nodes
from taso_py.search.sites import Inheritance
from taso_py.search.state import Option, Step


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
        gone = {before[old.node] for old in step.replaced} | inheritance.merged
        self._matched = gone.union([before[node] for node in inheritance.dead], [now[node] for node in self.touched])
        """Sites whose matches are to be looked at again."""
        self._read = gone.union([now[node] for node in weights])
        """Sites of which matches are to be looked at again that read them."""
        sites = (frozenset([now.get(node, -1) for node, _ in values]) for values in self._operands)
        self._together = {places for places in sites if -1 not in places}
        """Sites of which matches are to be looked at again that read them all."""
        self._any = frozenset[int]().union(*self._together)

    @property
    def zone(self) -> frozenset[int]:
        """The sites of what was touched, weights apart."""
        return frozenset([self.sites.number[node] for node in self.touched if not node.is_static])

    def _alive(self, nodes: set[Node]) -> set[Node]:
        return {node for node in nodes if node in self._place}

    def spares(self, option: Option) -> bool:
        """Whether an option of the state before is surely one still, with the same difference."""
        if not (self._matched.isdisjoint(option.nodes) and self._read.isdisjoint(option.operands)):
            return False
        operands = option.operands
        return self._any.isdisjoint(operands) or not any(sites.issubset(operands) for sites in self._together)

    def carried(self, match: Match) -> Match | None:
        """A match in the graph before, carried over; None if the step destroyed it."""
        step = self._step
        nodes = tuple([step.image(node) for node in match.nodes])
        for node in nodes:
            if node not in self._place:
                return None
        for old in step.replaced:
            if old.node in match.nodes:
                return None
        values = {name: step.value(value) for name, value in match.values.items()}
        outputs = tuple([Value(step.image(node), output) for node, output in match.outputs])
        if len(set(outputs)) < len(set(match.outputs)):
            return None
        return replace(match, nodes=nodes, values=values, outputs=outputs)

    def may_change_difference(self, match: Match) -> bool:
        """Whether what the match would create may exist now, or what it would remove or store may be needed now."""
        if not self.touched.isdisjoint(match.nodes):
            return True
        values = match.values.values()
        for operands in self._operands:
            if operands.issubset(values):
                return True
        return any(node.is_static and node in self.touched for node, _ in values)


def _merged_readers(step: Step, created: set[Node], index: GraphIndex) -> set[Node]:
    """The readers of nodes that several different nodes became: only now have they an operand in common."""
    seen, merged = set(created), set[Node]()
    for node in step.images.values():
        (merged if node in seen or node in step.before.index.place else seen).add(node)
    return {user for node in merged for user in index.users.get(node, ())}
