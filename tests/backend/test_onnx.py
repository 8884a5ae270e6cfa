"""Every operator of the table has a row in the lowering to ONNX, and engines compute with it what PyTorch does."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from taso_py.backend.onnx import LOWERED_TO_ONNX, NotInOnnx, onnx_bytes, onnx_model, save, with_weights
from taso_py.backend.onnx.movement import padded
from taso_py.backend.onnx.table import ROWS
from taso_py.backend.run import run_graph
from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.ir.graph import Graph
from taso_py.ir.node import make
from taso_py.ir.operator import Input, Ref, Weight
from taso_py.ir.types import DType, TensorType
from taso_py.ops.base import TensorOperator
from taso_py.ops.elementwise import Add
from taso_py.ops.movement import Pad
from taso_py.ops.opaque import Opaque
from taso_py.ops.pooling import AvgPool2d
from taso_py.ops.table import DEFINED, parse_graph
from tests.backend.onnx_engines import ENGINES, run_onnx
from tests.backend.test_lowering import CASES

onnx: Any = pytest.importorskip("onnx")

engines = pytest.mark.parametrize("engine", ENGINES)

MORE = [
    "graph(x: f64[3,7]) { return rsqrt(add(mul(x, x), constant{value=0.5, dtype=f64})) }",
    "graph(x: f64[2,3,12,8]) { return adaptive_avg_pool2d(x){size=[3,4]}, adaptive_avg_pool2d(x){size=[12,8]} }",
    "graph(x: f64[2,3,5], w: f64[4,5], b: f64[4]) { return linear(x, w, b), linear(x, w) }",
    "graph(x: f64[5], w: f64[4,5], b: f64[4]) { return linear(x, w, b) }",
    "graph(q: f64[2,2,3,4], k: f64[2,2,5,4], v: f64[2,2,5,6]) { return attention(q, k, v){causal=true} }",
    "graph(q: f64[2,2,6,4], k: f64[2,2,5,4], v: f64[2,2,5,6]) { return attention(q, k, v){causal=true, scale=0.7} }",
    "graph(x: f64[2,3]) { return x, x, relu(x), relu(x), constant{value=1.5, dtype=f64} }",
    "graph(x: f64[0,3]) { return reshape(x){shape=[3,0]}, relu(x) }",
    "graph(x: f64[4,6]) { return permute(slice(x){axis=-2, start=1, stop=4, step=2}){order=[-1,-2]} }",
    "graph(x: f64[2,3], unused: f64[7]) { return cast(x){dtype=i32}, cast(x){dtype=bool}, cast(x){dtype=i64} }",
]


def operands(graph: Graph, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made: list[Tensor] = []
    for node in graph.inputs:
        dtype = TORCH_DTYPES[node.types[0].dtype]
        numbers = torch.randn(node.types[0].sizes, generator=generator, dtype=torch.float64)
        made.append(numbers.to(dtype) if dtype.is_floating_point else (numbers > 0).to(dtype))
    return made


def assert_like_pytorch(engine: str, text: str, rtol: float = 2e-5) -> None:
    graph = parse_graph(text)
    inputs = operands(graph)
    expected = run_graph(graph, inputs)
    found = run_onnx(engine, graph, inputs)
    for before, after in zip(expected, found, strict=True):
        assert before.dtype == after.dtype
        assert before.shape == after.shape
        torch.testing.assert_close(after, before, rtol=rtol, atol=rtol)


@engines
@pytest.mark.parametrize("text", [*CASES, *MORE])
def test_engines_compute_what_pytorch_does(engine: str, text: str) -> None:
    assert_like_pytorch(engine, text.replace("f64", "f32"))


def _names(text: str) -> set[str]:
    return set(re.findall(r"\w+(?=\()", text)) & set(DEFINED)


def test_every_operator_is_compared() -> None:
    assert set().union(*map(_names, [*CASES, *MORE])) == set(DEFINED)
    assert set(DEFINED.values()) <= LOWERED_TO_ONNX


@engines
@pytest.mark.parametrize("text", CASES)
def test_engines_compute_half_precision(engine: str, text: str) -> None:
    graph = parse_graph(text.replace("f64", "f16"))
    inputs = operands(graph)
    for before, after in zip(run_graph(graph, inputs), run_onnx(engine, graph, inputs), strict=True):
        assert before.dtype == after.dtype
        scale = before.abs().max().item() if before.is_floating_point() else 0
        torch.testing.assert_close(after, before, rtol=0, atol=max(1, scale) * 4 * torch.finfo(torch.float16).eps)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "f64"])
@pytest.mark.parametrize("text", [*CASES, *MORE])
def test_operators_accept_the_types_they_are_given(dtype: str, text: str) -> None:
    content = onnx_bytes(onnx_model(parse_graph(text.replace("f64", dtype)), {}))
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)


def test_a_type_that_an_operator_does_not_accept_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = parse_graph("graph(x: bf16[1,1,4,4]) { return max_pool2d(x){kernel=[2,2], stride=[2,2]} }")
    monkeypatch.setattr("taso_py.backend.onnx.model.BF16_OPSET", 20)
    model = onnx.load_from_string(onnx_bytes(onnx_model(graph, {})))
    with pytest.raises(onnx.shape_inference.InferenceError, match="bfloat16"):
        onnx.checker.check_model(model, full_check=True)


@engines
def test_a_number_beyond_half_precision_is_computed_with(engine: str) -> None:
    graph = parse_graph("graph(x: f16[3]) { return mul(x, constant{value=1000000.0, dtype=f16}) }")
    assert run_onnx(engine, graph, [torch.full((3,), 1e-3, dtype=torch.float16)])[0].allclose(
        torch.full((3,), 1000.0, dtype=torch.float16), rtol=2e-3
    )


def test_a_wrong_row_is_caught() -> None:
    def ignores_count_include_pad(w: Any, op: Any, node: Any, operands: Any) -> Any:
        return ROWS[AvgPool2d](w, replace(op, count_include_pad=True), node, operands)

    graph = parse_graph(
        "graph(x: f32[1,2,6,6]) { return avg_pool2d(x){kernel=[3,3], stride=[2,2], padding=[1,1],"
        " count_include_pad=false} }"
    )
    inputs = operands(graph)
    (expected,) = run_graph(graph, inputs)
    for rows, agrees in ((ROWS, True), ({**ROWS, AvgPool2d: ignores_count_include_pad}, False)):
        content = onnx_bytes(onnx_model(graph, {}, rows=rows))
        (found,) = ENGINES["onnxruntime"](content, {"x": inputs[0].numpy()})
        assert torch.allclose(torch.as_tensor(found), expected, rtol=1e-5) == agrees


MASKED = "graph(q: f32[2,3,4], k: f32[2,5,4], v: f32[2,5,6], m: {0}[3,5]) {{ return attention(q, k, v, m) }}"


@engines
@pytest.mark.parametrize("dtype", ["bool", "f32"])
def test_rows_that_see_no_key_are_zero(engine: str, dtype: str) -> None:
    graph = parse_graph(MASKED.format(dtype))
    *operands_, _ = operands(graph)
    seen = torch.ones(3, 5, dtype=torch.bool)
    seen[0, 2:] = seen[1] = False
    mask = seen if dtype == "bool" else torch.zeros(3, 5).masked_fill(~seen, -torch.inf)
    (found,) = run_onnx(engine, graph, [*operands_, mask])
    torch.testing.assert_close(found, run_graph(graph, [*operands_, mask])[0])
    assert not found[:, 1].any()


def test_a_mask_among_the_weights_is_looked_at() -> None:
    text = 'graph(q: f32[2,3,4]) { m = weight{key="m", type=bool[3,3]} return attention(q, q, q, m) }'
    for held, guarded in ((torch.ones(3, 3).tril() > 0, False), (torch.ones(3, 3) < 0, True)):
        model = onnx_model(parse_graph(text), {"m": held})
        assert ("ReduceMax" in [node.op_type for node in model.graph]) == guarded


WEIGHTS = """graph(x: f32[2,3,4]) {
  w = weight{key="a.w", type=f32[4,4]}
  u = weight{key="a.u", type=f32[4,4]}
  y = linear(x, w)
  return linear(y, w), linear(y, u), u
}"""


@engines
def test_weights_are_initializers_that_are_shared(engine: str) -> None:
    graph = parse_graph(WEIGHTS)
    weights = {key: torch.randn(4, 4, generator=torch.Generator().manual_seed(0)) for key in ("a.w", "a.u")}
    model = onnx_model(graph, weights)
    # What is read one way only is stored that way.
    assert set(model.graph.initializers) == {"a.w.T", "a.u"}
    held: Any = model.graph.initializers["a.u"].const_value
    assert held.raw.data_ptr() == weights["a.u"].data_ptr()
    inputs = operands(graph)
    for before, after in zip(run_graph(graph, inputs, weights), run_onnx(engine, graph, inputs, weights), strict=True):
        torch.testing.assert_close(after, before)


@engines
def test_what_was_not_folded_is_computed(engine: str) -> None:
    graph = parse_graph("""graph(x: f32[3]) {
      w = weight{key="w", type=f32[3]}
      o = opaque(w){target="aten.erfinv.default", arguments=[$0], types=[f32[3]]}
      return add(x, mul(o, w))
    }""")
    weights = {"w": torch.tensor([0.1, 0.2, -0.3])}
    (found,) = run_onnx(engine, graph, [torch.ones(3)], weights)
    torch.testing.assert_close(found, run_graph(graph, [torch.ones(3)], weights)[0])


def test_names_are_plain_and_unique() -> None:
    keys = ("args.0", "args_0", "output_0")
    inputs = [make(Input(key, TensorType(DType.F32, (3,)))) for key in keys]
    total = make(Add(), [inputs[0].value, inputs[1].value]).value
    graph = Graph(tuple(inputs), (make(Add(), [total, inputs[2].value]).value,))
    model = onnx_model(graph, {})
    assert [value.name for value in model.graph.inputs] == ["args_0", "args_0.2", "output_0"]
    assert [value.name for value in model.graph.outputs] == ["output_0.2"]
    names = [value.name for value in onnx_model(graph, {}, input_names=["a", "b", "c"]).graph.inputs]
    assert names == ["a", "b", "c"]
    digests = {node.digest[:16] for node in graph.nodes}
    assert {str(node.name).split(".")[1] for node in model.graph} <= digests


def test_weights_may_lie_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = parse_graph('graph(x: f32[300]) { return add(x, weight{key="w", type=f32[300]}) }')
    weights = {"w": torch.arange(300.0)}
    path = tmp_path / "model.onnx"
    save(onnx_model(graph, weights), path, "model.onnx.data")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": torch.ones(300).numpy()})
    torch.testing.assert_close(torch.as_tensor(found), weights["w"] + 1)
    (whole,) = runtime.InferenceSession(onnx_bytes(with_weights(path))).run(None, {"x": torch.ones(300).numpy()})
    assert (whole == found).all()
    monkeypatch.setattr("taso_py.backend.onnx.model.MOST_BYTES", 1000)
    with pytest.raises(NotInOnnx, match="GB of weights"):
        onnx_bytes(onnx_model(graph, weights))


POOLED = [
    "max_pool2d(p){kernel=[3,3], stride=[2,2]}",
    "max_pool2d(p){kernel=[3,3], stride=[2,2], padding=[1,1]}",
    "avg_pool2d(p){kernel=[1,1], stride=[2,2], count_include_pad=false}",
    "avg_pool2d(p){kernel=[3,3], stride=[2,2], padding=[1,1], count_include_pad=false}",
    "conv2d(p, w){stride=[2,2], padding=[1,1]}",
]


@engines
@pytest.mark.parametrize("reader", POOLED)
@pytest.mark.parametrize("widths", ["[[1,1],[1,1]]", "[[2,3],[3,2]]", "[[0,1],[1,0]]"])
def test_zeros_around_an_image_stay_zeros(engine: str, reader: str, widths: str) -> None:
    graph = parse_graph(f"graph(x: f32[1,2,8,8], w: f32[3,2,3,3]) {{ p = pad(x){{widths={widths}}} return {reader} }}")
    # So that a zero is the greatest number in windows at the border.
    inputs = [tensor - 3 for tensor in operands(graph)]
    torch.testing.assert_close(run_onnx(engine, graph, inputs), run_graph(graph, inputs), rtol=2e-5, atol=2e-5)


def test_padding_that_a_pooling_may_swallow_is_caught() -> None:
    graph = parse_graph(
        "graph(x: f32[1,2,8,8]) { p = pad(x){widths=[[1,1],[1,1]]} return max_pool2d(p){kernel=[3,3], stride=[2,2]} }"
    )

    def without_axes(w: Any, op: Any, node: Any, given: Any) -> Any:
        return padded(w, given[0], node.types[0], (1, 1), (1, 1), 0.0, may_fuse=True)

    x = torch.full((1, 2, 8, 8), -3.0)
    found = [
        ENGINES["onnxruntime"](onnx_bytes(onnx_model(graph, {}, rows=rows)), {"x": x.numpy()})[0]
        for rows in (ROWS, {**ROWS, Pad: without_axes})
    ]
    assert (found[0] == run_graph(graph, [x])[0].numpy()).all()
    assert (found[1] != found[0]).any(), "ONNX Runtime fuses it rightly now; the axes are no longer needed"


class Unknown(TensorOperator):
    name = "unknown"

    def infer(self, inputs: object, unifier: object = None) -> tuple[TensorType, ...]:
        return (TensorType(DType.F32, (3,)),)


X = make(Input("x", TensorType(DType.F32, (3,)))).value
COMPLEX = make(Input("z", TensorType(DType.C64, (3,)))).value
BUFFER = make(Weight("b", TensorType(DType.F32, (3,)), mutable=True)).value
DRAW = make(Opaque("aten.rand_like.default", (Ref(0),), (X.type,), is_pure=False), [X], 0)
REFUSED = [
    (Graph((X.node,), (make(Unknown(), [X]).value,)), "operator unknown has no row"),
    (
        Graph((X.node,), (make(Opaque("aten.erfinv.default", (Ref(0),), (X.type,)), [X]).value,)),
        "aten.erfinv.default has no row",
    ),
    (Graph((X.node,), (DRAW.value,), (DRAW,)), "aten.rand_like.default has an effect"),
    (Graph((X.node,), (make(Add(), [X, BUFFER]).value,)), "writes to its buffer b"),
    (Graph((COMPLEX.node,), (COMPLEX,)), "element type c64"),
]


@pytest.mark.parametrize(("graph", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_what_has_no_form_is_named(graph: Graph, why: str) -> None:
    with pytest.raises(NotInOnnx, match=why):
        onnx_model(graph, {"b": torch.ones(3)})


@pytest.mark.parametrize(
    "text",
    [
        "layer_norm(x, a, b){axes=1, eps=0.1}",
        "layer_norm(x){axes=1, eps=0.1}",
        "rms_norm(x, a){axes=1, eps=0.1}",
        "batch_norm(x, a, b, c, d){eps=0.1}",
        'gelu(x){approximate="tanh"}',
    ],
)
def test_double_precision_is_kept(text: str) -> None:
    """Attributes are in single precision, and ONNX Runtime forgets the epsilon of an RMS norm of doubles."""
    graph = parse_graph(f"graph(x: f64[4,8], a: f64[8], b: f64[8], c: f64[8], d: f64[8]) {{ return {text} }}")
    x, *parameters = operands(graph)
    weights = {name: tensor.abs() for name, tensor in zip("abcd", parameters, strict=True)}
    stored = {
        node.value: make(Weight(name, node.types[0])).value for name, node in zip("abcd", graph.inputs[1:], strict=True)
    }
    folded = Graph(graph.inputs[:1], graph.replace(stored).outputs)
    expected = run_graph(folded, [x], weights)
    torch.testing.assert_close(run_onnx("onnxruntime", folded, [x], weights), expected, rtol=1e-13, atol=1e-15)
