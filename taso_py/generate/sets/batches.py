"""The vocabulary ``batches``: layers, products and arithmetic of elements of batches, in place of those of results.

An element of a batch lacks the axis that it was taken along. Read from right to left, these rules make layers that have
nothing in common, as those of an ensemble or of experts, one product of batches (:mod:`taso_py.rules.batches`), and
their results summed or joined one batch (:mod:`taso_py.rules.sums`, :mod:`taso_py.rules.joins`).
"""

from __future__ import annotations

from collections.abc import Iterator

from taso_py.generate.sets.common import applicable, each, family, yields
from taso_py.generate.vocabulary import DATA, FUSED, WEIGHT, Family, Production
from taso_py.ops.base import TensorOperator
from taso_py.ops.contraction import Linear, Matmul
from taso_py.ops.elementwise import Add, Div, Mul, Sub
from taso_py.ops.evaluate import Domain
from taso_py.ops.movement import Concat, Permute, Reshape, Slice
from taso_py.ops.normalization import LayerNorm
from taso_py.ops.reduction import Sum

_BATCH, _ROWS, _COLUMNS, _UNITS = 4, 3, 2, 5
"""The number of elements, the rows and columns of what a layer reads, and its units."""
_ARITHMETIC = Add(), Mul(), Sub(), Div()
_BIAS = "v"
"""Role of biases."""


def _part(batch: str, role: str, rank: int) -> tuple[Production, ...]:
    """Return the production that gives, in a role, one of a batch of values of a rank, with its axis."""
    return yields(role, [batch], Slice(-rank - 1, 1, 2))


def _element(batch: str, role: str, *shape: int) -> tuple[Production, ...]:
    """Return the productions that give, in a role, one of a batch of values of a shape."""
    with_axis = role.upper()
    return *_part(batch, with_axis, len(shape)), *yields(role, [with_axis], Reshape(shape))


def _layers(name: str, data: tuple[Production, ...], done: tuple[Production, ...], *, bias: bool) -> Family:
    """Return the family of layers, of what is taken from data, which give what is taken from results with role "a"."""
    roles = "rqp" if bias else "rq"
    productions = (
        *data,
        *_element(WEIGHT, "q", _UNITS, _COLUMNS),
        *_element(_BIAS, "p", _UNITS),
        *yields(FUSED, [roles], Linear()),
        *yields("t", [WEIGHT], Permute((-3, -1, -2))),
        *yields("m" if bias else "a", [DATA + "t"], Matmul()),
        *yields("b", [_BIAS], Reshape((_BATCH, 1, _UNITS))),
        *yields("a", ["mb"], Add()),
        *done,
    )
    shapes = {DATA: (_BATCH, _ROWS, _COLUMNS), WEIGHT: (_BATCH, _UNITS, _COLUMNS)} | (
        {_BIAS: (_BATCH, _UNITS)} if bias else {}
    )
    variables = each(**shapes)
    return family(f"{name}{', bias' if bias else ''}", variables, applicable(variables, productions), 7, narrow=True)


def _alike(
    name: str, left: tuple[int, ...], right: tuple[int, ...], done: tuple[int, ...], *ops: TensorOperator
) -> Family:
    """Return the family of operators on two elements of these shapes, which give one of the shape ``done``."""
    is_lower = len(right) < len(left)
    productions = (
        *_element(DATA, "r", *left),
        *_element(WEIGHT, "q", *right),
        *yields(FUSED, ["rq"], *ops),
        *yields("u", [WEIGHT] if is_lower else [], Reshape((_BATCH, *(1,) * (len(left) - len(right)), *right))),
        *yields("a", [DATA + ("u" if is_lower else WEIGHT)], *ops),
        *_element("a", "o", *done),
    )
    variables = each(d=(_BATCH, *left), w=(_BATCH, *right))
    return family(f"{name} of {left} and {right}", variables, applicable(variables, productions), 5, narrow=True)


_ROW, _MATRIX = (_UNITS,), (_ROWS, _UNITS)
_NORMS = family(
    "norms",
    each(d=(_BATCH, *_MATRIX), w=(_BATCH, *_ROW), v=(_BATCH, *_ROW)),
    (
        *_element(DATA, "r", *_MATRIX),
        *_element(WEIGHT, "q", *_ROW),
        *_element(_BIAS, "p", *_ROW),
        *yields(FUSED, ["rqp"], LayerNorm(1, 0.25)),
        *yields("n", [DATA], LayerNorm(1, 0.25)),
        *yields("s", [WEIGHT], Reshape((_BATCH, 1, *_ROW))),
        *yields("b", [_BIAS], Reshape((_BATCH, 1, *_ROW))),
        *yields("m", ["ns"], Mul()),
        *yields("a", ["mb"], Add()),
        *_element("a", "o", *_MATRIX),
    ),
    7,
    narrow=True,
    domain=Domain.REAL,
)


def _sums(*shape: int) -> Family:
    """Return the family of the sum over a batch and one more value of a shape."""
    axis = -len(shape) - 1
    productions = (
        *yields("1", [WEIGHT], Reshape((1, *shape))),
        *yields("2", [DATA + "1"], Concat(axis)),
        *yields("o", ["2"], Sum((axis,))),
        *yields("s", [DATA], Sum((axis,))),
        *yields(FUSED, ["s" + WEIGHT], Add()),
    )
    return family(f"sums of {shape}", each(d=(_BATCH, *shape), w=shape), productions, 3)


def _joined(axis: int, *shape: int) -> Iterator[Family]:
    """Yield the families of batches of values of a shape, joined along an axis of these; and of one such value."""
    place = len(shape) + axis
    order = tuple(number - len(shape) - 1 for number in (*range(1, place + 1), 0, *range(place + 1, len(shape) + 1)))

    def joined(batch: str, size: int, role: str) -> tuple[Production, ...]:
        done = Reshape((*shape[:place], size * shape[place], *shape[place + 1 :]))
        if place == 0:
            return yields(role, [batch], done)
        return *yields(role.upper(), [batch], Permute(order)), *yields(role, [role.upper()], done)

    name, last = f"of {shape} along {axis}", 2
    several = (
        *joined(DATA, _BATCH, "p"),
        *joined(WEIGHT, last, "q"),
        *yields("o", ["pq"], Concat(axis)),
        *yields("a", [DATA + WEIGHT], Concat(-len(shape) - 1)),
        *joined("a", _BATCH + last, FUSED),
    )
    yield family(f"batches {name}", each(d=(_BATCH, *shape), w=(last, *shape)), several, 5, largest=1024)
    if place or len(shape) > 2:  # ``loops`` has the others
        one = (*yields("a", [DATA], Reshape((1, *shape))), *joined("a", 1, "o"))
        yield family(f"a batch of one {name}", each(d=shape), one, 3)


BATCHES = (
    *(
        _layers(name, data, done, bias=bias)
        for name, data, done in (
            ("layers of parts", _part(DATA, "r", 2), _part("a", "o", 2)),
            ("layers of elements", _element(DATA, "r", _ROWS, _COLUMNS), _element("a", "o", *_MATRIX)),
        )
        for bias in (False, True)
    ),
    _alike("products", (_ROWS, _COLUMNS), (_COLUMNS, _UNITS), _MATRIX, Matmul()),
    *(_alike("arithmetic", _MATRIX, right, _MATRIX, *_ARITHMETIC) for right in (_MATRIX, (_ROWS, 1), _ROW)),
    _alike("arithmetic", _ROW, _ROW, _ROW, *_ARITHMETIC),
    _NORMS,
    *(
        made
        for shape in ((_UNITS,), (_ROWS, _UNITS), (7, _ROWS, _UNITS))
        for axis in range(-len(shape), 0)
        for made in _joined(axis, *shape)
    ),
    *(_sums(*shape) for shape in (_ROW, _MATRIX, (_COLUMNS, *_MATRIX))),
)
