"""Definitions agree with PyTorch over the reals, and are exact and deterministic over integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from taso_py.ir.errors import InvariantError, ShapeError
from taso_py.ir.operator import Constant, Operator
from taso_py.ir.size import symbol
from taso_py.ir.types import DType, Group, TensorType
from taso_py.ops.choice import (
    Equal,
    Greater,
    GreaterEqual,
    LogicalAnd,
    LogicalNot,
    LogicalOr,
    NotEqual,
    Where,
)
from taso_py.ops.contraction import Baddbmm, Conv2d, Conv3d, ConvTranspose2d, Linear, Matmul
from taso_py.ops.elementwise import (
    Abs,
    Add,
    Addcmul,
    Cast,
    Celu,
    Cos,
    Div,
    Elu,
    Erf,
    Exp,
    Gelu,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyRelu,
    Log,
    Log1p,
    Maximum,
    Minimum,
    Mish,
    Mul,
    Pow,
    Relu,
    Rsqrt,
    Sigmoid,
    Silu,
    Sin,
    Softplus,
    Sqrt,
    Sub,
    Tanh,
)
from taso_py.ops.evaluate import Domain, Floats, evaluate, evaluate_graph
from taso_py.ops.movement import (
    Concat,
    Contiguous,
    Diagonal,
    DiagonalMatrix,
    Enlarge,
    Expand,
    Flip,
    Pad,
    Permute,
    Reshape,
    Slice,
    UpsampleNearest2d,
)
from taso_py.ops.normalization import Attention, BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RmsNorm, Softmax
from taso_py.ops.opaque import Opaque
from taso_py.ops.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from taso_py.ops.reduction import Cumsum, Max, Mean, Sum, VectorNorm
from taso_py.ops.resizing import UpsampleBilinear2d
from taso_py.ops.selection import Gather, Take
from taso_py.ops.table import DEFINED, parse_graph


class Case(NamedTuple):
    op: Operator
    shapes: Sequence[tuple[int, ...]]
    torch: Callable[..., torch.Tensor]
    positive: bool = False
    dtype: DType = DType.F64
    truths: Sequence[int] = ()
    """The operands that are truth values."""
    whole: bool = False
    """Whether it is tried with whole numbers, of which some are equal."""
    rows: int = 0
    """How many rows the last operand chooses among, if it is a tensor of integers."""

    @property
    def types(self) -> list[TensorType]:
        last = len(self.shapes) - 1
        dtypes = (
            DType.BOOL if place in self.truths else DType.I64 if self.rows and place == last else self.dtype
            for place in range(len(self.shapes))
        )
        return [TensorType(dtype, shape) for dtype, shape in zip(dtypes, self.shapes, strict=True)]

    def truly(self, arrays: Sequence[Floats]) -> list[Floats]:
        """Numbers as the operands are tried with: truth values are 1 where the number is positive, else 0.

        Integers that choose rows do not depend on the numbers.
        """
        arrays = [np.asarray(np.round(array)) for array in arrays] if self.whole else arrays
        if self.rows:
            least = -self.rows if getattr(self.op, "wraps", 0) else 0
            chosen = np.arange(arrays[-1].size) * 3 % (self.rows - least) + least
            arrays = [*arrays[:-1], chosen.reshape(arrays[-1].shape).astype(np.float64)]
        return [(array > 0).astype(np.float64) if place in self.truths else array for place, array in enumerate(arrays)]


def _enlarged(w: torch.Tensor) -> torch.Tensor:
    return F.pad(w, (1, 1, 2, 2))


MASK = np.array([[True, False, True, True], [True, True, False, True], [False, True, True, True]])


def _between(x: torch.Tensor, align_corners: bool) -> torch.Tensor:
    return F.interpolate(x, scale_factor=(2.0, 3.0), mode="bilinear", align_corners=align_corners)


CASES = [
    Case(Add(), [(2, 3), (3,)], torch.add),
    Case(Mul(), [(2, 1, 4), (3, 1)], torch.mul),
    Case(Sub(), [(2, 3), ()], torch.sub),
    Case(Div(), [(2, 3), (2, 3)], torch.div),
    Case(Addcmul(), [(2, 1, 4), (3, 1), (2, 3, 4)], torch.addcmul),
    Case(Addcmul(), [(3,), (2, 3), (2, 3)], torch.addcmul),
    Case(Maximum(), [(2, 3), (3,)], torch.maximum),
    Case(Minimum(), [(2, 1, 4), (3, 1)], torch.minimum),
    Case(Where(), [(2, 1, 4), (3, 1), (4,)], lambda c, x, y: torch.where(c > 0, x, y), truths=(0,)),
    Case(Where(), [(3,), (2, 3), ()], lambda c, x, y: torch.where(c > 0, x, y), truths=(0,)),
    Case(Greater(), [(2, 3), (3,)], torch.gt, whole=True),
    Case(GreaterEqual(), [(2, 1, 4), (3, 1)], torch.ge, whole=True),
    Case(Equal(), [(2, 3), (2, 3)], torch.eq, whole=True),
    Case(NotEqual(), [(2, 3), ()], torch.ne, whole=True),
    Case(LogicalAnd(), [(2, 3), (3,)], torch.logical_and, truths=(0, 1)),
    Case(LogicalOr(), [(2, 1, 4), (3, 1)], torch.logical_or, truths=(0, 1)),
    Case(LogicalNot(), [(2, 3)], torch.logical_not, truths=(0,)),
    Case(Relu(), [(5, 3)], torch.relu),
    Case(Sigmoid(), [(5, 3)], torch.sigmoid),
    Case(Tanh(), [(5, 3)], torch.tanh),
    Case(Exp(), [(5, 3)], torch.exp),
    Case(Erf(), [(5, 3)], torch.erf),
    Case(Sin(), [(5, 3)], torch.sin),
    Case(Cos(), [(5, 3)], torch.cos),
    Case(Log(), [(5, 3)], torch.log, positive=True),
    Case(Log1p(), [(5, 3)], torch.log1p, positive=True),
    Case(Abs(), [(5, 3)], torch.abs),
    Case(Sqrt(), [(5, 3)], torch.sqrt, positive=True),
    Case(Rsqrt(), [(5, 3)], torch.rsqrt, positive=True),
    Case(Silu(), [(5, 3)], F.silu),
    Case(Gelu(), [(5, 3)], F.gelu),
    Case(Gelu(approximate="tanh"), [(5, 3)], lambda x: F.gelu(x, approximate="tanh")),
    Case(Hardtanh(), [(5, 3)], F.hardtanh),
    Case(Hardtanh(-0.5, 0.25), [(5, 3)], lambda x: F.hardtanh(x, -0.5, 0.25)),
    Case(Hardsigmoid(), [(5, 3)], F.hardsigmoid),
    Case(Hardswish(), [(5, 3)], F.hardswish),
    Case(LeakyRelu(), [(5, 3)], F.leaky_relu),
    Case(LeakyRelu(0.25), [(5, 3)], lambda x: F.leaky_relu(x, 0.25)),
    Case(Elu(), [(5, 3)], F.elu),
    Case(Celu(0.75), [(5, 3)], lambda x: F.celu(x, 0.75)),
    Case(Elu(1.75, 1.5), [(5, 3)], lambda x: torch.ops.aten.elu.default(x, 1.75, 1.5)),
    Case(Softplus(), [(5, 3)], F.softplus),
    Case(Softplus(2.5), [(5, 3)], lambda x: F.softplus(x, 2.5)),
    Case(Mish(), [(5, 3)], F.mish),
    Case(Pow(5), [(5, 3)], lambda x: x**5),
    Case(Cast(DType.F16), [(5, 3)], lambda x: x.to(torch.float16).double()),
    Case(Cast(DType.BF16), [(5, 3)], lambda x: x.to(torch.bfloat16).double(), dtype=DType.F32),
    Case(Cast(DType.I32), [(5, 3)], lambda x: (x * 4).to(torch.int32).double(), dtype=DType.F32),
    Case(Matmul(), [(2, 3), (3, 4)], torch.matmul),
    Case(Matmul(), [(2, 1, 2, 3), (5, 3, 4)], torch.matmul),
    Case(Matmul(), [(2, 3), (5, 3, 4)], torch.matmul),
    Case(Baddbmm(), [(4,), (2, 3), (3, 4)], torch.addmm),
    Case(
        Baddbmm(0.5, 2.0),
        [(2, 1, 4), (2, 3, 5), (2, 5, 4)],
        lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2.0),
    ),
    Case(Linear(), [(2, 3, 4), (5, 4)], F.linear),
    Case(Linear(), [(3, 4), (5, 4), (5,)], F.linear),
    Case(Conv2d(), [(2, 3, 4, 5), (6, 3, 1, 1)], F.conv2d),
    Case(
        Conv3d((2, 1, 2), (1, 0, 1), (1, 2, 1), 2),
        [(2, 4, 3, 5, 4), (6, 2, 2, 2, 3), (6,)],
        lambda x, w, b: F.conv3d(x, w, b, (2, 1, 2), (1, 0, 1), (1, 2, 1), 2),
    ),
    Case(ConvTranspose2d(), [(2, 3, 4, 5), (3, 6, 2, 3), (6,)], F.conv_transpose2d),
    Case(
        ConvTranspose2d((2, 3), (1, 2), (1, 0), (2, 1), groups=2),
        [(2, 4, 3, 5), (4, 3, 3, 2), (6,)],
        lambda x, w, b: F.conv_transpose2d(x, w, b, (2, 3), (1, 2), (1, 0), 2, (2, 1)),
    ),
    Case(
        Conv2d(stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2),
        [(2, 4, 6, 7), (6, 2, 3, 2), (6,)],
        lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 2), (1, 2), 2),
    ),
    Case(AvgPool2d((3, 2), (2, 1), (1, 1)), [(2, 3, 6, 5)], lambda x: F.avg_pool2d(x, (3, 2), (2, 1), (1, 1))),
    Case(
        AvgPool2d((3, 3), (2, 2), (1, 1), count_include_pad=False),
        [(2, 3, 6, 5)],
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    ),
    Case(
        MaxPool2d((3, 2), (2, 1), (1, 1), (1, 2)),
        [(2, 3, 6, 5)],
        lambda x: F.max_pool2d(x, (3, 2), (2, 1), (1, 1), (1, 2)),
    ),
    Case(MaxPool2d((2, 3), (2, 2), ceil=True), [(2, 3, 5, 4)], lambda x: F.max_pool2d(x, (2, 3), 2, ceil_mode=True)),
    Case(
        AvgPool2d((3, 3), (2, 2), (1, 0), ceil=True),
        [(2, 3, 6, 4)],
        lambda x: F.avg_pool2d(x, 3, 2, (1, 0), ceil_mode=True),
    ),
    Case(AdaptiveAvgPool2d((3, 2)), [(2, 3, 7, 5)], lambda x: F.adaptive_avg_pool2d(x, (3, 2))),
    Case(AdaptiveAvgPool2d((1, 1)), [(2, 3, 7, 5)], lambda x: F.adaptive_avg_pool2d(x, 1)),
    Case(
        BatchNorm(1e-3),
        [(2, 3, 4), (3,), (3,), (3,), (3,)],
        lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, eps=1e-3),
        positive=True,
    ),
    Case(LayerNorm(2, 1e-5), [(2, 3, 4), (3, 4), (3, 4)], lambda x, w, b: F.layer_norm(x, (3, 4), w, b)),
    Case(LayerNorm(1, 1e-5), [(2, 3, 4)], lambda x: F.layer_norm(x, (4,))),
    Case(RmsNorm(1, 1e-6), [(2, 3, 4), (4,)], lambda x, w: F.rms_norm(x, (4,), w, 1e-6)),
    Case(GroupNorm(2, 1e-5), [(2, 6, 3, 2), (6,), (6,)], lambda x, w, b: F.group_norm(x, 2, w, b)),
    Case(GroupNorm(1, 1e-3), [(2, 4, 3)], lambda x: F.group_norm(x, 1, eps=1e-3)),
    Case(InstanceNorm(1e-5), [(2, 3, 4, 2), (3,), (3,)], lambda x, w, b: F.instance_norm(x, weight=w, bias=b)),
    Case(InstanceNorm(1e-3), [(2, 3, 4)], lambda x: F.instance_norm(x, eps=1e-3)),
    Case(Softmax(-2), [(2, 3, 4)], lambda x: F.softmax(x, -2)),
    Case(Attention(), [(2, 3, 4), (2, 5, 4), (2, 5, 6)], F.scaled_dot_product_attention),
    Case(
        Attention(scale=0.5, causal=True),
        [(2, 3, 4), (2, 3, 4), (2, 3, 6)],
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.5),
    ),
    Case(Attention(), [(2, 3, 4), (2, 5, 4), (2, 5, 6), (3, 5)], F.scaled_dot_product_attention),
    Case(Concat(-2), [(2, 1, 3), (2, 4, 3), (2, 2, 3)], lambda *x: torch.cat(x, -2)),
    Case(Slice(-1, 1, 6, 2), [(2, 7)], lambda x: x[:, 1:6:2]),
    Case(Flip((-3, -1)), [(2, 3, 4)], lambda x: x.flip(0, 2)),
    Case(Diagonal(), [(2, 3, 3)], lambda x: torch.diagonal(x, dim1=-2, dim2=-1)),
    Case(DiagonalMatrix(), [(2, 3)], torch.diag_embed),
    Case(Permute((-1, -3, -2)), [(2, 3, 4, 5)], lambda x: x.permute(0, 3, 1, 2)),
    Case(Reshape((2, 6, 2, 5)), [(4, 3, 10)], lambda x: x.reshape(2, 6, 2, 5)),
    Case(Expand((3, 2, 4)), [(2, 1)], lambda x: x.expand(3, 2, 4)),
    Case(UpsampleNearest2d((2, 3)), [(2, 3, 4, 5)], lambda x: F.interpolate(x, scale_factor=(2.0, 3.0))),
    Case(UpsampleBilinear2d((2, 3)), [(2, 3, 4, 2)], lambda x: _between(x, False)),
    Case(UpsampleBilinear2d((2, 3), align_corners=True), [(2, 3, 4, 2)], lambda x: _between(x, True)),
    Case(Pad(((1, 0), (2, 3))), [(2, 3, 4)], lambda x: F.pad(x, (2, 3, 1, 0))),
    Case(Pad(((1, 2),), 1.5), [(2, 3)], lambda x: F.pad(x, (1, 2), value=1.5)),
    Case(Enlarge((5, 3)), [(2, 3, 1, 1)], _enlarged),
    Case(Contiguous(), [(2, 3)], torch.clone),
    Case(Take(-2), [(5, 3), (2, 4)], lambda t, i: F.embedding(i.long(), t), rows=5),
    Case(Take(-2, 1), [(2, 5, 3), (4,)], lambda t, i: t[:, i.long()], rows=5),
    Case(Gather(-1), [(2, 3, 5), (2, 3, 4)], lambda x, i: x.gather(-1, i.long()), rows=5),
    Case(Gather(-2), [(5, 3), (7, 3)], lambda x, i: x.gather(-2, i.long()), rows=5),
    Case(Take(-1, 1), [(5,), ()], lambda t, i: t[i.long()], rows=5),
    Case(Sum((-3, -1)), [(2, 3, 4)], lambda x: x.sum((-3, -1))),
    Case(Mean((-2,), keepdim=True), [(2, 3, 4)], lambda x: x.mean(-2, keepdim=True)),
    Case(Max((-2, -1)), [(2, 3, 4)], lambda x: x.amax((-2, -1))),
    Case(Cumsum(-2), [(2, 3, 4)], lambda x: x.cumsum(-2)),
    Case(VectorNorm((-3, -1), keepdim=True), [(2, 3, 4)], lambda x: torch.linalg.vector_norm(x, 2, (-3, -1), True)),
    Case(VectorNorm((-2,), order=1), [(2, 3, 4)], lambda x: torch.linalg.vector_norm(x, 1, -2)),
]


def _operands(case: Case, generator: np.random.Generator, batch: int) -> list[Floats]:
    arrays = [generator.standard_normal((batch, *shape)) for shape in case.shapes]
    if isinstance(case.op, Cast) and not case.op.dtype.is_floating:
        arrays = [array * 4 for array in arrays]
    if case.positive:
        arrays = [np.abs(array) + 0.5 for array in arrays]
    return case.truly([array.astype(np.float32).astype(np.float64) for array in arrays])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.op.text)
def test_definitions_agree_with_pytorch(case: Case) -> None:
    arrays = _operands(case, np.random.default_rng(0), batch=2)
    found = evaluate(case.op, arrays, case.types, Domain.REAL)
    scale = 0.25 if isinstance(case.op, Cast) and not case.op.dtype.is_floating else 1.0
    for sample in range(2):
        expected = case.torch(*(torch.tensor(array[sample] * scale) for array in arrays))
        np.testing.assert_allclose(found[sample], expected.numpy(), rtol=1e-12, atol=1e-12)


def test_every_defined_operator_is_compared() -> None:
    assert {case.op.name for case in CASES} == set(DEFINED)


def test_a_boolean_mask_removes_keys() -> None:
    generator = np.random.default_rng(1)
    q, k, v = (generator.standard_normal(shape) for shape in [(3, 2), (4, 2), (4, 5)])
    types = [TensorType(DType.F64, array.shape) for array in (q, k, v)] + [TensorType(DType.BOOL, MASK.shape)]
    found = evaluate(Attention(), [q, k, v, MASK.astype(np.float64)], types, Domain.REAL)
    first, second, third = (torch.tensor(array[None]) for array in (q, k, v))
    expected = F.scaled_dot_product_attention(first, second, third, torch.tensor(MASK))
    np.testing.assert_allclose(found, expected[0].numpy(), rtol=1e-12)


def test_ties_and_what_is_no_number() -> None:
    one, other = np.array([1.0, 2.0, 2.0, np.nan, 3.0]), np.array([2.0, 2.0, 1.0, 1.0, np.nan])
    types = [TensorType(DType.F64, (5,))] * 2
    cases = [(Greater(), [0, 0, 1]), (GreaterEqual(), [0, 1, 1]), (Equal(), [0, 1, 0]), (NotEqual(), [1, 0, 1])]
    for op, expected in cases:
        found = evaluate(op, [one, other], types, Domain.REAL)
        assert found[:3].tolist() == expected
        assert np.isnan(found[3:]).all()  # unlike in floating point: a definition is about real numbers


def test_what_is_not_chosen_need_not_be_defined() -> None:
    truth, x = np.array([1.0, 0.0]), np.array([2.0, np.inf])
    types = [TensorType(DType.BOOL, (2,)), *[TensorType(DType.F64, (2,))] * 2]
    assert evaluate(Where(), [truth, x, np.array([np.nan, 3.0])], types, Domain.REAL).tolist() == [2, 3]


def test_truth_values_and_numbers_are_kept_apart() -> None:
    truth, number, complex_ = (TensorType(dtype, (2,)) for dtype in (DType.BOOL, DType.F32, DType.C64))
    for op, types in (
        (Where(), [number, number, number]),
        (Where(), [truth, number, TensorType(DType.F64, (2,))]),
        (Where(), [truth, complex_, complex_]),
        (Where(), [truth, number]),
        (Greater(), [truth, truth]),
        (Equal(), [complex_, complex_]),
        (Greater(), [number, truth]),
        (LogicalAnd(), [number, number]),
        (LogicalNot(), [number]),
    ):
        with pytest.raises(ShapeError):
            op.infer(types)


def test_integers_choose_rows_and_nothing_else_does() -> None:
    table, number, mask = (TensorType(dtype, (5, 3)) for dtype in (DType.F32, DType.F32, DType.U8))
    index = TensorType(DType.I32, (2, 4))
    assert Take(-2).infer([table, index]) == (TensorType(DType.F32, (2, 4, 3)),)
    for op, types in ((Take(-2), [table, number]), (Take(-2), [table, mask]), (Take(-3), [table, index])):
        with pytest.raises(ShapeError):
            op.infer(types)
    with pytest.raises(ValueError, match="wraps is 0 or 1"):
        Take(-2, 2)


def test_gather_refuses_what_is_not_one_place_for_each_element() -> None:
    x, index = TensorType(DType.F32, (2, 5, 3)), TensorType(DType.I64, (2, 4, 3))
    assert Gather(-2).infer([x, index]) == (TensorType(DType.F32, (2, 4, 3)),)
    wrong = (TensorType(DType.F32, (2, 4, 3)), TensorType(DType.I64, (2, 4)), TensorType(DType.I64, (1, 4, 3)))
    for other in wrong:
        with pytest.raises(ShapeError):
            Gather(-2).infer([x, other])
    group = Group("B")
    grouped = TensorType(DType.FLOAT, (group, 5)), TensorType(DType.INT, (group, 4))
    assert Gather(-1).infer(grouped)[0].text == "float[..B,4]"


def test_the_rows_of_axis_groups_come_first() -> None:
    group = TensorType(DType.INT, (Group("J"),))
    assert Take(-2).infer([TensorType(DType.FLOAT, (5, 3)), group])[0].text == "float[..J,3]"
    for table in ((2, 5, 3), (Group("B"), 5, 3)):
        with pytest.raises(ShapeError, match="behind another axis"):
            Take(-2).infer([TensorType(DType.FLOAT, table), group])


def _exact(op: Operator, *arrays: Any) -> Floats:
    values = [np.asarray(array, dtype=np.float64) for array in arrays]
    return evaluate(op, values, [TensorType(DType.FLOAT, array.shape) for array in values], Domain.EXACT)


def test_the_exact_domain_has_the_true_relu_and_maximum() -> None:
    assert _exact(Relu(), [-3, 0, 5]).tolist() == [0, 0, 5]
    assert _exact(Max((-1,)), [[-3, -7], [2, 5]]).tolist() == [-3, 5]
    assert _exact(MaxPool2d((2, 2), (1, 1), (1, 1)), [[[[-4.0]]]]).tolist() == [[[[-4, -4], [-4, -4]]]]


def test_other_functions_are_small_integers_that_differ_by_name() -> None:
    x = np.arange(-50, 50)
    images = {op.name: _exact(op, x) for op in (Tanh(), Exp(), Erf(), Sqrt())}
    for image in images.values():
        assert set(np.unique(image)) == {-4, -3, -2, -1, 1, 2, 3, 4}
    assert len({image.tobytes() for image in images.values()}) == len(images)
    np.testing.assert_array_equal(_exact(Tanh(), x), images["tanh"])


def test_a_sigmoid_is_what_it_is_written_with_in_the_exact_domain() -> None:
    x = np.arange(-50, 50)
    beneath = 1 + _exact(Exp(), -x)
    quotient = evaluate(Div(), [np.ones_like(beneath), beneath], [TensorType(DType.F64, x.shape)] * 2, Domain.EXACT)
    np.testing.assert_array_equal(_exact(Sigmoid(), x), quotient)


def test_a_half_is_one_over_two_in_the_exact_domain() -> None:
    scalar = TensorType(DType.F64, ())
    for power in (2.0, 8.0, 64.0):
        part = evaluate(Constant(1 / power, DType.F64), [], [], Domain.EXACT)
        quotient = evaluate(Div(), [np.ones(()), np.full((), power)], [scalar] * 2, Domain.EXACT)
        assert part == quotient > 9
        assert evaluate(Constant(-1 / power, DType.F64), [], [], Domain.EXACT) == -quotient


def test_reciprocals_keep_signs_in_the_exact_domain() -> None:
    x = np.array([-7.0, -1.0, 1.0, 7.0])
    quotients = evaluate(Div(), [np.ones_like(x), x], [TensorType(DType.F64, x.shape)] * 2, Domain.EXACT)
    np.testing.assert_array_equal(np.sign(quotients), np.sign(x))
    np.testing.assert_array_equal(quotients, -quotients[::-1])


def test_an_inverse_root_is_one_over_the_root_in_the_exact_domain() -> None:
    x = np.arange(-50, 50)
    root = _exact(Sqrt(), x)
    types = [TensorType(DType.F64, x.shape)] * 2
    quotient = evaluate(Div(), [np.ones_like(root), root], types, Domain.EXACT)
    np.testing.assert_array_equal(_exact(Rsqrt(), x), quotient)
    assert len(np.unique(quotient)) > 2


def test_an_average_is_not_a_sum_in_the_exact_domain() -> None:
    x = np.ones((1, 1, 3, 3))
    average = _exact(AvgPool2d((3, 3), (1, 1)), x)
    assert average.item() % 9 == 0
    assert average.item() not in (1, 9)
    half = _exact(Constant(0.5, DType.FLOAT))
    assert half.item() == int(half.item()) != 0


def test_values_too_large_to_be_exact_are_nan() -> None:
    found = _exact(Mul(), [2.0**30, 2.0**20], [2.0**30, 2.0**20])
    assert np.isnan(found[0])
    assert found[1] == 2.0**40
    assert np.isnan(_exact(Sigmoid(), found)[0])


def test_empty_operands() -> None:
    assert _exact(Concat(-1), np.zeros((2, 0)), [[1], [2]]).tolist() == [[1], [2]]
    assert _exact(Matmul(), np.zeros((2, 0)), np.zeros((0, 1))).tolist() == [[0], [0]]
    for before, after in (
        ((0, 3, 4), (0,)),
        ((0, 2), (2, 0)),
        ((2, 3, 0), (0,)),
        ((0,), (5, 0, 2)),
        ((2, 0, 3), (0, 7)),
    ):
        assert _exact(Reshape(after), np.zeros(before)).shape == after


def test_batch_axes_broadcast() -> None:
    generator = np.random.default_rng(2)
    a, b = generator.standard_normal((4, 1, 2, 3)), generator.standard_normal((5, 3, 2))
    types = [TensorType(DType.FLOAT, (2, 3)), TensorType(DType.FLOAT, (3, 2))]
    np.testing.assert_allclose(evaluate(Matmul(), [a, b], types, Domain.REAL), a @ b, rtol=1e-12)


def test_graphs() -> None:
    graph = parse_graph("""graph(x: f32[2,3], y: f32[2,3]) {
      w = weight{key="w", type=f32[3,2]}
      v = matmul(relu(x), w)
      return add(v, constant{value=1.0, dtype=f32}), v
    }""")
    generator = np.random.default_rng(3)
    x, w = generator.standard_normal((7, 2, 3)), generator.standard_normal((3, 2))
    shifted, product = evaluate_graph(graph, {"x": x, "w": w}, Domain.REAL)
    np.testing.assert_allclose(product, np.maximum(x, 0) @ w, rtol=1e-12)
    np.testing.assert_allclose(shifted, product + 1, rtol=1e-12)
    with pytest.raises(InvariantError, match="no value is given"):
        evaluate_graph(graph, {"x": x}, Domain.REAL)


def test_what_cannot_be_evaluated_says_why() -> None:
    x = TensorType(DType.F32, (2,))
    with pytest.raises(InvariantError, match="no definition"):
        evaluate(Opaque("aten.cumsum.default", (), (x,)), [np.ones(2)], [x], Domain.REAL)
    types = [TensorType(DType.F32, (2, 3)), *[TensorType(DType.F32, (3,))] * 4]
    with pytest.raises(InvariantError, match="the size E has no value"):
        evaluate(BatchNorm(symbol("E")), [np.ones(t.sizes) for t in types], types, Domain.REAL)
