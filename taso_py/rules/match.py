"""Matching of substitutions: subgraph matching modulo commutativity that solves for sizes on the way.

A rule with one output is matched from its root down. Where it has several, the further roots are found among the
readers of nodes that are bound already, so that operators that share an operand meet without a search over all pairs.

Invariant: every match satisfies the rule's types, attributes and preconditions on the graph's sizes; matches come in an
order that depends on rules and graph alone.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from typing import TypeAlias

from taso_py.collector import collector_paused
from taso_py.ir.errors import InvariantError
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Operator
from taso_py.ir.size import Dim, is_never_negative, substitute, symbols
from taso_py.ir.types import DType
from taso_py.ops.scalar import Condition
from taso_py.ops.signs import sign_of
from taso_py.rules.anchors import Anchors
from taso_py.rules.embed import embeddings
from taso_py.rules.index import GraphIndex, is_crowded
from taso_py.rules.pattern import MARK, Bindings, Pattern, Size, compile_pattern
from taso_py.rules.ruleset import RuleSet
from taso_py.rules.substitution import Substitution, key
from taso_py.rules.symmetry import Symmetry, least_first, orbit, symmetries

MOST_RULES = 8192
"""Most rules whose compiled patterns are cached."""
MOST_GRAPHS = 256
"""Most graphs whose matches a matcher remembers: the regions of a model are searched again at other prices."""
Identity: TypeAlias = tuple[int, ...]
"""Identity of a match: the number of the rule, then those of what its variables and operators are matched to."""


@dataclass(frozen=True, eq=False)
class Match:
    """A place in a graph where a substitution applies."""

    rule: Substitution
    nodes: tuple[Node, ...]
    """The nodes that the operators of the source are matched to, operands first."""
    values: Mapping[str, Value]
    """The graph's value for each variable, by name."""
    sizes: Mapping[str, Size]
    """The size or number for each size variable; one that is a number attribute may stand for any number."""
    dtype: DType | None
    """The element type for ``FLOAT``; None where the rule does not mention it."""
    outputs: tuple[Value, ...]
    """The values that are replaced, in the order of the source's outputs."""
    bases: tuple[Substitution, ...] = ()
    """The rules that the rule was derived from for this match; none for one that was proved by itself."""

    @property
    def has_signs(self) -> bool:
        """True if the values of all variables evidently have the signs that the rule demands."""
        return all(sign_of(self.values[name]) >= sign for name, sign in self.rule.signs.items())


class Matcher:
    """Rules that find their matches in graphs; each is read once a graph has all of its kinds of operators."""

    def __init__(self, rules: Iterable[Substitution], keep_all: bool = False) -> None:
        """Create a matcher.

        Args:
            rules: the rules.
            keep_all: whether to find each of the matches that differ by a symmetry of a rule, not only one; and of
                rules with three outputs and more those that match some of more than ``MOST_SIBLINGS``.
        """
        self.keeps_all = keep_all
        with collector_paused():  # here and below: rules make no reference cycles, and many objects
            self.rules = RuleSet.of(rules)
        self._waiting = [*enumerate(self.rules.stored)]
        self._met = set[type[Operator]]()
        self._searches: dict[str, _Search] = {}
        self._roots, self._anywhere = Anchors[_Search](), Anchors[_Search]()
        self._known: dict[tuple[Graph, bool], list[Match]] = {}

    @staticmethod
    def of(rules: Iterable[Substitution] | Matcher) -> Matcher:
        """Return a matcher of rules, or the given one, which may have them compiled."""
        return rules if isinstance(rules, Matcher) else Matcher(rules)

    def _compile(self, index: GraphIndex) -> None:
        """Compile the rules of which all kinds of operators have occurred."""
        if index.kinds <= self._met:
            return
        self._met |= index.kinds
        waiting, self._waiting = self._waiting, []
        with collector_paused():
            for number, stored in waiting:
                if stored.kinds <= self._met:
                    self._add(stored.rule, number)
                else:
                    self._waiting.append((number, stored))

    def _add(self, rule: Substitution, number: int) -> None:
        pattern, moves = _compile_cached(rule)
        search = _Search(_for_rule(pattern, rule), number, () if self.keeps_all else moves, self.keeps_all)
        self._searches[rule.id] = search
        for place in search.anchors:
            self._anywhere.add(search, search.pattern, place, number)
        self._roots.add(search, search.pattern, search.pattern.outputs[0].number, number)

    def matches(self, graph: Graph | GraphIndex, only_running: bool = False) -> list[Match]:
        """Return all matches in a graph, or only those that compute something at run time; they are remembered."""
        index = graph if isinstance(graph, GraphIndex) else GraphIndex(graph)
        known = self._known.get(asked := (index.graph, only_running))
        if known is None:
            if len(self._known) >= MOST_GRAPHS:
                self._known.clear()
            known = self._find(index, index.graph.nodes, self._roots, only_running=only_running, known=())
            self._known[asked] = known
        return known

    def at(self, index: GraphIndex, node: Node) -> list[Match]:
        """Return the matches of which the first output is one of a node's."""
        return self._find(index, [node], self._roots, only_running=False, known=())

    def around(
        self,
        index: GraphIndex,
        nodes: Iterable[Node],
        only_running: bool = False,
        known: Container[Identity] = (),
    ) -> list[Match]:
        """Return the matches in which at least one of the nodes is matched to an operator.

        Args:
            index: the graph.
            nodes: some of its nodes.
            only_running: whether to leave out matches that compute only values that depend on weights alone.
            known: identities (see :meth:`identity`) of matches to leave out.
        """
        return self._find(index, nodes, self._anywhere, only_running=only_running, known=known)

    def as_found(self, match: Match, index: GraphIndex) -> tuple[Identity, Match]:
        """Return the identity of a match and, of those that differ by a symmetry, the match that is found in a graph.

        The identity is equal for these; which of them is found depends on the order of the graph's nodes.
        """
        self._compile(index)
        return self._searches[match.rule.id].as_found(match, index)

    def leaves_out(self, match: Match, index: GraphIndex) -> bool:
        """Return whether a match is not found in a graph, as one of more than ``MOST_SIBLINGS`` that read one value."""
        self._compile(index)
        return self._searches[match.rule.id].leaves_out(match, index)

    def _find(
        self,
        index: GraphIndex,
        nodes: Iterable[Node],
        anchors: Anchors[_Search],
        only_running: bool,
        known: Container[Identity],
    ) -> list[Match]:
        self._compile(index)
        found: dict[Identity, Match] = {}
        for node in nodes:
            is_static = only_running and node.is_static
            for search, place in anchors.at(node, index):
                if not (is_static and place == search.pattern.root):
                    search.find(index, node, place, found=found, only_running=only_running, known=known)
        return list(found.values())


@lru_cache(maxsize=MOST_RULES)
def _compile_cached(rule: Substitution) -> tuple[Pattern, Sequence[Symmetry]]:
    """Return the compiled pattern of a rule and its symmetries; cached for processes that optimize several models."""
    pattern = compile_pattern(rule)
    return pattern, symmetries(pattern)


def _for_rule(pattern: Pattern, rule: Substitution) -> Pattern:
    """Return the pattern for this rule object, of which an equal one may have been compiled before."""
    return pattern if pattern.rule is rule else replace(pattern, rule=rule)


class _Search:
    """The search for one rule."""

    def __init__(self, pattern: Pattern, number: int, moves: Sequence[Symmetry], in_crowds: bool) -> None:
        self.pattern, self._in_crowds = pattern, in_crowds
        self._number = number
        self._moves = moves
        self._exchanges = [self._exchange(move) for move in self._moves]
        self._orders: dict[int, Mapping[int, Sequence[int]]] = {}

    @property
    def anchors(self) -> list[int]:
        """The operators to start at: one of each set that symmetries exchange."""
        return [place for place in range(len(self.pattern.operators)) if place == min(orbit(self._moves, place))]

    def find(
        self,
        index: GraphIndex,
        node: Node,
        place: int,
        found: dict[Identity, Match],
        only_running: bool,
        known: Container[Identity],
    ) -> None:
        """Add the matches in which operator number ``place``, or one exchangeable with it, is matched to ``node``.

        Of matches that differ by a symmetry it adds the one with the least identity. See :meth:`Matcher.around` for
        what is left out.
        """
        before = self._order_constraints(place)
        for bound in embeddings(
            self.pattern,
            index,
            node,
            place=place,
            before=before,
            only_running=only_running,
            in_crowds=self._in_crowds,
        ):
            nodes = [node for node in bound.nodes if node is not None]
            values = [value for value in bound.values if value is not None]
            identity, move = self.identity(nodes, values, index)
            if identity not in found and identity not in known:
                match = complete_match(self.pattern, bound if move is None else self._moved(nodes, values, move))
                if match is not None:
                    found[identity] = match

    def identity(
        self, nodes: Iterable[Node], values: Iterable[Value], index: GraphIndex
    ) -> tuple[Identity, Symmetry | None]:
        """Return the least identity over the symmetries of the rule, and the symmetry that gives it."""
        numbers = [self._number]
        for node, output in values:
            numbers += (_node_number(node, index), output)
        numbers += [index.place[node] for node in nodes]
        best, moved = tuple(numbers), None
        for exchange, move in zip(self._exchanges, self._moves, strict=True):
            other = exchange(numbers)
            if other < best:
                best, moved = other, move
        return best, moved

    def as_found(self, match: Match, index: GraphIndex) -> tuple[Identity, Match]:
        """Return the least identity over the symmetries of the rule, and the match that has it."""
        values = list(match.values.values())
        identity, move = self.identity(match.nodes, values, index)
        moved = match if move is None else complete_match(self.pattern, self._moved(match.nodes, values, move))
        return identity, match if moved is None else moved

    def leaves_out(self, match: Match, index: GraphIndex) -> bool:
        """Return whether a match of this rule is left out of a graph, as one in a crowd."""
        if self._in_crowds or not self.pattern.shared:
            return False
        operands, kinds = [node for node, _ in match.values.values()], {type(node.op) for node, _ in match.outputs}
        shared = [(operands if slot.is_variable else match.nodes)[slot.number] for slot in self.pattern.shared]
        return all(is_crowded(kind, [index.users[node] for node in shared]) for kind in kinds)

    def _exchange(self, move: Symmetry) -> Callable[[Sequence[int]], Identity]:
        """Return the function that maps an identity to the one after a symmetry."""
        first = 1 + 2 * len(move.variables)
        places = [place for variable in move.variables for place in (1 + 2 * variable, 2 + 2 * variable)]
        return itemgetter(0, *places, *(first + operator for operator in move.operators))

    def _moved(self, nodes: Sequence[Node], values: Sequence[Value], move: Symmetry) -> Bindings:
        """Return the bindings after a symmetry."""
        pattern = self.pattern
        bound = Bindings(len(nodes), len(values))
        fits = all(bound.bind_node(i, pattern.operators[i], nodes[j]) for i, j in enumerate(move.operators))
        fits = fits and all(bound.bind_variable(i, pattern.types[i], values[j]) for i, j in enumerate(move.variables))
        if not fits or not bound.settle(pattern.sizes):
            raise InvariantError(f"a symmetry of {pattern.rule.id} takes a match to what is none")
        return bound

    def _order_constraints(self, place: int) -> Mapping[int, Sequence[int]]:
        """Return constraints on the order of nodes that prevent finding a match again, starting at an operator."""
        known = self._orders.get(place)
        if known is None:
            staying = [move for move in self._moves if move.operators[place] == place]
            path = [join_point.index for join_point in self.pattern.plans[place]]
            known = self._orders[place] = least_first(staying, path)
        return known


def complete_match(pattern: Pattern, bound: Bindings) -> Match | None:
    """Return the match of complete bindings; None if a precondition does not hold, or a sign is not evident."""
    sizes = {name.removeprefix(MARK): size for name, size in bound.sizes.items()}
    integers = {name: size for name, size in sizes.items() if not isinstance(size, float)}
    if not all(_holds(condition, integers) for condition in pattern.rule.preconditions):
        return None
    nodes = tuple(node for node in bound.nodes if node is not None)
    values = (value for value in bound.values if value is not None)
    outputs = tuple(Value(nodes[slot.number], slot.output) for slot in pattern.outputs)
    named = dict(zip(map(key, pattern.variables), values, strict=True))
    found = Match(pattern.rule, nodes, values=named, sizes=sizes, dtype=bound.dtype, outputs=outputs)
    return found if found.has_signs else None


def _node_number(node: Node, index: GraphIndex) -> int:
    """Return a number that identifies a node; for a node that depends on weights only, the same in all graphs.

    Hence of symmetric matches the same one is chosen wherever a model uses the same weights, and their concatenation is
    stored once.
    """
    return int(node.digest[:16], 16) if node.is_static else index.place[node]


def _holds(condition: Condition, sizes: Mapping[str, Dim]) -> bool:
    """Return whether a precondition is true for all values of the model's open sizes (which are at least 1)."""
    if not symbols(condition.value) <= sizes.keys():
        return False
    try:
        value = substitute(condition.value, sizes)
    except ZeroDivisionError:
        return False
    return value == 0 if condition.is_equality else is_never_negative(value)
