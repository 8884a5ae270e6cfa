"""The vocabulary ``heads``: attention of some causal queries, and of groups of queries that share keys and values.

A causal query sees the keys up to its own: the first queries need the first keys, and a single query needs no mask once
the keys are those that it sees. Queries of several heads that share keys and values are queries of one head, so that
nothing is copied (Ainslie et al. 2023, grouped-query attention).
"""

from __future__ import annotations

from collections.abc import Iterable

from taso_py.generate.vocabulary import FUSED, MASK, Family, Production, Variables
from taso_py.ops.base import TensorOperator
from taso_py.ops.movement import Contiguous, Expand, Reshape, Slice
from taso_py.ops.normalization import Attention

_QUERIES, _KEYS, _VALUES = "qkv"
"""Roles of what attention reads."""
_ALL, _SOME = "as"
"""Roles of the attention of all queries, and of some of its rows."""
_TAKEN, _SEEN_KEYS, _SEEN_VALUES = "tlw"
"""Roles of some queries, and of the keys and values that these see."""
_SCALES = None, 0.25


def _attention(causal: bool) -> tuple[Attention, ...]:
    return tuple(Attention(scale, causal) for scale in _SCALES)


def _causal(name: str, queries: int, rows: Slice, seen: Slice | None, *, stays_causal: bool) -> Family:
    """Return a family of some rows of causal attention; the rows are computed from the keys that they see, or all."""
    shapes = ((_QUERIES, (2, 3, queries, 5)), (_KEYS, (2, 3, 7, 5)), (_VALUES, (2, 3, 7, 8)))
    keys, values = (_KEYS, _VALUES) if seen is None else (_SEEN_KEYS, _SEEN_VALUES)
    productions = [
        *(Production(op, _QUERIES + _KEYS + _VALUES, _ALL) for op in _attention(causal=True)),
        Production(rows, _ALL, _SOME),
        Production(rows, _QUERIES, _TAKEN),
        *(Production(op, _TAKEN + keys + values, FUSED) for op in _attention(stays_causal)),
    ]
    if seen is not None:
        productions += [Production(seen, _KEYS, _SEEN_KEYS), Production(seen, _VALUES, _SEEN_VALUES)]
    variables = tuple(Variables(role, shape, role, 1) for role, shape in shapes)
    return Family(name, variables, tuple(productions), operators=4, every=True, narrow=True)


def _repeated(role: str, letters: str, steps: Iterable[TensorOperator]) -> tuple[Production, ...]:
    """Return the productions that take one step after the other; the results have the roles ``letters``."""
    return tuple(
        Production(step, operand, result) for step, operand, result in zip(steps, role + letters, letters, strict=False)
    )


def _grouped(name: str, copied: bool, *mask: int) -> Family:
    """Return a family of attention in which each head of keys and values serves two heads of queries.

    Args:
        name: the family's name.
        copied: whether the repeated heads are copied before they are viewed as heads.
        mask: the shape of the mask, if any; it has to be the same for all queries.
    """
    sizes = {_KEYS: 3, _VALUES: 7}
    letters = {_KEYS: "ABCD", _VALUES: "EFGH"} if copied else {_KEYS: "ABD", _VALUES: "EFH"}
    steps = {
        role: (
            *(Reshape((2, 3, 1, 5, size)), Expand((2, 3, 2, 5, size))),
            *([Contiguous()] if copied else []),
            Reshape((2, 6, 5, size)),
        )
        for role, size in sizes.items()
    }
    masked = MASK if mask else ""
    return Family(
        name,
        (
            Variables(_QUERIES, (2, 6, 4, 3), _QUERIES, 1),
            *(Variables(role, (2, 3, 5, size), role, 1) for role, size in sizes.items()),
            *([Variables("m", mask, MASK, 1)] if mask else []),
        ),
        (
            *(production for role in sizes for production in _repeated(role, letters[role], steps[role])),
            *(Production(op, f"{_QUERIES}DH{masked}", _ALL) for op in _attention(causal=False)),
            Production(Reshape((2, 3, 8, 3)), _QUERIES, _TAKEN),
            *(Production(op, f"{_TAKEN}{_KEYS}{_VALUES}{masked}", _SOME) for op in _attention(causal=False)),
            Production(Reshape((2, 6, 4, 7)), _SOME, FUSED),
        ),
        operators=2 * len(steps[_KEYS]) + 1,
        every=True,
    )


HEADS = (
    _causal("first causal queries", 8, Slice(-2, 0, 4), Slice(-2, 0, 4), stays_causal=True),
    _causal("one causal query", 8, Slice(-2, 3, 4), Slice(-2, 0, 4), stays_causal=False),
    _causal("last causal query", 7, Slice(-2, 6, 7), None, stays_causal=False),
    *(
        _grouped(f"grouped queries{', copied' if copied else ''} {'x'.join(map(str, mask))}", copied, *mask)
        for copied in (False, True)
        for mask in ((), (2, 1, 1, 5), (1, 1, 1, 5))
    ),
)
