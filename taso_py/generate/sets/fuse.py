"""The vocabulary ``fuse``: the written-out forms of operators that one kernel computes."""

from __future__ import annotations

from taso_py.generate.vocabulary import (
    CONSTANT,
    DATA,
    FUSED,
    GIVEN,
    MASK,
    STATISTIC,
    WEIGHT,
    Family,
    Production,
    Variables,
    Written,
    apply,
)
from taso_py.ops.base import TensorOperator
from taso_py.ops.contraction import Matmul
from taso_py.ops.elementwise import Add, Div, Exp, Gelu, Mul, Rsqrt, Sigmoid, Silu, Sqrt, Sub
from taso_py.ops.movement import Permute
from taso_py.ops.normalization import Attention, LayerNorm, RmsNorm, Softmax
from taso_py.ops.reduction import Mean, Sum


def _fused(roles: str, *ops: TensorOperator) -> tuple[Production, ...]:
    return tuple(Production(op, roles, FUSED) for op in ops)


_ROWS = Variables("x", (3, 4), DATA, 1)
_EPSILON = Variables("e", (), CONSTANT, count=1, number=0.25)
_SCALE = Variables("c", (), CONSTANT, count=1, number=0.25)
_DIVIDED = "q"
"""Role of queries that are divided by a number: a scale is a number of the rule, and cannot be one over another."""
_SCORES = (
    Production(Matmul(), "dd", STATISTIC),
    Production(Mul(), "sc", STATISTIC),
    Production(Softmax(), "s", WEIGHT),
    *apply("d", Permute((-1, -2))),
    *apply("wd", Matmul()),
)


def _normalizations(name: str, *productions: Production) -> Family:
    """Return a family of layer and RMS norms in which the root of the variance is taken and divided by in some way."""
    own = (
        Production(Mean((-1,), keepdim=True), "d", STATISTIC),
        Production(Add(), "sc", STATISTIC),
        *apply("dd", Mul()),
        *apply("ds", Sub()),
        *_fused("g", RmsNorm(1, 0.25), LayerNorm(1, 0.25)),
    )
    return Family(name, (_ROWS, _EPSILON), (*own, *productions), operators=7)


def _divided(roles: str) -> tuple[Production, ...]:
    """Return the productions of scores that are divided by a number, and of attention to divided queries."""
    return (
        Production(Div(), "sc", STATISTIC),
        Production(Div(), GIVEN + CONSTANT, _DIVIDED),
        *_fused(_DIVIDED + roles, Attention(1.0)),
    )


def _heads(*lead: int) -> tuple[Variables, ...]:
    shapes = {"q": (4, 5), "k": (6, 5), "v": (6, 7)}
    return tuple(Variables(letter, (*lead, *shape), DATA, 1) for letter, shape in shapes.items())


def _masked_attention(*mask: int) -> Family:
    """Return a family of attention whose mask is added to the scores, which may be scaled before the product."""
    productions = (
        *(*_SCORES, *apply("dc", Mul())),
        Production(Add(), "sm", STATISTIC),
        *_fused("gggm", Attention(0.25), Attention(1.0)),
        *_divided("ggm"),
    )
    name = f"attention with a mask {'x'.join(map(str, mask))}"
    return Family(name, (*_heads(2, 3), Variables("m", mask, MASK, 1), _SCALE), productions, operators=6, every=True)


FUSE = (
    Written("silu", Silu()),
    Written("gelu", Gelu("tanh")),
    Written("gelu by erf", Gelu()),
    Family(
        "logistic functions",
        (
            Variables("x", (4,), DATA, 1),
            Variables("u", (), CONSTANT, count=1, number=1.0),
            Variables("n", (), MASK, count=1, number=-1.0),
        ),
        (
            Production(Mul(), "dm", STATISTIC),
            Production(Exp(), "s", STATISTIC),
            Production(Add(), "sc", STATISTIC),
            Production(Div(), "cs", STATISTIC),
            *apply("ds", Mul(), Div()),
            *_fused("g", Sigmoid(), Silu()),
        ),
        operators=5,
        every=True,
    ),
    _normalizations("normalizations", *apply("ds", Mul()), Production(Rsqrt(), "s", STATISTIC)),
    _normalizations("normalizations by division", *apply("ds", Div()), Production(Sqrt(), "s", STATISTIC)),
    Family(
        "scaled normalizations",
        (_ROWS, Variables("w", (4,), WEIGHT, 1), Variables("b", (4,), WEIGHT, 1)),
        (
            *apply("d", RmsNorm(1, 0.25), LayerNorm(1, 0.25)),
            *apply("dw", Mul(), Add()),
            *_fused("gw", RmsNorm(1, 0.25), LayerNorm(1, 0.25)),
            *_fused("gww", LayerNorm(1, 0.25)),
        ),
        operators=3,
        every=True,
    ),
    Family(
        "softmax",
        (_ROWS,),
        (*apply("d", Exp(), Sum((-1,), keepdim=True)), *apply("dd", Div()), *_fused("g", Softmax())),
        operators=3,
        every=True,
    ),
    Family(
        "attention",
        (*_heads(), _SCALE),
        (*_SCORES, *apply("dc", Mul()), *_fused("ggg", Attention(0.25), Attention(1.0)), *_divided("gg")),
        operators=5,
        every=True,
    ),
    *(
        _masked_attention(*mask)
        for mask in ((2, 3, 4, 6), (2, 1, 4, 6), (1, 3, 4, 6), (1, 1, 4, 6), (2, 1, 1, 6), (4, 6))
    ),
    Family(
        "attention with two masks",
        (*_heads(2, 3), Variables("m", (2, 1, 4, 6), MASK, 1), Variables("n", (1, 3, 4, 6), MASK, 1)),
        (
            *_SCORES,
            Production(Add(), "sm", STATISTIC),
            Production(Add(), "mm", MASK),
            *_fused("gggm", Attention(1.0)),
        ),
        operators=6,
        every=True,
    ),
)
