"""Small modules, one per form that an export may have, go to graphs and back bit for bit."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taso_py.backend import build
from taso_py.backend.run import run_graph
from taso_py.checking.roundtrip import round_trip as zoo_round_trip
from taso_py.frontend import import_module, import_program
from taso_py.models import zoo
from taso_py.ops.elementwise import Cast
from taso_py.ops.table import DEFINED, parse_graph
from tests.round_trips import Model, opaque_targets, operator_names, randn, round_trip
from tests.versions import need

IMAGE = randn(2, 4, 7, 7)
SPECIAL = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-40, 1e38, 3.0])

# Everything here is in the table, with nothing left opaque.
COMPARISONS = (torch.gt, torch.ge, torch.lt, torch.le, torch.eq, torch.ne)

IN_TABLE: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "in-place operators": (lambda s, x: (x + 1).relu_().add_(2).mul_(3), (randn(3, 4),)),
    "special values": (
        lambda s, x: (
            x**2,
            x**3,
            -x,
            1 / x,
            x.square(),
            x * 0.1,
            x / 0.1,
            3 - x,
            2 / x,
            x - 2,
            x.rsqrt(),
            x.sqrt(),
            x**0.5,
            x**-0.5,
            x**4,
            x**5.0,
            x**16,
        ),
        (SPECIAL,),
    ),
    "reversed elements": (
        lambda s, x, i: (x.flip(1), x.flip((0, -1)), x.mT.flip(-1), x[..., :2].flip(0), x.fliplr(), i.flipud()),
        (randn(2, 3, 4), torch.arange(6).view(2, 3)),
    ),
    "running sums": (lambda s, x: (x.cumsum(1), x.mT.cumsum(0), torch.cumsum(x, -1, dtype=x.dtype)), (randn(2, 3, 4),)),
    "diagonals": (
        lambda s, x: (
            torch.diagonal(x, dim1=-2, dim2=-1),
            torch.diagonal(x, 0, 1, 2) * 2,
            torch.diagonal(x.mT, dim1=-1, dim2=-2),
            torch.diagonal(x.permute(1, 0, 2), 0, 0, 2),
        ),
        (randn(2, 3, 3),),
    ),
    "diagonal matrices": (
        lambda s, x: (torch.diag_embed(x), torch.diag_embed(x, 0, -1, -2) * 2, torch.diag(x[0]), torch.eye(3) + 1),
        (randn(2, 3),),
    ),
    "activations": (
        lambda s, x: (
            x.sigmoid(),
            x.tanh(),
            x.exp(),
            F.silu(x),
            F.gelu(x),
            F.gelu(x, approximate="tanh"),
            *(x.relu(), x.sin(), x.cos()),
            x.erf(),
            F.hardtanh(x),
            F.relu6(x),
            x.clamp(-1, 0.3),
            F.hardsigmoid(x),
            F.hardswish(x),
            F.leaky_relu(x, 0.3),
            F.elu(x, 1.7),
            F.selu(x),
            F.celu(x, 0.7),
            F.softplus(x * 20),
            F.softplus(x, 2.5),
            F.mish(x),
            x.abs(),
            x.log(),
            x.abs().log1p(),
        ),
        (randn(3, 4),),
    ),
    "limits": (
        lambda s, x, y: (
            x.clamp(min=0.5),
            x.clamp(max=1),
            x.clip(0.1),
            x.clamp_min(0.25),
            x.clamp_max(-0.25),
            x.clamp(min=y),
            x.clamp_max(y),
            torch.maximum(x, y),
            torch.minimum(y, x[:, :1]),
            torch.max(x, y),
            torch.min(x, y),
            x.int().clamp(min=1),
            torch.maximum(x.int(), y.int()),
            x.int().clamp(max=0.5),
        ),
        (randn(3, 4), randn(4)),
    ),
    "limits of special values": (
        lambda s, x, y: (torch.maximum(x, y), torch.minimum(x, y), x.clamp(min=0), x.clamp(max=0), x.abs(), x.log1p()),
        (SPECIAL[:, None], SPECIAL),
    ),
    "limits that fill a tensor": (
        lambda s, x: (
            torch.maximum(x, torch.zeros_like(x)),
            torch.minimum(torch.full((1,), 0.1), x),
            torch.max(x, x.new_ones(())),
            torch.maximum(x.half(), torch.full_like(x, 0.1).half().new_full((), 0.1)),
            torch.maximum(x.int(), torch.ones_like(x.int())),
            torch.maximum(x.mT, torch.zeros_like(x)),
        ),
        (randn(4, 4),),
    ),
    "comparisons": (
        lambda s, x, y: (
            *(f(x, y) for f in COMPARISONS),
            *(f(x, 0) for f in COMPARISONS),
            *(f(x.int(), 1) for f in COMPARISONS),
            *(f(x, torch.zeros_like(x)) for f in COMPARISONS),
            x.half() > 0.1,
            x.int() <= y.int(),
            x > x[0, 0],
        ),
        (randn(3, 4).round(), randn(4).round()),
    ),
    "comparisons of special values": (
        lambda s, x, y: (*(f(x, y) for f in COMPARISONS), *(f(x, 1) for f in COMPARISONS), torch.where(x > y, x, y)),
        (SPECIAL[:, None], SPECIAL),
    ),
    "choices": (
        lambda s, x, y: (
            torch.where(x > 0, x, y),
            torch.where(x > 0, x, 0.0),
            torch.where(y < 1, 1, x),
            torch.where(x >= 0, x, torch.zeros_like(x)),
            torch.where(x.int() > 0, x.int(), 7),
            torch.where(x > 0, x > 1, y > 0),
            torch.where(x[:, :1] > 0, x.half(), 0.1),
            torch.where(x > 0, 1.0, 0.0),
            torch.where(x > 0, 1, 2),
            x.masked_fill(x > 0, -1),
            x.masked_fill(y > 0, 0.1),
            x.masked_fill(x > 0, y[0]),
            x.masked_fill(~(x > 0) & (x < 1), torch.finfo(torch.float32).min),
        ),
        (randn(3, 4), randn(4)),
    ),
    "logic": (
        lambda s, x, y: (
            *(x & y, x | y, ~x, x.logical_and(y), torch.logical_or(y, x), x.logical_not()),
            *(torch.bitwise_and(x, y), torch.bitwise_or(x, y), torch.bitwise_not(y)),
        ),
        (randn(3, 4) > 0, randn(4) > 0),
    ),
    "softplus in double precision": (lambda s, x: F.softplus(x, 1, 40), (randn(3, 4).double() * 30,)),
    "casts": (
        lambda s, x: (x.half(), x.half().float() * 2, x.int(), x.double(), x.type_as(x), x.int().type_as(x)),
        (randn(3, 4) * 9,),
    ),
    "integers": (lambda s, x: (x + 1, x * 2, x - x, x / 3, x + 1.5, x.float().mean()), (torch.arange(6).view(2, 3),)),
    "products": (
        lambda s, x, y: (x @ y, x[0] @ y, x @ y[0], x[0] @ y[0], torch.einsum("bij,bjk->bik", x, y)),
        (randn(3, 4, 5), randn(3, 5, 6)),
    ),
    "slices": (
        lambda s, x: (x[1:4:2], x[-2:], x[..., 1], x.narrow(1, -3, 2), x[:, 9:], *x.split(2), *x.chunk(3, 1)),
        (randn(5, 6),),
    ),
    "pieces": (lambda s, x: (*x.unbind(0), *x.split([1, 4]), *torch.tensor_split(x, 3)), (randn(5, 6),)),
    "views": (
        lambda s, x: (x.view(-1), x.flatten(1), x.unflatten(2, (2, 2)), x.squeeze(), x[None], x.mT, x.movedim(0, 2)),
        (randn(2, 3, 4),),
    ),
    "sizes of one": (
        lambda s, x: (x[:, 0], x[0], x.permute(2, 0, 1).unbind(0), x.squeeze(0), x.squeeze(), x.view(3, 1)),
        (randn(1, 1, 3),),
    ),
    "columns with a new axis": (lambda s, x: (x[:, 1, None] + 1, x[:, 2].unsqueeze(0), x[1, :, None]), (randn(3, 4),)),
    "reshape that copies": (lambda s, x: x.transpose(0, 1).reshape(-1) * 2, (randn(3, 4),)),
    "expanded": (lambda s, x: (x.expand(4, 3), x[:, None].expand(3, 2) + 1), (randn(3),)),
    "concatenation": (lambda s, x: (torch.cat([x, x * 2], 1), torch.stack([x, x], -1)), (randn(3, 4),)),
    "padding": (lambda s, x: (F.pad(x, (1, 2)), F.pad(x, (-1, 2, 0, -1), value=3.0), F.pad(x, (-1, -1))), (IMAGE,)),
    "pooling": (
        lambda s, x: (
            F.max_pool2d(x, 3, 2, 1),
            F.max_pool2d(x, 2, 1, 1, 2),
            F.max_pool2d(x, 3, 2, ceil_mode=True),
            F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
            F.max_pool2d(x, 2, ceil_mode=True),
            F.avg_pool2d(x, (3, 4), 2, (1, 0), ceil_mode=True),
            F.avg_pool2d(x, (3, 2), 2, 1, count_include_pad=False),
            F.adaptive_avg_pool2d(x, (3, 2)),
            F.adaptive_avg_pool2d(x, 1),
        ),
        (IMAGE,),
    ),
    "reductions": (
        lambda s, x: (x.sum(), x.mean(), x.amax(), x.mean((0, 2)), x.sum(1, keepdim=True), x.amax(-1)),
        (randn(3, 4, 5),),
    ),
    "softmax in another type": (lambda s, x: (x.softmax(-1), x.half().softmax(0, dtype=torch.float32)), (randn(3, 4),)),
    "attention": (
        lambda s, q, mask: (
            F.scaled_dot_product_attention(q, q + 1, q * 2),
            F.scaled_dot_product_attention(q, q, q, is_causal=True, scale=0.3),
            F.scaled_dot_product_attention(q, q, q, mask),
        ),
        (randn(2, 4, 5, 8), randn(5, 5)),
    ),
    "lookups": (
        lambda s, t, i: (
            *(F.embedding(i, t), F.embedding(i.int(), t, padding_idx=1), F.embedding(i[0, 0], t)),
            *(t[i], t[i - 5], t[:, i[0] - 3], t.mT[i[0]], t[i.int()], t.int()[i]),
            *(t.index_select(0, i[1]), t.index_select(1, i[0, 0] - 2), t[None].index_select(1, i[1])),
            *(t.gather(0, i), t.mT.gather(-1, i), i.gather(1, i[:, :1] * 0)),
            *(t[:, None, i[0] - 3], t.view(5, 1, 2, 2).movedim(-1, 1)[:, i[0] - 4]),
        ),
        (randn(5, 4), torch.tensor([[2, 3], [0, 4]])),
    ),
    "channels-last inside": (
        lambda s, x: (F.relu(x + x.transpose(1, 3)), (x.transpose(1, 3) + 2 * x).mean(1)),
        (randn(2, 4, 4, 4),),
    ),
    "empty tensors": (lambda s, x: (x + 1, x.sum(), x.reshape(0, 2, 2)), (randn(0, 4),)),
    "inputs returned": (lambda s, x: (x, x[0], x), (randn(3, 4),)),
}


@pytest.mark.parametrize("name", IN_TABLE)
def test_forms_of_the_table(name: str) -> None:
    function, inputs = IN_TABLE[name]
    assert opaque_targets(round_trip(Model(function), *inputs)) == []


# What the table does not know, or only in other forms, is carried through; the names are those of the opaque operators.
CARRIED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], list[str]]] = {
    "multiples": (lambda s, x: (torch.add(x, x, alpha=2), x.sub(x, alpha=3)), (randn(4).int(),), ["add", "sub"]),
    "limits that fill a larger tensor, or are no numbers": (
        lambda s, x: (
            torch.maximum(x[0], torch.zeros_like(x)),
            torch.minimum(x, torch.full_like(x, math.inf)),
            torch.maximum(torch.zeros_like(x), torch.ones_like(x)),
        ),
        (randn(4, 4),),
        ["full", "full", "full"],
    ),
    "booleans": (
        lambda s, x: (x + x, x ^ x, x == x, x > False, x.int() & 3, x.float().logical_not(), x.logical_and(x.int())),
        (randn(4) > 0,),
        ["add", "__xor__", "eq", "gt", "__and__", "logical_not", "logical_and"],
    ),
    "comparisons in another type": (
        lambda s, x: (x > x.double(), x.int() > 0.5, x.half() > x[0], x.real == 2**60 + 1),
        (randn(4),),
        ["gt", "gt", "gt", "eq"],
    ),
    "choices of infinities, in another type, and of complex numbers": (
        lambda s, x: (
            torch.where(x > 0, x, -math.inf),
            x.masked_fill(x > 0, -math.inf),
            torch.where(x > 0, torch.fft.fft(x), 0),
            torch.where(x > 0, x.half(), x[0]),
        ),
        (randn(4),),
        ["where", "masked_fill", "fft_fft", "where", "where"],
    ),
    "other limits": (
        lambda s, x: (x.clamp(0.5, -0.5), x.clamp(0, math.inf), x.int().clamp(-1, 1), x.clamp(x, x), x.int().abs()),
        (randn(4),),
        ["clamp", "clamp", "clamp", "clamp", "abs"],
    ),
    "limits of booleans and in another type": (
        lambda s, x: (torch.maximum(x > 0, x > 1), x.half().clamp(min=x[0]), torch.fmax(x, x + 1)),
        (randn(4),),
        ["maximum", "clamp", "fmax"],
    ),
    "other thresholds and scales": (
        lambda s, x: (F.softplus(x, 1, 5), F.softplus(x.double() * 30)),
        (randn(4),),
        ["softplus", "softplus"],
    ),
    "powers": (lambda s, x: (x**1.5, x**-1.5), (SPECIAL,), ["pow", "pow"]),
    "windows over the edge": (
        lambda s, x: (F.max_pool2d(x, 2, 3, ceil_mode=True), F.avg_pool2d(x, 2, divisor_override=3)),
        (IMAGE,),
        ["max_pool2d", "avg_pool2d"],
    ),
    "infinite padding": (lambda s, x: F.pad(x, (1, 1), value=-float("inf")), (IMAGE,), ["pad"]),
    "several results": (
        lambda s, x: (x.topk(2), x.max(1), F.max_pool2d(x[None, None], 2, return_indices=True)),
        (randn(4, 4),),
        ["topk", "max", "max_pool2d_with_indices"],
    ),
    "one result of several": (lambda s, x: x.sort(0)[1], (randn(4, 4),), ["sort"]),
    "lookups by several integers, and of computed ones": (
        lambda s, x: (x[[0, 1], [2, 3]], x[x[0].argsort()]),
        (randn(4, 4),),
        ["index", "argsort"],
    ),
    "complex numbers": (
        lambda s, x: (torch.fft.fft(x).abs(), torch.view_as_complex(x.view(-1, 2)).real),
        (randn(4, 4),),
        ["fft_fft", "abs", "contiguous", "view_as_complex", "view_as_real"],
    ),
    "memory formats": (
        lambda s, x: x.contiguous(memory_format=torch.channels_last) * 2,
        (IMAGE,),
        ["clone"],
    ),
    "statistics": (lambda s, x: x.var(1), (IMAGE,), ["var"]),
}


@pytest.mark.parametrize("name", CARRIED)
def test_forms_outside_the_table(name: str) -> None:
    function, inputs, expected = CARRIED[name]
    assert opaque_targets(round_trip(Model(function), *inputs)) == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_scalars_keep_their_value(dtype: torch.dtype) -> None:
    """A Python number is not rounded to half precision first; a tensor of rank 0 is, one of rank 1 promotes."""
    x, y = (randn(64) * 3).to(dtype), randn(64).to(dtype)
    program = round_trip(
        Model(lambda s, x, y: (x * 0.1, x + 1e-3, 1 - x, x / 3, x * y + 0.5, x * torch.tensor([0.1]), y / x)), x, y
    )
    assert opaque_targets(program) == []
    program = round_trip(Model(lambda s, x: (x * torch.tensor(0.1), x**3)), x)
    assert opaque_targets(program) == ["mul", "pow"]


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...], list[str]]] = {
    "dropout": (
        lambda: nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.Linear(3, 3)),
        (randn(2, 3),),
        ["linear", "linear"],
    ),
    "batch norm": (
        lambda: nn.Sequential(nn.Conv2d(4, 2, 3, stride=2, padding=1), nn.BatchNorm2d(2), nn.ReLU(inplace=True)),
        (IMAGE,),
        ["conv2d", "batch_norm", "relu"],
    ),
    "same padding": (lambda: nn.Conv2d(4, 4, 3, padding="same", groups=2), (IMAGE,), ["conv2d"]),
    "one dimension": (
        lambda: nn.Sequential(nn.Conv1d(4, 6, 3, 2, 1), nn.Conv1d(6, 6, 3, dilation=2, groups=2, bias=False)),
        (randn(2, 4, 31),),
        ["reshape", "reshape", "conv2d", "reshape"] * 2,
    ),
    "one dimension, its channels last": (
        lambda: nn.Conv1d(4, 6, 3),
        (randn(2, 31, 4).mT,),
        ["contiguous", "reshape", "reshape", "conv2d", "reshape"],
    ),
    "normalisations": (
        lambda: nn.Sequential(nn.LayerNorm(4), nn.LayerNorm([3, 4], bias=False), nn.RMSNorm(4), nn.RMSNorm(4, 1e-5)),
        (randn(2, 3, 4),),
        ["layer_norm", "layer_norm", "rms_norm", "rms_norm"],
    ),
    "linear layers on any rank": (lambda: nn.Linear(4, 2), (randn(2, 3, 4).transpose(0, 1),), ["linear"]),
    "addmm": (
        lambda: Model(lambda s, x: torch.addmm(s.b, x, s.w), b=nn.Parameter(randn(6)), w=nn.Parameter(randn(5, 6))),
        (randn(4, 5),),
        ["permute", "linear"],
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_layers(name: str) -> None:
    make, inputs, expected = MODULES[name]
    program = round_trip(make().eval(), *inputs)
    assert operator_names(program) == expected


@pytest.fixture
def written_out_attention() -> Generator[None]:
    """Keeps multi-head attention off its fused path, which torch.export never takes."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(enabled)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.LSTM(4, 5, 2, batch_first=True),
        lambda: nn.GRU(4, 5, bidirectional=True),
        lambda: Model(lambda s, x: s.attention(x, x, x), attention=nn.MultiheadAttention(4, 2)),
        lambda: nn.Sequential(nn.Conv1d(3, 3, 2), nn.ConvTranspose1d(3, 2, 2)),
    ],
)
def test_modules_from_everywhere(make: Callable[[], nn.Module], written_out_attention: None) -> None:
    module = make()
    if isinstance(module, nn.LSTM):
        need("2.13", "an export of an LSTM has wrong shapes")
    round_trip(module.eval(), randn(2, 3, 4))


FUNCTIONS = [
    op.name
    for op in DEFINED.values()
    if op.is_elementwise and op.arity == (1, 1) and not (op.is_movement or op.reads_truth or op is Cast)
]


def test_every_function_of_the_table_is_imported_as_itself() -> None:
    graph = parse_graph(f"graph(x: f32[3,4]) {{ return {', '.join(f'{name}(x)' for name in FUNCTIONS)} }}")
    program = import_module(Model(lambda s, x: tuple(run_graph(graph, [x]))), (randn(3, 4).abs(),))
    assert sorted(operator_names(program)) == sorted(FUNCTIONS)


def test_channels_last_input() -> None:
    image = IMAGE.to(memory_format=torch.channels_last)
    program = round_trip(nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval(), image)
    assert program.contract.strides == ((100, 1, 20, 4),)


def test_order_of_operands_decides_the_layout_and_is_kept() -> None:
    last = randn(2, 4, 3, 3).to(memory_format=torch.channels_last)
    round_trip(Model(lambda s, x, y: x + y), randn(2, 4, 3, 3), last)
    round_trip(Model(lambda s, x, y: y + x), randn(2, 4, 3, 3), last)
    # Both orders at once are one node, so one of them has to stay opaque.
    program = round_trip(Model(lambda s, x, y: (x + y, y + x)), randn(2, 4, 3, 3), last)
    assert opaque_targets(program) == ["add"]


def test_autocast_and_gradient_modes_are_taken_in() -> None:
    def forward(s: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x
        with torch.no_grad():
            z = y.float() * 2
        with torch.enable_grad():
            return z + 1

    assert operator_names(round_trip(Model(forward), randn(3, 3))) == ["cast", "matmul", "cast", "mul", "add"]


def test_a_tensor_that_is_given_twice_is_two_arguments() -> None:
    model = Model(lambda s, x, y, z: 2 * x + 3 * y + z)
    x, y, z = (randn(size, 2) for size in (3, 3, 3))
    module = build(import_module(model, (x, x), {"z": x}))
    assert torch.equal(module(x, y + 1, z=z * 2), model(x, y + 1, z=z * 2))


def test_a_parameter_or_buffer_that_is_given_is_an_argument() -> None:
    model = Model(lambda s, x, y: 2 * x + 3 * y + s.w * s.b, w=nn.Parameter(randn(2)), b=randn(2))
    x, y = randn(2), randn(2) + 1
    with torch.no_grad():
        module = build(import_module(model, (model.w, model.b)))
        assert torch.equal(module(x, y), model(x, y))


def test_trees_keywords_and_plain_values() -> None:
    def forward(s: Any, x: Tensor, *, d: dict[str, Tensor], flag: bool) -> Any:
        return {"a": [x + 1, None, 3, "s", 2.5], "b": ({"c": x + d["k"]},), "flag": flag}

    d = {"k": randn(3)}
    program = round_trip(Model(forward), randn(3), flag=False, d=d)
    found = build(program)(randn(3), d=d, flag=False)
    assert torch.equal(found["b"][0]["c"], randn(3) + d["k"])


def test_an_operator_without_a_fake_form_is_imported_from_a_file_too() -> None:
    model = Model(lambda s, x: torch.fake_quantize_per_tensor_affine(x, 0.05, 128, 0, 255) + x)
    file, x = io.BytesIO(), randn(3, 4)
    torch.export.save(torch.export.export(model, (x,)), file)
    file.seek(0)
    assert torch.equal(build(import_program(torch.export.load(file)))(x), model(x))


@pytest.mark.parametrize("name", ["nasrnn", "squeezenet1_1", "bert_base", "llama", "t5_eager_attention"])
def test_small_models_of_the_zoo(name: str, zoo_libraries: None) -> None:
    assert zoo_round_trip(zoo.get(name), small=True).identical
