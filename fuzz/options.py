"""Comparison of the options that a search carries from state to state with those found from scratch."""

from __future__ import annotations

from typing import TypeAlias

from taso_py.ir.node import Node, Value
from taso_py.rules.apply import replacements
from taso_py.rules.index import crowds
from taso_py.rules.match import Match
from taso_py.search.state import SearchState

_Place: TypeAlias = tuple[str, frozenset[Node]]
"""A rule and the nodes that it matches."""
_Effects: TypeAlias = dict[frozenset[tuple[Value, Value]], set[_Place]]
"""The replacements that options make, each with the places where rules make it."""


def have_same_effects(some: SearchState, others: SearchState) -> bool:
    """Return whether two states of a graph have options for the same replacements.

    A state may keep those of three operators or more that had few siblings when they were found, and have many now.
    """
    first, second = map(_effects, (some, others))
    return _covers(first, second) and _covers(second, first)


def _effects(state: SearchState) -> _Effects:
    """Return the replacements that the options of a state make, with rules and matched nodes."""
    effects: _Effects = {}
    for option in state.options:
        match = option.match(state.node_ids)
        replaced = None if _is_crowded(match, state) else replacements(match, state.index)
        if replaced is not None:
            place = match.rule.id, frozenset(match.nodes)
            effects.setdefault(frozenset(replaced.items()), set()).add(place)
    return effects


def _is_crowded(match: Match, state: SearchState) -> bool:
    """Return whether three operators or more are matched of so many that read one value that none would be today."""
    roots = [node for node, _ in match.outputs]
    shared = set.intersection(*({operand for operand, _ in node.inputs} for node in roots))
    return len(roots) > 2 and any(type(roots[0].op) in crowds(state.index.users[operand]) for operand in shared)


def _covers(some: _Effects, others: _Effects) -> bool:
    """Return whether other options make all replacements of some, at least by the same rule at the same place.

    Of matches that differ by a symmetry of a rule a state has one, but it may be any of them; and of rules that do the
    same it may have one, or each with another of its matches.
    """
    places = set[_Place]().union(*others.values())
    return all(effect in others or not where.isdisjoint(places) for effect, where in some.items())
