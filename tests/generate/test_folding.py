"""Weights are solved for and expressed in the source's weights; the candidates are proved for every size."""

from __future__ import annotations

import numpy as np
import pytest

from taso_py.generate.fingerprint import samples
from taso_py.generate.folding import fold
from taso_py.generate.settle import Settler
from taso_py.generate.vocabulary import Folding
from taso_py.ir.graph import Graph, topological
from taso_py.ir.operator import Input
from taso_py.ops.contraction import Conv2d, Linear
from taso_py.ops.elementwise import Add, Mul, Relu
from taso_py.ops.evaluate import Domain, evaluate_graph
from taso_py.ops.normalization import BatchNorm
from verify import prove

CHANNELS = ((2,),) * 4
LINEAR = Folding("linear", Linear(), (7, 3), (2, 3), ((BatchNorm(0.25), CHANNELS), (Mul(), ((2,),)), (Add(), ((),))))
CONV = Folding("conv", Conv2d(padding=(1, 1)), (3, 3, 4, 5), (2, 3, 3, 3), ((BatchNorm(0.25), CHANNELS),))


def _statements(folding: Folding) -> list[str]:
    settler = Settler(prove, 0)
    rules = [rule for found in fold(folding, 0) for rule in settler.settle(found.left, found.right, found.data)]
    return [" ".join(rule.statement.split()) for rule in rules]


def test_batch_normalisation_after_a_convolution_is_folded_at_every_size() -> None:
    without_bias, with_bias = _statements(CONV)
    assert "source batch_norm(conv2d(a, b){stride=[H,I], padding=[J,K], dilation=[L,M]}" in without_bias
    assert "eps=N" in without_bias
    assert "constant{value=N, dtype=float}" in without_bias
    assert "target" in with_bias
    assert "batch_norm" not in with_bias.split("target")[1]


def test_groups_divide_the_channels_and_the_features() -> None:
    grouped = Folding("grouped", Conv2d(groups=2), (5, 6, 2, 3), (4, 3, 2, 2), ((Mul(), ((4, 1, 1),)),))
    for statement in _statements(grouped):
        assert "groups=B" in statement
        assert "b: float[B*F,C,G,H]" in statement or "c: float[A*B,D,G,H]" in statement


def test_what_follows_a_linear_layer() -> None:
    found = _statements(LINEAR)
    assert any("source mul(" in text and "target linear(a, mul(" in text and "reshape(" in text for text in found)
    # A number that is added to all features is no bias vector over the weights there are.
    assert not any("source add(" in text and "float[]" in text and "linear(a, b)" in text for text in found)


@pytest.mark.parametrize("folding", [LINEAR, CONV], ids=lambda folding: folding.name)
def test_candidates_agree_on_other_samples(folding: Folding) -> None:
    for candidate in fold(folding, 0):
        nodes = topological(value.node for value in (*candidate.left, *candidate.right))
        inputs = tuple(node for node in nodes if isinstance(node.op, Input))
        values = {op.key: samples(99, op.key, op.type.sizes) for op in (n.op for n in inputs) if isinstance(op, Input)}
        left, right = (
            evaluate_graph(Graph(inputs, side), values, Domain.EXACT)[0] for side in (candidate.left, candidate.right)
        )
        np.testing.assert_array_equal(left, right)
        assert candidate.one_way


def test_what_is_not_affine_has_no_weights() -> None:
    assert list(fold(Folding("relu", Linear(), (7, 3), (2, 3), ((Relu(), ()),)), 0)) == []
