"""The vocabulary ``matrix``: sums, products and transposes of matrices, concatenated and sliced, many deep."""

from __future__ import annotations

from taso_py.generate.vocabulary import DATA, Family, Variables, apply, halves
from taso_py.ops.contraction import Matmul
from taso_py.ops.elementwise import Add, Relu
from taso_py.ops.movement import Concat, Permute

MATRIX = (
    Family(
        "square matrices",
        (Variables("a", (2, 2), DATA),),
        (*apply("dd", Add(), Matmul()), *apply("d", Permute((-1, -2)))),
        operators=5,
        equal=2,
    ),
    Family(
        "blocks",
        (Variables("a", (2, 4), DATA, 2), Variables("b", (4, 6), DATA, 2)),
        (*apply("dd", Add(), Matmul(), Concat(-1), Concat(-2)), *apply("d", Relu()), *halves(-1, -2)),
        operators=4,
        equal=2,
    ),
)
