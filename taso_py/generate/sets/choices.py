"""The vocabulary ``choices``: choices between values, logic, and what is done to all that is chosen from.

Written-out activations that choose by a comparison are in ``activations``.
"""

from __future__ import annotations

from taso_py.generate.vocabulary import DATA, FUSED, Family, Production, Variables
from taso_py.ir.types import DType
from taso_py.ops.choice import Equal, LogicalAnd, LogicalNot, LogicalOr, NotEqual, Where
from taso_py.ops.elementwise import Abs, Add, Div, Exp, Gelu, Mul, Relu, Sigmoid, Silu, Sub, Tanh
from taso_py.ops.movement import Concat, Permute, Reshape, Slice

_TRUTH, _CHOSEN, _OTHER = "tor"
"""Roles of truth values, of choices, and of the other operand of an operator."""
_BEFORE, _MOVED = "bm"
"""Roles of what is done to a value before it is chosen, and of truth values that are moved alike."""

_FUNCTIONS = (Relu(), Sigmoid(), Tanh(), Exp(), Gelu(), Silu(), Abs())


def _truths(shape: tuple[int, ...], count: int) -> Variables:
    return Variables("c", shape, _TRUTH, count, dtype=DType.BOOL)


_NUMBER = Variables("s", (), _OTHER, 1)
"""A number that is chosen."""


def _choices(truth: str, value: str, result: str) -> tuple[Production, ...]:
    """Return the choices between two values, and between a value and a number."""
    return tuple(Production(Where(), truth + roles, result) for roles in (value * 2, value + _OTHER, _OTHER + value))


def _moving(name: str, shape: tuple[int, ...], op: Permute | Reshape | Slice) -> Family:
    """Return the family of the choices between moved values by a moved condition."""
    return Family(
        name,
        (_truths(shape, 1), Variables("x", shape, DATA, 2), _NUMBER),
        (
            Production(op, _TRUTH, _MOVED),
            Production(op, DATA, _BEFORE),
            *_choices(_MOVED, _BEFORE, "a"),
            *_choices(_TRUTH, DATA, _CHOSEN),
            Production(op, _CHOSEN, "a"),
        ),
        operators=4,
        every=True,
        shrinks=not isinstance(op, Slice),
    )


CHOICES = (
    Family(
        "choices by two conditions",
        (_truths((4,), 2), Variables("x", (4,), DATA, 3), _NUMBER),
        (*_choices(_TRUTH, DATA, DATA), Production(LogicalNot(), _TRUTH, _TRUTH)),
        operators=2,
        shrinks=True,
    ),
    Family(
        "logic",
        (_truths((4,), 3),),
        (
            *(Production(op, _TRUTH * 2, _TRUTH) for op in (LogicalAnd(), LogicalOr())),
            Production(LogicalNot(), _TRUTH, _TRUTH),
        ),
        operators=2,
        shrinks=True,
    ),
    Family(
        "logic of what is false",
        (_truths((4,), 2),),
        (
            Production(LogicalNot(), _TRUTH, _BEFORE),
            *(Production(op, _BEFORE * 2, "a") for op in (LogicalAnd(), LogicalOr())),
            *(Production(op, _TRUTH * 2, _CHOSEN) for op in (LogicalAnd(), LogicalOr())),
            Production(LogicalNot(), _CHOSEN, "a"),
        ),
        operators=3,
        shrinks=True,
    ),
    Family(
        "choices by both or one of two conditions",
        (_truths((4,), 2), Variables("x", (4,), DATA, 2), _NUMBER),
        (
            *_choices(_TRUTH, DATA, _CHOSEN),
            *(Production(Where(), _TRUTH + roles, "a") for x in (DATA, _OTHER) for roles in (_CHOSEN + x, x + _CHOSEN)),
            *(Production(op, _TRUTH * 2, _MOVED) for op in (LogicalAnd(), LogicalOr())),
            *_choices(_MOVED, DATA, FUSED),
        ),
        operators=2,
        every=True,
    ),
    Family(
        "negated comparisons",
        (Variables("x", (30,), DATA, 2),),  # so many that some are equal
        (*(Production(op, DATA * 2, _TRUTH) for op in (Equal(), NotEqual())), Production(LogicalNot(), _TRUTH, "a")),
        operators=2,
        shrinks=True,
    ),
    Family(
        "functions of what is chosen",
        (_truths((4,), 1), Variables("x", (4,), DATA, 2)),
        (
            *(Production(op, DATA, _BEFORE) for op in _FUNCTIONS),
            *(Production(op, _CHOSEN, "a") for op in _FUNCTIONS),
            Production(Where(), _TRUTH + DATA * 2, _CHOSEN),
            Production(Where(), _TRUTH + _BEFORE * 2, "a"),
        ),
        operators=3,
        shrinks=True,
    ),
    Family(
        "arithmetic with what is chosen",
        (_truths((4,), 1), Variables("x", (4,), DATA, 2), Variables("y", (4,), _OTHER, 1)),
        (
            *(Production(op, roles, _BEFORE) for op in (Add(), Mul()) for roles in (DATA + _OTHER,)),
            *(Production(op, roles, _BEFORE) for op in (Sub(), Div()) for roles in (DATA + _OTHER, _OTHER + DATA)),
            *(Production(op, roles, "a") for op in (Add(), Mul()) for roles in (_CHOSEN + _OTHER,)),
            *(Production(op, roles, "a") for op in (Sub(), Div()) for roles in (_CHOSEN + _OTHER, _OTHER + _CHOSEN)),
            Production(Where(), _TRUTH + DATA * 2, _CHOSEN),
            Production(Where(), _TRUTH + _BEFORE * 2, "a"),
        ),
        operators=3,
        shrinks=True,
    ),
    _moving("transposed choices", (3, 2), Permute((-1, -2))),
    _moving("exchanged axes of choices", (2, 3, 4, 5), Permute((-2, -3, -1))),
    _moving("choices under another shape", (2, 3, 5), Reshape((6, 5))),
    _moving("choices in parts", (6, 5), Reshape((2, 3, 5))),
    _moving("parts of choices", (6,), Slice(-1, 1, 4)),
    Family(
        "choices side by side",
        (_truths((3,), 2), Variables("x", (3,), DATA, 4)),
        (
            Production(Concat(-1), _TRUTH * 2, _MOVED),
            Production(Concat(-1), DATA * 2, _BEFORE),
            Production(Where(), _MOVED + _BEFORE * 2, "a"),
            Production(Where(), _TRUTH + DATA * 2, _CHOSEN),
            Production(Concat(-1), _CHOSEN * 2, "a"),
        ),
        operators=4,
        shrinks=True,
        every=True,
    ),
)
