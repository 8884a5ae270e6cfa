"""The vocabulary ``loops``: what is computed of parts, in place of parts of what is computed.

Read from right to left, these rules take a loop over rows apart: what it does with a row is a row of what is done with
all rows at once. A row may lack the axis that it was taken along.
"""

from __future__ import annotations

from collections.abc import Iterator

from taso_py.generate.sets.common import applicable, each, family, yields
from taso_py.generate.vocabulary import DATA, FUSED, WEIGHT, Family, Variables
from taso_py.ops.base import TensorOperator
from taso_py.ops.contraction import Linear, Matmul
from taso_py.ops.elementwise import (
    Abs,
    Add,
    Cos,
    Div,
    Elu,
    Exp,
    Gelu,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyRelu,
    Log,
    Maximum,
    Minimum,
    Mish,
    Mul,
    Relu,
    Sigmoid,
    Silu,
    Sin,
    Softplus,
    Sqrt,
    Sub,
    Tanh,
)
from taso_py.ops.evaluate import Domain
from taso_py.ops.movement import Reshape, Slice
from taso_py.ops.normalization import LayerNorm, RmsNorm, Softmax

_OTHER = "y"
"""Role of the second of two variables of which parts are taken."""
_ALL = "a"
"""Role of what is computed of all rows."""
_PART, _OTHER_PART = "rq"
"""Roles of parts of the variables."""

_OFTEN, _SELDOM = (Relu(), Sigmoid(), Tanh(), Exp(), Log(), Sqrt()), (Abs(), Sin(), Cos())
_GATES = Silu(), Gelu(), Gelu("tanh")
_ACTIVATIONS = LeakyRelu(0.25), Elu(), Softplus(), Mish(), Hardtanh(0.0, 6.0), Hardsigmoid(), Hardswish()
_FUNCTIONS = {
    -1: (*_GATES, *_SELDOM, *_ACTIVATIONS),
    -2: (*_SELDOM, *_ACTIVATIONS),
    -3: (*_GATES, *_SELDOM, *_ACTIVATIONS, Exp(), Log(), Sqrt()),
}
"""Functions of parts along an axis; ``core``, ``arrays`` and ``rows`` have the others."""
_COMMUTATIVE, _OTHERS, _BOUNDS = (Add(), Mul()), (Sub(), Div()), (Maximum(), Minimum())
_ARITHMETIC = (*_COMMUTATIVE, *_OTHERS, *_BOUNDS)
_NORMS = (LayerNorm(1, 0.25), RmsNorm(1, 0.25))
_LENGTH = 8
"""The length of the axis that parts are taken of."""


def _of_parts_of(roles: str) -> str:
    """Return the roles of operands with parts in place of the variables that parts are taken of."""
    return roles.replace(DATA, _PART).replace(_OTHER, _OTHER_PART)


def _parts(
    name: str,
    variables: tuple[Variables, ...],
    axis: int,
    *done: tuple[str, tuple[TensorOperator, ...]],
    axes: int = 1,
    domain: Domain = Domain.REAL,
) -> Family:
    """Return a family of operators that are applied to parts of data.

    Args:
        name: the name.
        variables: the variables; of roles ``d`` and ``y``, those of which parts are taken.
        axis: the axis along which they are taken.
        done: the roles of operands, and the operators that are applied to them.
        axes: see :class:`Family`.
        domain: see :class:`Family`.
    """
    part = Slice(axis, 2, 6)
    productions = [*yields(_PART, [DATA], part), *yields(_OTHER_PART, [_OTHER], part), *yields("o", [_ALL], part)]
    for roles, ops in done:
        productions += yields(_ALL, [roles], *ops)
        productions += yields(FUSED, [_of_parts_of(roles)], *ops)
    wanted = applicable(variables, productions)
    return Family(f"{name} along {axis}", variables, wanted, 3, every=True, axes=axes, domain=domain)


def _of_parts() -> Iterator[Family]:
    """Yield the families of parts along an axis that stays."""
    row = (_LENGTH,)
    yield _parts("arithmetic of parts", each(d=row, y=row), -1, (DATA + _OTHER, (*_OTHERS, *_BOUNDS)), axes=3)
    for axis, shape, operands in (
        (-1, (3, _LENGTH), ((), (3, 1))),
        (-2, (_LENGTH, 3), ((), (3,), (1, 3))),
        (-3, (_LENGTH, 3, 4), ((), (4,), (3, 4), (1, 3, 4))),
    ):
        yield _parts("functions of parts", each(d=shape), axis, (DATA, _FUNCTIONS[axis]), domain=Domain.EXACT)
        for other in operands:
            ops = (*_OTHERS, *_BOUNDS) if (axis, other) == (-3, ()) else _ARITHMETIC  # ``core`` has the others
            first = (*_COMMUTATIVE, *_BOUNDS) if (axis, other) == (-2, (3,)) else ops  # and here ``rows``
            name = f"arithmetic of parts and {'x'.join(map(str, other)) or 'a number'}"
            yield _parts(name, each(d=shape, w=other), axis, (DATA + WEIGHT, first), (WEIGHT + DATA, ops))
    rows = (_LENGTH, 3, 4)
    yield _parts("layers of parts", each(d=rows, w=(5, 4)), -3, ("dw", (Linear(),)))
    yield _parts("layers of parts with a bias", each(d=rows, w=(5, 4), v=(5,)), -3, ("dwv", (Linear(),)))
    yield _parts("normalized parts", each(d=rows), -3, ("d", (Softmax(), *_NORMS)))
    yield _parts("scaled parts", each(d=rows, w=(4,), v=(4,)), -3, ("dw", _NORMS), ("dwv", _NORMS[:1]))
    factors = each(d=rows, w=(4, 5), y=(_LENGTH, 4, 5))
    yield _parts("products of parts", factors, -3, ("dw", (Matmul(),)), ("dy", (Matmul(),)))


def _views(shape: tuple[int, ...], view: tuple[int, ...]) -> Iterator[Family]:
    """Yield the families of what is done to values without an axis of size one."""

    def done(
        name: str,
        variables: tuple[Variables, ...],
        *pairs: tuple[str, tuple[TensorOperator, ...]],
        domain: Domain = Domain.REAL,
    ) -> Family:
        drop, put = Reshape(view), Reshape(shape)
        productions = [*yields(_PART, [DATA], drop), *yields(_OTHER_PART, [_OTHER], drop), *yields("o", [_ALL], put)]
        for roles, ops in pairs:
            productions += yields(_ALL, [_of_parts_of(roles)], *ops)
            productions += yields(FUSED, [roles], *ops)
        wanted = applicable(variables, productions)
        return family(f"{name} of {shape} as {view}", variables, wanted, 4, domain=domain)

    has_others = shape == (1, 3, 4)  # ``arrays`` has them
    functions = (*_GATES, *_SELDOM, *_ACTIVATIONS, *(() if has_others else _OFTEN))
    yield done("functions", each(d=shape), (DATA, functions), domain=Domain.EXACT)
    yield done("arithmetic", each(d=shape, y=shape), (DATA + _OTHER, _ARITHMETIC))
    for other in dict.fromkeys(((), view[-1:], view)):
        ops = (*_OTHERS, *_BOUNDS) if has_others and other else _ARITHMETIC
        name = f"arithmetic with {'x'.join(map(str, other)) or 'a number'}"
        yield done(name, each(d=shape, w=other), (DATA + WEIGHT, ops), (WEIGHT + DATA, ops))
    yield done("norms", each(d=shape), (DATA, (Softmax(), *_NORMS)))
    yield done("scaled norms", each(d=shape, w=view[-1:], v=view[-1:]), ("dw", _NORMS), ("dwv", _NORMS[:1]))


def _layers(shape: tuple[int, ...], view: tuple[int, ...]) -> Family:
    """Return the family of layers of values without an axis of size one."""
    productions = (
        *yields(_PART, [DATA], Reshape(view)),
        *yields(_ALL, [_PART + "w", _PART + "wv"], Linear()),
        *yields("o", [_ALL], Reshape((*shape[:-1], 5))),
        *yields(FUSED, ["dw", "dwv"], Linear()),
    )
    return family(f"layers of {shape} as {view}", each(d=shape, w=(5, shape[-1]), v=(5,)), productions, 4)


def _returns(shape: tuple[int, ...], view: tuple[int, ...]) -> Family:
    """Return the family of values under another shape and back under their own."""
    return family(
        f"{shape} as {view} and back",
        each(d=shape),
        (*yields(_ALL, [DATA], Reshape(view)), *yields("o", [_ALL], Reshape(shape))),
        2,
    )


_VIEWS = (((1, 4), (4,)), ((1, 3, 4), (3, 4)), ((3, 1, 4), (3, 4)))
"""Shapes with an axis of size one, and without it."""

LOOPS = (
    *_of_parts(),
    *(made for shape, view in _VIEWS for made in _views(shape, view)),
    *(_layers(shape, view) for shape, view in _VIEWS),
    *(_returns(*pair) for shape, view in _VIEWS for pair in ((shape, view), (view, shape))),
)
