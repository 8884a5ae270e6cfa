"""Traits agree with what operators do: with their definitions, and with how PyTorch rounds; a wrong one is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from taso_py.ir.operator import Constant
from taso_py.ir.traits import Rounding, Traits
from taso_py.ir.types import DType, TensorType
from taso_py.ops.base import TensorOperator
from taso_py.ops.choice import Greater, Where
from taso_py.ops.contraction import Matmul
from taso_py.ops.elementwise import Add, Cast, Gelu, Relu, Silu, Sub
from taso_py.ops.evaluate import Domain, Floats, definition, evaluate
from taso_py.ops.movement import Contiguous, Enlarge, Pad, Slice
from taso_py.ops.normalization import Attention, BatchNorm, Softmax
from taso_py.ops.reduction import Max, Mean, Sum
from taso_py.ops.scalar import Apply, Read, Scalar, Times, parts
from taso_py.ops.selection import Gather, Take
from taso_py.ops.table import DEFINED
from tests.ops.test_evaluate import CASES, Case

# Of a kernel of one place, everything is where it was; of a cast to integers, so is what is whole.
EXAMPLES = [
    *(case for case in CASES if not (isinstance(case.op, Cast) and case.op.dtype is DType.I32)),
    Case(Enlarge((3, 5)), [(2, 3, 1, 3)], lambda x: F.pad(x, (1, 1, 1, 1))),
    Case(Sub(), [(2, 3), (2, 3)], torch.sub),
]
_Facts = dict[str, Any]


# -- what an operator does, in one example


def _run(case: Case, arrays: Sequence[Floats]) -> Floats:
    return evaluate(case.op, arrays, case.types, Domain.REAL)


def _draw(case: Case, seed: int) -> list[Floats]:
    generator = np.random.default_rng(seed)
    arrays = [generator.standard_normal(shape) for shape in case.shapes]
    arrays = [np.abs(array) + 0.5 for array in arrays] if case.positive else arrays
    return case.truly([array.astype(np.float32).astype(np.float64) for array in arrays])


def _readers(case: Case) -> Iterator[tuple[int, tuple[int, ...], np.ndarray[Any, Any]]]:
    """Each operand, index in it, and where the output changes with the element there, in some of many trials."""
    draws = [_draw(case, seed) for seed in range(4)]
    plain = [_run(case, arrays) for arrays in draws]
    for place, shape in enumerate(case.shapes):
        for index in np.ndindex(*shape):
            changed = np.zeros(plain[0].shape, dtype=bool)
            for arrays, before in zip(draws, plain, strict=True):
                other = [array.copy() for array in arrays]
                other[place][index] += 1.25
                changed |= _run(case, other) != before
            yield place, index, changed


def _is_elementwise(case: Case) -> bool:
    shape = _run(case, _draw(case, 0)).shape
    for place, index, changed in _readers(case):
        own = case.shapes[place]
        padded = (1,) * (len(shape) - len(own)) + own
        if len(own) > len(shape) or any(a not in (1, b) for a, b in zip(padded, shape, strict=True)):
            return False
        at = np.zeros(own, dtype=bool)
        at[index] = True
        if (changed & ~np.broadcast_to(at, shape)).any():
            return False
    return True


def _sources(case: Case, seed: int) -> np.ndarray[Any, Any] | None:
    """The element that each element of the output is a copy of, -1 for other numbers; None if those change."""
    arrays = _draw(case, seed)
    found, again = _run(case, arrays), _run(case, _draw(case, seed + 100))
    elements = np.concatenate([array.reshape(-1) for array in arrays])
    places = {element: place for place, element in enumerate(elements)}
    sources = np.array([places.get(element, -1) for element in found.reshape(-1)])
    return None if (found != again).reshape(-1)[sources == -1].any() else sources


def _is_affine(case: Case, place: int) -> bool:
    """Whether the output is a linear function of an operand, plus something that does not depend on it."""
    arrays, generator = _draw(case, 0), np.random.default_rng(1)
    steps = [np.abs(generator.standard_normal(case.shapes[place])) * 3 for _ in range(2)]
    mixed = 0.0
    for count, sign in ((0, 1), (1, -1), (2, -1), (3, 1)):
        moved = sum((step for bit, step in enumerate(steps) if count >> bit & 1), start=arrays[place])
        mixed = mixed + sign * _run(case, [*arrays[:place], moved, *arrays[place + 1 :]])
    return bool(np.abs(mixed).max() < 1e-6)


def _adds_up(case: Case) -> bool:
    """Whether the output is linear in an operand of which it reads several elements at once."""
    read: dict[int, Any] = {}
    for place, _, changed in _readers(case):
        read[place] = read.get(place, 0) + changed.astype(int)
    return any(counts.max() > 1 and _is_affine(case, place) for place, counts in read.items())


def _inside(scalar: Scalar) -> Iterator[Scalar]:
    yield scalar
    for part in parts(scalar):
        yield from _inside(part)


def _reads(scalar: Scalar) -> set[Scalar]:
    return {part for part in _inside(scalar) if isinstance(part, Read)}


def _applied(case: Case) -> set[str]:
    parts = _inside(_defined(case))
    names = {part.function for part in parts if isinstance(part, Apply) and _reads(part.argument)}
    return {name for name in names if not name.startswith("cast_")}


def _defined(case: Case) -> Scalar:
    types = case.types
    return definition(case.op, types, [f"i{axis}" for axis in range(case.op.infer(types)[0].rank)])


def _multiplies(case: Case) -> bool:
    """Whether elements, or sums of them, are multiplied by something that depends on others."""

    def is_plain(scalar: Scalar) -> bool:
        return not any(isinstance(part, Apply) and _reads(part) for part in _inside(scalar))

    products = [part for part in _inside(_defined(case)) if isinstance(part, Times)]
    sides = [pair for part in products for pair in ((part.left, part.right), (part.right, part.left))]
    return any(is_plain(one) and _reads(one) and _reads(other) - _reads(one) for one, other in sides)


def _rounding(case: Case) -> Rounding:
    """How PyTorch's result differs from the definition in single precision, and whether of integers it is one."""

    def computed(dtype: torch.dtype, arrays: Sequence[Floats]) -> Floats:
        return case.torch(*(torch.tensor(array, dtype=dtype) for array in arrays)).double().numpy()

    draws = [_draw(case, seed) for seed in range(4)]
    if all(np.array_equal(computed(torch.float32, arrays), _run(case, arrays)) for arrays in draws):
        return Rounding.NEVER
    wholes = [[np.round(array * 3) + case.positive for array in arrays] for arrays in draws]
    found = [computed(torch.float64, arrays) for arrays in wholes]
    is_exact = all(np.array_equal(one, _run(case, arrays)) for one, arrays in zip(found, wholes, strict=True))
    is_whole = all(np.array_equal(one, np.round(one)) for one in found)
    return Rounding.BEYOND_INTEGERS if is_exact and is_whole else Rounding.ANY


def _facts(case: Case) -> _Facts:
    """The traits that show in one example, by name."""
    sources = [found for found in (_sources(case, seed) for seed in range(4)) if found is not None]
    moves = len(sources) == 4 and all(np.array_equal(found, sources[0]) for found in sources)
    accumulates = _adds_up(case)
    affine = [_is_affine(case, place) for place in range(len(case.shapes))]
    return {
        "is_elementwise": _is_elementwise(case),
        "is_movement": moves,
        "fills": moves and bool((sources[0] == -1).any()),
        "accumulates": accumulates,
        "multiplies": _multiplies(case),
        "is_contraction": accumulates and _multiplies(case) and all(affine),
        "applies": frozenset(_applied(case)),
        "rounding": _rounding(case),
    }


# -- an operator's traits from those of its examples

_ROUNDINGS = list(Rounding)
_EVERYWHERE = ("is_elementwise", "is_movement")
"""Traits of operators that show in every example; the others are traits if they show in one."""


def _joined(name: str, seen: Sequence[Any]) -> Any:
    if name == "applies":
        return frozenset[str]().union(*seen)
    if name == "rounding":
        return max(seen, key=_ROUNDINGS.index)
    return all(seen) if name in _EVERYWHERE else any(seen)


def disagreements(op: type[TensorOperator], cases: Sequence[Case]) -> list[str]:
    """The traits of an operator that are not as they show in examples of it."""
    facts = [_facts(case) for case in cases]
    found = {name: _joined(name, [fact[name] for fact in facts]) for name in facts[0]}
    return [f"{op.name}: {name} is {found[name]}" for name in found if getattr(op, name) != found[name]]


def _examples(op: type[TensorOperator]) -> list[Case]:
    return [case for case in EXAMPLES if isinstance(case.op, op)]


@pytest.mark.parametrize("op", DEFINED.values(), ids=DEFINED)
def test_traits_are_what_operators_do(op: type[TensorOperator]) -> None:
    assert disagreements(op, _examples(op)) == []


@pytest.mark.parametrize(
    ("op", "trait", "wrong"),
    [
        (Softmax, "is_elementwise", True),
        (BatchNorm, "is_elementwise", True),
        (Contiguous, "is_elementwise", False),
        (Max, "is_movement", True),
        (Relu, "is_movement", True),
        (Slice, "is_movement", False),
        (Pad, "fills", False),
        (Attention, "is_contraction", True),
        (Matmul, "is_contraction", False),
        (Softmax, "accumulates", True),
        (Mean, "accumulates", False),
        (Silu, "multiplies", True),
        (BatchNorm, "multiplies", False),
        (Gelu, "applies", frozenset({"erf"})),
        (Softmax, "applies", frozenset({"exp", "tanh"})),
        (Silu, "rounding", Rounding.NEVER),
        (Mean, "rounding", Rounding.BEYOND_INTEGERS),
        (Add, "rounding", Rounding.NEVER),
        (Sum, "rounding", Rounding.ANY),
        (Where, "rounding", Rounding.ANY),
        (Where, "is_movement", True),
        (Take, "is_movement", False),
        (Take, "is_elementwise", True),
        (Gather, "is_movement", False),
        (Greater, "is_elementwise", False),
    ],
)
def test_a_wrong_trait_is_found(op: type[TensorOperator], trait: str, wrong: Any) -> None:
    doctored = type(op.__name__, (op,), {trait: wrong})
    (found,) = disagreements(doctored, _examples(op))
    assert found.startswith(f"{op.name}: {trait} is ")


@pytest.mark.parametrize("op", DEFINED.values(), ids=DEFINED)
def test_of_commutative_operators_operands_may_be_exchanged(op: type[TensorOperator]) -> None:
    if op.arity != (2, 2) or op.reads_index:
        assert not op.commutative
        return
    a, b = (np.random.default_rng(seed).standard_normal((3, 3)) for seed in range(2))
    types = [TensorType(DType.BOOL if op.reads_truth else DType.F64, (3, 3))] * 2
    a, b = ((array > 0).astype(np.float64) if op.reads_truth else array for array in (a, b))
    first, second = (evaluate(op(), arrays, types, Domain.REAL) for arrays in ([a, b], [b, a]))
    assert op.commutative == np.array_equal(first, second)


def test_of_what_declares_nothing_nothing_is_taken_for_granted() -> None:
    names: list[Callable[..., Any] | Any] = [getattr(Constant, name) for name in vars(Traits) if name[0] != "_"]
    assert set(names) == {False, None, frozenset(), Rounding.ANY}
