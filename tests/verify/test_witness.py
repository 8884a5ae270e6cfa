from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from torch import Tensor

from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules
from taso_py.rules.verdict import Outcome
from verify import check, prove
from verify.limits import Refused
from verify.sampling import Sampler
from verify.witness import _KERNELS, TargetRefused, confirm, witness


def rule_of(text: str) -> Substitution:
    return read_rules(text)[0]


def test_a_counterexample_can_be_computed_again() -> None:
    rule = rule_of("rule x: float[M,N], y: float[M,N]\n source relu(sub(x, y))\n target sub(relu(x), relu(y))")
    found = witness(rule)
    assert found is not None
    x, y = found.values["x"], found.values["y"]
    assert x.shape == (found.sizes["M"], found.sizes["N"])
    np.testing.assert_array_equal(found.source, np.maximum(x - y, 0))
    np.testing.assert_array_equal(found.target, np.maximum(x, 0) - np.maximum(y, 0))


def test_a_counterexample_that_torch_does_not_compute_is_not_confirmed() -> None:
    rule = rule_of("rule x: float[..B,N]\n source mul(x, constant{value=C, dtype=float})\n target add(x, x)")
    found = witness(rule)
    assert found is not None
    assert isinstance(found.sizes["C"], float)
    assert confirm(rule, found)
    assert not confirm(rule, replace(found, target=found.source))
    assert not confirm(rule, replace(found, values={"x": found.values["x"] + 1}))


WHOLE = "rule x: float[M,N]\n source mul(x, sub(x, x))\n target TARGET"


def test_zeros_are_tried() -> None:
    rule = rule_of(WHOLE.replace("TARGET", "sub(div(x, x), div(x, x))"))
    found = witness(rule)
    assert found is not None
    assert (found.values["x"] == 0).any()


def test_what_is_not_rounded_is_compared_exactly() -> None:
    pad = "{widths=[[1,1]], value=1e15}"
    text = f"rule x: float[M]\n source pad(FIRST){pad}\n target pad(relu(x)){pad}"
    found = witness(rule_of(text.replace("FIRST", "x")))
    assert found is not None
    assert (found.values["x"] % 1 == 0).all()
    assert witness(rule_of(text.replace("FIRST", "relu(relu(x))"))) is None
    assert witness(rule_of(text.replace("FIRST", "silu(x)"))) is None  # small beside what it is compared with


def test_where_tensors_are_empty_a_rule_need_not_hold_but_that_is_said() -> None:
    sums = "rule x: float[M,N]\n source sum(softmax(x){axis=-1}){axes=[-1]}\n"
    rule = rule_of(sums + " target sum(softmax(mul(x, x)){axis=-1}){axes=[-1]}")
    assert witness(rule, least=0) is None
    verdict = check(rule)
    assert verdict.outcome is Outcome.PROVED
    assert "empty" not in verdict.reason
    rule = rule_of(
        "rule x: float[M,K], y: float[M,L]\n source max(concat(x, y){axis=-1}){axes=[-1], keepdim=true}\n"
        " target max(concat(max(x){axes=[-1], keepdim=true}, y){axis=-1}){axes=[-1], keepdim=true}"
    )
    assert witness(rule) is None
    with pytest.raises(TargetRefused):
        witness(rule, least=0)
    verdict = check(rule)
    assert verdict.outcome is Outcome.PROVED
    assert verdict.reason.endswith("not of empty tensors")


def test_a_target_that_torch_refuses_makes_a_rule_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Tensor:
        raise RuntimeError("not implemented for Double")

    rule = rule_of("rule x: float[M,N]\n source relu(x)\n target relu(contiguous(x))")
    assert check(rule).outcome is Outcome.PROVED
    monkeypatch.setitem(_KERNELS, "contiguous", refuse)
    verdict = check(rule)
    assert verdict.outcome is Outcome.UNKNOWN
    assert "PyTorch refuses the target" in verdict.reason


def test_a_true_rule_has_no_counterexample(true_rule: Substitution) -> None:
    assert witness(true_rule, seed=3, trials=6) is None


def test_the_same_seed_gives_the_same_counterexample() -> None:
    rule = rule_of("rule x: float[M,N], y: float[P,N]\n source concat(x, y){axis=-2}\n target concat(y, x){axis=-2}")
    assert str(witness(rule, seed=5)) == str(witness(rule, seed=5))


def test_samples_satisfy_preconditions_and_shapes() -> None:
    rule = rule_of(
        "rule x: float[..B,K,N]\n source slice(slice(x){axis=-2, start=S, stop=T}){axis=-2, start=U, stop=V}\n"
        " target slice(x){axis=-2, start=S+U, stop=S+V}\n where S-U >= 0"
    )
    sampler, random = Sampler(rule), Random(0)
    samples = [sampler.draw(random, 500) for _ in range(20)]
    for sample in samples:
        assert sample is not None
        s, t, u, v, k = (sample.sizes[name] for name in "STUVK")
        assert 0 <= u <= s < t <= k
        assert 0 <= u < v <= t - s
    assert len({str(sample) for sample in samples}) > 10


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rule x: float[M]\n source relu(x)\n target relu(x)\n where 0-M >= 0", "no sizes were found"),
        ("rule x: c64[M]\n source contiguous(x)\n target contiguous(x)", "does not support elements of type c64"),
    ],
)
def test_what_cannot_be_tried_is_unknown_even_if_it_could_be_proved(text: str, reason: str) -> None:
    rule = rule_of(text)
    with pytest.raises(Refused, match=reason):
        witness(rule)
    verdict = check(rule)
    assert verdict.outcome is Outcome.UNKNOWN
    assert reason in verdict.reason


def test_elements_may_be_of_any_type_where_they_only_move() -> None:
    rule = rule_of(
        "rule x: i64[M,N], y: i64[P,N]\n source permute(concat(x, y){axis=-2}){order=[-1,-2]}\n"
        " target concat(permute(x){order=[-1,-2]}, permute(y){order=[-1,-2]}){axis=-1}"
    )
    assert check(rule).outcome is Outcome.PROVED


def test_a_boolean_mask() -> None:
    rule = rule_of(
        "rule q: float[B,L,E], k: float[B,S,E], v: float[B,S,F], w: float[B,S,G], m: bool[L,S]\n"
        " source attention(q, k, v, m), attention(q, k, w, m)\n"
        " target t = attention(q, k, concat(v, w){axis=-1}, m); slice(t){axis=-1, start=0, stop=F},"
        " slice(t){axis=-1, start=F, stop=F+G}"
    )
    assert check(rule).outcome is Outcome.PROVED


def test_causal_attention_over_fewer_keys_than_rows() -> None:
    rule = rule_of(
        "rule q: float[B,L,E], k: float[B,S,E], v: float[B,S,F]\n"
        " source attention(q, slice(k){axis=-2, start=0, stop=T}, slice(v){axis=-2, start=0, stop=T}){causal=true}\n"
        " target attention(q, k, v){causal=true}"
    )
    assert prove(rule).outcome is Outcome.UNKNOWN
    assert check(rule).outcome is Outcome.REFUTED
    enough = rule_of(rule.statement.replace("source", "source", 1).join(["rule\n", "\n where T-L >= 0"]))
    assert check(enough).outcome is Outcome.PROVED
