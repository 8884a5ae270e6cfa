"""Sets of rules, each of which is read from its text when it is used: a model meets few of the database's rules.

Invariant: the identifiers of a set are distinct; those and the kinds of operators are known before a rule is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence, Set
from functools import cached_property
from typing import Self, overload

from taso_py.ir.operator import Input, Operator
from taso_py.ops.table import OPERATORS
from taso_py.rules.substitution import Substitution

_RULE = re.compile(r"^rule (\w+)$.*?^  source (.*?)$.*?(?=^rule |\Z)", re.MULTILINE | re.DOTALL)
_OPERATOR = re.compile(r"[a-z]\w*(?=[({])")


class StoredRule:
    """A rule that is read when it is used."""

    def __init__(self, id_: str, kinds: Set[type[Operator]], read: Callable[[], Substitution]) -> None:
        """Create it from its identifier, the kinds of operators of its source, and what returns the rule."""
        self.id, self.kinds, self._read = id_, kinds, read

    @cached_property
    def rule(self) -> Substitution:
        """The rule.

        Raises:
            TasoError: its text cannot be read.
        """
        return self._read()

    @classmethod
    def of(cls, rule: Substitution) -> Self:
        """Return a rule that was read."""
        kinds = {type(node.op) for node in rule.source.nodes if not isinstance(node.op, Input)}
        return cls(rule.id, kinds, lambda: rule)


def stored_rules(text: str, read: Callable[[str], Sequence[Substitution]]) -> Sequence[StoredRule]:
    """Return the rules of a text as :func:`taso_py.rules.text.write_rules` writes it; ``read`` reads one."""
    return [_stored(text, found, read) for found in _RULE.finditer(text)]


def _stored(text: str, found: re.Match[str], read: Callable[[str], Sequence[Substitution]]) -> StoredRule:
    def read_it() -> Substitution:
        above = text.count("\n", 0, found.start())  # so that an error tells the line of the whole text
        return read("\n" * above + found[0])[0]

    kinds = frozenset(OPERATORS[name] for name in _OPERATOR.findall(found[2]) if name in OPERATORS)
    return StoredRule(found[1], kinds, read_it)


class RuleSet(Sequence[Substitution]):
    """Rules in order."""

    def __init__(self, rules: Iterable[StoredRule]) -> None:
        """Create a set; of rules with one identifier it has the first."""
        self._stored: dict[str, StoredRule] = {}
        for rule in rules:
            self._stored.setdefault(rule.id, rule)

    @classmethod
    def of(cls, rules: Iterable[Substitution]) -> RuleSet:
        """Return the set of some rules, which may be a set already."""
        return rules if isinstance(rules, RuleSet) else cls(map(StoredRule.of, rules))

    @cached_property
    def stored(self) -> Sequence[StoredRule]:
        """The rules, read or not."""
        return tuple(self._stored.values())

    @property
    def ids(self) -> Sequence[str]:
        """The identifiers."""
        return tuple(self._stored)

    def get(self, id_: str) -> Substitution | None:
        """Return the rule with an identifier; None if there is none."""
        found = self._stored.get(id_)
        return None if found is None else found.rule

    def __len__(self) -> int:
        return len(self._stored)

    @overload
    def __getitem__(self, place: int) -> Substitution: ...
    @overload
    def __getitem__(self, place: slice) -> RuleSet: ...
    def __getitem__(self, place: int | slice) -> Substitution | RuleSet:
        return RuleSet(self.stored[place]) if isinstance(place, slice) else self.stored[place].rule
