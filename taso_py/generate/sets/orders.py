"""The vocabulary ``orders``: what is computed of elements in reverse order.

Models read sequences and images both ways, and reverse the result of the second. Rules lead to fewer reversals: they
are done behind what is computed, where two cancel and where a sum does not see them, or to weights, once.
"""

from __future__ import annotations

from collections.abc import Iterator

from taso_py.generate.sets.common import each, exchanged, family, yields
from taso_py.generate.vocabulary import DATA, FUSED, WEIGHT, Family, Production, Variables
from taso_py.ir.types import DType
from taso_py.ops.contraction import Conv2d, Linear, Matmul
from taso_py.ops.elementwise import Add, Div, Exp, Gelu, Mul, Relu, Sigmoid, Silu, Sub, Tanh
from taso_py.ops.evaluate import Domain
from taso_py.ops.movement import Concat, Expand, Flip, Permute, Reshape, Slice
from taso_py.ops.normalization import Attention, BatchNorm, LayerNorm, RmsNorm, Softmax
from taso_py.ops.pooling import AdaptiveAvgPool2d
from taso_py.ops.reduction import Max, Mean, Sum
from taso_py.ops.selection import Take

_OTHER = "y"
"""Role of the second of two variables that are data."""
_FIRST, _SECOND = "ab"
"""Roles of values on the way to what is replaced."""
_BEFORE, _AFTER = "lr"
"""Roles of values on the way to what replaces it."""
_FUNCTIONS = (Relu(), Gelu(), Gelu("tanh"), Silu(), Sigmoid(), Tanh(), Exp())
_ARITHMETIC = (Add(), Sub(), Mul(), Div())
_LAST, _ROWS = Flip((-1,)), Flip((-2,))
_BIAS = Variables("v", (5,), "z", 1)


def _flips() -> Iterator[Family]:
    """Yield the families of reversals that cancel or are one, and of functions and arithmetic of reversed elements."""
    yield Family(
        "reversals of reversals",
        (Variables("x", (2, 3, 4), DATA, 1),),
        yields(DATA, [DATA], *(Flip(axes) for axes in ((-1,), (-2,), (-3,), (-2, -1)))),
        operators=2,
        shrinks=True,
    )
    for flip in (_LAST, _ROWS):
        yield exchanged(flip, f"functions along {flip.axes}", each(d=(3, 4)), (DATA, _FUNCTIONS), domain=Domain.REAL)
        yield exchanged(
            flip,
            f"arithmetic along {flip.axes}",
            each(d=(3, 4), y=(3, 4)),
            (DATA + _OTHER, _ARITHMETIC),
            domain=Domain.REAL,
        )
        # What has one element along the axis is not reversed.
        for shape in ((), (3, 1) if flip is _LAST else (4,)):
            yield exchanged(
                flip,
                f"arithmetic along {flip.axes} with {shape}",
                each(d=(3, 4), z=shape),
                (DATA + "z", _ARITHMETIC),
                ("z" + DATA, (Sub(), Div())),
                domain=Domain.REAL,
            )
    for axis in (-1, -2, -3):
        flip, vector = Flip((axis,)), (5, *[1] * (-1 - axis))
        yield family(
            f"arithmetic with weights along {axis}",
            (Variables("x", (3, 5, 4, 2)[: 1 - axis], DATA, 1), Variables("w", vector, WEIGHT, 1)),
            (
                *yields(_FIRST, [DATA], flip),
                *yields("o", [_FIRST + WEIGHT, WEIGHT + _FIRST], *_ARITHMETIC),
                *yields(_BEFORE, [WEIGHT], flip),
                *yields(_AFTER, [DATA + _BEFORE, _BEFORE + DATA], *_ARITHMETIC),
                *yields(FUSED, [_AFTER], flip),
            ),
            3,
            domain=Domain.REAL,
        )


def _reductions() -> Iterator[Family]:
    """Yield the families of reductions along the axis that is reversed, and along another."""
    for axis in (-1, -2):
        for keepdim in (False, True):
            along = [op((axis,), keepdim) for op in (Sum, Mean, Max)]
            yield family(
                f"reductions along the reversed axis {axis}{', kept' * keepdim}",
                each(d=(3, 4)),
                (
                    *yields(_FIRST, [DATA], Flip((axis,))),
                    *yields("o", [_FIRST], *along),
                    *yields(FUSED, [DATA], *along),
                ),
                2,
                domain=Domain.REAL,
            )
    for reversed_, axis, after in ((-2, -1, -1), (-1, -2, -1)):
        across = (Sum((axis,)), Mean((axis,)), Max((axis,)))
        yield family(
            f"reductions along {axis} of what is reversed along {reversed_}",
            each(d=(3, 4)),
            (
                *yields(_FIRST, [DATA], Flip((reversed_,))),
                *yields("o", [_FIRST], *across),
                *yields(_AFTER, [DATA], *across),
                *yields(FUSED, [_AFTER], Flip((after,))),
            ),
            2,
            domain=Domain.REAL,
        )
    whole = (AdaptiveAvgPool2d((1, 1)), Mean((-2, -1)), Mean((-2, -1), keepdim=True))
    yield family(
        "averages of reversed images",
        each(d=(2, 3, 4, 5)),
        (
            *yields(_FIRST, [DATA], _LAST, _ROWS),
            *yields("o", [_FIRST], *whole),
            *yields(FUSED, [DATA], *whole),
        ),
        2,
        domain=Domain.REAL,
    )


def _moved() -> Iterator[Family]:
    """Yield the families of what is joined, cut, transposed and repeated."""
    for axis, shape in ((-1, (3, 5)), (-2, (5, 4))):
        yield family(
            f"joined along the reversed axis {axis}",
            each(d=(3, 4), y=shape),
            (
                Production(Flip((axis,)), DATA, _FIRST),
                Production(Flip((axis,)), _OTHER, _SECOND),
                Production(Concat(axis), _FIRST + _SECOND, "o"),
                Production(Concat(axis), _OTHER + DATA, _AFTER),
                Production(Flip((axis,)), _AFTER, FUSED),
            ),
            3,
        )
        across = -3 - axis
        yield exchanged(
            Flip((axis,)),
            f"joined along {across}, reversed along {axis}",
            each(d=(3, 4), y=(3, 5) if across == -1 else (5, 4)),
            (DATA + _OTHER, (Concat(across),)),
        )
        yield exchanged(
            Flip((axis,)),
            f"parts along {across}, reversed along {axis}",
            each(d=(6, 7)),
            (DATA, (Slice(across, 1, 4),)),
        )
        yield _ends(axis)
        yield _seen((3, 4), Permute((-1, -2)), axis, across)
    yield family(
        "reversed copies",
        each(d=(4,)),
        (
            *yields(_FIRST, [DATA], Expand((3, 4))),
            *yields("o", [_FIRST], _LAST, _ROWS),
            *yields(_AFTER, [DATA], _LAST),
            *yields(FUSED, [_AFTER], Expand((3, 4))),
        ),
        2,
    )


def _seen(shape: tuple[int, ...], view: Permute | Reshape, before: int, after: int) -> Family:
    """Return the family of a view of what is reversed along the axis ``before``, which is ``after`` in the view."""
    return family(
        f"{view.text} of {shape} along {before}",
        each(d=shape),
        (
            *yields(_FIRST, [DATA], Flip((before,))),
            *yields("o", [_FIRST], view),
            *yields(_AFTER, [DATA], view),
            *yields(FUSED, [_AFTER], Flip((after,))),
        ),
        2,
    )


def _views() -> Iterator[Family]:
    """Yield the families of heads of reversed rows, and of sequences as images of height one."""
    heads = Permute((-2, -3, -1))
    for before, after in ((-3, -2), (-2, -3)):
        yield _seen((4, 2, 3), heads, before, after)
    yield _seen((2, 5, 6), Reshape((2, 5, 2, 3)), -2, -3)
    yield _seen((2, 5, 2, 3), Reshape((2, 5, 6)), -3, -2)
    yield _seen((2, 3, 5), Reshape((2, 3, 1, 5)), -1, -1)
    yield _seen((2, 3, 1, 5), Reshape((2, 3, 5)), -1, -1)


def _ends(axis: int) -> Family:
    """Return the family of the first and the last element in reverse order."""
    first, last = Slice(axis, 0, 1), Slice(axis, 4, 5)
    return family(
        f"ends along the reversed axis {axis}",
        each(d=(3, 5) if axis == -1 else (5, 3)),
        (
            *yields(_FIRST, [DATA], Flip((axis,))),
            *yields("o", [_FIRST], first, last),
            *yields(FUSED, [DATA], first, last),
        ),
        2,
        narrow=True,
    )


def _products() -> Iterator[Family]:
    """Yield the families of products of reversed operands."""
    yield family(
        "products along the reversed axis",
        each(d=(3, 4), y=(4, 5)),
        (
            *yields(_FIRST, [DATA], _LAST),
            *yields(_SECOND, [_OTHER], _ROWS),
            *yields("o", [_FIRST + _SECOND], Matmul()),
            *yields(FUSED, [DATA + _OTHER], Matmul()),
        ),
        3,
    )
    yield family(
        "rows and columns of products",
        each(d=(3, 4), y=(4, 5)),
        (
            *yields(_FIRST, [DATA], _ROWS),
            *yields(_SECOND, [_OTHER], _LAST),
            *yields("o", [_FIRST + _OTHER, DATA + _SECOND], Matmul()),
            *yields(_AFTER, [DATA + _OTHER], Matmul()),
            *yields(FUSED, [_AFTER], _LAST, _ROWS),
        ),
        2,
    )


def _layers() -> Iterator[Family]:
    """Yield the families of layers of reversed operands, and of layers whose features are reversed."""
    weight = Variables("w", (5, 4), WEIGHT, 1)
    yield family(
        "layers",
        (*each(d=(3, 4)), weight, _BIAS),
        (
            *yields(_FIRST, [DATA], _LAST),
            *yields(_SECOND, [DATA], _ROWS),
            *yields("o", [_FIRST + WEIGHT, _FIRST + WEIGHT + "z", _SECOND + WEIGHT, _SECOND + WEIGHT + "z"], Linear()),
            *yields(_BEFORE, [WEIGHT], _LAST),
            *yields(FUSED, [DATA + _BEFORE, DATA + _BEFORE + "z"], Linear()),
            *yields(_AFTER, [DATA + WEIGHT, DATA + WEIGHT + "z"], Linear()),
            *yields(FUSED, [_AFTER], _ROWS),
        ),
        2,
    )
    yield family(
        "features of layers",
        (*each(d=(3, 4)), weight, _BIAS),
        (
            *yields(_FIRST, [DATA + WEIGHT, DATA + WEIGHT + "z"], Linear()),
            *yields("o", [_FIRST], _LAST),
            *yields(_BEFORE, [WEIGHT], _ROWS),
            *yields(_AFTER, ["z"], _LAST),
            *yields(FUSED, [DATA + _BEFORE, DATA + _BEFORE + _AFTER], Linear()),
        ),
        3,
    )


def _convolutions() -> Iterator[Family]:
    """Yield the families of convolutions and normalization of mirrored images, and of channels in reverse order."""
    image, kernel = Variables("x", (2, 3, 4, 6), DATA, 1), Variables("w", (5, 3, 3, 3), WEIGHT, 1)
    convolved, (rows, channels) = Conv2d(padding=(1, 1)), (Flip((-2,)), Flip((-3,)))
    yield family(
        "convolutions",
        (image, kernel, _BIAS),
        (
            *(
                made
                for flip, seen, before, after in ((_LAST, "h", "p", "q"), (rows, "i", "s", "t"))
                for made in (
                    Production(flip, DATA, seen),
                    *yields("o", [seen + WEIGHT, seen + WEIGHT + "z"], convolved),
                    Production(flip, WEIGHT, before),
                    *yields(after, [DATA + before, DATA + before + "z"], convolved),
                    Production(flip, after, FUSED),
                )
            ),
            Production(channels, DATA, _FIRST),
            *yields("o", [_FIRST + WEIGHT, _FIRST + WEIGHT + "z"], convolved),
            Production(channels, WEIGHT, _BEFORE),
            *yields(FUSED, [DATA + _BEFORE, DATA + _BEFORE + "z"], convolved),
        ),
        3,
    )
    for flip in (_LAST, _ROWS):
        yield exchanged(
            flip,
            f"normalized images along {flip.axes}",
            each(d=(2, 3, 4, 6), h=(3,), k=(3,), q=(3,), t=(3,)),
            # With an epsilon that makes the samples of a variance, which may be negative, positive.
            (DATA + "hkqt", (BatchNorm(8.0),)),
            domain=Domain.REAL,
        )


def _rows_of_results() -> Iterator[Family]:
    """Yield the families of softmax, norms and attention."""
    normalized = (LayerNorm(1, 0.25), RmsNorm(1, 0.25))
    yield exchanged(
        _ROWS,
        "normalized rows in reverse order",
        each(d=(3, 4), z=(4,), w=(4,)),
        (DATA, (Softmax(), *normalized)),
        (DATA + "z", normalized),
        (DATA + "zw", normalized[:1]),
        domain=Domain.REAL,
    )
    yield exchanged(_LAST, "softmax", each(d=(3, 4)), (DATA, (Softmax(),)), domain=Domain.REAL)
    vector = Variables("v", (4,), WEIGHT, 2)
    yield family(
        "norms of what is reversed",
        (*each(d=(3, 4)), vector),
        (
            *yields(_FIRST, [DATA], _LAST),
            *yields("o", [_FIRST, _FIRST + WEIGHT, _FIRST + WEIGHT * 2], *normalized),
            *yields(_BEFORE, [WEIGHT], _LAST),
            *yields(_AFTER, [DATA, DATA + _BEFORE, DATA + _BEFORE * 2], *normalized),
            *yields(FUSED, [_AFTER], _LAST),
        ),
        4,
        domain=Domain.REAL,
    )
    yield family(
        "attention",
        each(q=(3, 4), k=(5, 4), v=(5, 6)),
        (
            *(Production(_ROWS, role, turned) for role, turned in zip("qkv", "xyz", strict=True)),
            *yields("o", ["qyz", "xkv"], Attention()),
            *yields(_AFTER, ["qkv"], Attention()),
            *yields(FUSED, ["qkv"], Attention()),
            *yields(FUSED, [_AFTER], _ROWS),
        ),
        3,
        domain=Domain.REAL,
    )


def _lookups() -> Iterator[Family]:
    """Yield the families of rows that integers choose, and of features of these."""
    table, index = Variables("t", (5, 4), "t", 1), Variables("i", (3,), DATA, 1, dtype=DType.INT)
    for name, flip, turned, roles in (("features", _LAST, "t", _AFTER + DATA), ("order", _ROWS, DATA, "t" + _AFTER)):
        yield family(
            f"{name} of rows that are looked up",
            (table, index),
            (
                *yields(_FIRST, ["t" + DATA], Take(-2)),
                *yields("o", [_FIRST], flip),
                *yields(_AFTER, [turned], _LAST),
                *yields(FUSED, [roles], Take(-2)),
            ),
            2,
        )


ORDERS = (
    *_flips(),
    *_reductions(),
    *_moved(),
    *_views(),
    *_products(),
    *_layers(),
    *_convolutions(),
    *_rows_of_results(),
    *_lookups(),
)
