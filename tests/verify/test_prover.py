from __future__ import annotations

from dataclasses import replace

import pytest

from taso_py.rules.substitution import Substitution, canonical
from taso_py.rules.text import read_rules
from taso_py.rules.verdict import Outcome
from verify import ProofLimits, check, prove
from verify.witness import confirm


def rule_of(text: str) -> Substitution:
    return read_rules(text)[0]


def test_a_true_rule_is_proved_in_its_class(true_rule: Substitution) -> None:
    verdict = check(true_rule)
    assert verdict.outcome is Outcome.PROVED, verdict.reason
    assert verdict.numerics is true_rule.numerics, verdict.reason


def test_a_false_rule_is_not_proved(false_rule: Substitution, request: pytest.FixtureRequest) -> None:
    assert prove(false_rule).outcome is Outcome.UNKNOWN
    verdict = check(false_rule)
    is_seen = "unrefuted:" not in request.node.name  # a cast rounds: the witness allows for that
    assert verdict.outcome is (Outcome.REFUTED if is_seen else Outcome.UNKNOWN), verdict.reason
    assert is_seen == (verdict.counterexample is not None)
    assert verdict.counterexample is None or confirm(false_rule, verdict.counterexample)


def test_what_is_not_proved_is_unknown_with_a_reason(unproved_rules: dict[str, Substitution]) -> None:
    for name, rule in unproved_rules.items():
        verdict = check(rule)
        assert verdict.outcome is Outcome.UNKNOWN, name
        assert "not shown to cancel" in verdict.reason, name


def test_classes_are_large_and_almost_all_of_each_is_proved(sound_class: dict[str, Substitution]) -> None:
    unproved = [name for name in sound_class if name.startswith("unproved:")]
    assert len(sound_class) >= 15
    assert len(unproved) <= len(sound_class) // 20, unproved


def test_collections_are_large(true_rules: dict[str, Substitution], false_rules: dict[str, Substitution]) -> None:
    assert len(true_rules) >= 60 + 7 * 15
    assert len([name for name in false_rules if not name.startswith("unrefuted:")]) >= 60


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_names_do_not_matter(true_rules: dict[str, Substitution], every: int) -> None:
    for name, rule in list(true_rules.items())[::every]:
        verdict = prove(canonical(rule))
        assert (verdict.outcome, verdict.numerics) == (Outcome.PROVED, rule.numerics), (name, verdict.reason)


def test_a_verdict_depends_on_nothing_but_the_rule(true_rules: dict[str, Substitution]) -> None:
    rules = [true_rules[name] for name in ("a smaller kernel is enlarged to be merged, padding symbolic", "relu twice")]
    assert [prove(rule) for rule in rules] == [prove(rule) for rule in rules]


def test_a_side_equals_itself_exactly(true_rule: Substitution) -> None:
    verdict = prove(replace(true_rule, target=true_rule.source))
    assert (verdict.outcome, verdict.reason) == (Outcome.PROVED, "index, movement")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "rule x: float[M,N]\n source sub(x, x)\n target sub(div(x, x), div(x, x))",
            "output 0: the target may not be defined: 1 reciprocal(1 x[@0,@1])",
        ),
        (
            "rule x: float[M]\n source mul(x, constant{value=C, dtype=float})\n"
            " target mul(constant{value=C, dtype=float}, x)\n where 2*C-1 >= 0",
            "a precondition on a number that need not be an integer: 2*C-1 >= 0",
        ),
        (
            "rule x: i64[M,N]\n source add(x, x)\n target add(x, x)",
            "add of elements that are not floating-point numbers",
        ),
        (
            "rule x: float[k1,N]\n source sum(x){axes=[-1]}\n target sum(x){axes=[-1]}",
            "rename k1: the prover reserves such names for indices",
        ),
        (
            "rule x: float[M,N]\n source relu(x)\n target relu(x)\n where M-2 >= 0, 1-M >= 0",
            "no sizes satisfy the preconditions",
        ),
        (
            "rule x: float[N,C,H,W], w: float[O,C,K,L]\n"
            " source conv2d(x, w){padding=[A+B,A+B]}\n target conv2d(pad(x){widths=[[A,A],[A,A]]}, w){padding=[B,B]}\n"
            " where A >= 0",
            "the target needs B >= 0",
        ),
        (
            "rule x: float[M,N]\n source add(x, constant{value=inf, dtype=float})\n"
            " target add(x, constant{value=inf, dtype=float})",
            "a definition cannot be read at symbolic sizes: cannot convert Infinity to integer ratio",
        ),
    ],
)
def test_what_cannot_be_treated_is_unknown_with_a_reason(text: str, reason: str) -> None:
    verdict = prove(rule_of(text))
    assert (verdict.outcome, verdict.reason) == (Outcome.UNKNOWN, reason)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (ProofLimits(nodes=3), "more than 3 operators"),
        (ProofLimits(steps=5), "more than 5 steps"),
        (ProofLimits(work=20), "terms of more than 20 elements"),
        (ProofLimits(cells=2), "more than 2 cases"),
        (ProofLimits(queries=0), "more than 0 questions to the solver"),
    ],
)
def test_limits_are_counts(limits: ProofLimits, reason: str) -> None:
    rule = rule_of(
        "rule x: float[N,C,H,W]\n"
        " source relu(max_pool2d(pad(x){widths=[[A,B],[D,E]]}){kernel=[K,L], stride=[S,T], padding=[P,Q]})\n"
        " target max_pool2d(relu(pad(x){widths=[[A,B],[D,E]]})){kernel=[K,L], stride=[S,T], padding=[P,Q]}"
    )
    verdict = prove(rule, limits)
    assert (verdict.outcome, verdict.reason) == (Outcome.UNKNOWN, reason)


def test_terms_that_grow_faster_than_their_number_end_by_a_limit() -> None:
    nested = "layer_norm(" * 4 + "x" + ", w, b){axes=1, eps=Z}" * 4
    source = "add(layer_norm(x, w){axes=1, eps=Z}, b)"
    rule = rule_of(f"rule x: float[..B,M,K], w: float[K], b: float[K]\n source {source}\n target {nested}")
    verdict = prove(rule)
    assert (verdict.outcome, verdict.reason) == (Outcome.UNKNOWN, "terms of more than 20000 elements")


def test_the_reason_says_that_integers_are_looked_up_elsewhere() -> None:
    left = "take(t, i){axis=-2}"
    for right in ("take(t, i){axis=-2, wraps=1}", "take(t, slice(i){axis=-1, start=0, stop=J}){axis=-2}"):
        verdict = prove(rule_of(f"rule t: float[N,D], i: int[J] source {left} target {right}"))
        assert verdict.outcome is Outcome.UNKNOWN
        assert verdict.reason == "the sides look up different integers, or among different numbers of places"
    computed = "rule t: float[N,D], x: float[J] source relu(take(t, cast(x){dtype=i64}){axis=-2})"
    verdict = prove(rule_of(f"{computed} target take(relu(t), cast(x){{dtype=i64}}){{axis=-2}}"))
    assert (verdict.outcome, verdict.reason) == (Outcome.UNKNOWN, "an index that is computed")
