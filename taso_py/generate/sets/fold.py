"""The vocabulary ``fold``: operators that a linear layer or convolution absorbs by a change of its weights."""

from __future__ import annotations

from typing import TypeAlias

from taso_py.generate.vocabulary import Folding
from taso_py.ops.base import TensorOperator
from taso_py.ops.contraction import Conv2d, Linear
from taso_py.ops.elementwise import Add, Mul, Sub
from taso_py.ops.normalization import BatchNorm

_After: TypeAlias = tuple[tuple[TensorOperator, tuple[tuple[int, ...], ...]], ...]


def affine_operators(channels: int, *, images: bool = False) -> _After:
    """Return what is affine in each channel, with the shapes of its other operands: rows of channels, or images."""
    vector = (channels, 1, 1) if images else (channels,)
    return (
        (BatchNorm(0.25), ((channels,),) * 4),
        (Mul(), (vector,)),
        (Mul(), ((),)),
        (Add(), (vector,)),
        (Sub(), (vector,)),
    )


FOLD = (
    Folding("linear", Linear(), data=(5, 3), weight=(2, 3), after=affine_operators(2)),
    Folding(
        "conv2d",
        Conv2d(stride=(2, 2), padding=(1, 1)),
        data=(5, 3, 4, 6),
        weight=(2, 3, 3, 3),
        after=affine_operators(2, images=True),
    ),
)
