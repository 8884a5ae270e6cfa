"""Tiles: every cover computes what plain operators do, on operands laid out in every way, and packs what it should."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import random
from collections.abc import Generator, Iterator, Sequence
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor

from taso_py import kernels
from taso_py.backend.fold import evaluate
from taso_py.backend.lowering import lower
from taso_py.backend.plan import MEMORY_FORMATS, Format, Packs
from taso_py.backend.run import call_now, run_graph
from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.ir.graph import Graph
from taso_py.ir.node import make
from taso_py.ir.operator import Input, Weight
from taso_py.ir.size import Dim, Open, open_size
from taso_py.ir.types import DType, TensorType
from taso_py.kernels import mkl, onednn, single, table
from taso_py.kernels.check import check
from taso_py.kernels.probe import devices_elsewhere
from taso_py.kernels.table import PLAIN, TILES, TRACED, covers
from taso_py.kernels.tile import Cover, Tile
from taso_py.latency.environment import float32_precision
from taso_py.ops.base import TensorOperator
from taso_py.ops.contraction import Conv2d, Linear
from taso_py.ops.elementwise import Cast
from taso_py.ops.normalization import BatchNorm, LayerNorm, Softmax
from taso_py.ops.table import DEFINED, parse_graph
from tests.versions import need

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
DEVICES = [CPU, pytest.param(CUDA, marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
WIDTH, ROWS = open_size(Open("x.3", 4, 1, None)), open_size(Open("x.0", 3, 1, None))
TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}

CONV = """graph(x: {t}[2,{x}], z: {t}[2,{o},{z}]) {{
  w = weight{{key="w", type={t}[{o},{c},3,3]}} b = weight{{key="b", type={t}[{o}]}}
  g = weight{{key="g", type={t}[{o}]}} m = weight{{key="m", type={t}[{o}]}} v = weight{{key="v", type={t}[{o}]}}
  p = conv2d(x, w{bias}){{stride={step}, padding={pad}, groups={n}}}
  return {result}
}}"""
SMALL = {
    "t": "f32", "o": 8, "c": 8, "n": 1, "bias": "", "x": "8,9,7", "z": "5,4", "step": [2, 2], "pad": [1, 1],
}  # fmt: skip
WIDE = {"o": 112, "c": 96, "x": "96,14,21", "z": "12,23", "step": [1, 1], "pad": [0, 2]}
LINEAR = """graph(x: {t}[{rows},8], z: {t}[{rows},6]) {{
  w = weight{{key="w", type={t}[6,8]}} u = weight{{key="u", type={t}[8,6]}} b = weight{{key="b", type={t}[6]}}
  return {result}
}}"""
WITHOUT_BARE = ("aten.addcmul", "aten.multiply_add", "aten.single", "cudnn.conv_relu", "cublaslt.linear")
"""Tiles that compute no product alone."""
NORM = "batch_norm(p, g, b, m, v){eps=0.01}"
CONV_RESULTS = [
    *("p", *(f"{name}(p)" for name, op in DEFINED.items() if op.epilogue), 'gelu(p){approximate="tanh"}', NORM),
    *(f"silu({NORM})", "hardtanh(p){min_val=0.0, max_val=6.0}", "leaky_relu(p){negative_slope=0.25}"),
    *("add(p, z)", "relu(add(z, p))", f"relu(add({NORM}, z))"),
]
NORMED = """graph(p: f32[2,16,5,4]) {{
  g = weight{{key="g", type=f32[16]}} m = weight{{key="m", type=f32[16]}} b = weight{{key="b", type=f32[16]}}
  v = weight{{key="v", type=f32[16]}}
  return {result}
}}"""
LINEAR_RESULTS = [
    *("linear(x, w)", "linear(x, w, b)", "gelu(linear(x, w, b))", "silu(linear(x, w))", "add(z, linear(x, w, b))"),
    *("matmul(x, u)", "relu(matmul(x, u))", "relu(linear(x, w, b))", 'gelu(linear(x, w, b)){approximate="tanh"}'),
    *("mul(linear(x, w), z)", "mul(z, linear(x, w, b))", "mul(z, matmul(x, u))", "mul(linear(x, w, b), silu(z))"),
]

SUMS = """graph(x: {t}[{x}], y: {t}[{x}], z: {t}[{z}]) {{
  w = weight{{key="w", type={t}[{z}]}} k = constant{{value=0.3, dtype={t}}}
  return {result}
}}"""
SUM_RESULTS = [
    *("add(x, mul(y, z))", "add(mul(y, w), z)", "sub(x, mul(y, y))", "add(mul(x, y), mul(y, w))", "sub(w, mul(x, w))"),
    *("add(x, mul(k, y))", "add(mul(y, k), w)", "sub(x, mul(y, k))", "add(mul(x, y), mul(x, y))"),
]

IN_SINGLE = """graph(x: {half}[3,{rows}], y: f32[3,{rows}]) {{
  w = weight{{key="w", type=f32[{rows}]}} s = cast(x){{dtype=f32}}
  return cast({result}){{dtype={half}}}
}}"""
SINGLE_RESULTS = [
    *("softmax(s){axis=-1}", "layer_norm(s){axes=1, eps=0.01}", "rms_norm(s){axes=1, eps=0.01}", "silu(s)", "gelu(s)"),
    *('gelu(s){approximate="tanh"}', "softmax(s){axis=-2}", "layer_norm(s){axes=2, eps=0.01}"),
]


def _conv(result: str, **changes: object) -> str:
    """What a small convolution gives, but for some changes."""
    return CONV.format(**{**SMALL, **changes}, result=result)


def _graphs(dtype: str) -> Iterator[Graph]:
    for result, groups, bias in itertools.product(CONV_RESULTS, (1, 2, 8), ("", ", b")):
        yield parse_graph(_conv(result, t=dtype, o=16, c=8 // groups, n=groups, bias=bias))
    for result, bias in itertools.product(CONV_RESULTS, ("", ", b")):
        yield parse_graph(_conv(result, bias=bias, **WIDE))
    for result, rows in itertools.product(LINEAR_RESULTS, ("2,3", "2,3,4")):
        yield parse_graph(LINEAR.format(t=dtype, rows=rows, result=result))
    yield parse_graph(NORMED.format(result=NORM))
    for result, (x, z) in itertools.product(
        SUM_RESULTS, (("2,3,5", "1,5"), ("2,8,3,5", "8,1,1"), ("2,4,3,5", "2,4,3,5"))
    ):
        yield parse_graph(SUMS.format(t=dtype, result=result, x=x, z=z))
    for result, half in itertools.product(SINGLE_RESULTS, ("bf16", "f16")):
        yield parse_graph(IN_SINGLE.format(result=result, half=half, rows=40))


def _tensors(graph: Graph, device: torch.device) -> tuple[list[Tensor], dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)

    def make(node_type: TensorType) -> Tensor:
        made = torch.rand(node_type.sizes, generator=generator) - 0.3
        return made.to(device, TORCH_DTYPES[node_type.dtype])

    weights = {node.op.key: make(node.types[0]) for node in graph.nodes if isinstance(node.op, Weight)}
    if "v" in weights:
        weights["v"] = weights["v"].abs() + 0.5
    return [make(node.types[0]) for node in graph.inputs], weights


def _layouts(tensor: Tensor, reads: Format) -> Iterator[Tensor]:
    """The tensor in a format; and, where that is dense, strided and not at the beginning of its storage."""
    if reads is Format.CHANNELS_LAST and tensor.dim() == 4:
        yield tensor.contiguous(memory_format=MEMORY_FORMATS[reads])
        return
    yield tensor
    yield tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    wide = torch.zeros(*tensor.shape[:-1], tensor.shape[-1] + 3, dtype=tensor.dtype, device=tensor.device)
    wide[..., 2:-1] = tensor
    yield wide[..., 2:-1]


def _fused(graph: Graph, device: torch.device) -> list[Cover]:
    return [cover for cover in covers(graph.outputs[0].node, device) if cover.binder is not None]


@pytest.fixture(autouse=True)
def _no_tf32() -> Generator[None]:
    """Kernels are compared with each other, and cuDNN's choose for themselves where to use TF32."""
    with float32_precision("ieee", CUDA, "conv"):
        yield


def _check(cover: Cover, inputs: Sequence[Tensor], graph: Graph, weights: dict[str, Tensor]) -> None:
    named = {node.value: tensor for node, tensor in zip(graph.inputs, inputs, strict=True)}
    # What lies between the graph's inputs and the cover is computed by plain operators.
    between = [value for value in cover.operands if value not in named]
    if between:
        results = run_graph(Graph(graph.inputs, tuple(between)), inputs, weights)
        named |= dict(zip(between, results, strict=True))
    statics = [evaluate(value, weights, inputs[0].device) for value in cover.statics]
    bound = cover.bind(statics, Packs())
    # PyTorch 2.13 gets some convolutions in bf16 wrong.
    wide = {key: weight.float() for key, weight in weights.items()}
    (expected,) = run_graph(graph, [tensor.float() for tensor in inputs], wide)
    expected = expected.to(TORCH_DTYPES[graph.outputs[0].type.dtype])
    tolerance = TOLERANCE[expected.dtype]
    for reads, _ in cover.formats:
        for operands in zip(*(_layouts(named[value], reads) for value in cover.operands), strict=False):
            kept = [operand.clone() for operand in operands]
            with torch.no_grad():
                result = bound.function(*operands)
            storages = {tensor.untyped_storage().data_ptr() for tensor in (*operands, *statics)}
            assert result.untyped_storage().data_ptr() not in storages, f"{cover.name} returns memory that it reads"
            assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
            assert torch.allclose(result.float(), expected.float(), rtol=tolerance, atol=4 * tolerance), cover.name
            assert all(torch.equal(a, b) for a, b in zip(kept, operands, strict=True)), "an operand was written to"
            overwriting = bound.overwriting_function if (reads, reads) in cover.formats else None
            if overwriting is not None:
                last = operands[-1].clone()
                with torch.no_grad():
                    written = overwriting(*operands[:-1], last)
                assert written.data_ptr() == last.data_ptr()
                assert torch.allclose(last.float(), result.float(), rtol=tolerance, atol=tolerance)
                assert all(torch.equal(a, b) for a, b in zip(kept, operands, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_every_cover_computes_what_plain_operators_do(dtype: str, device: torch.device) -> None:
    checked = 0
    for graph in _graphs(dtype):
        inputs, weights = _tensors(graph, device)
        for cover in _fused(graph, device):
            _check(cover, inputs, graph, weights)
            for reads, _ in cover.formats:
                with torch.no_grad():
                    check(cover, reads, device)
            checked += 1
    assert checked > 0 or dtype != "f32"


def _random_convolution(chance: random.Random, dtype: str) -> Graph | None:
    """A small convolution, mostly of one channel or one column; None if the image is smaller than the kernel."""
    groups = chance.choice((1, 1, 2))
    channels, outputs = (groups * chance.choice((1, 1, 3, 8)) for _ in range(2))
    kernel, stride = ([chance.choice((1, 1, 2, 3, 4)) for _ in range(2)] for _ in range(2))
    padding, image = ([chance.randint(least, least + 3) for _ in range(2)] for least in (0, 1))
    dilation = [chance.choice((1, 1, 2, 3)) for _ in range(2)]
    windows = [apart * (size - 1) + 1 for apart, size in zip(dilation, kernel, strict=True)]
    if any(size + 2 * pad < window for size, pad, window in zip(image, padding, windows, strict=True)):
        return None
    sizes = zip(image, padding, windows, stride, strict=True)
    result = ",".join(str((size + 2 * pad - window) // step + 1) for size, pad, window, step in sizes)
    convolution = f"conv2d(x, w){{stride={stride}, padding={padding}, dilation={dilation}, groups={groups}}}"
    return parse_graph(
        f"graph(x: {dtype}[2,{channels},{image[0]},{image[1]}], z: {dtype}[2,{outputs},{result}]) {{ "
        f'w = weight{{key="w", type={dtype}[{outputs},{channels // groups},{kernel[0]},{kernel[1]}]}} '
        f"return {chance.choice((convolution, f'relu(add({convolution}, z))'))} }}"
    )


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_packed_convolutions_of_all_kinds_are_right(dtype: str) -> None:
    """PyTorch 2.13 packs some wrong, whose results have one column: in f32 of one channel, in bf16 of any number."""
    need("2.13", "oneDNN refuses some convolutions, and is then not chosen")
    chance, checked = random.Random(0), 0
    for _ in range(1200):
        graph = _random_convolution(chance, dtype)
        for cover in _fused(graph, CPU) if graph is not None else ():
            assert graph is not None
            inputs, weights = _tensors(graph, CPU)
            _check(cover, inputs, graph, weights)
            checked += 1
    assert checked > 200 or not onednn.convolution_works(TORCH_DTYPES[DType(dtype)])


@pytest.mark.parametrize(
    ("width", "op", "is_packed"),
    [
        (1, Conv2d((2, 2), (1, 1), (2, 2)), False),  # reads columns -1 and 1 of an image that has column 0
        (1, Conv2d((2, 2), (1, 1), (2, 1)), True),
        (1, Conv2d((2, 2), (1, 0), (2, 2)), True),
        (2, Conv2d((2, 2), (1, 1), (2, 2)), True),
        (WIDTH, Conv2d((2, 2), (1, 1), (2, 2)), False),  # it may be 1
        (WIDTH, Conv2d((2, 2), (1, 0), (2, 2)), True),
        (WIDTH, Conv2d((2, 1), (1, 1), (2, 2)), True),
    ],
)
def test_convolutions_that_would_end_the_process_are_not_packed(width: Dim, op: Conv2d, is_packed: bool) -> None:
    """PyTorch 2.13 crashes where no column of a dilated filter ever meets a column of the image."""
    x = make(Input("x", TensorType(DType.F32, (2, 8, 7, width)))).value
    weight = make(Weight("w", TensorType(DType.F32, (8, 8, 1, 1)))).value
    names = [cover.name for cover in covers(make(op, [x, weight]), CPU)]
    assert ("onednn.conv" in names) == is_packed


@pytest.mark.parametrize(("width", "is_packed"), [(3, False), (4, True), (WIDTH, False)])
def test_in_bf16_convolutions_that_step_to_one_column_are_not_packed(width: Dim, is_packed: bool) -> None:
    """PyTorch 2.13 computes some of them wrong, and so does its own call, which then says nothing about the other."""
    op, pairs = Conv2d((1, 3), (1, 1), (1, 1)), ((DType.BF16, is_packed), (DType.F32, True))
    for dtype, expected in pairs if onednn.convolution_works(torch.bfloat16) else ():
        x = make(Input("x", TensorType(dtype, (2, 8, 7, width)))).value
        weight = make(Weight("w", TensorType(dtype, (8, 8, 3, 3)))).value
        assert ("onednn.conv" in [cover.name for cover in covers(make(op, [x, weight]), CPU)]) == expected


def test_every_epilogue_is_computed_with_a_convolution() -> None:
    if not onednn.convolution_works(torch.float32):
        pytest.skip("this PyTorch has no packed convolutions")
    for result in (f"{name}(p)" for name, op in DEFINED.items() if op.epilogue):
        assert "onednn.conv" in [cover.name for cover in _fused(parse_graph(_conv(result)), CPU)], result


def test_every_tile_is_in_the_table_and_fits_a_graph_of_these_tests() -> None:
    for name, tile in _defined_tiles():
        assert tile in TILES, f"add {name} to TILES in taso_py/kernels/table.py"
    roots = [graph.outputs[0].node for graph in _graphs("f32")]
    with devices_elsewhere():
        for tile in TILES:
            fits = any(True for root in roots for device in (CPU, CUDA) for _ in tile.covers(root, device))
            assert fits, f"add a graph that {tile.name} fits to _graphs in tests/kernels/test_tiles.py"


def _defined_tiles() -> Iterator[tuple[str, Tile]]:
    """The tiles that modules of the package define, alone or in a tuple, and where."""
    for where, module in _modules():
        for name, value in vars(module).items() if module is not table else ():
            values: tuple[object, ...] = value if isinstance(value, tuple) else (value,)
            yield from ((f"{where}.{name}", one) for one in values if isinstance(one, Tile))


def _modules() -> Iterator[tuple[str, ModuleType]]:
    for info in pkgutil.iter_modules(kernels.__path__, f"{kernels.__name__}."):
        yield info.name, importlib.import_module(info.name)


def test_what_a_latency_depends_on_is_in_its_key() -> None:
    """Covers that share a key compute the same operators, but for a normalisation, which is folded into the weight."""
    known: dict[tuple[str, str], list[str]] = {}
    with devices_elsewhere():
        found = [cover for graph in _graphs("f32") for d in (CPU, CUDA) for cover in covers(graph.outputs[0].node, d)]
    for cover in found:
        if cover.binder is not None:
            assert not cover.statics or cover.packed, f"{cover.name} packs weights: Cover.packed says of which type"
            is_bare = len(cover.nodes) == 1 and len(cover.statics) == 1
            assert is_bare or cover.bare or cover.name in WITHOUT_BARE, f"{cover.name}: Cover.bare is the product alone"
            assert cover.bare is None or cover.bare().packed == cover.packed
            # A normalisation and a bias are folded into one; a matrix product with a weight is a linear layer.
            first, *others = cover.nodes
            kept = [node for node in others if not isinstance(node.op, BatchNorm)]
            has_bias = len(first.inputs) == 3 or len(kept) < len(others)
            product = "linear" if first.op.text == "matmul" else first.op.text
            texts = [product, *(node.op.text for node in kept), *["bias"] * has_bias]
            same = known.setdefault((cover.name, cover.text), texts)
            assert same == texts, f"{cover.name}: Cover.text is alike for {same} and {texts}"


@pytest.fixture
def forgetful() -> Generator[None]:
    """What probes found before is not known, nor is it known afterwards what they find now."""
    found = itertools.chain.from_iterable(vars(module).values() for _, module in _modules())
    caches = [value for value in found if hasattr(value, "cache_clear")]
    for known in caches:
        known.cache_clear()
    yield
    for known in caches:
        known.cache_clear()


@pytest.mark.usefixtures("forgetful")
def test_operators_that_may_be_missing_are_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch promises nothing of what is in these namespaces."""
    for name in ("mkldnn", "mkl"):
        monkeypatch.setattr(torch.ops, name, SimpleNamespace())
    found = {cover.name for graph in _graphs("f32") for cover in _fused(graph, CPU)}
    unprobed = found - {"aten.addcmul", "aten.multiply_add", "aten.single"}
    assert not unprobed, f"{unprobed} call operators that PyTorch does not promise: probe them (probe.py)"
    assert found


def test_what_a_compiler_traces_are_products_alone() -> None:
    met: set[str] = set()
    for graph in _graphs("f32"):
        for node in graph.nodes:
            everything = {(cover.name, cover.nodes) for cover in covers(node, CPU)}
            traced = covers(node, CPU, TRACED)
            assert {(cover.name, cover.nodes) for cover in traced} <= everything
            met |= {inner.op.name for cover in traced if cover.binder for inner in cover.nodes}
    assert met == {"conv2d", "linear", "matmul", "batch_norm"}


def test_the_plain_cover_comes_first_and_is_all_there_is_on_unknown_devices() -> None:
    for graph in _graphs("f32"):
        node = graph.outputs[0].node
        assert covers(node, CPU)[0].binder is None
        assert [cover.name for cover in covers(node, torch.device("meta"))] == ["aten"]
        assert [cover.name for cover in covers(node, CPU, PLAIN)] == ["aten"]


@pytest.mark.parametrize(
    "result",
    [
        "relu(conv2d(x, relu(x)){padding=[4,3]})",  # the weight is no weight
        "exp(p)",  # no such epilogue
        "tanh(add(p, z))",  # a sum is followed by relu at most
        "mul(p, z)",  # a factor is taken by linear layers alone
        "relu(add(p, z1))",  # the other summand is broadcast
        "batch_norm(p, g, b, m, d){eps=0.01}",  # a parameter is computed at run time
    ],
)
def test_what_no_kernel_computes_has_only_covers_of_its_last_node_or_none(result: str) -> None:
    text = _conv(result)
    text = text.replace("z: f32", "z1: f32[8,1,1], d: f32[8], z: f32")
    graph = parse_graph(text)
    assert [cover.name for cover in covers(graph.outputs[0].node, CPU)] == ["aten"]


@pytest.mark.parametrize("result", ["mul(linear(x, w), b)", "mul(tanh(linear(x, w)), z)", "mul(p, p)"])
def test_a_factor_has_the_type_of_a_product_and_is_not_that_product(result: str) -> None:
    text = LINEAR.format(t="f32", rows="2,3", result=result).replace("return", "p = linear(x, w) return")
    assert not _fused(parse_graph(text), CPU)


@pytest.mark.parametrize(
    "result",
    [
        "exp(s)",
        "softmax(y){axis=-1}",
        "softmax(add(s, y)){axis=-1}",
        "rms_norm(s, w){axes=1, eps=0.01}",
        "gelu(silu(s))",
    ],
)
def test_between_casts_one_function_of_a_value_in_half_precision_is_one_call(result: str) -> None:
    assert not _fused(parse_graph(IN_SINGLE.format(result=result, half="bf16", rows=8)), CPU)
    other = IN_SINGLE.format(result="softmax(s){axis=-1}", half="bf16", rows=8)
    assert [cover.name for cover in _fused(parse_graph(other), CPU)] == ["aten.single"]
    assert not _fused(parse_graph(other.replace("x: bf16", "x: f16")), CPU)  # the casts are not between equal types


@pytest.mark.parametrize(
    ("op", "is_one"), [(Softmax(-1), True), (LayerNorm(1, 0.01), True), (LayerNorm(2, 0.01), False)]
)
def test_between_casts_rows_may_be_of_any_number_but_not_what_is_normalized(op: TensorOperator, is_one: bool) -> None:
    x = make(Input("x", TensorType(DType.BF16, (2, ROWS, 8)))).value
    inside = make(op, [make(Cast(DType.F32), [x]).value]).value
    found = [cover for cover in covers(make(Cast(DType.BF16), [inside]), CPU) if cover.binder is not None]
    assert [cover.name for cover in found] == ["aten.single"] * is_one
    for cover in found:
        given = torch.rand(2, 5, 8).bfloat16()
        (expected,) = lower(call_now, make(op, [x]), [given], CPU)
        assert torch.equal(cover.bind([], Packs()).function(given), expected)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
@pytest.mark.usefixtures("forgetful")
def test_a_kernel_that_rounds_in_between_is_not_used(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    def rounding(x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float = 0.0) -> Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)

    graph = parse_graph(IN_SINGLE.format(result="rms_norm(s){axes=1, eps=0.01}", half=dtype.value, rows=40))
    op = graph.outputs[0].node.inputs[0].node.op
    assert single.rounds_once(op, dtype, CPU)
    single.rounds_once.cache_clear()
    monkeypatch.setattr(torch.ops.aten.rms_norm, "default", rounding)
    assert not single.rounds_once(op, dtype, CPU)
    assert not _fused(graph, CPU)


def test_a_sum_of_two_convolutions_can_be_computed_along_with_either() -> None:
    graph = parse_graph(_conv("relu(add(p, conv2d(x, w){stride=[2,2], padding=[1,1]}))"))
    other = parse_graph(_conv("add(p, conv2d(p, w){padding=[1,1]})"))
    assert len(_fused(graph, CPU)) == 0  # equal convolutions are one node, and both summands
    assert len(_fused(other, CPU)) == 2


def test_a_kernel_that_computes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: Tensor, packed: Tensor, *_: object) -> Tensor:
        return torch.zeros(x.shape[0], 4)

    monkeypatch.setattr(torch.ops.mkldnn._linear_pointwise, "default", wrong)
    onednn.linear_works.cache_clear()
    assert not onednn.linear_works(torch.float32)
    monkeypatch.undo()
    onednn.linear_works.cache_clear()
    assert onednn.linear_works(torch.float32)


def test_a_linear_layer_that_would_read_the_weight_as_it_was_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def unpacked(x: Tensor, packed: Tensor, weight: Tensor, bias: Tensor | None, rows: int) -> Tensor:
        return torch.nn.functional.linear(x, weight, bias)

    monkeypatch.setattr(torch.ops.mkl._mkl_linear, "default", unpacked)
    mkl.linear_works.cache_clear()
    assert not mkl.linear_works()
    monkeypatch.undo()
    mkl.linear_works.cache_clear()
    assert mkl.linear_works()


@pytest.mark.parametrize(("rows", "is_packed"), [(3, True), (ROWS, False)])
def test_a_linear_layer_is_packed_for_one_number_of_rows(rows: Dim, is_packed: bool) -> None:
    x = make(Input("x", TensorType(DType.F32, (rows, 8)))).value
    weight = make(Weight("w", TensorType(DType.F32, (6, 8)))).value
    names = [cover.name for cover in covers(make(Linear(), [x, weight]), CPU)]
    assert ("mkl.linear" in names) == is_packed
    assert "onednn.linear" in names


def test_where_nothing_can_be_overwritten_results_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = parse_graph(_conv("add(p, z)", o=16))
    inputs, weights = _tensors(graph, CPU)
    monkeypatch.setattr(torch.ops.mkldnn._convolution_pointwise_, "binary", lambda other, *_: other)
    onednn.overwriting_works.cache_clear()
    (cover,) = _fused(graph, CPU)
    assert cover.bind([weights["w"]], Packs()).overwriting_function is None
    assert "in place" not in cover.text
    _check(cover, inputs, graph, weights)
    monkeypatch.undo()
    onednn.overwriting_works.cache_clear()
    (cover,) = _fused(graph, CPU)
    assert cover.bind([weights["w"]], Packs()).overwriting_function is not None
    assert "in place" in cover.text


def test_an_operator_that_does_not_exist_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_convolution_pointwise", None)
    onednn.convolution_works.cache_clear()
    assert not onednn.convolution_works(torch.float32)
    monkeypatch.undo()
    onednn.convolution_works.cache_clear()
    assert onednn.convolution_works(torch.float32)
