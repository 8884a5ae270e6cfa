"""The effect of a step on the graph and its matches, as seen from the graph after it.

Invariant: a match that the change spares can be applied as before, unless it became circular, and has the same cost
delta (in memory, up to weights that are read by nodes outside the match which die with it).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set

from taso_py.ir.node import Node, Value
from taso_py.rules.index import GraphIndex, crowds
from taso_py.rules.match import Match
from taso_py.search.cost import created_nodes
from taso_py.search.node_ids import IdPropagation
from taso_py.search.state import BlockedMatch, CachedMatch, Option, SearchStep


class GraphChange:
    """The effect of a step on the graph: changed nodes, and the matches it affects."""

    def __init__(self, step: SearchStep, index: GraphIndex, numbers: Iterator[int]) -> None:
        """Compute the effect of a step.

        Args:
            step: the step.
            index: the graph after it.
            numbers: yields the ids of new nodes.
        """
        self.index = index
        self._step, self._place = step, index.place
        propagation = IdPropagation(step.before.node_ids, index, step.images, numbers=numbers)
        self.node_ids = propagation.node_ids
        before, image, dead = step.before.index, step.image, propagation.dead
        created = set(created_nodes(before, step.replaced)) | propagation.fresh
        readers = {image(user) for old in step.replaced for user in before.users[old.node] if old in user.inputs}
        remaining = {old.node for old in step.replaced}
        turned = {now for node, now in step.images.items() if node.is_static != now.is_static}
        near = created | readers | remaining | turned | _merged_readers(step, created, index)
        self.changed = self._alive(near | _remaining_siblings(step, propagation.dead, index))
        """The changed nodes; a new match contains one of them."""
        lost = {image(operand) for node in dead for operand, _ in node.inputs}
        won = {operand for node in created for operand, _ in node.inputs}
        won.update(node for node, _ in step.replaced.values())
        self.touched = self.changed | self._alive(lost | won)
        """The changed nodes, and those that lost or gained readers."""
        came = {node for node in created if created.isdisjoint(operand for operand, _ in node.inputs)}
        weights = {node for node in self.touched if node.is_static}
        operands = [set(node.inputs) for node in (*came, *weights) if node.inputs]
        operands += [set(map(step.value, node.inputs)) for node in dead if node.inputs]
        self._operands = operands
        """The operands of nodes that were added or removed, or whose storage changed: targets may contain them."""
        self.forms = self._formed(step, propagation.fresh)
        """The canonical forms of the nodes by node id."""
        self._locate(step, propagation, weights, _new_crowds(step, self._alive(won), index))

    def _formed(self, step: SearchStep, fresh: Set[Node]) -> Mapping[int, int]:
        before, now = step.before.node_ids.number, self.node_ids.number
        forms = {**step.before.forms}
        for node in fresh & before.keys():
            forms[now[node]] = step.before.forms[before[node]]
        for node, form in step.graph_form.forms.items():
            node_id = before.get(node, now.get(node))
            if node_id is not None:
                forms[node_id] = form
        return forms

    def _locate(self, step: SearchStep, propagation: IdPropagation, weights: set[Node], crowded: set[Node]) -> None:
        """Translate the effect to node ids."""
        before, now = step.before.node_ids.number, self.node_ids.number
        replaced = {before[old.node] for old in step.replaced}
        self._gone = replaced.union([before[node] for node in propagation.dead])
        """Ids of nodes that are gone, so that no match containing them is left."""
        self._lost = self._gone | propagation.merged
        """These, and the ids of merged nodes: dependency paths through any other nodes still hold."""
        self._matched = self._lost.union([now[node] for node in self.touched])
        """Ids whose matches have to be checked again."""
        self._read = replaced | propagation.merged | {now[node] for node in crowded}
        """Ids whose readers' matches have to be checked again."""
        self._kept = {now[node]: self._keepers(node) for node in weights}
        """The ids of touched weights; matches that read one and contain all its keepers have to be checked again."""
        node_ids = (frozenset([now.get(node, -1) for node, _ in values]) for values in self._operands)
        self._together = {places for places in node_ids if -1 not in places}
        """Sets of ids; matches that read all of one have to be checked again."""
        self._any = frozenset[int]().union(*self._together)

    def _keepers(self, weight: Node) -> frozenset[int]:
        """Return the ids of the nodes that read a weight at run time before and after, which keep it stored."""
        before, now = self._step.before, self.node_ids.number
        old = {before.node_ids.number[user] for user in before.index.users.get(weight, ()) if not user.is_static}
        return frozenset([now[user] for user in self.index.users[weight] if not user.is_static]) & old

    @property
    def affected(self) -> frozenset[int]:
        """The ids of the touched nodes, weights excluded."""
        return frozenset([self.node_ids.number[node] for node in self.touched if not node.is_static])

    def _alive(self, nodes: set[Node]) -> set[Node]:
        return {node for node in nodes if node in self._place}

    def spares(self, option: Option) -> bool:
        """Return whether an option of the state before certainly remains one, with the same cost delta."""
        nodes, operands = option.nodes, option.operands
        if not (self._matched.isdisjoint(nodes) and self._read.isdisjoint(operands)):
            return False
        if any(self._kept[node_id].issubset(nodes) for node_id in operands if node_id in self._kept):
            return False
        return self._any.isdisjoint(operands) or not any(node_ids.issubset(operands) for node_ids in self._together)

    def leaves(self, blocked: BlockedMatch) -> bool:
        """Return whether a blocked match of the state before certainly remains blocked, and is not found anew."""
        return self._matched.isdisjoint(blocked.nodes) and self._lost.isdisjoint(blocked.blockers)

    def destroys(self, match: CachedMatch) -> bool:
        """Return whether a node is gone that a match in the graph before is matched to."""
        return not self._gone.isdisjoint(match.nodes)

    def carried(self, match: Match) -> Match | None:
        """Return a match that survives the step in terms of the graph after it.

        None if its outputs were merged, or a sign is not evident any more, so that no replay would find it.
        """
        step = self._step
        nodes = tuple([step.image(node) for node in match.nodes])
        values = {name: step.value(value) for name, value in match.values.items()}
        outputs = tuple([Value(step.image(node), output) for node, output in match.outputs])
        if len(set(outputs)) < len(set(match.outputs)):
            return None
        found = Match(match.rule, nodes, values, match.sizes, match.dtype, outputs)
        return found if found.has_signs else None


def _remaining_siblings(step: SearchStep, dead: Iterable[Node], index: GraphIndex) -> set[Node]:
    """Return the readers of nodes that so many more read before that rules did not match three of them."""
    found = set[Node]()
    for operand in {operand for node in dead for operand, _ in node.inputs}:
        readers = index.users.get(step.image(operand), ())
        kinds = crowds(step.before.index.users[operand]) - crowds(readers)
        found.update(node for node in readers if type(node.op) in kinds)
    return found


def _new_crowds(step: SearchStep, won: Iterable[Node], index: GraphIndex) -> set[Node]:
    """Return those of nodes that won readers that so many more read now that rules do not match three of them."""
    before = step.before.index.users
    return {node for node in won if crowds(index.users[node]) - crowds(before.get(node, ()))}


def _merged_readers(step: SearchStep, created: set[Node], index: GraphIndex) -> set[Node]:
    """Return the readers of nodes that several different nodes became: only now do they have an operand in common."""
    seen, merged = set(created), set[Node]()
    for node in step.images.values():
        (merged if node in seen or node in step.before.index.place else seen).add(node)
    return {user for node in merged for user in index.users.get(node, ())}
