"""The classes of rules whose class does not follow from the proof alone; the others are in tests/sound."""

from __future__ import annotations

import pytest

from taso_py.rules.text import read_rules
from taso_py.rules.verdict import Numerics
from verify import prove

MATRICES = "rule a: float[..B,M,K], b: float[..B,K,N], c: float[..B,M,1]\n"
IMAGE = "rule x: float[N,C,H,W], w: float[O,C,3,3]\n"
CASES = {
    "the same product, moved": (
        MATRICES + "source slice(relu(matmul(a, b))){axis=-1, start=S, stop=T}\n"
        "target relu(slice(matmul(a, b)){axis=-1, start=S, stop=T})",
        Numerics.EXACT,
    ),
    "a product of other shape": (
        MATRICES + "source slice(matmul(a, b)){axis=-1, start=S, stop=T}\n"
        "target matmul(a, slice(b){axis=-1, start=S, stop=T})",
        Numerics.REORDER,
    ),
    "a scale at the other operand": (
        MATRICES + "source matmul(mul(a, constant{value=C, dtype=float}), b)\n"
        "target matmul(a, mul(b, constant{value=C, dtype=float}))",
        Numerics.RANGE,
    ),
    "a scale of rows leaves": (
        MATRICES + "source matmul(mul(a, c), b)\n target mul(matmul(a, b), c)",
        Numerics.RANGE,
    ),
    "a scale that stays": (
        MATRICES + "source mul(matmul(a, b), add(c, c))\n target add(mul(matmul(a, b), c), mul(matmul(a, b), c))",
        Numerics.REASSOCIATE,
    ),
    "adding up like terms": (
        "rule x: float[M]\n source add(x, x)\n target mul(x, constant{value=2.0, dtype=float})",
        Numerics.REASSOCIATE,
    ),
    "like terms cancel": (
        "rule x: float[M], y: float[M]\n source sub(add(add(x, y), y), y)\n target add(x, y)",
        Numerics.REASSOCIATE,
    ),
    "a product with zero": (
        "rule x: float[M]\n source mul(x, constant{value=0.0, dtype=float})\n target sub(x, x)",
        Numerics.ZERO_TERMS,
    ),
    "a sum that is split": (
        "rule x: float[M,K], y: float[M,L]\n source sum(concat(x, y){axis=-1}){axes=[-1]}\n"
        "target add(sum(x){axes=[-1]}, sum(y){axes=[-1]})",
        Numerics.REORDER,
    ),
    "padding by hand": (
        IMAGE + "source conv2d(pad(x){widths=[[1,1],[1,1]]}, w)\n target conv2d(x, w){padding=[1,1]}",
        Numerics.ZERO_TERMS,
    ),
    "padding that is only moved": (
        IMAGE + "source relu(pad(x){widths=[[1,1],[1,1]]})\n target pad(relu(x)){widths=[[1,1],[1,1]]}",
        Numerics.EXACT,
    ),
    "a mask on both sides": (
        "rule q: float[..B,L,E], k: float[..B,S,E], v: float[..B,S,F], w: float[..B,S,F], m: float[L,S]\n"
        "source add(attention(q, k, v, m){scale=C}, attention(q, k, w, m){scale=C})\n"
        "target attention(q, k, add(v, w), m){scale=C}",
        Numerics.RANGE,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_class(name: str) -> None:
    text, expected = CASES[name]
    verdict = prove(read_rules(text)[0])
    assert verdict.numerics is expected, verdict.reason
