"""The vocabulary ``layout``: elementwise operators before and after the permutation of rows of channels into images.

Networks that apply linear layers to the channels of an image permute it back and forth. Scaling the channels of the
result or adding it to the image can be done on either side; on the side of the linear layer the scale is folded into
its weights and the addition done by its kernel.
"""

from __future__ import annotations

from taso_py.generate.vocabulary import DATA, GIVEN, WEIGHT, Family, Production, Variables, apply
from taso_py.ops.elementwise import Add, Mul
from taso_py.ops.movement import Permute, Reshape

_IMAGE = "i"
"""Role of values with their channels before height and width."""
_TO_IMAGES = Production(Permute((-1, -3, -2)), DATA, _IMAGE)
_ROWS_OF_IMAGE = "r"
"""Role of an image as rows: only to be added to others, since that two permutations cancel is known."""
_TO_ROWS = Production(Permute((-2, -1, -3)), GIVEN, _ROWS_OF_IMAGE)
_ROWS = Variables("x", (3, 4, 2), DATA, 1)

LAYOUT = (
    Family(
        "rows added to images",
        (_ROWS, Variables("y", (2, 3, 4), _IMAGE, 1)),
        (_TO_IMAGES, _TO_ROWS, *apply(_ROWS_OF_IMAGE + DATA, Add()), Production(Add(), _IMAGE + _IMAGE, _IMAGE)),
        operators=3,
    ),
    Family(
        "channels scaled",
        (_ROWS, Variables("s", (2, 1, 1), WEIGHT, 1)),
        (
            _TO_IMAGES,
            *apply(DATA + WEIGHT, Mul()),
            Production(Mul(), _IMAGE + WEIGHT, _IMAGE),
            *apply(GIVEN, Reshape((2,))),
        ),
        operators=3,
    ),
)
