"""The vocabulary ``arrays``: programs on whole arrays, and the forms of them that compute or read less.

Sums of products become products of sums, stacks that are reduced become elementwise operators, diagonals and slices of
results are computed from those of operands. Rules lead in one direction, towards less work.
"""

from __future__ import annotations

from collections.abc import Iterator

from taso_py.generate.sets.common import family, number
from taso_py.generate.vocabulary import CONSTANT, DATA, FUSED, WEIGHT, Family, Production, Variables
from taso_py.ops.contraction import Matmul
from taso_py.ops.elementwise import Add, Div, Exp, Log, Maximum, Mul, Relu, Sigmoid, Sqrt, Sub, Tanh
from taso_py.ops.evaluate import Domain
from taso_py.ops.movement import Concat, Contiguous, Diagonal, Permute, Reshape, Slice
from taso_py.ops.reduction import Max, Mean, Sum

_OTHER = "y"
"""Role of the second of two variables that are data."""
_FIRST, _SECOND, _THIRD = "abe"
"""Roles of values on the way to what is replaced, and of the parts of a stack."""
_BEFORE, _AFTER = "lr"
"""Roles of values on the way to what replaces it."""
_HALF = "2"
"""Role of a number."""

_ROWS, _INNER, _COLUMNS = 4, 3, 5
_X, _Y = Variables("x", (2, 3, 4), DATA, 1), Variables("y", (2, 3, 4), _OTHER, 1)
_SCALE = Variables("c", (), CONSTANT, 1)
_EXCHANGE = Permute((-1, -2))
_TURNS = (_EXCHANGE, Permute((-2, -3, -1)), Permute((-1, -3, -2)), Permute((-2, -1, -3)))
_REDUCTIONS = (Sum, Mean)
_AXES = ((-1,), (-2,), (-2, -1))
_FUNCTIONS = (Exp(), Log(), Sqrt(), Relu(), Sigmoid(), Tanh())
"""Functions that are applied under another shape."""
_OF_PARTS = (Exp(), Log(), Sqrt())
"""Functions that are applied to slices."""


def _reductions_of_products() -> Iterator[Family]:
    """Yield the families of sums and means of a product of matrices."""
    a, b = Variables("x", (_ROWS, _INNER), DATA, 1), Variables("w", (_INNER, _COLUMNS), WEIGHT, 1)
    product = Production(Matmul(), DATA + WEIGHT, _FIRST)
    for reduce in _REDUCTIONS:
        yield family(
            f"{reduce.name} along an axis of a product",
            (a, b),
            (
                product,
                *(Production(reduce((axis,)), _FIRST, "o") for axis in (-1, -2)),
                Production(reduce((-1,), keepdim=True), WEIGHT, _AFTER),
                Production(reduce((-2,), keepdim=True), DATA, _BEFORE),
                Production(Matmul(), DATA + _AFTER, _SECOND),
                Production(Matmul(), _BEFORE + WEIGHT, _THIRD),
                Production(Reshape((_ROWS,)), _SECOND, FUSED),
                Production(Reshape((_COLUMNS,)), _THIRD, FUSED),
            ),
            3,
        )
    yield family(
        "sum of a product",
        (a, b),
        (
            product,
            Production(Sum((-2, -1)), _FIRST, "o"),
            Production(Sum((-2,)), DATA, _BEFORE),
            Production(Sum((-1,)), WEIGHT, _AFTER),
            Production(Mul(), _BEFORE + _AFTER, _SECOND),
            Production(Sum((-1,)), _SECOND, FUSED),
        ),
        4,
    )


def _products_of_matrices() -> Iterator[Family]:
    """Yield the families of products of matrices that take the place of others, or of sums."""
    rows, columns = 3, 4
    for shared in ("left", "right"):
        shapes = ((rows, columns), (columns, 5)) if shared == "left" else ((columns, 5), (rows, columns))
        roles = (WEIGHT + DATA, WEIGHT + _OTHER) if shared == "left" else (DATA + WEIGHT, _OTHER + WEIGHT)
        yield family(
            f"differences of products with the {shared} factor in common",
            (
                Variables("w", shapes[0], WEIGHT, 1),
                Variables("x", shapes[1], DATA, 1),
                Variables("y", shapes[1], _OTHER, 1),
            ),
            (
                Production(Matmul(), roles[0], _FIRST),
                Production(Matmul(), roles[1], _SECOND),
                Production(Sub(), _FIRST + _SECOND, "o"),
                Production(Sub(), DATA + _OTHER, _AFTER),
                Production(Matmul(), roles[0].replace(DATA, _AFTER), FUSED),
            ),
            3,
        )
    yield family(
        "weighted rows",
        (Variables("x", (rows, columns), DATA, 1), Variables("v", (columns,), WEIGHT, 1)),
        (
            Production(Mul(), DATA + WEIGHT, _FIRST),
            Production(Sum((-1,)), _FIRST, "o"),
            Production(Reshape((columns, 1)), WEIGHT, _AFTER),
            Production(Matmul(), DATA + _AFTER, _SECOND),
            Production(Reshape((rows,)), _SECOND, FUSED),
        ),
        3,
    )


def _reductions_of_arithmetic() -> Iterator[Family]:
    """Yield the families of sums and means of sums, multiples and shifted values."""
    for reduce in _REDUCTIONS:
        ops = [reduce(axes) for axes in _AXES]
        yield family(
            f"{reduce.name} of a sum",
            (_X, _Y),
            (
                *(Production(op, DATA + _OTHER, _FIRST) for op in (Add(), Sub())),
                *(Production(op, _FIRST, "o") for op in ops),
                *(Production(op, DATA, _BEFORE) for op in ops),
                *(Production(op, _OTHER, _AFTER) for op in ops),
                *(Production(op, _BEFORE + _AFTER, FUSED) for op in (Add(), Sub())),
            ),
            3,
        )
        shifts = (Mul(), Div(), Add(), Sub()) if reduce is Mean else (Mul(), Div())
        yield family(
            f"{reduce.name} of multiples",
            (_X, _SCALE),
            (
                *(Production(op, DATA + CONSTANT, _FIRST) for op in shifts),
                *(Production(op, _FIRST, "o") for op in ops),
                *(Production(op, DATA, _BEFORE) for op in ops),
                *(Production(op, _BEFORE + CONSTANT, FUSED) for op in shifts),
            ),
            2,
            domain=Domain.REAL,
        )
    yield family(
        "means of means",
        (_X,),
        (
            Production(Mean((-1,)), DATA, _FIRST),
            Production(Mean((-1,)), _FIRST, "o"),
            Production(Mean((-1,), keepdim=True), DATA, _SECOND),
            Production(Mean((-2,), keepdim=True), _SECOND, "o"),
            *(Production(Mean((-2, -1), keepdim=keepdim), DATA, FUSED) for keepdim in (False, True)),
        ),
        2,
        domain=Domain.REAL,
    )
    for op in (Sum, Mean, Max):
        yield family(
            f"{op.name} along the first axes, one by one",
            (_X,),
            (
                Production(op((-3,)), DATA, _FIRST),
                Production(op((-2,)), _FIRST, "o"),
                Production(op((-3, -2)), DATA, FUSED),
            ),
            2,
            domain=Domain.REAL,
        )


def _reductions_of_layouts() -> Iterator[Family]:
    """Yield the families of reductions of transposes and of dense copies."""
    matrix = Variables("x", (3, 4), DATA, 1)
    yield family(
        "reductions of copies",
        (matrix,),
        (
            Production(Contiguous(), DATA, _FIRST),
            *(Production(op(axes), _FIRST, "o") for op in (Sum, Mean, Max) for axes in _AXES),
            *(Production(op(axes), DATA, FUSED) for op in (Sum, Mean, Max) for axes in _AXES),
        ),
        2,
    )
    yield family(
        "reductions of transposes",
        (matrix,),
        (
            Production(_EXCHANGE, DATA, _FIRST),
            *(Production(op(axes), _FIRST, "o") for op in (Sum, Mean, Max) for axes in _AXES),
            *(Production(op(axes), DATA, FUSED) for op in (Sum, Mean, Max) for axes in _AXES),
        ),
        2,
    )


def _stacked(shape: tuple[int, ...], count: int) -> Family:
    """Return the family of reductions of a stack of some values."""
    axis = -len(shape) - 1
    parts = tuple(Variables(letter, shape, letter, 1) for letter in "xyzw"[:count])
    rows, letters = "abeh"[:count], "xyzw"[:count]
    sums = [Production(Add(), letters[:2], "p" if count > 2 else FUSED)]
    greatest = [Production(Maximum(), letters[:2], "q" if count > 2 else FUSED)]
    if count > 2:
        sums.append(Production(Add(), "p" + letters[2], FUSED))
        greatest.append(Production(Maximum(), "q" + letters[2], FUSED))
    return family(
        f"stacks of {count} of {len(shape)} axes",
        parts,
        (
            *(Production(Reshape((1, *shape)), letter, row) for letter, row in zip(letters, rows, strict=True)),
            Production(Concat(axis), rows, "s"),
            *(Production(op((axis,)), "s", "o") for op in (Sum, Max)),
            *sums,
            *greatest,
        ),
        count + 2,
    )


def _stacked_means(shape: tuple[int, ...]) -> Family:
    """Return the family of the mean of two values in a stack."""
    axis = -len(shape) - 1
    return family(
        f"mean of a stack of {len(shape)} axes",
        (Variables("x", shape, DATA, 1), Variables("y", shape, _OTHER, 1), number(_HALF, 0.5)),
        (
            Production(Reshape((1, *shape)), DATA, _FIRST),
            Production(Reshape((1, *shape)), _OTHER, _SECOND),
            Production(Concat(axis), _FIRST + _SECOND, "s"),
            Production(Mean((axis,)), "s", "o"),
            Production(Add(), DATA + _OTHER, _AFTER),
            Production(Mul(), _AFTER + _HALF, FUSED),
        ),
        4,
        domain=Domain.REAL,
    )


def _joined(count: int) -> Iterator[Family]:
    """Yield the families of what is done to each part and then joined, along the first of three axes."""
    letters, done = "xyzw"[:count], "ijkl"[:count]
    parts = tuple(Variables(letter, (1, 3, 4), letter, 1) for letter in letters)
    for shape in ((3, 4), (4,), ()):
        yield family(
            f"{count} parts and a value of {len(shape)} axes",
            (*parts, Variables("v", shape, WEIGHT, 1)),
            (
                *(Production(Mul(), part + WEIGHT, after) for part, after in zip(letters, done, strict=True)),
                Production(Concat(-3), done, "o"),
                Production(Concat(-3), letters, _AFTER),
                Production(Mul(), _AFTER + WEIGHT, FUSED),
            ),
            count + 1,
        )


def _neighbours() -> Iterator[Family]:
    """Yield the families of slices beside each other that are joined, and of a slice that is the whole."""
    x = Variables("x", (8,), DATA, 1)
    yield Family(
        "three neighbours",
        (x,),
        (
            *(Production(Slice(-1, 2 * place + 1, 2 * place + 3), DATA, row) for place, row in enumerate("abe")),
            Production(Concat(-1), "abe", "o"),
            Production(Slice(-1, 1, 7), DATA, FUSED),
        ),
        operators=4,
        axes=3,
        every=True,
    )
    yield Family("the whole", (x,), (Production(Slice(-1, 0, 8), DATA, "o"),), operators=1, axes=3, shrinks=True)


def _viewed(shape: tuple[int, ...], view: tuple[int, ...]) -> Iterator[Family]:
    """Yield the families of what is done to values without their first axis, which is of size one."""
    x = Variables("x", shape, DATA, 1)
    yield family(
        f"functions of {shape} as {view}",
        (x,),
        (
            Production(Reshape(view), DATA, _FIRST),
            *(Production(op, _FIRST, _SECOND) for op in _FUNCTIONS),
            Production(Reshape(shape), _SECOND, "o"),
            *(Production(op, DATA, FUSED) for op in _FUNCTIONS),
        ),
        3,
    )
    yield from (
        family(
            f"arithmetic of {shape} as {view} with {operand}",
            (x, Variables("v", operand, WEIGHT, 1)),
            (
                Production(Reshape(view), DATA, _FIRST),
                *(Production(op, _FIRST + WEIGHT, _SECOND) for op in (Add(), Mul())),
                Production(Reshape(shape), _SECOND, "o"),
                *(Production(op, DATA + WEIGHT, FUSED) for op in (Add(), Mul())),
            ),
            3,
        )
        for operand in ((3, 4), (4,), ())
    )


def _copies() -> Iterator[Family]:
    """Yield the families of dense copies that are transposed, copied again, or combined."""
    yield family(
        "copies that are transposed",
        (_X,),
        (
            Production(Contiguous(), DATA, _FIRST),
            *(Production(turn, _FIRST, "o") for turn in _TURNS),
            Production(Contiguous(), _FIRST, "o"),
            *(Production(turn, DATA, FUSED) for turn in _TURNS),
            Production(Contiguous(), DATA, FUSED),
        ),
        2,
    )
    yield family(
        "arithmetic of copies",
        (Variables("x", (4,), DATA, 1), Variables("y", (4,), _OTHER, 1)),
        (
            Production(Contiguous(), DATA, _FIRST),
            Production(Contiguous(), _OTHER, _SECOND),
            *(Production(op, _FIRST + _SECOND, "o") for op in (Add(), Sub(), Mul())),
            *(Production(op, DATA + _OTHER, _AFTER) for op in (Add(), Sub(), Mul())),
            Production(Contiguous(), _AFTER, FUSED),
        ),
        3,
    )


def _diagonals() -> Iterator[Family]:
    """Yield the families of diagonals of results, which are computed from rows, columns and diagonals of operands."""
    x, y = Variables("x", (4, 4), DATA, 1), Variables("y", (4, 4), _OTHER, 1)
    yield family(
        "diagonals of products of matrices",
        (Variables("x", (4, 3), DATA, 1), Variables("w", (3, 4), WEIGHT, 1)),
        (
            Production(Matmul(), DATA + WEIGHT, _FIRST),
            Production(Diagonal(), _FIRST, "o"),
            Production(_EXCHANGE, WEIGHT, _BEFORE),
            Production(Mul(), DATA + _BEFORE, _AFTER),
            Production(Sum((-1,)), _AFTER, FUSED),
        ),
        3,
    )
    arithmetic = (Add(), Sub(), Mul(), Div())
    yield family(
        "diagonals of arithmetic",
        (x, y),
        (
            *(Production(op, DATA + _OTHER, _FIRST) for op in arithmetic),
            Production(Diagonal(), _FIRST, "o"),
            Production(Diagonal(), DATA, _BEFORE),
            Production(Diagonal(), _OTHER, _AFTER),
            *(Production(op, _BEFORE + _AFTER, FUSED) for op in arithmetic),
        ),
        3,
    )
    yield family(
        "diagonals of multiples",
        (x, _SCALE),
        (
            *(Production(op, DATA + CONSTANT, _FIRST) for op in arithmetic),
            Production(Diagonal(), _FIRST, "o"),
            Production(Diagonal(), DATA, _BEFORE),
            *(Production(op, _BEFORE + CONSTANT, FUSED) for op in arithmetic),
        ),
        2,
    )
    yield family(
        "diagonals of functions",
        (x,),
        (
            *(Production(op, DATA, _FIRST) for op in _FUNCTIONS),
            Production(Diagonal(), _FIRST, "o"),
            Production(Diagonal(), DATA, _BEFORE),
            *(Production(op, _BEFORE, FUSED) for op in _FUNCTIONS),
        ),
        2,
    )
    yield family(
        "diagonals of transposes",
        (x,),
        (
            Production(_EXCHANGE, DATA, _FIRST),
            Production(Diagonal(), _FIRST, "o"),
            Production(Diagonal(), DATA, FUSED),
        ),
        2,
    )


def _functions_of_parts() -> Iterator[Family]:
    """Yield the families of functions of slices, in place of slices of results; ``core`` and ``rows`` have others."""
    for axis in (-1, -2):
        before = Variables("x", (8, 3)[:: 1 if axis == -2 else -1], DATA, 1)
        part = Slice(axis, 2, 6)
        yield family(
            f"functions of parts along {axis}",
            (before,),
            (
                *(Production(op, DATA, _FIRST) for op in _OF_PARTS),
                Production(part, _FIRST, "o"),
                Production(part, DATA, _AFTER),
                *(Production(op, _AFTER, FUSED) for op in _OF_PARTS),
            ),
            2,
        )


ARRAYS = (
    *_reductions_of_products(),
    *_products_of_matrices(),
    *_reductions_of_arithmetic(),
    *_reductions_of_layouts(),
    *(_stacked(shape, count) for shape in ((4,), (3, 4), (2, 3, 4)) for count in (2, 3)),
    *(_stacked_means(shape) for shape in ((4,), (3, 4), (2, 3, 4))),
    *_joined(3),
    *_neighbours(),
    *_viewed((1, 3, 4), (3, 4)),
    *_copies(),
    *_functions_of_parts(),
    *_diagonals(),
)
