"""The vocabulary ``cumulative``: what is computed of running sums.

Rules lead to fewer running sums, to those of fewer elements or of weights, or to the sum where only the last is read.
Scales and layers are moved both ways, since which side is smaller depends on the sizes.
"""

from __future__ import annotations

from collections.abc import Iterator

from taso_py.generate.sets.common import each, exchanged, family, yields
from taso_py.generate.vocabulary import DATA, FUSED, WEIGHT, Family, Variables
from taso_py.ir.types import DType
from taso_py.ops.contraction import Linear, Matmul
from taso_py.ops.elementwise import Add, Div, Mul, Sub
from taso_py.ops.evaluate import Domain
from taso_py.ops.movement import Concat, Expand, Flip, Permute, Slice
from taso_py.ops.reduction import Cumsum, Mean, Sum
from taso_py.ops.selection import Take

_OTHER = "y"
"""Role of the second of two variables that are data."""
_FIRST, _SECOND, _AFTER = "abr"
"""Roles of values on the way to what is replaced, and of those on the way to what replaces it."""
_FACTOR = "s"
"""Role of what all elements of a running sum are multiplied by."""
_AXES = (-1, -2)


def _arithmetic() -> Iterator[Family]:
    """Yield the families of sums, differences and multiples of running sums."""
    for axis in _AXES:
        running = Cumsum(axis)
        yield exchanged(
            running, f"sums of running sums along {axis}", each(d=(3, 4), y=(3, 4)), (DATA + _OTHER, (Add(), Sub()))
        )
        for shape in ((), (3, 1) if axis == -1 else (4,)):
            yield family(
                f"multiples by {shape} of running sums along {axis}",
                (Variables("x", (3, 4), DATA, 1), Variables("s", shape, _FACTOR, 1)),
                (
                    *yields(_FIRST, [DATA], running),
                    *yields("o", [_FIRST + _FACTOR], Mul(), Div()),
                    *yields(_AFTER, [DATA + _FACTOR], Mul(), Div()),
                    *yields("o", [_AFTER], running),
                ),
                2,
                domain=Domain.REAL,
            )


def _parts() -> Iterator[Family]:
    """Yield the families of the first and the last of running sums, and of some of those along the other axis."""
    for axis in _AXES:
        shape, running = ((3, 5) if axis == -1 else (5, 3)), Cumsum(axis)
        first, last, some = Slice(axis, 0, 1), Slice(axis, 4, 5), Slice(axis, 0, 3)
        yield family(
            f"ends of running sums along {axis}",
            each(d=shape),
            (
                *yields(_FIRST, [DATA], running),
                *yields("o", [_FIRST], first, last),
                *yields(FUSED, [DATA], first, Sum((axis,), keepdim=True)),
            ),
            2,
            narrow=True,
        )
        yield exchanged(running, f"the first running sums along {axis}", each(d=shape), (DATA, (some,)))


def _moved() -> Iterator[Family]:
    """Yield the families of running sums that are moved or added up along the other axis."""
    for axis in _AXES:
        running, across = Cumsum(axis), -3 - axis
        yield exchanged(
            running,
            f"joined along {across}, running along {axis}",
            each(d=(3, 4), y=(3, 5) if across == -1 else (5, 4)),
            (DATA + _OTHER, (Concat(across),)),
        )
        yield exchanged(
            running,
            f"moved along {across}, running along {axis}",
            each(d=(6, 7)),
            (DATA, (Slice(across, 1, 4), Flip((across,)))),
        )
        yield family(
            f"transposed, running along {axis}",
            each(d=(3, 4)),
            (
                *yields(_FIRST, [DATA], running),
                *yields("o", [_FIRST], Permute((-1, -2))),
                *yields(_AFTER, [DATA], Permute((-1, -2))),
                *yields(FUSED, [_AFTER], Cumsum(across)),
            ),
            2,
        )
        across_all = (Sum((across,)), Mean((across,)))
        yield family(
            f"reduced along {across}, running along {axis}",
            each(d=(3, 4)),
            (
                *yields(_FIRST, [DATA], running),
                *yields("o", [_FIRST], *across_all),
                *yields(_AFTER, [DATA], *across_all),
                *yields(FUSED, [_AFTER], Cumsum(-1)),
            ),
            2,
            domain=Domain.REAL,
        )
    yield family(
        "running sums of copies",
        each(d=(4,)),
        (
            *yields(_FIRST, [DATA], Expand((3, 4))),
            *yields("o", [_FIRST], Cumsum(-1)),
            *yields(_AFTER, [DATA], Cumsum(-1)),
            *yields(FUSED, [_AFTER], Expand((3, 4))),
        ),
        2,
    )


def _layers() -> Iterator[Family]:
    """Yield the families of layers of running sums, and of running sums over the features of layers."""
    rows, features = Cumsum(-2), Cumsum(-1)
    layer = (Variables("w", (5, 4), WEIGHT, 1), Variables("v", (5,), "z", 1))
    for name, op, weight in (("layers", Linear(), layer[0]), ("products", Matmul(), Variables("w", (4, 5), WEIGHT, 1))):
        yield family(
            f"{name} of running sums",
            (*each(d=(3, 4)), weight),
            (
                *yields(_FIRST, [DATA], rows),
                *yields("o", [_FIRST + WEIGHT], op),
                *yields(_AFTER, [DATA + WEIGHT], op),
                *yields("o", [_AFTER], rows),
            ),
            2,
        )
    yield family(
        "running sums over the features of layers",
        (*each(d=(3, 4)), *layer),
        (
            *yields(_FIRST, [DATA + WEIGHT, DATA + WEIGHT + "z"], Linear()),
            *yields("o", [_FIRST], features),
            *yields(_SECOND, [WEIGHT], rows),
            *yields(_AFTER, ["z"], features),
            *yields(FUSED, [DATA + _SECOND, DATA + _SECOND + _AFTER], Linear()),
        ),
        3,
    )
    yield family(
        "running sums over the features of rows that are looked up",
        (Variables("t", (5, 4), "t", 1), Variables("i", (3,), DATA, 1, dtype=DType.INT)),
        (
            *yields(_FIRST, ["t" + DATA], Take(-2)),
            *yields("o", [_FIRST], features),
            *yields(_AFTER, ["t"], features),
            *yields(FUSED, [_AFTER + DATA], Take(-2)),
        ),
        2,
    )


CUMULATIVE = (*_arithmetic(), *_parts(), *_moved(), *_layers())
