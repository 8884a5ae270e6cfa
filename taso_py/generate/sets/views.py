"""The vocabulary ``views``: what is done to each element, before it is seen under another shape rather than after.

A view between a product and what is done with its result keeps one kernel from doing both.
"""

from __future__ import annotations

from taso_py.generate.vocabulary import DATA, FUSED, WEIGHT, Family, Production, Variables
from taso_py.ops.elementwise import Add, Gelu, Relu, Sigmoid, Silu
from taso_py.ops.movement import Permute, Reshape

_SEEN = "s"
"""The role of what is seen under another shape."""
_AFTER = "a"
"""The role of what is done after that."""
_BEFORE = "b"
"""The role of what is done before."""
_RETURNED = "r"
"""The role of another operand, seen under the shape that was there before."""

_FUNCTIONS = (Relu(), Gelu(), Gelu("tanh"), Silu(), Sigmoid())
"""What kernels of products do besides."""
_SHAPES = (((6, 5), (2, 3, 5)), ((2, 3, 5), (6, 5)), ((2, 3, 1, 5), (2, 3, 5)))
"""Shapes of the same elements, before a reshape and after."""
_EXCHANGE = Permute((-2, -3, -1))
"""Its own inverse."""


def _family(
    before: tuple[int, ...], after: tuple[int, ...], view: Reshape | Permute, back: Reshape | Permute
) -> Family:
    productions = (
        Production(view, DATA, _SEEN),
        *(Production(function, _SEEN, _AFTER) for function in _FUNCTIONS),
        *(Production(function, DATA, _BEFORE) for function in _FUNCTIONS),
        Production(Add(), _SEEN + WEIGHT, _AFTER),
        Production(back, WEIGHT, _RETURNED),
        Production(Add(), DATA + _RETURNED, _BEFORE),
        Production(view, _BEFORE, FUSED),
    )
    variables = Variables("x", before, DATA, 1), Variables("y", after, WEIGHT, 1)
    return Family(f"elements of {before} as {after}", variables, productions, operators=4, every=True)


VIEWS = (
    *(_family(before, after, Reshape(after), Reshape(before)) for before, after in _SHAPES),
    _family((2, 3, 5), (3, 2, 5), _EXCHANGE, _EXCHANGE),
)
