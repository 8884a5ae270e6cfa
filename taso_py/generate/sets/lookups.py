"""The vocabulary ``lookups``: rows of a table chosen by integers, as embeddings do, and elements of each row.

What is computed from each row by itself may as well be computed from the whole table: of a table of weights that is
done once. And rows of a result need no other rows of the operands. Which of both is faster the search decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from taso_py.generate.sets.common import family, yields
from taso_py.generate.vocabulary import DATA, FUSED, WEIGHT, Family, Half, Production, Variables
from taso_py.ir.types import DType
from taso_py.ops.base import TensorOperator
from taso_py.ops.contraction import Conv2d, Linear, Matmul
from taso_py.ops.elementwise import Abs, Add, Cast, Div, Exp, Gelu, Log, Mul, Relu, Sigmoid, Silu, Sub, Tanh
from taso_py.ops.movement import Concat, Expand, Reshape
from taso_py.ops.normalization import LayerNorm, RmsNorm
from taso_py.ops.selection import Gather, Take

_TABLE, _INDEX, _CHANGED, _ROWS, _OTHER = "tinro"
"""Roles of tables, of integers, of what is computed from tables, of rows, and of an operand of every row."""
_WIDTH = 4
_T = Variables("t", (5, _WIDTH), _TABLE, 1)
_TWO = Variables("t", (5, _WIDTH), _TABLE, 2)
_NARROW = Variables("u", (5, 3), _TABLE, 1)
_TAKE = Take(-2)


def _integers(count: int = 1, role: str = _INDEX) -> Variables:
    return Variables("i", (3,), role, count, dtype=DType.INT)


def _applied(roles: str, *ops: TensorOperator | Half) -> tuple[Production, ...]:
    """Return operators that are applied to rows, and to the table before rows are chosen."""
    table = roles.replace(_ROWS, _TABLE)
    return (*(Production(op, roles, "a") for op in ops), *(Production(op, table, _CHANGED) for op in ops))


def _family(
    name: str, variables: Iterable[Variables], *productions: Production, take: Take = _TAKE, one_way: bool = False
) -> Family:
    """Return the family of operators before and after a lookup; ``one_way`` for what is better done before."""
    takes = (
        Production(take, _TABLE + _INDEX, _ROWS),
        Production(take, _CHANGED + _INDEX, FUSED if one_way else "a"),
    )
    return family(name, (*variables, _integers()), (*takes, *productions), 3)


def _gathered(
    name: str, axis: int, variables: Iterable[Variables], *productions: Production, tables: int = 1, integers: int = 1
) -> Family:
    """Return the family of operators before and after elements are chosen at each place along the other axis."""
    shapes = ((3, 5), (3, 4)) if axis == -1 else ((5, 3), (4, 3))
    table, index = (
        Variables("t", shapes[0], _TABLE, tables),
        Variables("i", shapes[1], _INDEX, integers, dtype=DType.INT),
    )
    choices = (
        Production(Gather(axis), _TABLE + _INDEX, _ROWS),
        Production(Gather(axis), _CHANGED + _INDEX, "a"),
    )
    return family(f"{name} along {axis}", (table, index, *variables), (*choices, *productions), 3)


def _elements() -> Iterator[Family]:
    """Yield the families of what is computed of elements that are chosen at each place."""
    for axis in (-1, -2):
        functions = (Relu(), Sigmoid(), Tanh(), Exp(), Log(), Gelu(), Silu())
        yield _gathered("functions of elements that are chosen", axis, (), *_applied(_ROWS, *functions))
    yield _gathered(
        "arithmetic of elements that are chosen with a factor of each row",
        -1,
        (Variables("s", (3, 1), _OTHER, 1),),
        *_applied(_ROWS + _OTHER, Add(), Mul(), Sub(), Div()),
        *_applied(_OTHER + _ROWS, Sub(), Div()),
    )
    yield family(
        "numbers and elements that are chosen",
        (
            # Both are data, so that axes may lead both.
            Variables("x", (3, 5), DATA, 1),
            Variables("i", (3, 4), DATA, 1, dtype=DType.INT),
            Variables("s", (), _OTHER, 1),
        ),
        (
            Production(Gather(-1), DATA * 2, _ROWS),
            *yields("a", [_ROWS + _OTHER], Add(), Mul(), Sub(), Div()),
            *yields("a", [_OTHER + _ROWS], Sub(), Div()),
            *yields(_CHANGED, [DATA + _OTHER], Add(), Mul(), Sub(), Div()),
            *yields(_CHANGED, [_OTHER + DATA], Sub(), Div()),
            Production(Gather(-1), _CHANGED + DATA, "a"),
        ),
        2,
    )
    yield _gathered("elements of two values", -1, (), *_applied(_ROWS * 2, Add(), Mul(), Sub(), Div()), tables=2)
    yield _gathered(
        "elements that are chosen twice",
        -1,
        (),
        Production(Concat(-1), _ROWS * 2, "a"),
        Production(Concat(-1), _INDEX * 2, _OTHER),
        Production(Gather(-1), _TABLE + _OTHER, FUSED),
        integers=2,
    )
    yield from _whole_rows()


def _whole_rows() -> Iterator[Family]:
    """Yield the families of rows that are chosen by copies of one integer, element by element."""
    index = Variables("i", (2, 4, 1), _INDEX, 1, dtype=DType.INT)
    weight, bias = Variables("w", (6, _WIDTH), _OTHER, 1), Variables("b", (6,), "b", 1)
    yield family(
        "layers of rows that are chosen",
        (Variables("x", (2, 5, _WIDTH), _TABLE, 1), index, weight, bias),
        (
            Production(Expand((2, 4, 6)), _INDEX, "j"),
            *yields(_CHANGED, [_TABLE + _OTHER, _TABLE + _OTHER + "b"], Linear()),
            Production(Gather(-2), _CHANGED + "j", "a"),
            Production(Expand((2, 4, _WIDTH)), _INDEX, "k"),
            Production(Gather(-2), _TABLE + "k", _ROWS),
            *yields(FUSED, [_ROWS + _OTHER, _ROWS + _OTHER + "b"], Linear()),
        ),
        3,
    )
    yield family(
        "norms of rows that are chosen",
        (Variables("x", (2, 5, _WIDTH), _TABLE, 1), index, Variables("w", (_WIDTH,), _OTHER, 2)),
        (
            Production(Expand((2, 4, _WIDTH)), _INDEX, "j"),
            *yields(_CHANGED, [_TABLE, _TABLE + _OTHER], LayerNorm(1, 0.25), RmsNorm(1, 0.25)),
            *yields(_CHANGED, [_TABLE + _OTHER * 2], LayerNorm(1, 0.25)),
            Production(Gather(-2), _CHANGED + "j", "a"),
            Production(Gather(-2), _TABLE + "j", _ROWS),
            *yields(FUSED, [_ROWS, _ROWS + _OTHER], LayerNorm(1, 0.25), RmsNorm(1, 0.25)),
            *yields(FUSED, [_ROWS + _OTHER * 2], LayerNorm(1, 0.25)),
        ),
        3,
    )
    yield family(
        "rows of one table that are chosen",
        (_T, Variables("i", (3, 1), _INDEX, 1, dtype=DType.INT)),
        (
            Production(Expand((3, _WIDTH)), _INDEX, "j"),
            Production(Gather(-2), _TABLE + "j", "a"),
            Production(Reshape((3,)), _INDEX, "k"),
            Production(_TAKE, _TABLE + "k", FUSED),
        ),
        2,
    )


LOOKUPS = (
    _family(
        "functions of rows that are looked up",
        (_T,),
        *_applied(_ROWS, Relu(), Sigmoid(), Tanh(), Exp(), Gelu(), Gelu("tanh"), Silu(), Abs()),
        *_applied(_ROWS, LayerNorm(1, 0.25), RmsNorm(1, 0.25)),
    ),
    _family(
        "rows that are looked up, in another type",
        (_T,),
        *_applied(_ROWS, *map(Cast, (DType.F32, DType.F16, DType.BF16))),
        one_way=True,
    ),
    _family(
        "scaled rows that are looked up",
        (_T, Variables("w", (_WIDTH,), _OTHER, 2)),
        *_applied(_ROWS + _OTHER, LayerNorm(1, 0.25), RmsNorm(1, 0.25), Add(), Mul(), Sub(), Div()),
        *_applied(_OTHER + _ROWS, Sub(), Div()),
        *_applied(_ROWS + _OTHER * 2, LayerNorm(1, 0.25)),
    ),
    _family(
        "numbers and rows that are looked up",
        (_T, Variables("s", (), _OTHER, 1)),
        *_applied(_ROWS + _OTHER, Add(), Mul(), Sub(), Div()),
        *_applied(_OTHER + _ROWS, Sub(), Div()),
    ),
    _family(
        "layers of rows that are looked up",
        (_T, Variables("w", (6, _WIDTH), _OTHER, 1), Variables("b", (6,), _OTHER, 1)),
        *_applied(_ROWS + _OTHER, Linear()),
        *_applied(_ROWS + _OTHER * 2, Linear()),
    ),
    _family(
        "products of rows that are looked up",
        (_T, Variables("w", (_WIDTH, 6), _OTHER, 1)),
        *_applied(_ROWS + _OTHER, Matmul()),
    ),
    _family(
        "rows of two tables",
        (_TWO,),
        *_applied(_ROWS * 2, Add(), Mul(), Sub(), Div()),
        one_way=True,
    ),
    _family("rows of two tables side by side", (_T, _NARROW), *_applied(_ROWS * 2, Concat(-1)), one_way=True),
    _family(
        "parts of rows that are looked up",
        (_T,),
        *_applied(_ROWS, Half(-1, 0), Half(-1, 1)),
    ),
    family(
        "lookups one after the other",
        (_T, _integers(2)),
        (
            Production(_TAKE, _TABLE + _INDEX, _ROWS),
            Production(Concat(-2), _ROWS * 2, "a"),
            Production(Concat(-1), _INDEX * 2, _OTHER),
            Production(_TAKE, _TABLE + _OTHER, FUSED),
        ),
        3,
    ),
    family(
        "features of layers that are looked up",
        (
            Variables("x", (2, _WIDTH), "d", 1),
            Variables("w", (5, _WIDTH), WEIGHT, 1),
            Variables("b", (5,), WEIGHT, 1),
            _integers(role=WEIGHT),
        ),
        (
            Production(Linear(), "d" + WEIGHT, _ROWS),
            Production(Linear(), "d" + WEIGHT * 2, _ROWS),
            Production(Take(-1), _ROWS + WEIGHT, "a"),
            Production(Take(-2), WEIGHT * 2, _CHANGED),
            Production(Take(-1), WEIGHT * 2, _CHANGED),
            Production(Linear(), "d" + _CHANGED, FUSED),
            Production(Linear(), "d" + _CHANGED * 2, FUSED),
        ),
        3,
    ),
    family(
        "channels of convolutions that are looked up",
        (
            Variables("x", (2, 3, 4, 4), "d", 1),
            Variables("w", (5, 3, 3, 3), WEIGHT, 1),
            Variables("b", (5,), WEIGHT, 1),
            _integers(role=WEIGHT),
        ),
        (
            Production(Conv2d(padding=(1, 1)), "d" + WEIGHT, _ROWS),
            Production(Conv2d(padding=(1, 1)), "d" + WEIGHT * 2, _ROWS),
            Production(Take(-3), _ROWS + WEIGHT, "a"),
            Production(Take(-4), WEIGHT * 2, _CHANGED),
            Production(Take(-1), WEIGHT * 2, _CHANGED),
            Production(Conv2d(padding=(1, 1)), "d" + _CHANGED, FUSED),
            Production(Conv2d(padding=(1, 1)), "d" + _CHANGED * 2, FUSED),
        ),
        3,
    ),
    *_elements(),
)
