"""Rules that are known from mathematics are proved, and the shipped database derives them all."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from taso_py.generate.derive import Derivation, Deriver
from taso_py.rules.database import read_database
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules
from taso_py.rules.verdict import Outcome
from verify import prove

_TEXT = (Path(__file__).parent.parent / "known_rules.rules").read_text(encoding="utf-8")
_PARTS = re.findall(r"^// (.*)\n(rule (?:.*\n)*?)(?=//|\n|\Z)", _TEXT, re.MULTILINE)
KNOWN = {title: read_rules(body)[0] for title, body in _PARTS}


@cache
def deriver() -> Deriver:
    found = Deriver(0)
    for rule in read_database():
        # Rules that merge three or four at once follow from those that merge two, and make an e-graph large.
        if len(rule.source.outputs) <= 2:
            found.add(rule)
    return found


def test_the_list_is_long() -> None:
    assert len(KNOWN) == _TEXT.count("\nrule ") >= 60


@pytest.mark.parametrize("title", KNOWN)
def test_a_known_rule_is_proved(title: str) -> None:
    assert prove(KNOWN[title]).outcome is Outcome.PROVED


@pytest.mark.parametrize("title", KNOWN)
def test_a_known_rule_is_derived(title: str) -> None:
    assert derived(KNOWN[title])


def derived(rule: Substitution) -> bool:
    """Whether the shipped rules derive a rule, within the limits of :mod:`taso_py.generate.derive`."""
    return deriver().derive(rule) is not Derivation.NOT


def test_what_is_false_is_not_derived() -> None:
    (rule,) = read_rules("rule a: float[M,M], b: float[M,M]\n source matmul(a, b)\n target matmul(b, a)")
    assert not derived(rule)
