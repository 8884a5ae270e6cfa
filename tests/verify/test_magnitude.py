"""Targets that stay in range, and targets that do not."""

from __future__ import annotations

import pytest

from taso_py.rules.text import read_rules
from verify import magnitude
from verify.magnitude import stays_in_range

THREE = "rule x: float[..A], y: float[..A], z: float[..A]\n"
MATRICES = "rule a: float[M,K], b: float[K,N], c: float[K,P]\n"
LOOKUP = "rule x: float[M,K], i: int[K], w: float[D,K], v: float[D,K]\n"
JOINED = "rule a: float[N,C,H,W], b: float[N,D,H*F,W*G], w: float[O,C+D,1,1]\n"
SCALED = "rule x: float[N,C,H,W], b: float[]\n"
IMAGE = "rule x: float[N,C,H,W], a: float[O,C,3,3], b: float[O,C,3,3]\n"


@pytest.mark.parametrize(
    "rule",
    [
        THREE + "source add(add(x, y), z) target add(x, add(y, z))",
        THREE + "source mul(x, add(y, z)) target add(mul(x, y), mul(x, z))",
        THREE + "source relu(mul(x, relu(y))) target mul(relu(x), relu(y))",
        THREE + "source div(add(x, y), z) target add(div(x, z), div(y, z))",
        MATRICES + "source matmul(a, b), matmul(a, c) target t = matmul(a, concat(b, c){axis=-1}); "
        "slice(t){axis=-1, start=0, stop=N}, slice(t){axis=-1, start=N, stop=N+P}",
        IMAGE + "source conv2d(x, add(a, b)){padding=[1,1]} "
        "target add(conv2d(x, a){padding=[1,1]}, conv2d(x, b){padding=[1,1]})",
        "rule x: float[M,N] source max(relu(x)){axes=[-1]} target relu(max(x){axes=[-1]})",
        SCALED + "source mul(b, upsample_nearest2d(x){factors=[2,2]}) "
        "target upsample_nearest2d(mul(b, x)){factors=[2,2]}",
        # Each element is a sum over 144 steps, which are too many to write down, but of few that differ.
        "rule x: float[1,1,4,4], y: float[1,1,4,4] "
        "source concat(upsample_bilinear2d(x){factors=[6,6]}, upsample_bilinear2d(y){factors=[6,6]}){axis=-3} "
        "target upsample_bilinear2d(concat(x, y){axis=-3}){factors=[6,6]}",
        "rule x: float[N,C,H,W], y: float[N,D,H,W] "
        "source concat(upsample_bilinear2d(x){factors=[F,G]}, upsample_bilinear2d(y){factors=[F,G]}){axis=-3} "
        "target upsample_bilinear2d(concat(x, y){axis=-3}){factors=[F,G]}",
        JOINED + "source conv2d(concat(upsample_nearest2d(a){factors=[F,G]}, b){axis=-3}, w) target add("
        "upsample_nearest2d(conv2d(a, slice(w){axis=-3, start=0, stop=C})){factors=[F,G]}, "
        "conv2d(b, slice(w){axis=-3, start=C, stop=C+D}))",
        LOOKUP + "source linear(take(x, i){axis=-1}, add(w, v)) "
        "target add(linear(take(x, i){axis=-1}, w), linear(take(x, i){axis=-1}, v))",
        "rule x: float[M,N], y: float[M,N] source exp(add(x, y)), add(y, x) target t = add(y, x); exp(t), t",
    ],
)
def test_targets_that_stay_in_range(rule: str) -> None:
    (parsed,) = read_rules(rule)
    assert stays_in_range(parsed)


@pytest.mark.parametrize(
    "rule",
    [
        THREE + "source mul(mul(x, y), z) target mul(x, mul(y, z))",
        THREE + "source add(mul(x, y), mul(x, z)) target mul(x, add(y, z))",
        THREE + "source add(x, y) target sub(add(add(x, y), y), y)",
        THREE + "source div(div(x, y), z) target div(x, mul(y, z))",
        MATRICES + "source matmul(mul(a, constant{value=0.01, dtype=float}), b) "
        "target mul(matmul(a, b), constant{value=0.01, dtype=float})",
        IMAGE + "source add(conv2d(x, a){padding=[1,1]}, conv2d(x, b){padding=[1,1]}) "
        "target conv2d(x, add(a, b)){padding=[1,1]}",
        # Between a large number and its opposite lies a small one; corners, which stay as they are, do not show it.
        SCALED + "source mul(b, upsample_bilinear2d(x){factors=[2,2]}) "
        "target upsample_bilinear2d(mul(b, x)){factors=[2,2]}",
        # With odd factors the middle of each pixel stays as it is, with others it does not.
        SCALED + "source mul(b, upsample_bilinear2d(x){factors=[F,G]}) "
        "target upsample_bilinear2d(mul(b, x)){factors=[F,G]}",
        SCALED + "source mul(b, upsample_bilinear2d(x){factors=[F,G], align_corners=true}) "
        "target upsample_bilinear2d(mul(b, x)){factors=[F,G], align_corners=true}",
        JOINED + "source conv2d(concat(upsample_bilinear2d(a){factors=[F,G]}, b){axis=-3}, w) target add("
        "upsample_bilinear2d(conv2d(a, slice(w){axis=-3, start=0, stop=C})){factors=[F,G]}, "
        "conv2d(b, slice(w){axis=-3, start=C, stop=C+D}))",
        # Integers may be equal, so that two weights are added up before they meet the element that both look up.
        LOOKUP + "source linear(take(x, i){axis=-1}, w) target linear(x, matmul(w, "
        "take(diagonal_matrix(expand(constant{value=1.0, dtype=float}){shape=[K]}), i){axis=-2}))",
        "rule x: float[M,N] source mul(mean(x){axes=[-1]}, mean(x){axes=[-1]}) "
        "target t = sum(x){axes=[-1]}; mul(div(t, constant{value=2.0, dtype=float}), mean(x){axes=[-1]})",
    ],
)
def test_targets_that_do_not(rule: str) -> None:
    (parsed,) = read_rules(rule)
    assert not stays_in_range(parsed)


def test_what_cannot_be_written_down_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    (parsed,) = read_rules(THREE + "source add(add(x, y), z) target add(x, add(y, z))")
    monkeypatch.setattr(magnitude, "MOST_WORK", 3)
    assert not stays_in_range(parsed)
