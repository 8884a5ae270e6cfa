"""What the enumerator tries: operators with attribute values, over a few variables of small sizes.

A vocabulary is a set of families; a family is a set of variables and of productions whose terms are enumerated
together, up to the family's own number of operators. Sizes are small and pairwise distinct where confusing them would
make two different terms agree; what survives is generalised to all sizes later.

Invariant: a family lists operators, never rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from taso_py.ir.errors import ShapeError
from taso_py.ir.types import TensorType
from taso_py.ops.base import TensorOperator, plain_axis
from taso_py.ops.contraction import Conv2d, Linear, Matmul
from taso_py.ops.elementwise import Add, Mul, Relu, Sigmoid, Sub, Tanh
from taso_py.ops.movement import Concat, Enlarge, Permute, Slice
from taso_py.ops.normalization import BatchNorm
from taso_py.ops.pooling import AvgPool2d, MaxPool2d

DATA = "d"
"""The role of what changes from run to run: activations, images."""
WEIGHT = "w"
"""The role of what is fixed: weights, biases, scales."""
EITHER = "."


@dataclass(frozen=True)
class Half:
    """A pseudo-operator: the first or second half of an axis of even size, a slice at the boundary of a concat."""

    axis: int
    side: int

    @property
    def text(self) -> str:
        return f"half{{axis={self.axis}, side={self.side}}}"

    def at(self, types: Sequence[TensorType]) -> TensorOperator:
        size = plain_axis(types[0], self.axis)
        if not isinstance(size, int) or size % 2:
            raise ShapeError(f"{types[0]} has no halves along axis {self.axis}")
        return Slice(self.axis, self.side * size // 2, (self.side + 1) * size // 2)


@dataclass(frozen=True)
class Production:
    """An operator that the enumerator may apply."""

    op: TensorOperator | Half
    roles: str
    """One letter an operand: ``d`` data only, ``w`` weights only, ``.`` either."""

    @property
    def arity(self) -> int:
        """The number of operands."""
        return len(self.roles)

    @property
    def commutative(self) -> bool:
        """Whether the order of the operands is without meaning."""
        return isinstance(self.op, TensorOperator) and self.op.commutative

    @property
    def is_movement(self) -> bool:
        """Whether it is a concat or a slice, which decide how a merged result is taken apart."""
        return isinstance(self.op, Half | Concat | Slice)

    def at(self, types: Sequence[TensorType]) -> TensorOperator:
        """The operator for operands of these types."""
        return self.op.at(types) if isinstance(self.op, Half) else self.op


@dataclass(frozen=True)
class Variables:
    """Variables ``letter1 .. letter<count>`` of one shape and role."""

    letter: str
    shape: tuple[int, ...]
    role: str
    count: int = 4


@dataclass(frozen=True)
class Family:
    """Variables and productions whose terms are enumerated together."""

    name: str
    variables: tuple[Variables, ...]
    productions: tuple[Production, ...]
    operators: int
    """The greatest number of operator instances of a term."""
    split_axes: tuple[int, ...] = ()
    """Axes along which the two halves of a term may be the two outputs of a source."""
    axes: int = 1
    """To how many axes, from the last, rules are carried over; for families that move data along the last axis only."""


@dataclass(frozen=True)
class Folding:
    """Sources ``after(affine(x, w, ..), ..)`` for which the weights of an equal ``affine(x, w', b')`` are sought."""

    name: str
    affine: TensorOperator
    data: tuple[int, ...]
    weight: tuple[int, ...]
    after: tuple[tuple[TensorOperator, tuple[tuple[int, ...], ...]], ...]
    """Operators applied to the result, with the shapes of their other operands."""


def _apply(roles: str, *ops: TensorOperator | Half) -> tuple[Production, ...]:
    return tuple(Production(op, roles) for op in ops)


def _halves(*axes: int) -> tuple[Production, ...]:
    return _apply(EITHER, *(Half(axis, side) for axis in axes for side in (0, 1)))


_UNARY = _apply("d", Relu(), Sigmoid(), Tanh())
_ARITHMETIC = _apply("..", Add(), Mul(), Sub())
_POINTWISE = Conv2d()
_SPATIAL = Conv2d(padding=(1, 1))
_POOLS = _apply("d", AvgPool2d((3, 3), (1, 1), (1, 1)), MaxPool2d((3, 3), (1, 1), (1, 1)))
_STRIDED_POOLS = _apply("d", AvgPool2d((2, 2), (2, 2)), MaxPool2d((2, 2), (2, 2)))

_MATRICES = (Variables("x", (3, 2), DATA), Variables("w", (2, 2), WEIGHT))
_VECTORS = Variables("v", (2,), WEIGHT)
_SCALARS = Variables("s", (), WEIGHT, 2)
_IMAGES = Variables("x", (3, 2, 4, 5), DATA)
_KERNELS = Variables("k", (2, 2, 3, 3), WEIGHT)
_POINTS = Variables("p", (2, 2, 1, 1), WEIGHT)

_CORE = (
    Family(
        "matrices",
        _MATRICES,
        (
            *_apply("..", Add(), Mul()),
            *_apply("d", Relu()),
            *_apply("dw", Matmul(), Linear()),
            *_apply("ww", Matmul()),
            *_apply("..", Concat(-1), Concat(-2)),
            *_apply(EITHER, Permute((-1, -2))),
            *_halves(-1, -2),
        ),
        operators=2,
    ),
    Family(
        "scales",
        (*_MATRICES, Variables("v", (2,), WEIGHT, 2), _SCALARS),
        (*_apply("..", Mul()), *_apply("dw", Matmul(), Linear()), *_apply("d", Relu())),
        operators=2,
    ),
    Family("differences", (Variables("x", (4,), DATA),), (*_ARITHMETIC, *_apply("d", Relu())), operators=2),
    Family(
        "images",
        (_IMAGES, _KERNELS, _POINTS),
        (
            *_apply("dd", Add()),
            *_apply("d", Relu()),
            *_apply("dw", _POINTWISE, _SPATIAL, Conv2d(stride=(2, 2)), Conv2d(stride=(2, 2), padding=(1, 1))),
            *(*_POOLS, *_STRIDED_POOLS),
            *_apply("dd", Concat(-3)),
            *_apply("ww", Concat(-3), Concat(-4)),
            *_apply("w", Enlarge((3, 3)), Half(-4, 0), Half(-4, 1), Half(-3, 0)),
            *_apply("d", Half(-3, 0), Half(-3, 1)),
        ),
        operators=2,
    ),
)

# Slices of a slice, and slices beside each other.
_WITHIN = ((1, 8), (2, 5), (3, 6), (1, 4), (4, 8))
# Slices of a concat of two axes of size 9: in the first, in the second, across.
_ACROSS = ((1, 4), (10, 13), (4, 12), (4, 9), (0, 3))

_MERGE = (
    Family(
        "products",
        (*_MATRICES, _VECTORS),
        (
            *_apply("..", Add()),
            *_apply("dw", Matmul(), Linear()),
            *_apply("dww", Linear()),
            *_apply("..", Concat(-1), Concat(-2)),
        ),
        operators=3,
        split_axes=(-1, -2),
    ),
    Family(
        "convolutions",
        (_IMAGES, _KERNELS, Variables("v", (2,), WEIGHT)),
        (
            *_apply("..", Add()),
            *_apply("dw", _SPATIAL),
            *_apply("dww", _SPATIAL),
            *_apply("..", Concat(-1), Concat(-3), Concat(-4)),
        ),
        operators=3,
        split_axes=(-3, -4),
    ),
    Family(
        "pools",
        (Variables("x", (3, 2, 4, 5), DATA), _SCALARS),
        (*_apply("..", Add(), Mul()), *_POOLS, *_apply("..", Concat(-3)), *_halves(-3)),
        operators=3,
    ),
    Family(
        "functions",
        (Variables("x", (4,), DATA),),
        (*_UNARY, *_apply("..", Concat(-1)), *_halves(-1)),
        operators=3,
        axes=3,
    ),
    Family(
        "arithmetic",
        (Variables("x", (4,), DATA),),
        (*_apply("..", Add(), Mul(), Concat(-1)), *_halves(-1)),
        operators=3,
        axes=3,
    ),
    Family(
        "slices",
        (Variables("x", (9,), DATA, 2),),
        (
            *_apply("..", Concat(-1)),
            *_apply(".", *(Slice(-1, a, b) for a, b in _WITHIN)),
        ),
        operators=3,
        axes=3,
    ),
    Family(
        "crossings",
        (Variables("x", (9,), DATA, 2),),
        (
            *_apply("..", Concat(-1)),
            *_apply(".", *(Slice(-1, a, b) for a, b in _ACROSS)),
        ),
        operators=3,
        axes=3,
    ),
    Family(
        "concats",
        (Variables("x", (2,), DATA),),
        _apply("..", Concat(-1)) + _apply("...", Concat(-1)),
        operators=2,
        axes=3,
    ),
)

_CHANNELS: tuple[tuple[int, ...], ...] = ((2,),) * 4
_FOLD = (
    Folding(
        "linear",
        Linear(),
        (5, 3),
        (2, 3),
        (
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
        (5, 3, 4, 6),
        (2, 3, 3, 3),
        (
            (BatchNorm(0.25), _CHANNELS),
            (Mul(), ((2, 1, 1),)),
            (Mul(), ((),)),
            (Add(), ((2, 1, 1),)),
            (Sub(), ((2, 1, 1),)),
        ),
    ),
)

VOCABULARIES: Mapping[str, tuple[Family | Folding, ...]] = {"core": _CORE, "merge": _MERGE, "fold": _FOLD}
"""The named vocabularies: ``core`` mixes everything, ``merge`` goes deeper with less, ``fold`` solves for weights."""
