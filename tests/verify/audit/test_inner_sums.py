"""What operators add up before they apply a function to it, as it follows from their definitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from taso_py.ir.types import DType, TensorType
from taso_py.ir.unify import STRICT, Unifier
from taso_py.ops.base import TensorOperator, plain_axis
from taso_py.ops.contraction import Matmul
from taso_py.ops.elementwise import Gelu
from taso_py.ops.evaluate import Floats
from taso_py.ops.normalization import Attention, LayerNorm, RmsNorm, Softmax
from taso_py.ops.reduction import Mean
from taso_py.ops.scalar import Apply, Index, Operand, Scalar, total
from verify.audit.inner_sums import inner_sums


def sums(op: TensorOperator, *arrays: Floats) -> list[Floats]:
    return inner_sums(op, arrays, [TensorType(DType.F64, array.shape) for array in arrays])


def drawn(*shape: int) -> Floats:
    return np.abs(np.random.default_rng(sum(shape)).standard_normal(shape))


@pytest.mark.parametrize("scale", [0.5, -3.0])
def test_attention_adds_up_its_scores(scale: float) -> None:
    q, k, v, mask = drawn(2, 3, 4), drawn(2, 5, 4), drawn(2, 5, 6), drawn(3, 5)
    products = q @ k.swapaxes(-1, -2)
    found = sums(Attention(scale=scale), q, k, v, mask)
    for wanted in (products, products * abs(scale) + mask):
        greatest = np.broadcast_to(wanted.max(-1, keepdims=True), (2, 3, 6))
        assert any(np.allclose(one, greatest) for one in found)


def test_causal_attention_leaves_out_what_it_does_not_see() -> None:
    q, k, v = drawn(3, 4), drawn(3, 4), drawn(3, 4)
    first = sums(Attention(causal=True), q, k, v)[0]
    assert np.allclose(first[0], (q[0] @ k[0]) / 2)


def test_normalizations_add_up_squares() -> None:
    x = drawn(2, 5)
    squares = np.broadcast_to((x * x).sum(-1, keepdims=True), x.shape)
    assert any(np.allclose(found, squares) for found in sums(RmsNorm(axes=1, eps=1e-5), x))
    from_mean = np.square(x + x.mean(-1, keepdims=True)).sum(-1, keepdims=True)
    assert any(np.allclose(found, np.broadcast_to(from_mean, x.shape)) for found in sums(LayerNorm(1, 1e-5), x))


def test_other_operators_apply_functions_to_elements_only() -> None:
    """Of the sum of a softmax, kernels keep the terms small."""
    assert sums(Softmax(), drawn(2, 3)) == sums(Gelu(), drawn(2, 3)) == sums(Mean((-1,)), drawn(2, 3)) == []
    assert sums(Matmul(), drawn(2, 3), drawn(3, 4)) == []


@dataclass(frozen=True)
class Energy(TensorOperator):
    """An operator that is in no list."""

    name = "energy"
    applies = frozenset({"exp"})

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        return (inputs[0],)

    def define(self, operands: Sequence[Operand], out: Index) -> Scalar:
        (x,) = operands
        return x(*out) * Apply("exp", total([plain_axis(x.type, -1)], lambda k: x(*out[:-1], k)))


def test_a_new_operator_cannot_be_forgotten() -> None:
    x = drawn(2, 3)
    assert all(np.allclose(found, x.sum(-1, keepdims=True)) for found in sums(Energy(), x))
    assert len(sums(Energy(), x)) == 2
