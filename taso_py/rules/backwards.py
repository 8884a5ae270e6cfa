"""Rules read backwards, from target to source, as the derivation of a lemma needs them and a search does not."""

from __future__ import annotations

from collections.abc import Iterable

from taso_py.ir.errors import InvariantError
from taso_py.ir.node import Value
from taso_py.rules.excerpt import ordered_matcher, replaced
from taso_py.rules.substitution import Substitution
from taso_py.rules.verdict import Numerics


def backwards(rule: Substitution) -> Substitution | None:
    """Return the reverse of a rule; None if it may be safe in one direction only, or if that is no rule."""
    if rule.numerics > Numerics.REORDER:
        return None
    try:
        return rule.reversed
    except InvariantError:  # the target does not mention all that the source does
        return None


class Backwards:
    """Rules that are read backwards."""

    def __init__(self, rules: Iterable[Substitution]) -> None:
        """Create it from rules; those without a reverse are left out."""
        ways = [(way, rule) for rule in rules if (way := backwards(rule)) is not None]
        self._given = {way.id: rule for way, rule in ways}
        """The given rule by the identifier of its reverse."""
        self._matcher = ordered_matcher(way for way, _ in ways)
        self.kinds = {type(way.source.outputs[0].node.op) for way, _ in ways}
        """The kinds of operators that are replaced."""

    def replaced(self, value: Value, levels: int) -> tuple[Substitution, Value] | None:
        """Return what replaces a value, and the rule as it was given; see :func:`taso_py.rules.excerpt.replaced`."""
        found = replaced(self._matcher, [value], levels)
        if found is None:
            return None
        way, (target,) = found
        return self._given[way.id], target
