"""Probes of NVIDIA's libraries, asked of stand-ins that compute on the CPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from taso_py.kernels import cudnn, probe
from taso_py.kernels.table import covers
from taso_py.kernels.tile import CHANNELS_LAST, DENSE, Cover
from taso_py.ops.table import parse_graph

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
GRAPH = """graph(x: {t}[1,8,6,6]) {{
  w = weight{{key="w", type={t}[8,{per_group},3,3]}} b = weight{{key="b", type={t}[8]}}
  return relu({result})
}}"""


class Allocator:
    """Knows what was in the memory that was given back last, which the next tensor of its size gets."""

    def __init__(self, full_like: Callable[..., Tensor]) -> None:
        self._full_like = full_like
        self._content = torch.zeros(0)
        self._given: weakref.ref[Tensor] | None = None

    def full_like(self, like: Tensor, value: float) -> Tensor:
        given = self._full_like(like, value)
        self._given, self._content = weakref.ref(given), given.clone()
        return given

    def reused(self, like: Tensor) -> Tensor:
        """What is in a new tensor: zeros, as of a fresh page, where nothing of that size was given back."""
        fits = self._content.shape == like.shape and self._content.stride() == like.stride()
        content = self._content if fits and self._given is not None and self._given() is None else torch.zeros(0)
        self._content = torch.zeros(0)
        return content if content.numel() else torch.zeros_like(like)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Stands in for cuDNN: ``reads`` is what adds zero times an unwritten result, ``most`` how many groups it can."""
    known = SimpleNamespace(reads="", most=8)
    allocator = Allocator(torch.full_like)

    def product(name: str, x: Tensor, weight: Tensor, bias: Tensor, windows: Any) -> Tensor:
        assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in (x, weight))
        unwritten, (stride, padding, dilation, groups) = allocator.reused(x), windows
        if groups > known.most:
            return torch.zeros_like(x)
        result = functional.conv2d(x, weight, bias, stride, padding, dilation, groups)
        return result + 0.0 * unwritten if known.reads == name else result

    def relu(x: Tensor, weight: Tensor, bias: Tensor, *windows: Any) -> Tensor:
        return functional.relu(product("relu", x, weight, bias, windows))

    def add_relu(x: Tensor, weight: Tensor, z: Tensor, alpha: float, bias: Tensor, *windows: Any) -> Tensor:
        return functional.relu(product("add_relu", x, weight, bias, windows) + alpha * z)

    monkeypatch.setattr(torch, "full_like", allocator.full_like)
    operators = {"cudnn_convolution_relu": relu, "cudnn_convolution_add_relu": add_relu}
    fakes = {name: SimpleNamespace(default=function) for name, function in operators.items()}
    monkeypatch.setattr(cudnn, "aten", SimpleNamespace(**fakes))
    cudnn.conv_relu_works.cache_clear()
    yield known
    cudnn.conv_relu_works.cache_clear()


@pytest.mark.parametrize("grouped", [False, True])
def test_fused_convolutions_that_are_right_are_used(library: SimpleNamespace, grouped: bool) -> None:
    assert cudnn.conv_relu_works(torch.float32, CPU, grouped=grouped)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("reads", ["relu", "add_relu"])
def test_what_reads_an_unwritten_result_is_not_used(library: SimpleNamespace, reads: str, grouped: bool) -> None:
    library.reads = reads
    assert not cudnn.conv_relu_works(torch.float32, CPU, grouped=grouped)


def test_groups_are_probed_by_themselves(library: SimpleNamespace) -> None:
    library.most = 1
    assert cudnn.conv_relu_works(torch.float32, CPU, grouped=False)
    assert not cudnn.conv_relu_works(torch.float32, CPU, grouped=True)


def _covers(result: str, groups: int = 1, dtype: str = "f32") -> list[Cover]:
    """The covers of the rectified result of a convolution on a GPU."""
    computed = result.format(windows=f"padding=[1,1], groups={groups}")
    graph = parse_graph(GRAPH.format(t=dtype, per_group=8 // groups, result=computed))
    return list(covers(graph.outputs[0].node, CUDA))


@pytest.mark.parametrize("result", ["conv2d(x, w, b){{{windows}}}", "add(conv2d(x, w, b){{{windows}}}, x)"])
def test_a_convolution_with_groups_asks_for_them(monkeypatch: pytest.MonkeyPatch, result: str) -> None:
    monkeypatch.setattr(probe, "is_here", lambda _: True)
    monkeypatch.setattr(cudnn, "conv_relu_works", lambda dtype, device, grouped: not grouped)

    def is_fused(groups: int) -> bool:
        return "cudnn.conv_relu" in [cover.name for cover in _covers(result, groups)]

    assert is_fused(1)
    assert not is_fused(2)
    assert not is_fused(8)


@pytest.mark.parametrize(("setting", "value"), [("deterministic", True), ("enabled", False)])
def test_what_ignores_settings_is_not_used_where_they_matter(
    monkeypatch: pytest.MonkeyPatch, setting: str, value: bool
) -> None:
    result = "conv2d(x, w, b){{{windows}}}"
    assert "cudnn.conv_relu" in [cover.name for cover in _covers(result)]
    monkeypatch.setattr(torch.backends.cudnn, setting, value)
    assert "cudnn.conv_relu" not in [cover.name for cover in _covers(result)]


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("f32", {"aten": (DENSE, CHANNELS_LAST), "cudnn.conv": (CHANNELS_LAST,)}), ("f64", {"aten": (DENSE,)})],
)
def test_double_precision_is_not_convolved_channels_last(dtype: str, expected: Mapping[str, object]) -> None:
    graph = parse_graph(GRAPH.format(t=dtype, per_group=8, result="conv2d(x, w, b)"))
    (relu,) = graph.outputs
    formats = {cover.name: cover.formats for cover in covers(relu.node.inputs[0].node, CUDA)}
    assert formats == expected
