"""What is shipped agrees with itself: the manifest counts rules, and the numerics classes are those of today's code."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

import substitutions
from taso_py.rules.database import MANIFEST, read_database
from taso_py.rules.text import read_rules
from taso_py.rules.verdict import Numerics
from verify.laws import ProofLevel
from verify.numerics import classify

FOLDER = Path(substitutions.__file__).parent


def test_each_rule_is_shipped_once() -> None:
    texts = [path.read_text(encoding="utf-8") for path in FOLDER.glob("*.rules")]
    times = Counter(rule.id for text in texts for rule in read_rules(text))
    assert [rule for rule, count in times.items() if count > 1] == []
    assert json.loads((FOLDER / MANIFEST).read_text(encoding="utf-8"))["rules"] == len(times)


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_no_rule_states_less_than_its_operators_show(every: int) -> None:
    rules = [rule for rule in read_database() if rule.numerics is not Numerics.EXACT][::every]
    assert [rule.id for rule in rules if classify(rule, ProofLevel.TERMS) > rule.numerics] == []


def test_rules_that_only_multiply_are_off_in_half_precision() -> None:
    only = {"input", "mul"}
    rules = [rule for rule in read_database() if {n.op.name for n in (*rule.source.nodes, *rule.target.nodes)} == only]
    assert "r31d1f1932376" in {rule.id for rule in rules}
    assert {rule.numerics for rule in rules} == {Numerics.RANGE}
