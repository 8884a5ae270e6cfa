"""The vocabulary ``rows``: slices of rows moved before operators that compute row by row.

Classifiers read one row of their last layer's result; the others are computed in vain. Slicing the rows first computes
only these; whether that is any faster the search decides, step by step up to where rows interact.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from taso_py.generate.vocabulary import DATA, FUSED, MASK, WEIGHT, Family, Half, Production, Variables
from taso_py.ops.base import TensorOperator
from taso_py.ops.contraction import Linear
from taso_py.ops.elementwise import Add, Div, Gelu, Mul, Silu, Sub
from taso_py.ops.movement import Contiguous, Permute, Reshape
from taso_py.ops.normalization import Attention, LayerNorm, RmsNorm, Softmax

_ALL = "a"
"""Role of results over all rows."""
_SOME = "s"
"""Role of some rows of such a result."""
_TAKEN = "t"
"""Role of some rows of a variable, which the operators are then applied to."""
_TAKEN_OF_MASK = "n"
"""Role of the rows of a mask for the queries that are taken."""
_ROW = -2


def _row_slices(axes: Iterable[int]) -> tuple[Production, ...]:
    """Return the productions that take rows of results and of operands."""
    halves = [Half(axis, 0) for axis in axes]
    return (
        *(Production(half, DATA, _TAKEN) for half in halves),
        *(Production(half, _ALL, _SOME) for half in halves),
    )


def _row_operators(roles: str, *ops: TensorOperator, taken: str = "") -> tuple[Production, ...]:
    """Return operators on operands of these roles, applied to all rows, or to the rows taken of all data."""
    some = taken or roles.replace(DATA, _TAKEN)
    return (*(Production(op, roles, _ALL) for op in ops), *(Production(op, some, FUSED) for op in ops))


def _family(
    name: str, variables: Iterable[Variables], *productions: Production, axes: Iterable[int] = (_ROW,)
) -> Family:
    return Family(name, tuple(variables), (*_row_slices(axes), *productions), operators=4, every=True)


def _queries(*mask: int) -> Family:
    """Return a family of attention of some queries; the mask, if any, has a row for each query, or one for all."""
    attention = Attention(), Attention(0.25)
    if not mask:
        return _family("queries", _HEADS, *_row_operators("ddd", *attention, taken="tdd"))
    of_mask = _TAKEN_OF_MASK if mask[_ROW] > 1 else MASK
    return _family(
        f"queries with a mask {'x'.join(map(str, mask))}",
        (*_HEADS, Variables("m", mask, MASK, 1)),
        Production(Half(_ROW, 0), MASK, _TAKEN_OF_MASK),
        *_row_operators("dddm", *attention, taken="tdd" + of_mask),
    )


_HEADS = tuple(
    Variables(letter, shape, DATA, 1)
    for letter, shape in (("q", (2, 3, 4, 5)), ("k", (2, 3, 6, 5)), ("v", (2, 3, 6, 7)))
)
_WIDTH = 6
_X = Variables("x", (4, _WIDTH), DATA, 1)
_VIEWS = (
    ((4, 6), (4, 1, 6)),
    ((4, 1, 6), (4, 6)),
    ((4, 6), (1, 4, 6)),
    ((1, 4, 6), (4, 6)),
    ((3, 4, 2), (1, 3, 4, 2)),
    ((1, 3, 4, 2), (3, 4, 2)),
    ((4, 6), (4, 2, 3)),
    ((4, 2, 3), (4, 6)),
    ((5, 4, 6), (5, 4, 2, 3)),
    ((5, 4, 2, 3), (5, 4, 6)),
    ((4, 1, 2, 3), (4, 6)),
    ((4, 1, 6), (4, 2, 3)),
)
"""Shapes between which attention blocks reshape, rows being the axis of size four."""

_SIZES = (8, 2, 4, 6)
_ORDERS = (*(order for order in itertools.permutations((-1, -2, -3)) if order[0] != -3), (-2, -4, -3, -1))
"""Orders of the last axes; the one of two axes is in ``core``."""

ROWS = (
    _family(
        "layers of rows",
        (_X, Variables("w", (5, _WIDTH), WEIGHT, 1), Variables("b", (5,), WEIGHT, 1)),
        *_row_operators("dw", Linear()),
        *_row_operators("dww", Linear()),
    ),
    _family(
        "normalized rows",
        (_X, Variables("w", (_WIDTH,), WEIGHT, 2)),
        *_row_operators("d", Softmax(), LayerNorm(1, 0.25), RmsNorm(1, 0.25)),
        *_row_operators("dw", LayerNorm(1, 0.25), RmsNorm(1, 0.25)),
        *_row_operators("dww", LayerNorm(1, 0.25)),
    ),
    _family("functions of rows", (_X,), *_row_operators("d", Gelu(), Gelu("tanh"), Silu(), Contiguous())),
    _family(
        "copied rows of heads", (Variables("x", (2, 4, 3, 5), DATA, 1),), *_row_operators("d", Contiguous()), axes=(-3,)
    ),
    _family(
        "rows and a vector",
        (_X, Variables("v", (_WIDTH,), WEIGHT, 1)),
        *_row_operators("dw", Add(), Mul(), Sub(), Div()),
    ),
    _family(
        "rows and numbers", (_X, Variables("n", (4, 1), DATA, 1)), *_row_operators("dd", Add(), Mul(), Sub(), Div())
    ),
    *(_queries(*mask) for mask in ((), (2, 3, 4, 6), (2, 1, 4, 6), (1, 1, 4, 6), (2, 1, 1, 6), (1, 1, 1, 6))),
    *(
        _family(
            f"permuted rows {order}",
            (Variables("x", _SIZES[-len(order) :], DATA, 1),),
            *_row_operators("d", Permute(order)),
            axes=range(-len(order), 0),
        )
        for order in _ORDERS
    ),
    *(
        _family(
            f"reshaped rows {before} {after}",
            (Variables("x", before, DATA, 1),),
            Production(Reshape(after), DATA, _ALL),
            Production(Reshape(tuple(size // 2 if size == 4 else size for size in after)), _TAKEN, FUSED),
            axes=sorted({before.index(4) - len(before), after.index(4) - len(after)}),
        )
        for before, after in _VIEWS
    ),
)
