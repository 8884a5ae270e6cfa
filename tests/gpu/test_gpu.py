"""The main job on a GPU: every engine, saved results, graphs that keep state, threads, profiles and predictions."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import taso_py
from taso_py.cli import main
from taso_py.driver.result import Optimized
from taso_py.engines.names import RUNTIME_CHOICES
from taso_py.frontend import import_module

DEVICE = torch.device(os.environ.get("TASO_PY_TEST_DEVICE", "cuda"))
pytestmark = [
    pytest.mark.skipif(DEVICE.type == "cuda" and not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore"),
]
QUICK: Mapping[str, Any] = {"effort": "quick", "time_limit": 4.0, "race_seconds": 1.0, "cache": False}
ENGINES = ("eager", "cudagraph", "inductor", "auto") if DEVICE.type == "cuda" else ("eager", "inductor", "auto")
TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 6e-2, torch.float16: 1e-2}


class Images(nn.Module):
    """Convolutions with normalisations and a residual, two layers that share their input."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.na, self.nb = nn.BatchNorm2d(16), nn.BatchNorm2d(16)
        self.left, self.right = nn.Linear(16, 24), nn.Linear(16, 24)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.na(self.a(x)))
        x = functional.relu(self.nb(self.b(x)) + x).mean((2, 3))
        return functional.gelu(self.left(x), approximate="tanh") * self.right(x)


class Tokens(nn.Module):
    """Attention written out, and a feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(32, 32) for _ in range(3))
        self.up, self.down, self.norm = nn.Linear(32, 64), nn.Linear(64, 32), nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (4, 8)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        weights = (q @ k.transpose(-1, -2) / 8**0.5).softmax(-1)
        x = self.norm(x + (weights @ v).transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(x)))


class Cached(nn.Module):
    """Writes a row of a cache that is passed in, and reads all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.query = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor, position: Tensor, cache: Tensor) -> Tensor:
        cache.index_copy_(1, position, self.key(x))
        return (self.query(x) @ cache.transpose(1, 2)).softmax(-1) @ cache


class Counting(nn.Module):
    """Counts its calls in a buffer, and draws a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x) * torch.bernoulli(torch.full_like(x, 0.5)) + self.calls


def made(kind: Callable[[], nn.Module], dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return kind().to(DEVICE, dtype).eval().requires_grad_(False)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE, dtype)


MODELS: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "images": (Images, (2, 3, 20, 18)),
    "tokens": (Tokens, (2, 9, 32)),
}


def agree(result: Any, expected: Any, dtype: torch.dtype = torch.float32) -> None:
    assert (result.device, result.dtype) == (expected.device, expected.dtype)
    torch.testing.assert_close(result, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("runtime", ENGINES)
@pytest.mark.parametrize("model", MODELS)
def test_a_result_computes_what_the_original_does_and_survives_being_saved(
    model: str, runtime: str, tmp_path: Path
) -> None:
    kind, shape = MODELS[model]
    module, x, other = made(kind), drawn(*shape), drawn(*shape) + 0.5
    optimized = taso_py.optimize(module, (x,), runtime=runtime, output=tmp_path / "saved", **QUICK)
    assert optimized.report.comparison_passed, optimized.report.notes
    agree(optimized.module(other), module(other))
    loaded = taso_py.load(tmp_path / "saved")
    agree(loaded(other), module(other))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("runtime", [name for name in ENGINES if name in ("eager", "cudagraph")])
def test_half_precision(model: str, dtype: torch.dtype, runtime: str) -> None:
    kind, shape = MODELS[model]
    module, x = made(kind, dtype), drawn(*shape, dtype=dtype)
    optimized = taso_py.optimize(module, (x,), runtime=runtime, **QUICK)
    assert optimized.report.comparison_passed, optimized.report.notes
    agree(optimized.module(x), module(x), dtype)


@pytest.mark.parametrize("model", MODELS)
def test_the_graph_computes_the_same_bits(model: str) -> None:
    from taso_py.backend import build

    kind, shape = MODELS[model]
    module, x = made(kind), drawn(*shape)
    assert torch.equal(build(import_module(module, (x,)))(x), module(x))


@pytest.mark.parametrize("runtime", [name for name in ENGINES if name != "auto"])
def test_a_cache_is_written_where_it_is(runtime: str) -> None:
    module = made(Cached)
    args = drawn(2, 1, 16), torch.tensor([3], device=DEVICE), drawn(2, 12, 16)
    optimized = taso_py.optimize(module, args, runtime=runtime, **QUICK)
    expected, found = args[2].clone(), args[2].clone()
    for step in (1, 5, 2):
        position, x = torch.tensor([step], device=DEVICE), args[0] * step
        agree(optimized.module(x, position, found), module(x, position, expected))
        agree(found, expected)
    assert not torch.equal(found, args[2])


@pytest.mark.parametrize("runtime", ["eager", "inductor", "cudagraph"] if DEVICE.type == "cuda" else ["eager"])
def test_counters_and_random_numbers_go_on(runtime: str) -> None:
    module = made(Counting)
    optimized = taso_py.optimize(module, (drawn(4, 8),), runtime=runtime, **QUICK)
    results = [optimized.module(drawn(4, 8)) for _ in range(3)]
    assert len({float(result.double().sum()) for result in results}) == 3


def test_behind_torch_compile() -> None:
    torch._dynamo.reset()
    module, x = made(Images), drawn(2, 3, 20, 18)
    options: Any = {"time_limit": 4.0, "race_seconds": 0.5}
    compiled = torch.compile(module, backend="taso", options=options)
    agree(compiled(x), module(x))
    agree(compiled(drawn(3, 3, 20, 18)), module(drawn(3, 3, 20, 18)))


@pytest.mark.parametrize("runtime", [name for name in ENGINES if name in ("eager", "cudagraph")])
def test_threads_call_one_result_on_streams_of_their_own(runtime: str) -> None:
    module, x = made(Images), drawn(2, 3, 20, 18)
    optimized = taso_py.optimize(module, (x,), runtime=runtime, **QUICK)
    wrong: list[BaseException] = []

    def call(number: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()) if DEVICE.type == "cuda" else torch.no_grad():
                for step in range(20):
                    scaled = x * (1 + 0.1 * number + 0.01 * step)
                    agree(optimized.module(scaled), module(scaled))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_commands_optimize_profile_and_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def model():\n    torch.manual_seed(0)\n"
        "    body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5))\n"
        "    return body.eval(), (torch.randn(2, 3, 8, 8),)\n"
    )
    spec, out = f"{tmp_path}/mine.py:model", tmp_path / "out"
    quick = ("--runtime", "eager", "--effort", "quick", "--time-limit", "4")
    assert main(["optimize", spec, "--device", DEVICE.type, "--output", str(out), *quick]) == 0, capsys.readouterr()
    assert main(["replay", str(out / "trace.rules"), spec, "--device", DEVICE.type]) == 0, capsys.readouterr()
    assert main(["profile", str(out), "--output", str(tmp_path / "profile"), "--seconds", "1"]) == 0, (
        capsys.readouterr()
    )
    assert main(["latencies", "list"]) == 0, capsys.readouterr()


def test_several_sizes() -> None:
    module = made(Images)
    sizes = [(drawn(1, 3, 20, 18),), (drawn(4, 3, 20, 18),)]
    optimized = taso_py.optimize_sizes(module, sizes, **QUICK)
    for (x,) in sizes:
        agree(optimized.module(x), module(x))


def test_open_sizes() -> None:
    module, x = made(Tokens), drawn(2, 9, 32)
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(module, (x,), dynamic_shapes=({0: batch},))
    optimized = taso_py.optimize(exported, **QUICK)
    for rows in (1, 2, 7):
        agree(optimized.module(drawn(rows, 9, 32)), module(drawn(rows, 9, 32)))


@pytest.mark.skipif(DEVICE.type != "cuda", reason="is about tensors on another device")
def test_arguments_elsewhere_are_refused_in_one_line() -> None:
    module, x = made(Images), drawn(2, 3, 20, 18)
    for runtime in ("eager", "cudagraph"):
        optimized: Optimized = taso_py.optimize(module, (x,), runtime=runtime, **QUICK)
        # Where nothing was faster, as on a busy machine, it is the user's own module, with PyTorch's message.
        with pytest.raises(RuntimeError if optimized.keeps_original else taso_py.TasoError) as caught:
            optimized.module(x.cpu())
        assert optimized.keeps_original or "\n" not in str(caught.value)
        agree(optimized.module(x), module(x))


@pytest.mark.skipif(DEVICE.type != "cuda", reason="is about models on the CPU")
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino", "aot-inductor"])
def test_engines_of_the_cpu_are_refused_in_one_line(runtime: str) -> None:
    assert runtime in RUNTIME_CHOICES
    with pytest.raises(taso_py.TasoError) as caught:
        taso_py.optimize(made(Images), (drawn(2, 3, 20, 18),), runtime=runtime, **QUICK)
    assert "\n" not in str(caught.value)


def test_a_result_can_be_copied() -> None:
    module, x = made(Tokens), drawn(2, 9, 32)
    optimized = taso_py.optimize(module, (x,), **QUICK)
    agree(copy.deepcopy(optimized.module)(x), module(x))
