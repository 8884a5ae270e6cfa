"""Where a sum cancels its own reciprocal, and where it might be zero or is another sum."""

from __future__ import annotations

import pytest

from taso_py.rules.text import read_rules
from taso_py.rules.verdict import Outcome
from verify import prove

SHARE = "rule x: float[..B,M,K], y: float[..B,M,1], z: float[..B,M,K]\n source mul({whole}, y)\n target y"


@pytest.mark.parametrize(
    ("whole", "outcome"),
    [
        ("sum(softmax(x){axis=-1}){axes=[-1], keepdim=true}", Outcome.PROVED),
        ("div(sum(exp(x)){axes=[-1], keepdim=true}, sum(exp(x)){axes=[-1], keepdim=true})", Outcome.PROVED),
        ("div(sum(exp(x)){axes=[-1], keepdim=true}, sum(exp(z)){axes=[-1], keepdim=true})", Outcome.UNKNOWN),
        ("div(sum(x){axes=[-1], keepdim=true}, sum(x){axes=[-1], keepdim=true})", Outcome.UNKNOWN),
        ("div(sum(relu(x)){axes=[-1], keepdim=true}, sum(relu(x)){axes=[-1], keepdim=true})", Outcome.UNKNOWN),
        ("sum(mul(softmax(x){axis=-1}, z)){axes=[-1], keepdim=true}", Outcome.UNKNOWN),
        ("mean(softmax(x){axis=-1}){axes=[-1], keepdim=true}", Outcome.UNKNOWN),
    ],
)
def test_a_share_of_what_is_not_zero(whole: str, outcome: Outcome) -> None:
    assert prove(read_rules(SHARE.format(whole=whole))[0]).outcome is outcome
