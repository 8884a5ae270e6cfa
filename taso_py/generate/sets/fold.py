"""The vocabulary ``fold``: operators that a linear layer or convolution absorbs by a change of its weights."""

from __future__ import annotations

from taso_py.generate.vocabulary import (
    Folding,
)
from taso_py.ops.contraction import Conv2d, Linear
from taso_py.ops.elementwise import Add, Mul, Sub
from taso_py.ops.normalization import BatchNorm

_CHANNELS: tuple[tuple[int, ...], ...] = ((2,),) * 4
FOLD = (
    Folding(
        "linear",
        Linear(),
        data=(5, 3),
        weight=(2, 3),
        after=(
            (BatchNorm(0.25), _CHANNELS),
            (Mul(), ((2,),)),
            (Mul(), ((),)),
            (Add(), ((2,),)),
            (Sub(), ((2,),)),
        ),
    ),
    Folding(
        "conv2d",
        Conv2d(stride=(2, 2), padding=(1, 1)),
        data=(5, 3, 4, 6),
        weight=(2, 3, 3, 3),
        after=(
            (BatchNorm(0.25), _CHANNELS),
            (Mul(), ((2, 1, 1),)),
            (Mul(), ((),)),
            (Add(), ((2, 1, 1),)),
            (Sub(), ((2, 1, 1),)),
        ),
    ),
)
