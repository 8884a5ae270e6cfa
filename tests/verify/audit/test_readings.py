"""Operators that read their operands here and elsewhere, as it follows from their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from taso_py.ir.types import DType, TensorType
from taso_py.ops.base import TensorOperator
from taso_py.ops.evaluate import Domain, Floats, evaluate
from taso_py.ops.normalization import Attention, InstanceNorm, LayerNorm, Softmax
from verify.audit.readings import read_twice

EPS = 0.25


def drawn(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape)


def types(*arrays: Floats) -> list[TensorType]:
    return [TensorType(DType.F64, array.shape) for array in arrays]


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        (LayerNorm(1, EPS), [(2, 5), (5,), (5,)]),
        (InstanceNorm(EPS), [(2, 3, 4, 5)]),
        (Softmax(), [(2, 5)]),
        (Attention(), [(3, 4), (5, 4), (5, 6)]),
    ],
)
def test_operands_that_are_read_alike_give_the_operator_itself(
    op: TensorOperator, shapes: list[tuple[int, ...]]
) -> None:
    arrays = [drawn(*shape, seed=number) for number, shape in enumerate(shapes)]
    itself = evaluate(op, arrays, types(*arrays), Domain.REAL)
    assert np.allclose(read_twice(op, arrays, arrays, types(*arrays)), itself)
    others = [array + 1e-3 * drawn(*array.shape, seed=9) for array in arrays]
    assert not np.allclose(read_twice(op, arrays, others, types(*arrays)), itself)


def test_a_single_element_is_not_its_own_mean() -> None:
    here, elsewhere = np.array([[3.5]]), np.array([[3.0]])
    assert np.allclose(read_twice(LayerNorm(1, EPS), [here], [elsewhere], types(here)), 0.5 / EPS**0.5)
