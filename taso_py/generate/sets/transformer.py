"""The vocabulary ``transformer``: the operators of attention blocks, two operators deep in full."""

from __future__ import annotations

from taso_py.generate.vocabulary import DATA, WEIGHT, Family, Variables, apply, halves
from taso_py.ops.contraction import Linear, Matmul
from taso_py.ops.elementwise import Add, Gelu, Mul, Relu, Silu, Sub
from taso_py.ops.movement import Concat, Permute, Reshape
from taso_py.ops.normalization import LayerNorm, RmsNorm, Softmax
from taso_py.ops.reduction import Mean, Sum

_TOKENS = Variables("x", (2, 6, 4), DATA, 2)
_ACTIVATIONS = apply("d", Relu(), Silu(), Gelu("tanh"))
_ROWS = apply("d", Softmax(), LayerNorm(1, 0.25), RmsNorm(1, 0.25), Sum((-1,), keepdim=True), Mean((-1,), keepdim=True))

TRANSFORMER = (
    Family(
        "tokens",
        (_TOKENS, Variables("v", (4,), WEIGHT, 2), Variables("s", (), WEIGHT, 2)),
        (
            *apply("..", Add(), Mul(), Sub()),
            *_ACTIVATIONS,
            *_ROWS,
            *apply("d", Permute((-1, -2)), Permute((-1, -3, -2))),
            *apply("d", Reshape((12, 4)), Reshape((2, 6, 2, 2)), Reshape((2, 2, 3, 4))),
            *apply("dd", Concat(-1), Concat(-2)),
            *halves(-1, -2),
        ),
        operators=2,
    ),
    Family(
        "projections",
        (_TOKENS, Variables("w", (4, 4), WEIGHT, 2), Variables("b", (4,), WEIGHT, 2), Variables("s", (), WEIGHT, 1)),
        (
            *apply("..", Add(), Mul()),
            *apply("dw", Linear(), Matmul()),
            *apply("dww", Linear()),
            *_ROWS,
            *apply("d", Relu()),
            *apply("d", Permute((-1, -2)), Permute((-1, -3, -2))),
            *apply("w", Permute((-1, -2))),
            *apply("d", Reshape((12, 4)), Reshape((2, 6, 2, 2)), Reshape((2, 2, 3, 4))),
            *apply("..", Concat(-1), Concat(-2)),
            *halves(-1, -2),
        ),
        operators=2,
    ),
    Family(
        "heads",
        (Variables("q", (2, 3, 4), DATA, 2), Variables("k", (2, 4, 5), DATA, 2), Variables("s", (), WEIGHT, 2)),
        (
            *apply("..", Add(), Mul()),
            *apply("dd", Matmul()),
            *apply("d", Permute((-1, -2)), Permute((-1, -3, -2)), Softmax(), Relu()),
            *apply("d", Reshape((1, 2, 3, 4)), Reshape((1, 2, 4, 5)), Reshape((1, 2, 3, 5))),
            *apply("dd", Concat(-1), Concat(-2), Concat(-3)),
            *halves(-1, -3),
        ),
        operators=2,
    ),
)
