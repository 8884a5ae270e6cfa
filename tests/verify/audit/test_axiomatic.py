"""The second opinion: what follows from axioms is found, and nothing false ever does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules
from verify.audit.axiomatic import Opinion, SecondOpinion, second_opinion, shipped_axioms

ASSOCIATIVE = """rule a: float[..B,M,K], b: float[..B,K,L], c: float[..B,L,N]
  source matmul(matmul(a, b), c)
  target matmul(a, matmul(b, c))"""
DISTRIBUTIVE = """rule a: float[..B,M,K], b: float[..B,K,N], c: float[..B,K,N]
  source add(matmul(a, b), matmul(a, c))
  target matmul(a, add(b, c))"""
SLICED = """rule a: float[M,N], b: float[P,N]
  source slice(concat(a, b){axis=-2}){axis=-2, start=S, stop=T}
  target slice(b){axis=-2, start=S-M, stop=T-M}"""


def rule_of(text: str) -> Substitution:
    return read_rules(text)[0]


AXIOMS = [rule_of(text) for text in (ASSOCIATIVE, DISTRIBUTIVE, SLICED)]


@pytest.mark.parametrize(
    "text",
    [
        "rule a: float[A,B], b: float[B,C], c: float[C,D], d: float[D,E]\n"
        " source matmul(matmul(matmul(a, b), c), d)\n target matmul(a, matmul(b, matmul(c, d)))",
        "rule a: float[..B,M,K], b: float[..B,K,N], c: float[..B,K,N], d: float[..B,K,N]\n"
        " source add(matmul(a, b), add(matmul(a, c), matmul(a, d)))\n target matmul(a, add(b, add(c, d)))",
        "rule a: float[M,N], b: float[P,N]\n source slice(concat(a, b){axis=-2}){axis=-2, start=M+1, stop=M+2}\n"
        " target slice(b){axis=-2, start=1, stop=2}\n where P-2 >= 0",
    ],
)
def test_what_follows_is_found(text: str) -> None:
    found = second_opinion(rule_of(text), AXIOMS)
    assert found.opinion is Opinion.AGREES
    assert found.axioms >= 1
    assert second_opinion(rule_of(text), []).opinion is Opinion.SILENT


@pytest.mark.parametrize("text", [ASSOCIATIVE, DISTRIBUTIVE, SLICED])
def test_a_rule_is_no_axiom_of_its_own(text: str) -> None:
    assert second_opinion(rule_of(text), AXIOMS).opinion is Opinion.SILENT


@pytest.mark.parametrize(
    "text",
    [
        "rule a: float[M,M], b: float[M,M]\n source matmul(a, b)\n target matmul(b, a)",
        "rule a: float[M,N], b: float[M,N]\n source slice(concat(a, b){axis=-2}){axis=-2, start=0, stop=M}\n target b",
    ],
)
def test_shapes_and_assumptions_of_axioms_are_respected(text: str) -> None:
    assert second_opinion(rule_of(text), AXIOMS).opinion is Opinion.SILENT


def test_the_shipped_axioms_agree_with_nothing_false(false_rules: dict[str, Substitution]) -> None:
    found = _opinions(dict(list(false_rules.items())[::36]))
    assert sum(opinion.axioms for opinion in found.values()) > 20
    assert [name for name, opinion in found.items() if opinion.opinion is Opinion.AGREES] == []


@pytest.mark.slow
def test_true_axioms_agree_with_nothing_false(
    true_rules: dict[str, Substitution], false_rules: dict[str, Substitution]
) -> None:
    found = _opinions(false_rules, [rule for rule in true_rules.values() if max(rule.size) <= 4])
    assert [name for name, opinion in found.items() if opinion.opinion is Opinion.AGREES] == []


def _opinions(rules: Mapping[str, Substitution], further: Sequence[Substitution] = ()) -> Mapping[str, SecondOpinion]:
    return {name: second_opinion(rule, [*shipped_axioms(rule), *further]) for name, rule in rules.items()}
