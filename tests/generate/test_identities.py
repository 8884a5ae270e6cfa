"""Identities of scalars and views carry the class that says where they differ; those false somewhere are refused."""

from __future__ import annotations

import pytest

from taso_py.ir.errors import TasoError
from taso_py.rules.text import read_rules
from taso_py.rules.verdict import Numerics, Outcome
from verify import prove

X = "x: float[..B,M]"
XY = "x: float[..B,M], y: float[..B,M]"
ONE, ZERO, TWO = (f"constant{{value={value}, dtype=float}}" for value in (1.0, 0.0, 2.0))


@pytest.mark.parametrize(
    ("variables", "source", "target", "numerics"),
    [
        (X, f"mul(x, {ONE})", "x", Numerics.REORDER),
        (X, f"add(x, {ZERO})", "x", Numerics.ZERO_TERMS),
        (X, f"add(mul(x, {TWO}), x)", "add(add(x, x), x)", Numerics.REASSOCIATE),
        ("x: float[]", "sub(x, x)", ZERO, Numerics.ZERO_TERMS),
        (XY, "sub(add(x, y), y)", "x", Numerics.ZERO_TERMS),
        (
            "x: float[M,K], w: float[N,K]",
            f"linear(mul(x, {TWO}), w)",
            f"mul(linear(x, w), {TWO})",
            Numerics.REASSOCIATE,
        ),
        ("x: float[..B,M,N]", "permute(permute(x){order=[-1,-2]}){order=[-1,-2]}", "x", Numerics.EXACT),
        ("x: float[M,N,P]", "reshape(reshape(x){shape=[M*N,P]}){shape=[M,N*P]}", "reshape(x){shape=[M,N*P]}",
         Numerics.EXACT),
        (X, "concat(slice(x){axis=-1, start=0, stop=N}, slice(x){axis=-1, start=N, stop=M}){axis=-1}", "x",
         Numerics.EXACT),
        ("x: float[..B,M], y: float[..B,N]", "slice(concat(x, y){axis=-1}){axis=-1, start=M, stop=M+N}", "y",
         Numerics.EXACT),
    ],
)  # fmt: skip
def test_a_true_identity_has_its_class(variables: str, source: str, target: str, numerics: Numerics) -> None:
    verdict = prove(read_rules(f"rule {variables} source {source} target {target}")[0])
    assert verdict.outcome is Outcome.PROVED, verdict.reason
    assert verdict.numerics is numerics


@pytest.mark.parametrize(
    ("variables", "source", "target"),
    [
        ("x: float[]", "div(x, x)", ONE),
        (XY, "div(mul(x, y), y)", "x"),
        (XY, "mul(div(x, y), y)", "x"),
        (X, f"mul(x, {ZERO})", "x"),
        (X, "relu(x)", "exp(log(relu(x)))"),
        (X, "rsqrt(mul(x, x))", f"div({ONE}, x)"),
        ("x: float[M,N]", "reshape(permute(x){order=[-1,-2]}){shape=[M,N]}", "x"),
    ],
)
def test_what_is_false_somewhere_is_not_proved(variables: str, source: str, target: str) -> None:
    assert prove(read_rules(f"rule {variables} source {source} target {target}")[0]).outcome is not Outcome.PROVED


def test_what_the_table_cannot_say_is_no_rule() -> None:
    with pytest.raises(TasoError, match="atan"):
        read_rules("rule x: float[N] source exp(atan(x)) target x")
