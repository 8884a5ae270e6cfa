"""Every operator of the table has a lowering, and it computes what the definition says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from taso_py.backend.lowering import LOWERED, lower, nested_module, variants
from taso_py.backend.run import call_now, run_graph
from taso_py.backend.schema import storage_of
from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.ir.errors import InvariantError
from taso_py.ir.node import make
from taso_py.ir.operator import Input, Ref
from taso_py.ir.types import DType, TensorType
from taso_py.ops.base import TensorOperator
from taso_py.ops.evaluate import Domain, evaluate_graph
from taso_py.ops.movement import Reshape, Slice
from taso_py.ops.nested import Nested
from taso_py.ops.opaque import Opaque
from taso_py.ops.table import DEFINED, parse_graph


def test_every_operator_has_a_lowering() -> None:
    assert set(DEFINED.values()) <= LOWERED


def test_operator_without_lowering_is_named() -> None:
    class Unknown(TensorOperator):
        name = "unknown"

        def infer(self, inputs: object, unifier: object = None) -> tuple[TensorType, ...]:
            return (TensorType(DType.F32, ()),)

    with pytest.raises(InvariantError, match="operator unknown has no lowering"):
        lower(call_now, make(Unknown()), [], torch.device("cpu"))


CASES = [
    "graph(x: f64[2,3], y: f64[3]) { return add(x, y), sub(y, x), mul(x, y), div(x, y) }",
    "graph(x: f64[2,3]) { c = constant{value=2.5, dtype=f64} return add(c, x), sub(c, x), sub(x, c), mul(c, x) }",
    "graph(x: f64[2,3]) { c = constant{value=2.5, dtype=f64} return div(c, x), div(x, c), add(c, c), mul(c, x) }",
    "graph(x: f64[3]) { a = constant{value=1.0, dtype=f64} b = constant{value=-1.0, dtype=f64}"
    " return div(a, x), mul(b, x) }",
    'graph(x: f64[2,3]) { return relu(x), sigmoid(x), tanh(x), exp(x), silu(x), gelu(x), gelu(x){approximate="tanh"} }',
    "graph(x: f64[2,3]) { return hardtanh(x), hardtanh(x){min_val=-0.5, max_val=0.25}, hardsigmoid(x), hardswish(x),"
    " leaky_relu(x), leaky_relu(x){negative_slope=0.25}, elu(x), elu(x){alpha=1.75, scale=1.5}, softplus(x),"
    " celu(x){alpha=0.75}, softplus(x){beta=2.5}, mish(x) }",
    "graph(x: f64[2,3], y: f64[3]) { c = constant{value=0.25, dtype=f64} return maximum(x, y), minimum(y, x),"
    " maximum(c, x), minimum(x, c), maximum(c, c), abs(x), log(exp(x)), log1p(abs(x)) }",
    "graph(x: f64[2,3,3]) { return pow(x){exponent=2}, pow(x){exponent=7}, diagonal(x), diagonal_matrix(x) }",
    "graph(c: bool[2,3], d: bool[3], x: f64[2,3], y: f64[3]) { k = constant{value=0.25, dtype=f64} return"
    " where(c, x, y), where(d, k, x), where(c, x, k), where(c, k, k), where(d, c, d), logical_and(c, d),"
    " logical_or(d, c), logical_not(c) }",
    "graph(x: f64[2,3], y: f64[3]) { k = constant{value=0.25, dtype=f64} return gt(x, y), ge(y, x), eq(x, x), ne(x, y),"
    " gt(x, k), gt(k, x), ge(x, k), ge(k, x), eq(k, x), ne(x, k), gt(k, k), where(gt(x, k), x, k) }",
    "graph(x: f64[2,3]) { c = constant{value=20.0, dtype=f64} return softplus(mul(x, c)), softplus(add(x, c)) }",
    "graph(x: f64[2,3]) { return rsqrt(exp(x)), sqrt(exp(x)), erf(x), sin(x), cos(x),"
    " cast(cast(x){dtype=f32}){dtype=f64} }",
    "graph(a: f64[2,3], b: f64[3,4]) { return matmul(a, b) }",
    "graph(a: f64[5,2,3], b: f64[5,3,4]) { return matmul(a, b) }",
    "graph(a: f64[5,1,2,3], b: f64[4,3,2]) { return matmul(a, b) }",
    "graph(x: f64[2,3], y: f64[3], z: f64[2,1]) { k = constant{value=0.25, dtype=f64} return addcmul(x, y, z),"
    " addcmul(z, y, x), addcmul(x, k, y), addcmul(y, x, k), addcmul(k, x, y), addcmul(k, k, y), addcmul(x, k, k) }",
    "graph(a: f64[2,3], b: f64[3,4], c: f64[4]) { return baddbmm(c, a, b), baddbmm(c, a, b){beta=0.5, alpha=2.0} }",
    "graph(a: f64[5,2,3], b: f64[5,3,4], c: f64[2,1]) { return baddbmm(c, a, b){alpha=-0.25}, baddbmm(c, a, b) }",
    "graph(x: f64[2,3,4]) { return vector_norm(x){axes=[-1]}, vector_norm(x){axes=[-3,-2], keepdim=true},"
    " vector_norm(x){axes=[-2], order=1}, vector_norm(x){axes=[-3,-2,-1]} }",
    "graph(x: f64[2,2,3], w: f64[4,3], b: f64[4]) { return linear(x, w), linear(x, w, b) }",
    "graph(x: f64[1,4,6,5], w: f64[6,2,3,1], b: f64[6]) {"
    " return conv2d(x, w, b){stride=[2,1], padding=[1,0], dilation=[1,2], groups=2}, conv2d(x, w){groups=2} }",
    "graph(x: f64[1,4,3,6,5], w: f64[6,2,2,3,1], b: f64[6]) { return conv3d(x, w, b){stride=[1,2,1], padding=[1,1,0],"
    " dilation=[2,1,2], groups=2}, conv3d(x, w){groups=2} }",
    "graph(x: f64[1,4,6,5], w: f64[4,3,3,1], b: f64[6]) { return conv_transpose2d(x, w){stride=[2,2], groups=2},"
    " conv_transpose2d(x, w, b){stride=[2,3], padding=[1,0], output_padding=[1,2], dilation=[1,2], groups=2} }",
    "graph(x: f64[1,2,7,6]) { return avg_pool2d(x){kernel=[3,2], stride=[2,1], padding=[1,0]},"
    " avg_pool2d(x){kernel=[3,2], stride=[2,1], padding=[1,1], count_include_pad=false} }",
    "graph(x: f64[1,2,7,6]) { return max_pool2d(x){kernel=[3,2], stride=[2,1], padding=[1,0], dilation=[1,2]},"
    " adaptive_avg_pool2d(x){size=[3,4]}, adaptive_avg_pool2d(x){size=[1,1]} }",
    "graph(x: f64[1,2,8,7]) { return max_pool2d(x){kernel=[3,2], stride=[2,2], padding=[1,0], ceil=true},"
    " max_pool2d(x){kernel=[2,2], stride=[3,3], dilation=[4,4], ceil=true},"
    " avg_pool2d(x){kernel=[3,2], stride=[2,2], padding=[1,0], ceil=true},"
    " avg_pool2d(x){kernel=[3,3], stride=[2,2], padding=[1,0], count_include_pad=false, ceil=true} }",
    "graph(x: f64[2,3,4], w: f64[3], b: f64[3], m: f64[3], v: f64[3]) {"
    " return batch_norm(x, w, b, m, exp(v)){eps=1e-5} }",
    "graph(x: f64[2,3,4], w: f64[3,4], b: f64[3,4]) { return layer_norm(x){axes=2, eps=1e-3},"
    " layer_norm(x, w){axes=2, eps=1e-3}, layer_norm(x, w, b){axes=2, eps=1e-3}, rms_norm(x){axes=1, eps=1e-3},"
    " rms_norm(x, w){axes=2, eps=1e-3} }",
    "graph(x: f64[2,6,4,5], w: f64[6], b: f64[6]) { return group_norm(x){groups=2, eps=1e-3},"
    " group_norm(x, w){groups=6, eps=1e-3}, group_norm(x, w, b){groups=1, eps=1e-5}, instance_norm(x){eps=1e-3},"
    " instance_norm(x, w){eps=1e-3}, instance_norm(x, w, b){eps=1e-5} }",
    "graph(x: f64[2,6,4], w: f64[6], b: f64[6]) { return group_norm(x, w, b){groups=3, eps=1e-3},"
    " instance_norm(x, w, b){eps=1e-3} }",
    "graph(x: f64[2,3,4]) { return softmax(x), softmax(x){axis=-2} }",
    "graph(q: f64[2,3,4], k: f64[2,5,4], v: f64[2,5,6], m: f64[3,5]) {"
    " return attention(q, k, v), attention(q, k, v, m){scale=0.3} }",
    "graph(q: f64[2,3,4]) { return attention(q, q, q){causal=true} }",
    "graph(x: f64[2,3,4]) { return sum(x){axes=[-2]}, mean(x){axes=[-3,-1], keepdim=true}, max(x){axes=[-3,-2,-1]} }",
    "graph(x: f64[2,3,4]) { return cumsum(x){axis=-1}, cumsum(x){axis=-3} }",
    "graph(x: f64[2,3], y: f64[2,1]) { return concat(x, y){axis=-1}, slice(x){axis=-1, start=1, stop=3},"
    " slice(x){axis=-1, start=0, stop=3, step=2} }",
    "graph(x: f64[2,3,4]) { return flip(x){axes=[-1]}, flip(x){axes=[-3,-2]} }",
    "graph(x: f64[2,3,4]) { return permute(x){order=[-1,-2]}, permute(x){order=[-1,-3,-2]}, reshape(x){shape=[6,4]} }",
    "graph(x: f64[2,1,3,1]) { return reshape(x){shape=[2,3]}, reshape(x){shape=[2,1,3]}, reshape(x){shape=[2,1,1,3,1]},"
    " expand(x){shape=[4,2,5,3,2]}, contiguous(x) }",
    "graph(t: f64[2,3], u: f64[4,2,3], i: i64[3], j: i32[2,2]) { return take(t, i){axis=-2}, take(t, j){axis=-2},"
    " take(t, i){axis=-1}, take(u, i){axis=-2}, take(u, j){axis=-2}, take(u, j){axis=-1, wraps=1} }",
    "graph(x: f64[2,3], i: i64[2,5], j: i64[4,3]) { return gather(x, i){axis=-1}, gather(x, j){axis=-2} }",
    "graph(x: f64[2,3,4,5]) { return upsample_nearest2d(x){factors=[2,3]}, upsample_nearest2d(x){factors=[1,16]},"
    " upsample_nearest2d(x){factors=[1,1]}, upsample_nearest2d(x){factors=[41,2]} }",
    "graph(x: f64[2,3,4,5]) { return upsample_bilinear2d(x){factors=[2,3]}, upsample_bilinear2d(x){factors=[1,8]},"
    " upsample_bilinear2d(x){factors=[3,1], align_corners=true}, upsample_bilinear2d(x){factors=[1,1]} }",
    "graph(x: f64[2,3,1,1]) { return upsample_nearest2d(x){factors=[41,7]} }",
    "graph(x: f64[2,3,2,1]) { return pad(x){widths=[[1,0],[0,2]], value=3.0}, pad(x){widths=[[0,1]]},"
    " enlarge(x){kernel=[4,5]} }",
]


@pytest.mark.parametrize("text", CASES)
def test_agrees_with_the_definition(text: str) -> None:
    graph = parse_graph(text)
    generator = np.random.default_rng(0)
    arrays = {
        node.op.key: generator.normal(size=node.types[0].sizes) for node in graph.inputs if isinstance(node.op, Input)
    }
    types = {node.op.key: node.op.type for node in graph.inputs if isinstance(node.op, Input)}
    truths = {key for key, type_ in types.items() if not type_.dtype.is_floating}  # zero and one are integers too
    arrays = {key: (array > 0).astype(np.float64) if key in truths else array for key, array in arrays.items()}
    expected = evaluate_graph(graph, arrays, Domain.REAL)
    tensors = {key: torch.from_numpy(array) for key, array in arrays.items()}
    found = run_graph(graph, [tensor.to(TORCH_DTYPES[types[key].dtype]) for key, tensor in tensors.items()])
    for left, right in zip(expected, found, strict=True):
        np.testing.assert_allclose(right.double().numpy(), left, rtol=1e-9, atol=1e-12)


def test_softplus_loses_no_digits_where_it_becomes_its_operand() -> None:
    for text, roundings in (("f64", 4e-16), ("f32", 2e-7)):
        graph = parse_graph(f"graph(x: {text}[5]) {{ return softplus(x), softplus(x){{beta=0.5}} }}")
        x = torch.tensor([18.0, 21.0, 30.0, 39.0, 85.0], dtype=torch.float64)
        found = run_graph(graph, [x.to(TORCH_DTYPES[DType(text)])])
        for beta, result in zip((1.0, 0.5), found, strict=True):
            expected = x + torch.log1p(torch.exp(-beta * x)) / beta
            torch.testing.assert_close(result.double(), expected, rtol=roundings, atol=0.0)


def test_all_operators_are_among_the_cases() -> None:
    used = {node.op.name for text in CASES for node in parse_graph(text).nodes}
    assert set(DEFINED) <= used


def test_variants_differ_in_layout_only() -> None:
    x = make(Input("x", TensorType(DType.F32, (1, 3, 1, 4)))).value
    node = make(Reshape((1, 3, 4)), [x])
    tensor = torch.arange(12.0).view(1, 3, 1, 4)
    results = [lower(call_now, node, [tensor], torch.device("cpu"), variant)[0] for variant in variants(node)]
    assert len(results) == 2
    assert all(torch.equal(result, tensor.view(1, 3, 4)) for result in results)


def test_selection_drops_the_axis_that_was_cut() -> None:
    """The strides of the one that stays are kept, of two axes of size 1."""
    x = make(Input("x", TensorType(DType.F32, (1, 3, 4)))).value
    cut = make(Slice(-2, 0, 1), [x])
    node = make(Reshape((1, 4)), [cut.value])
    (result,) = lower(call_now, node, [torch.ones(1, 3, 4)[:, 0:1]], torch.device("cpu"))
    assert result.stride() == (12, 1)


def test_a_new_axis_has_the_strides_of_a_reshape_or_of_an_unsqueeze() -> None:
    x = make(Input("x", TensorType(DType.F32, (3,)))).value
    node, column = make(Reshape((3, 1)), [x]), torch.arange(12.0).view(3, 4)[:, 1]
    results = [lower(call_now, node, [column], torch.device("cpu"), variant)[0] for variant in variants(node)]
    assert [result.stride() for result in results] == [(4, 4), (4, 1)]
    assert all(torch.equal(result, column.view(3, 1)) for result in results)


@pytest.mark.parametrize(
    ("returned", "copies"),
    [
        ("x, reshape(x){shape=[12]}", [True, True]),
        ("relu(x), permute(x){order=[-1,-2]}", [False, True]),
        ("v, slice(v){axis=-1, start=0, stop=2}, tanh(v)", [False, True, False]),
    ],
)
def test_results_of_a_nested_graph_share_no_memory(returned: str, copies: list[bool]) -> None:
    graph = parse_graph(f"graph(x: f32[3,4]) {{ v = relu(x)\n return {returned} }}")
    text = Nested("tuple", (None,) * len(copies), graph).text
    x = torch.arange(12.0).view(3, 4)
    apart, plain = (nested_module(text, torch.device("cpu"), is_apart=is_apart) for is_apart in (True, False))
    (end,) = (node for node in apart.graph.nodes if node.op == "output")
    assert [result.target is torch.ops.aten.clone.default for result in end.args[0]] == copies
    for one, other in zip(apart(x), plain(x), strict=True):
        assert torch.equal(one, other)
    assert len({storage_of(tensor) for tensor in (x, *apart(x))}) == 1 + len(copies)
    assert len({storage_of(tensor) for tensor in (x, *plain(x))}) < 1 + len(copies)


def test_control_flow_is_given_no_operand_twice() -> None:
    """PyTorch exports none that shares memory with another."""
    graph = parse_graph("graph(a: f32[3], b: f32[3], c: f32[3]) { return sub(add(b, c), a) }")
    x, y = (make(Input(name, TensorType(DType.F32, shape))).value for name, shape in (("x", (2, 3)), ("y", (3,))))
    arguments = (Nested("tuple", ((0,),), graph).text, (Ref(0),), (Ref(1), Ref(2)))
    node = make(Opaque("higher_order.map_impl", arguments, (x.type,), is_pure=False), [x, y, y], 0)
    copied: list[Tensor] = []

    def call(overload: Any, *operands: Any, **keywords: Any) -> Any:
        if overload is torch.ops.aten.clone.default:
            copied.append(operands[0])
        return call_now(overload, *operands, **keywords)

    tensor, row = torch.ones(2, 3), torch.arange(3.0)
    (result,) = lower(call, node, [tensor, row, row], torch.device("cpu"))
    assert torch.equal(result, (2 * row - 1).expand(2, 3))
    assert len(copied) == 1
    assert copied[0] is row
