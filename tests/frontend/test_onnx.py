"""ONNX models, read into PyTorch, compute what ONNX Runtime does with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from taso_py.backend import build
from taso_py.backend.tracing import quiet
from taso_py.engines.onnxruntime import OnnxRuntime
from taso_py.engines.session import OnnxModel
from taso_py.frontend import ImportRefusal, import_module
from taso_py.frontend.onnx import OnnxFile, read_onnx
from taso_py.frontend.onnx.call import OnnxCall, Row
from taso_py.frontend.onnx.table import ROWS

onnx: Any = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx_ir")


@dataclass(frozen=True)
class Case:
    """A model in ONNX's own text."""

    inputs: str
    body: str
    weights: str = ""
    opset: int = 20
    results: str = "float[] y"
    others: str = ""
    """Versions of further operator sets."""

    @property
    def text(self) -> str:
        weights = f"<{self.weights}>" if self.weights else ""
        head = f'<ir_version: 8, opset_import: ["" : {self.opset}{self.others and ", " + self.others}]>'
        return f"{head} model ({self.inputs}) => ({self.results}) {weights} {{ {self.body} }}"


def write(path: Path, case: Case) -> OnnxFile:
    path.write_bytes(onnx.parser.parse_model(case.text).SerializeToString())
    return read_onnx(path)


def random_inputs(file: OnnxFile, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors: list[Tensor] = []
    for argument in file.inputs:
        shape = [size for size in argument.shape if isinstance(size, int)]
        if argument.dtype.is_floating_point:
            tensors.append(torch.randn(shape, generator=generator, dtype=argument.dtype))
        else:
            tensors.append(torch.randint(0, 2, shape, generator=generator).to(argument.dtype))
    return tensors


def assert_computes(file: OnnxFile, run: Callable[..., Any]) -> None:
    """Other inputs than those that the model was read with show what was taken for a constant."""
    session = OnnxRuntime().compile(OnnxModel(file.content, tuple(argument.name for argument in file.inputs)))
    for seed in (1, 2):
        inputs = random_inputs(file, seed)
        found = run(*inputs)
        for want, got in zip(session(*inputs), [found] if isinstance(found, Tensor) else found, strict=True):
            assert got.dtype == want.dtype
            torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5, equal_nan=True)


def assert_reads(file: OnnxFile, rows: Mapping[str, Row] = ROWS) -> None:
    assert_computes(file, file.module(random_inputs(file, 0), rows))


X = "float[2,3,4] x"
IMAGE = "float[2,4,7,9] x"
CASES = {
    "squeeze": Case("float[2,1,3,1] x", "a = Constant<value_ints = [1, -1]>() y = Squeeze(x, a)", opset=13),
    "squeeze all": Case("float[2,1,3,1] x", "y = Squeeze(x)", opset=13),
    "unsqueeze": Case(X, "y = Unsqueeze(x, a)", "int64[2] a = {0, -1}", opset=13),
    "mean, axes as attribute": Case(X, "y = ReduceMean<axes = [1, -1], keepdims = 0>(x)", opset=13),
    "mean, axes as operand": Case(X, "y = ReduceMean(x, a)", "int64[1] a = {1}", opset=18),
    "mean of all": Case(X, "y = ReduceMean(x)", opset=13),
    "sum": Case(X, "y = ReduceSum<keepdims = 0>(x, a)", "int64[1] a = {-2}", opset=13),
    "product": Case(X, "y = ReduceProd<axes = [0, 2], keepdims = 0>(x)", opset=13),
    "reductions": Case(
        X,
        "a = ReduceMax<axes = [1]>(x) b = ReduceMin<axes = [1]>(x) c = ReduceL1<axes = [1]>(x)"
        " d = ReduceL2<axes = [1]>(x) e = ReduceSumSquare<axes = [1]>(x) f = ReduceLogSumExp<axes = [1]>(x)"
        " y = Concat<axis = 1>(a, b, c, d, e, f)",
        opset=13,
    ),
    "clip": Case(X, "y = Clip(x, low, high)", "float low = {-0.5}, float high = {0.25}", opset=13),
    "clip below": Case(X, "y = Clip(x, low)", "float low = {-0.5}", opset=13),
    "clip above": Case(X, "y = Clip(x, , high)", "float high = {0.5}", opset=13),
    "clip by inputs": Case(f"{X}, float low", "y = Clip(x, low)", opset=13),
    "gemm": Case(
        "float[4,3] x",
        "y = Gemm<alpha = 0.5, beta = 2.0, transA = 1>(x, w, c)",
        "float[4,2] w = {1, 2, 3, 4, -1, -2, -3, -4}, float[2] c = {5, 6}",
        opset=13,
    ),
    "gemm as linear": Case("float[4,3] x, float[2,3] w, float[2] c", "y = Gemm<transB = 1>(x, w, c)", opset=13),
    "gemm, bias by rows": Case("float[4,3] x, float[2,3] w, float[4,1] c", "y = Gemm<transB = 1>(x, w, c)", opset=13),
    "dropout": Case(X, "y = Dropout(x, r, t)", "float r = {0.5}, bool t = {0}", opset=13),
    "number before": Case(X, "a = Sub(one, x) b = Div(one, a) y = Pow(b, two)", "float one = {1}, float two = {2}"),
    "number of rank 1": Case("float x", "y = Mul(x, w)", "float[1] w = {3}"),
    "integer division": Case(
        "int64[6] x",
        "a = Sub(x, three) b = Mul(a, a) c = Neg(b) y = Div(c, two)",
        "int64 three = {3}, int64 two = {2}",
        results="int64[] y",
    ),
    "slice": Case(X, "y = Slice(x, s, e, a)", "int64[2] s = {1, -3}, int64[2] e = {9, -1}, int64[2] a = {1, 2}"),
    "slice, backwards": Case(
        X, "y = Slice(x, s, e, a, t)", "int64[1] s = {-1}, int64[1] e = {-99}, int64[1] a = {2}, int64[1] t = {-2}"
    ),
    "slice to nothing": Case(X, "y = Slice(x, s, e, a)", "int64[1] s = {3}, int64[1] e = {1}, int64[1] a = {2}"),
    "split by sizes": Case(
        X, "a, b = Split<axis = 2>(x, s) y = Concat<axis = -1>(b, a)", "int64[2] s = {1, 3}", opset=13
    ),
    "split evenly": Case(X, "a, b = Split<axis = -1>(x) y = Sub(a, b)", opset=13),
    "split by count": Case("float[5] x", "a, b = Split<num_outputs = 2>(x) y = Concat<axis = 0>(b, a)", opset=18),
    "reshape to a computed shape": Case(
        X,
        "s = Shape(x) b = Slice(s, zero, one) m = Constant<value_ints = [-1]>() t = Concat<axis = 0>(b, m)"
        " y = Reshape(x, t)",
        "int64[1] zero = {0}, int64[1] one = {1}",
    ),
    "reshape, kept sizes": Case(X, "y = Reshape(x, s)", "int64[3] s = {0, 2, -1}"),
    "flatten": Case(X, "y = Flatten<axis = -1>(x)"),
    "transpose": Case(X, "y = Transpose(x)"),
    "expand": Case("float[3,1] x", "y = Expand(x, s)", "int64[3] s = {2, 1, 4}"),
    "tile": Case(X, "y = Tile(x, s)", "int64[3] s = {1, 2, 2}"),
    "pad": Case(X, "y = Pad(x, p, v)", "int64[6] p = {0, 1, 0, 1, 0, -1}, float v = {2.5}", opset=13),
    "pad, some axes": Case(X, "y = Pad(x, p, , a)", "int64[2] p = {1, 2}, int64[1] a = {-1}", opset=18),
    "pad by reflection": Case(IMAGE, 'y = Pad<mode = "reflect">(x, p)', "int64[8] p = {0, 0, 1, 2, 0, 0, 3, 0}"),
    "gather one": Case(X, "y = Gather<axis = 1>(x, i)", "int64 i = {-1}"),
    "gather": Case(f"{X}, int64[5] i", "n = Neg(i) y = Gather<axis = -1>(x, n)"),
    "gather elements": Case("float[2,3] x, int64[2,2] i", "n = Neg(i) y = GatherElements<axis = 1>(x, n)"),
    "cast": Case(X, "a = Cast<to = 7>(x) y = Cast<to = 1>(a)"),
    "compare": Case(X, "a = Greater(x, z) y = Not(a)", "float z = {0}", results="bool[] y"),
    "where": Case(f"{X}, bool[2,1,4] c", "y = Where(c, x, z)", "float z = {-7}"),
    "range": Case(X, "r = Range(a, b, c) y = Add(x, r)", "float a = {0}, float b = {4}, float c = {1}"),
    "trilu": Case(X, "y = Trilu<upper = 0>(x, k)", "int64 k = {-1}"),
    "top": Case(X, "y, i = TopK<axis = -1>(x, k)", "int64[1] k = {2}", results="float[] y, int64[] i"),
    "largest place": Case(X, "y = ArgMax<axis = 1, keepdims = 0>(x)", results="int64[] y"),
    "cumulative sum": Case(X, "y = CumSum(x, a)", "int64 a = {-1}"),
    "hard sigmoid": Case(X, "a = HardSigmoid(x) b = HardSigmoid<alpha = 0.16666667>(x) y = Sub(a, b)"),
    "hard swish": Case(X, "y = HardSwish(x)"),
    "gelu": Case(X, 'a = Gelu(x) b = Gelu<approximate = "tanh">(x) y = Concat<axis = 0>(a, b)'),
    "units": Case(X, "a = Elu<alpha = 0.5>(x) b = LeakyRelu<alpha = 0.2>(x) c = PRelu(x, s) y = Sum(a, b, c)",
                  "float[4] s = {0.1, 0.2, 0.3, 0.4}"),
    "softmax": Case(X, "a = Softmax(x) b = LogSoftmax<axis = 1>(x) y = Add(a, b)", opset=13),
    "layer normalization": Case(
        X, "y = LayerNormalization<axis = -1, epsilon = 0.1>(x, w, b)",
        "float[4] w = {1, 2, 3, 4}, float[4] b = {4, 3, 2, 1}", opset=17,
    ),
    "layer normalization, scale broadcast": Case(
        X, "y = LayerNormalization<axis = 1>(x, w)", "float[4] w = {1, 2, 3, 4}", opset=17
    ),
    "batch normalization": Case(
        "float[2,2,5] x", "y = BatchNormalization<epsilon = 0.1>(x, w, b, m, v)",
        "float[2] w = {1, 2}, float[2] b = {3, 4}, float[2] m = {0.5, -0.5}, float[2] v = {1, 4}", opset=15,
    ),
    "instance normalization": Case(
        "float[2,2,5] x", "y = InstanceNormalization(x, w, b)", "float[2] w = {1, 2}, float[2] b = {3, 4}"
    ),
    "convolution, uneven padding": Case(
        f"{IMAGE}, float[6,2,3,2] w, float[6] b",
        "y = Conv<group = 2, pads = [1, 0, 2, 1], strides = [2, 1], dilations = [1, 2]>(x, w, b)",
    ),
    "convolution, automatic padding": Case(
        f"{IMAGE}, float[6,4,3,2] w",
        'a = Conv<auto_pad = "SAME_UPPER", strides = [2, 2]>(x, w)'
        ' b = Conv<auto_pad = "SAME_LOWER", strides = [2, 2]>(x, w) y = Sub(a, b)',
    ),
    "transposed convolution": Case(
        f"{IMAGE}, float[4,3,3,3] w",
        "y = ConvTranspose<strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 0], group = 2>(x, w)",
    ),
    "max pooling": Case(IMAGE, "y = MaxPool<kernel_shape = [3, 2], pads = [0, 0, 1, 1], strides = [2, 2]>(x)"),
    "max pooling, sizes rounded up": Case(
        IMAGE, "y = MaxPool<kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1>(x)"
    ),
    "average pooling": Case(
        IMAGE,
        "a = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x)"
        " b = AveragePool<kernel_shape = [3, 3], pads = [0, 1, 2, 1], count_include_pad = 1>(x) y = Sub(a, b)",
    ),
    "global pooling": Case(IMAGE, "a = GlobalAveragePool(x) b = GlobalMaxPool(x) y = Sub(a, b)"),
    "depth to space": Case(IMAGE, 'a = DepthToSpace<blocksize = 2>(x) b = DepthToSpace<blocksize = 2, mode = "CRD">(x)'
                           " y = Concat<axis = 1>(a, b)"),
    "space to depth": Case("float[2,3,4,6] x", "y = SpaceToDepth<blocksize = 2>(x)"),
    "resize": Case(
        IMAGE,
        'a = Resize<mode = "linear">(x, , s) b = Resize<mode = "nearest", nearest_mode = "floor",'
        ' coordinate_transformation_mode = "asymmetric">(x, , s) y = Sub(a, b)',
        "float[4] s = {1, 1, 2, 2}",
    ),
    "einsum": Case(X, 'y = Einsum<equation = "bij,bkj->bik">(x, x)'),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_operators_compute_what_onnx_runtime_does(name: str, tmp_path: Path) -> None:
    assert_reads(write(tmp_path / "model.onnx", CASES[name]))


def test_a_row_that_computes_something_else_is_seen(tmp_path: Path) -> None:
    def doctored(call: OnnxCall) -> Tensor:
        return torch.clamp(call.tensor(), call.number(1), call.number(2) + 1e-3)

    file = write(tmp_path / "model.onnx", CASES["clip"])
    with pytest.raises(AssertionError, match="not close"):
        assert_reads(file, {**ROWS, "Clip": doctored})


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)
        self.last = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = nn.functional.hardswish(self.norm(self.first(x)))
        return self.last(y.mean((2, 3))), nn.functional.max_pool2d(y, 2)[:, ::2]


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.inward, self.norm = nn.Embedding(7, 8), nn.Linear(8, 24), nn.LayerNorm(8)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        q, k, v = (t.unflatten(2, (2, 4)).transpose(1, 2) for t in self.inward(self.norm(x)).chunk(3, 2))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return nn.functional.gelu(x + y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("module", "example"),
    [(Convolutional(), torch.randn(2, 3, 8, 8)), (Attending(), torch.arange(6).reshape(2, 3))],
    ids=["convolutional", "attending"],
)
def test_what_pytorch_exports_is_imported(module: nn.Module, example: Tensor, tmp_path: Path) -> None:
    """Its exporter writes the weights to a file of their own."""
    path = tmp_path / "model.onnx"
    with quiet(), torch.no_grad():
        torch.onnx.export(
            module.eval(), (example,), path, dynamo=True, external_data=True, verbose=False, input_names=["input.1"]
        )
        file = read_onnx(path)
        examples = random_inputs(file, 0)
        program = import_module(file.module(examples), examples)
        assert_computes(file, build(program))


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case(X, "y = NonZero(x)", results="int64[] y"), r"ONNX operator NonZero \(node .*\) is not supported"),
        (Case(f"{X}, int64[3] s", "y = Reshape(x, s)"), "Reshape whose operand 1 is computed from the model's inputs"),
        (Case(X, "y, m = Dropout(x)", results="float[] y, bool[] m"), "Dropout with a mask"),
        (Case(X, "y = Squeeze(x)", opset=11), "is of opset 11; export it for opset 13 or newer"),
    ],
)  # fmt: skip
def test_other_models_are_refused(case: Case, message: str, tmp_path: Path) -> None:
    def read() -> None:
        file = write(tmp_path / "model.onnx", case)
        file.module(random_inputs(file, 0))

    with pytest.raises(ImportRefusal, match=message):
        read()


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with pytest.raises(ImportRefusal, match="there is no file"):
        read_onnx(path)
    path.write_bytes(b"no model at all")
    with pytest.raises(ImportRefusal, match="not a readable ONNX model"):
        read_onnx(path)
    path.write_bytes(b"")
    with pytest.raises(ImportRefusal, match="not a readable ONNX model"):
        read_onnx(path)


def test_results_have_the_names_of_the_original(tmp_path: Path) -> None:
    file = write(tmp_path / "model.onnx", Case(X, "y = Relu(x)"))
    other = onnx.parser.parse_model(Case("float[2,3,4] a", "y = Neg(a) z = Relu(y)", results="float[] z").text)
    renamed = onnx.load_model_from_string(file.renamed(other.SerializeToString()))
    assert [value.name for value in renamed.graph.input] == ["x"]
    assert [value.name for value in renamed.graph.output] == ["y"]
    session = OnnxRuntime().compile(
        OnnxModel(renamed.SerializeToString(), tuple(value.name for value in renamed.graph.input))
    )
    (result,) = session(torch.full((2, 3, 4), -2.0))
    assert torch.equal(result, torch.full((2, 3, 4), 2.0))
