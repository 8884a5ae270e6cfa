"""The vocabularies ``rotary`` and ``angles``: rotary position embeddings, with what is done to features done to angles.

Pairs of features are rotated by angles that depend on the position (Su et al. 2021, RoFormer): ``x * cos + y * sin``,
where ``y`` are the features of each pair exchanged, one of them negated. The pairs are the halves of a row, or
neighbours. Angles are the same for all heads, often fixed: signs cost less there. ``rotary`` has angles with as many
axes as features, ``angles`` those with fewer, and the sines and cosines of angles that occur twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from taso_py.generate.sets.common import each, family, number, yields
from taso_py.generate.vocabulary import CONSTANT, DATA, FUSED, Family, Variables
from taso_py.ops.elementwise import Add, Cos, Mul, Sin, Sub
from taso_py.ops.movement import Concat, Contiguous, Expand, Reshape, Slice

_FIRST, _SECOND = "ab"
"""Roles of the first and of the second feature of each pair."""
_FACTORS, _NUMBER, _ONE = "snu"
"""Roles of what features are multiplied with, of a number that some are multiplied with before, and of one."""
_SCALED, _BOTH, _JOINED, _RESULT = "iJjo"
"""Roles of scaled features, of these beside the others, of features side by side, and of what is replaced."""
_SIGNS, _SIGNED = "gt"
"""Roles of the numbers of a row, and of the factors times these."""
_LEAD, _HALF, _WIDE = (3, 5, 7), 4, 6
"""Axes of batches, heads and rows, the number of pairs, and the size of another part."""
_ROW = 2 * _HALF
_LARGEST = 2048
"""Most elements of a term: features that become neighbours have five axes, which need sizes of their own."""
_MINUS_ONE = Variables("m", (), CONSTANT, count=1, number=-1.0)
_HEADS = ((1, 1, 7), (3, 1, 7), (1, 7, 1), (3, 7, 1))
"""Leading axes of angles that have as many axes as features, heads being before or behind rows."""
_ROWS = ((7,), (7, 1))
"""Leading axes of angles that have fewer."""


def _lead(place: tuple[int, ...]) -> tuple[int, ...]:
    """Return the leading axes of features for those of angles."""
    return (3, 7, 5) if place[-1] == 1 else _LEAD


def _name(what: str, place: tuple[int, ...]) -> str:
    return f"{what} by {'x'.join(map(str, place))} angles"


def _parts(place: tuple[int, ...]) -> Family:
    """Return the family of two parts side by side, one of them scaled, multiplied; parts of any sizes."""
    lead = _lead(place)
    return family(
        _name("parts", place),
        (
            Variables("x", (*lead, _HALF), DATA, 1),
            Variables("y", (*lead, _WIDE), DATA, 1),
            *each(s=(*place, _HALF + _WIDE)),
            number(_NUMBER, -3.0),
            number(_ONE, 1.0),
        ),
        (
            *yields(_SCALED, [DATA + _NUMBER], Mul()),
            *yields(_BOTH, [_SCALED + DATA, DATA + _SCALED], Concat(-1)),
            *yields(_RESULT, [_BOTH + _FACTORS], Mul()),
            *yields(_JOINED, [DATA + DATA], Concat(-1)),
            *yields("p", [_NUMBER], Expand((_HALF,)), Expand((_WIDE,))),
            *yields("q", [_ONE], Expand((_HALF,)), Expand((_WIDE,))),
            *yields(_SIGNS, ["pq", "qp"], Concat(-1)),
            *yields(_SIGNED, [_FACTORS + _SIGNS], Mul()),
            *yields(FUSED, [_JOINED + _SIGNED], Mul()),
        ),
        6,
        faithful=True,
        largest=_LARGEST,
    )


def _neighbours(place: tuple[int, ...]) -> Family:
    """Return the family of two features of each pair, one of them scaled, that become neighbours and are multiplied."""
    lead = _lead(place)
    one, row = Reshape((*lead, _HALF, 1)), Reshape((*lead, _ROW))
    return family(
        _name("neighbours", place),
        (
            *each(a=(*lead, _HALF), b=(*lead, _HALF), s=(*place, _ROW)),
            number(_NUMBER, -3.0),
            number(_ONE, 1.0),
        ),
        (
            *yields(_SCALED, [_FIRST + _NUMBER], Mul()),
            *yields("I", [_SCALED], one),
            *yields("A", [_FIRST], one),
            *yields("B", [_SECOND], one),
            *yields("P", ["IB", "BI"], Concat(-1)),
            *yields(_BOTH, ["P"], row),
            *yields(_RESULT, [_BOTH + _FACTORS], Mul()),
            *yields("Q", ["AB", "BA"], Concat(-1)),
            *yields(_JOINED, ["Q"], row),
            *yields("p", [_NUMBER], Expand((_HALF, 1))),
            *yields("q", [_ONE], Expand((_HALF, 1))),
            *yields("G", ["pq", "qp"], Concat(-1)),
            *yields(_SIGNS, ["G"], Reshape((_ROW,))),
            *yields(_SIGNED, [_FACTORS + _SIGNS], Mul()),
            *yields(FUSED, [_JOINED + _SIGNED], Mul()),
        ),
        10,
        faithful=True,
        largest=_LARGEST,
    )


def _rotated(place: tuple[int, ...]) -> Family:
    """Return the family of both halves of a row, rotated, which whole rows say with fewer operators.

    Angles are ``c`` and ``s`` for the first half, ``t`` and ``u`` for the second, of whole rows ``C`` and ``S``.
    """
    return family(
        _name("rotated halves", place),
        (*each(d=(*_lead(place), _ROW), **dict.fromkeys("cstu", (*place, _HALF))), _MINUS_ONE),
        (
            *yields(_FIRST, [DATA], Slice(-1, 0, _HALF)),
            *yields(_SECOND, [DATA], Slice(-1, _HALF, _ROW)),
            *yields("1", ["ac"], Mul()),
            *yields("2", ["bs"], Mul()),
            *yields("3", ["at"], Mul()),
            *yields("4", ["bu"], Mul()),
            *yields("5", ["12"], Add(), Sub()),
            *yields("6", ["43"], Add(), Sub()),
            *yields(_RESULT, ["56"], Concat(-1)),
            *yields("y", [_SECOND + _FIRST], Concat(-1)),
            *yields("N", ["s" + CONSTANT], Mul()),
            *yields("M", ["t" + CONSTANT], Mul()),
            *yields("C", ["cu"], Concat(-1)),
            *yields("S", ["st", "Nt", "sM"], Concat(-1)),
            *yields("7", [DATA + "C"], Mul()),
            *yields("8", ["yS"], Mul()),
            *yields(FUSED, ["78"], Add()),
        ),
        9,
        repeats=True,
        faithful=True,
        largest=_LARGEST,
    )


def _functions() -> Iterator[Family]:
    """Yield the families of functions of angles that occur twice in a row: side by side, or as neighbours."""
    joined, pair = 2 * _HALF, Expand((5, _HALF, 2))
    yield family(
        "functions of angles side by side",
        each(d=(5, _HALF)),
        (
            *yields(_JOINED, [DATA + DATA], Concat(-1)),
            *yields(_RESULT, [_JOINED], Sin(), Cos()),
            *yields(_SCALED, [DATA], Sin(), Cos()),
            *yields(FUSED, [_SCALED + _SCALED], Concat(-1)),
        ),
        3,
        repeats=True,
    )
    yield family(
        "functions of neighbouring angles",
        each(d=(5, _HALF)),
        (
            *yields(_SCALED, [DATA], Sin(), Cos()),
            *(
                made
                for start, letters in ((DATA, "pqrs"), (_SCALED, "PQR" + FUSED))
                for made in (
                    *yields(letters[0], [start], Reshape((5, _HALF, 1))),
                    *yields(letters[1], [letters[0]], pair),
                    *yields(letters[2], [letters[1]], Contiguous()),
                    *yields(letters[3], [letters[2]], Reshape((5, joined))),
                )
            ),
            *yields(_RESULT, ["s"], Sin(), Cos()),
        ),
        5,
    )


ROTARY, _FEWER = (
    tuple(make(place) for make in (_parts, _neighbours, _rotated) for place in places) for places in (_HEADS, _ROWS)
)
ANGLES = (*_FEWER, *_functions())
