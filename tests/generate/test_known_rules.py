"""Rules that are known from mathematics are proved, and the shipped database derives them all.

Of the simplifications of other compilers it derives those that are not marked.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

import substitutions
from taso_py.generate.derive import Derivation, Deriver
from taso_py.rules.database import read_database
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules
from taso_py.rules.verdict import Outcome
from verify import prove


def _read(name: str) -> dict[str, Substitution]:
    """The rules of a file by their titles."""
    text = (Path(__file__).parent.parent / name).read_text(encoding="utf-8")
    parts = re.findall(r"^// (.*)\n(rule (?:.*\n)*?)(?=//|\n|\Z)", text, re.MULTILINE)
    found = {title: read_rules(body)[0] for title, body in parts}
    assert len(found) == text.count("\nrule ")
    return found


KNOWN = _read("known_rules.rules")
SIMPLIFICATIONS = _read("simplifications.rules")
UNPROVED, UNDERIVED = "unproved: ", "underived: "
"""How titles begin of simplifications that are not proved, or not derived."""


@cache
def deriver() -> Deriver:
    found = Deriver(0)
    for rule in read_database():
        # Rules that merge three or four at once follow from those that merge two, and make an e-graph large.
        if len(rule.source.outputs) <= 2:
            found.add(rule)
    return found


def test_the_list_is_long() -> None:
    assert len(KNOWN) >= 60
    assert len(SIMPLIFICATIONS) >= 180


@pytest.mark.parametrize("title", KNOWN)
def test_a_known_rule_is_proved(title: str) -> None:
    assert prove(KNOWN[title]).outcome is Outcome.PROVED


@pytest.mark.parametrize("title", KNOWN)
def test_a_known_rule_is_derived(title: str) -> None:
    assert derived(KNOWN[title])


@pytest.mark.parametrize("title", SIMPLIFICATIONS)
def test_a_simplification_is_proved_and_derived_unless_its_title_says_otherwise(title: str) -> None:
    rule = SIMPLIFICATIONS[title]
    is_proved = prove(rule).outcome is Outcome.PROVED
    assert is_proved == (not title.startswith(UNPROVED))
    assert (is_proved and derived(rule)) == (not title.startswith((UNPROVED, UNDERIVED)))


def test_the_page_says_how_many_simplifications_are_derived() -> None:
    proved = [title for title in SIMPLIFICATIONS if not title.startswith(UNPROVED)]
    reached = [title for title in proved if not title.startswith(UNDERIVED)]
    page = " ".join((Path(substitutions.__file__).parent / "README.md").read_text(encoding="utf-8").split())
    assert f"Of {len(SIMPLIFICATIONS)} simplifications" in page
    assert f"{len(proved)} are proved and {len(reached)} follow" in page


def derived(rule: Substitution) -> bool:
    """Whether the shipped rules derive a rule, within the limits of :mod:`taso_py.generate.derive`."""
    return deriver().derive(rule) is not Derivation.NOT


def test_what_is_false_is_not_derived() -> None:
    (rule,) = read_rules("rule a: float[M,M], b: float[M,M]\n source matmul(a, b)\n target matmul(b, a)")
    assert not derived(rule)
