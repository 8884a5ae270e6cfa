"""The vocabulary ``extents``: what is computed of values that are repeated, padded, reshaped, joined or reduced.

Rules lead to operators on fewer elements, or to fewer operators.
"""

from __future__ import annotations

from collections.abc import Iterator

from taso_py.generate.sets.common import each, exchanged, family, number, yields
from taso_py.generate.vocabulary import CONSTANT, DATA, FUSED, WEIGHT, Family, Production, Variables
from taso_py.ir.types import DType
from taso_py.ops.contraction import Conv2d, Matmul
from taso_py.ops.elementwise import (
    Add,
    Cast,
    Cos,
    Div,
    Exp,
    Gelu,
    Maximum,
    Mul,
    Relu,
    Sigmoid,
    Silu,
    Sin,
    Sub,
    Tanh,
)
from taso_py.ops.evaluate import Domain
from taso_py.ops.movement import Concat, Expand, Pad, Reshape, Slice
from taso_py.ops.pooling import AvgPool2d, MaxPool2d
from taso_py.ops.reduction import Max, Mean, Sum
from taso_py.ops.selection import Take

_OTHER, _THIRD = "yz"
"""Roles of the second and the third of several variables that are data."""
_FIRST, _AFTER = "ar"
"""Roles of values on the way to what is replaced, and of those on the way to what replaces it."""


def _casts() -> Iterator[Family]:
    """Yield the families of parts of what is converted to another type."""
    for dtype in (DType.F32, DType.F16, DType.BF16):
        yield Family(
            f"parts of what is converted to {dtype}",
            (Variables("x", (5,), DATA, 1),),
            (
                *yields(_FIRST, [DATA], Cast(dtype)),
                *yields("o", [_FIRST], Slice(-1, 1, 4)),
                *yields(_AFTER, [DATA], Slice(-1, 1, 4)),
                *yields(FUSED, [_AFTER], Cast(dtype)),
            ),
            operators=2,
            every=True,
            axes=2,
        )


def _views() -> Iterator[Family]:
    """Yield the families of arithmetic of values under another shape."""
    for shape, view in (((2, 3, 5), (6, 5)), ((6, 5), (2, 3, 5))):
        yield exchanged(
            Reshape(view), f"arithmetic of {shape} as {view}", each(d=shape, y=shape), (DATA + _OTHER, (Add(), Mul()))
        )


def _repeated() -> Iterator[Family]:
    """Yield the families of what is computed of values that are repeated, and of values that are repeated twice."""
    for shape in ((5,), (3, 1)):
        wide, pair = Expand((3, 5)), each(d=shape, y=shape)
        yield exchanged(wide, f"functions of broadcasts of {shape}", pair[:1], (DATA, _FUNCTIONS), domain=Domain.REAL)
        yield exchanged(
            wide, f"arithmetic of broadcasts of {shape}", pair, (DATA + _OTHER, _ARITHMETIC), domain=Domain.REAL
        )
        yield family(
            f"arithmetic with broadcasts of {shape}",
            each(d=shape, z=(3, 5)),
            (
                *yields(_FIRST, [DATA], wide),
                *yields("o", [_FIRST + _THIRD, _THIRD + _FIRST], *_ARITHMETIC),
                *yields(FUSED, [DATA + _THIRD, _THIRD + DATA], *_ARITHMETIC),
            ),
            2,
            domain=Domain.REAL,
        )
    yield family(
        "broadcasts of broadcasts",
        (Variables("x", (5,), DATA, 1),),
        (
            *yields(_FIRST, [DATA], Expand((3, 5))),
            *yields("o", [_FIRST], Expand((2, 3, 5)), Reshape((1, 3, 5))),
            *yields(FUSED, [DATA], Expand((2, 3, 5)), Expand((1, 3, 5))),
        ),
        2,
    )


_THROUGH_ZERO = (Relu(), Gelu(), Silu())
"""Functions that are zero at zero, so that they leave padding alone."""
_FUNCTIONS = (Exp(), Relu(), Sigmoid(), Tanh(), Sin(), Cos())
"""Functions that are applied before what repeats values."""
_ARITHMETIC = (Add(), Sub(), Mul(), Div())


def _padding() -> Iterator[Family]:
    """Yield the families of padding of padding, and of what is computed of padded values."""
    one, other, both = Pad(((1, 2),)), Pad(((3, 1),)), Pad(((4, 3),))
    yield family(
        "padding of padding",
        (Variables("x", (5,), DATA, 1),),
        (*yields(_FIRST, [DATA], one), *yields("o", [_FIRST], other), *yields(FUSED, [DATA], both)),
        2,
        narrow=True,
    )
    for pad in (one, Pad(((2, 1), (4, 3)))):
        yield exchanged(
            pad,
            f"padded by {pad.widths}",
            each(d=(3, 5), y=(3, 5)),
            (DATA, _THROUGH_ZERO),
            (DATA + _OTHER, (Add(), Mul())),
            domain=Domain.REAL,
        )


_LAST = (Sum((-1,)), Max((-1,)), Mean((-1,)))
"""Reductions of the last axis."""


def _reductions() -> Iterator[Family]:
    """Yield the families of reductions of one element, of several axes as one, and of what is repeated."""
    yield Family(
        "reductions of one element",
        (Variables("x", (3, 1), DATA, 1),),
        (*yields("o", [DATA], *_LAST), *yields(FUSED, [DATA], Reshape((3,)))),
        operators=1,
        every=True,
        narrow=True,
    )
    yield family(
        "reductions of several axes as one",
        (Variables("x", (2, 3, 5), DATA, 1),),
        (
            *yields(_FIRST, [DATA], Reshape((2, 15))),
            *yields("o", [_FIRST], *_LAST),
            *yields(FUSED, [DATA], *(type(op)((-2, -1)) for op in _LAST)),
        ),
        2,
        domain=Domain.REAL,
    )
    yield family(
        "the greatest and the mean of what is repeated",
        (Variables("x", (5,), DATA, 1),),
        (
            *yields(_FIRST, [DATA], Expand((3, 5))),
            *yields("o", [_FIRST], Max((-2,)), Mean((-2,))),
        ),
        2,
        domain=Domain.REAL,
    )


def _reductions_of_results() -> Iterator[Family]:
    """Yield the families of sums and maxima of what is joined, padded, cut or a function of each element."""
    for keepdim in (False, True):
        ops = Sum((-1,), keepdim), Max((-1,), keepdim)
        yield family(
            f"reductions of what is joined{', kept' * keepdim}",
            each(d=(4, 3), y=(4, 5)),
            (
                *yields(_FIRST, [DATA + _OTHER], Concat(-1)),
                *yields("o", [_FIRST], *ops),
                *(Production(op, DATA, role) for op, role in zip(ops, "ij", strict=True)),
                *(Production(op, _OTHER, role) for op, role in zip(ops, "kp", strict=True)),
                *yields(FUSED, ["ik"], Add()),
                *yields(FUSED, ["jp"], Maximum()),
            ),
            3,
        )
        yield family(
            f"sums of what is padded{', kept' * keepdim}",
            (Variables("x", (4, 3), DATA, 1),),
            (
                *yields(_FIRST, [DATA], Pad(((1, 2),))),
                *yields("o", [_FIRST], ops[0]),
                *yields(FUSED, [DATA], ops[0]),
            ),
            2,
        )
        yield family(
            f"the greatest of functions{', kept' * keepdim}",
            (Variables("x", (4, 3), DATA, 1),),
            (
                *yields(_FIRST, [DATA], Relu(), Exp(), Sigmoid(), Tanh()),
                *yields("o", [_FIRST], ops[1]),
                *yields(_AFTER, [DATA], ops[1]),
                *yields(FUSED, [_AFTER], Relu(), Exp(), Sigmoid(), Tanh()),
            ),
            2,
            domain=Domain.REAL,
        )


def _parts_of_reductions() -> Iterator[Family]:
    """Yield the families of parts of reductions: of rows, and of the channels of images."""
    of_images, kept = ([type(op)((-2, -1), keepdim=keepdim) for op in _LAST] for keepdim in (False, True))
    for name, shape, ops, axis, after in (
        ("parts of reductions", (5, 3), _LAST, -2, -1),
        ("channels of reductions", (2, 5, 3, 4), of_images, -3, -1),
        ("channels of reductions, kept", (2, 5, 3, 4), kept, -3, -3),
    ):
        yield family(
            name,
            (Variables("x", shape, DATA, 1),),
            (
                *yields(_FIRST, [DATA], *ops),
                *yields("o", [_FIRST], Slice(after, 1, 4)),
                *yields(_AFTER, [DATA], Slice(axis, 1, 4)),
                *yields(FUSED, [_AFTER], *ops),
            ),
            2,
            domain=Domain.REAL,
        )


def _maxima() -> Family:
    """Return the family of the greatest of shifted values."""
    return family(
        "the greatest of shifted values",
        each(d=(4, 3), y=(4, 1)),
        (
            *yields(_FIRST, [DATA + _OTHER], Add(), Sub()),
            *yields("o", [_FIRST], Max((-1,), keepdim=True)),
            *yields(_AFTER, [DATA], Max((-1,), keepdim=True)),
            *yields(FUSED, [_AFTER + _OTHER], Add(), Sub()),
        ),
        2,
    )


def _products() -> Iterator[Family]:
    """Yield the families of products with ones, with a vector, over one element, and of rows that are looked up."""
    yield family(
        "products with ones",
        (Variables("x", (4, 3), DATA, 1), number(CONSTANT, 1.0)),
        (
            *yields(_FIRST, [CONSTANT], Expand((3, 1))),
            *yields("o", [DATA + _FIRST], Matmul()),
            *yields(FUSED, [DATA], Sum((-1,), keepdim=True)),
        ),
        2,
    )
    yield family(
        "sums of products with a vector",
        each(d=(4, 3), w=(3,)),
        (
            *yields(_FIRST, [DATA + WEIGHT], Mul()),
            *yields("o", [_FIRST], Sum((-1,), keepdim=True)),
            *yields(_AFTER, [WEIGHT], Reshape((3, 1))),
            *yields(FUSED, [DATA + _AFTER], Matmul()),
        ),
        2,
    )
    yield family(
        "products over one element",
        each(d=(4, 1), w=(1, 5)),
        (*yields("o", [DATA + WEIGHT], Matmul()), *yields(FUSED, [DATA + WEIGHT], Mul())),
        1,
        narrow=True,
    )
    yield family(
        "products of rows that are looked up",
        (Variables("x", (5, 4), DATA, 1), Variables("i", (3,), "i", 1, dtype=DType.INT), *each(w=(4, 2))),
        (
            *yields(_FIRST, [DATA + "i"], Take(-2, 1)),
            *yields("o", [_FIRST + WEIGHT], Matmul()),
            *yields(_AFTER, [DATA + WEIGHT], Matmul()),
            *yields(FUSED, [_AFTER + "i"], Take(-2, 1)),
        ),
        2,
    )


def _windows() -> Iterator[Family]:
    """Yield the families of windows of one pixel, of windows of the whole image, and of scaled images."""
    image = Variables("x", (2, 3, 4, 5), DATA, 1)
    pixel = MaxPool2d((1, 1), (1, 1))
    yield Family("windows of one pixel", (image,), yields("o", [DATA], pixel), operators=1, shrinks=True, narrow=True)
    yield family(
        "windows of the whole image",
        (image,),
        (
            *yields("o", [DATA], AvgPool2d((4, 5), (1, 1)), MaxPool2d((4, 5), (1, 1))),
            *yields(FUSED, [DATA], Mean((-2, -1), keepdim=True), Max((-2, -1), keepdim=True)),
        ),
        1,
        narrow=True,
        domain=Domain.REAL,
    )
    for padding in ((0, 0), (1, 1)):
        convolution = Conv2d(padding=padding)
        yield family(
            f"images times a number, padded by {padding}",
            (image, Variables("w", (2, 3, 3, 3), WEIGHT, 1), Variables("c", (), CONSTANT, 1)),
            (
                *yields(_FIRST, [DATA + CONSTANT], Mul()),
                *yields("o", [_FIRST + WEIGHT], convolution),
                *yields(_AFTER, [WEIGHT + CONSTANT], Mul()),
                *yields(FUSED, [DATA + _AFTER], convolution),
            ),
            2,
        )


EXTENTS = (
    *_casts(),
    *_views(),
    *_repeated(),
    *_padding(),
    *_reductions(),
    *_reductions_of_results(),
    *_parts_of_reductions(),
    _maxima(),
    *_products(),
    *_windows(),
)
