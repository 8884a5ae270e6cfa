"""CUDA graphs, on a device that only seems to have them: what is captured is a list of calls, made again on replay."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from taso_py.backend import build
from taso_py.backend.capture import capture_cuda_graph
from taso_py.backend.frozen import GradientError
from taso_py.backend.guard import ArgumentError
from taso_py.engines import inductor
from taso_py.engines.engine import EngineUnavailableError
from taso_py.engines.table import prepare
from taso_py.frontend import import_module


class Recorder(TorchDispatchMode):
    """Notes the calls that are made and what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Sequence[Any], Mapping[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result


class Graph:
    """Stands in for ``torch.cuda.CUDAGraph``: a replay writes to the tensors that were captured."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Sequence[Any], Mapping[str, Any], Any]] = []

    def replay(self) -> None:
        for func, args, kwargs, result in self.calls:
            again = func(*args, **kwargs)
            if isinstance(result, Tensor) and again.data_ptr() != result.data_ptr():
                result.copy_(again)


class Stream:
    """Stands in for a stream of the device that is current when it is made."""

    current = "cuda:0"

    def __init__(self, _: object = None) -> None:
        self.device = self.current
        self.waited: list[object] = []

    def wait_stream(self, other: object) -> None:
        """Notes it: there is nothing to wait for."""
        self.waited.append(other)


@contextmanager
def _on(device: torch.device) -> Generator[None]:
    """Stands in for ``torch.cuda.device``."""
    before, Stream.current = Stream.current, str(device) if torch.device(device).index else "cuda:0"
    yield
    Stream.current = before


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How captures end, on a device that seems to be a GPU."""
    ended: list[str] = []
    pools = count()

    def end_pool(_device: int, pool: int) -> None:
        ended.append(f"pool {pool} given up")
        raise RuntimeError("not currently recording to this pool")

    @contextmanager
    def capture(graph: Graph, pool: int, stream: Stream) -> Generator[None]:
        if stream.device != "cuda:0":
            ended.append(f"on {stream.device}")
        try:
            with Recorder() as recorder:
                yield
        except BaseException:
            ended.append("failed")
            raise RuntimeError("a capture failed due to a previous error") from None
        ended.append("succeeded")
        graph.calls = recorder.calls

    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *sizes, **_: zeros(*sizes))
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda _: True))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "device", _on)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end_pool, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None, raising=False)
    return ended


def test_a_graph_is_recorded_on_a_stream_of_its_own_gpu(captures: list[str]) -> None:
    """PyTorch's own stream for captures is of whichever GPU came first: on another it would record nothing."""
    for device in ("cuda:0", "cuda:1"):
        capture_cuda_graph(lambda: torch.ones(1) + 1, torch.device(device))
    assert captures == ["succeeded", "on cuda:1", "succeeded"]


class Difference(nn.Module):
    """One argument minus another, times a number; the result twice, and its first column, which is a view of it."""

    def forward(self, a: Tensor, b: Tensor, scale: float = 1.0) -> Any:
        result = (a - b) * scale
        return {"all": result, "again": result, "first": result[:, 0], "scale": scale}


def inputs() -> dict[str, Tensor]:
    return {"a": torch.full((2, 3), 5.0), "b": torch.full((2, 3), 2.0)}


def test_a_replay_computes_the_same_on_other_inputs(captures: list[str]) -> None:
    module = nn.Linear(3, 4)
    replay = prepare(module, "cudagraph", (torch.ones(2, 3),), {})
    x = torch.rand(2, 3, requires_grad=True)
    for given in (x, 2 * x):
        result = replay(given)
        assert torch.equal(result, module(given))
        with pytest.raises(GradientError):
            result.sum().backward()
    assert captures == ["succeeded"]


def test_no_graph_uses_memory_of_another_by_way_of_cublas(captures: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: captures.append("cleared"), raising=False)
    prepare(nn.Tanh(), "cudagraph", (torch.ones(2, 3),), {})
    assert captures == ["cleared", "succeeded", "cleared"]


def test_the_module_lives_as_long_as_what_was_captured_of_it(captures: list[str]) -> None:
    module = nn.Linear(3, 4)
    alive = weakref.ref(module)
    replay = prepare(module, "cudagraph", (torch.ones(2, 3),), {})
    del module
    gc.collect()
    assert alive() is not None
    del replay
    gc.collect()
    assert alive() is None


def test_keyword_arguments_go_where_they_belong_in_any_order(captures: list[str]) -> None:
    replay = prepare(Difference(), "cudagraph", (), inputs())
    reordered = {name: inputs()[name] for name in ("b", "a")}
    assert torch.equal(replay(**reordered)["all"], torch.full((2, 3), 3.0))


def test_dictionaries_inside_arguments_go_by_their_keys_too(captures: list[str]) -> None:
    class Inside(nn.Module):
        def forward(self, both: Mapping[str, Tensor]) -> Tensor:
            return both["a"] - both["b"]

    replay = prepare(Inside(), "cudagraph", (inputs(),), {})
    assert torch.equal(replay({name: inputs()[name] for name in ("b", "a")}), torch.full((2, 3), 3.0))


@pytest.mark.parametrize(
    ("args", "changed", "message"),
    [
        ((), {"a": torch.ones(3)}, r"argument a of type torch\.float32 and shape \[2, 3\], not torch\.float32 \[3\]"),
        ((), {"a": torch.ones(2, 3, dtype=torch.float64)}, r"not torch\.float64"),
        ((), {"a": [torch.ones(2, 3)]}, "a tensor as argument a, not a list"),
        ((), {"scale": 3.0}, "built for the argument 2.0, not 3.0"),
        ((), {"scale": torch.ones(2, 3)}, "a float as argument scale, not a tensor"),
        ((), {"more": 1}, "captured with other arguments"),
        ((torch.ones(2, 3),), {}, "captured with other arguments"),
    ],
)
def test_what_was_not_captured_is_refused(captures: list[str], args: Any, changed: Any, message: str) -> None:
    replay = prepare(Difference(), "cudagraph", (), {**inputs(), "scale": 2.0})
    before = replay(**inputs(), scale=2.0)
    with pytest.raises(ArgumentError, match=message) as caught:
        replay(*args, **{**inputs(), "scale": 2.0, **changed})
    assert len(str(caught.value).splitlines()) == 1
    assert torch.equal(replay(**inputs(), scale=2.0)["all"], before["all"])


def test_an_argument_that_is_missing_is_refused(captures: list[str]) -> None:
    replay = prepare(Difference(), "cudagraph", (), inputs())
    with pytest.raises(ArgumentError, match="captured with other arguments"):
        replay(a=torch.ones(2, 3))


def test_an_argument_that_is_written_to_is_memory_of_its_own(captures: list[str]) -> None:
    class Adding(nn.Module):
        def forward(self, total: Tensor, x: Tensor) -> Tensor:
            total.add_(x)
            return x * 2

    total, x = torch.zeros(2, 3), torch.ones(2, 3)
    replay = prepare(build(import_module(Adding(), (total, x))), "cudagraph", (total.clone(), x), {})
    assert torch.equal(replay(total, x), 2 * x)
    assert torch.equal(total, x)
    memory = torch.ones(3, 3)
    for given in ((x, x), (memory[:2], memory[1:]), (torch.ones(1, 3).expand(2, 3), x)):
        with pytest.raises(ArgumentError, match="this module writes to total, wh"):
            replay(*given)
    assert torch.equal(memory, torch.ones(3, 3))


def test_what_a_call_returned_stays_when_the_next_is_made(captures: list[str]) -> None:
    replay = prepare(Difference(), "cudagraph", (), inputs())
    first = replay(**inputs())
    second = replay(a=torch.full((2, 3), 9.0), b=torch.zeros(2, 3))
    for result, value in ((first, 3.0), (second, 9.0)):
        assert pytree.tree_all_only(Tensor, lambda tensor, value=value: bool((tensor == value).all()), result)
        assert result["again"] is result["all"]
        assert result["first"].shape == (2,)
        assert result["scale"] == 1.0


def test_threads_that_call_it_at_once_take_turns(captures: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(graph: Graph) -> None:
        time.sleep(0.005)
        real(graph)
        time.sleep(0.005)

    replay, real = prepare(Difference(), "cudagraph", (), inputs()), Graph.replay
    monkeypatch.setattr(Graph, "replay", slow)
    given = [torch.full((2, 3), float(number)) for number in range(8)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda a: replay(a=a, b=torch.zeros(2, 3))["all"], given))
    assert all(map(torch.equal, found, given))


def test_a_call_on_another_stream_waits_for_the_one_before(
    captures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Stream(), Stream()
    current = [first]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _=None: current[0])
    replay = prepare(Difference(), "cudagraph", (), inputs())
    first.waited.clear()
    for stream in (first, second, second, first):
        current[0] = stream
        replay(**inputs())
    assert (first.waited, second.waited) == ([second], [first])


def test_inputs_elsewhere_are_not_captured(captures: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda tensor: tensor.dim() > 0))
    with pytest.raises(EngineUnavailableError, match="cannot run this module: argument b is on cpu, but a CUDA graph"):
        prepare(Difference(), "cudagraph", (), {"a": torch.ones(2, 3), "b": torch.tensor(1.0)})
    with pytest.raises(EngineUnavailableError, match="argument 0 is on cpu"):
        prepare(nn.Tanh(), "inductor-cudagraph", (torch.tensor(1.0),), {})
    assert captures == []


def test_after_a_capture_that_fails_one_succeeds(captures: list[str]) -> None:
    class Reads(nn.Module):
        """Reads a number, which a capture does not allow."""

        def forward(self, x: Tensor) -> Tensor:
            if _get_current_dispatch_mode_stack():
                raise RuntimeError("operation not permitted when stream is capturing\nand more")
            return x * x.sum().item()

    with pytest.raises(EngineUnavailableError, match="cudagraph cannot run this module: operation not permitted when"):
        prepare(Reads(), "cudagraph", (torch.ones(2, 3),), {})
    assert captures == ["failed", "pool 0 given up", "succeeded"]


def test_why_a_capture_failed_is_told_even_where_none_succeeds(
    captures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def failing(graph: Graph, pool: int, stream: Stream) -> Generator[None]:
        captures.append("failed")
        raise RuntimeError(f"the device is lost {len(captures)}")
        yield

    monkeypatch.setattr(torch.cuda, "graph", failing)
    with pytest.raises(EngineUnavailableError, match=r"the device is lost 1$"):
        prepare(nn.Tanh(), "cudagraph", (torch.ones(2, 3),), {})
    assert captures == ["failed", "pool 0 given up", "failed"]


@pytest.mark.filterwarnings("ignore")
def test_what_a_compiler_captured_is_copied_too(captures: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    memory, asked = torch.zeros(2), []

    def compile_(module: nn.Module, **settings: Any) -> Any:
        asked.append(settings["options"])
        return lambda x: [memory.copy_(module(x))] * 2

    monkeypatch.setattr(torch, "compile", compile_)
    runner = prepare(nn.Tanh(), "inductor-cudagraph", (torch.zeros(2),), {})
    results = runner(torch.ones(2))
    runner(torch.full((2,), -1.0))
    assert torch.equal(results[0], torch.tanh(torch.ones(2)))
    assert results[0] is results[1]
    assert asked[0] == {"freezing": True, "triton.cudagraphs": True}
    prepare(nn.Tanh(), "inductor-max-autotune-cudagraph", (torch.zeros(2),), {})
    assert asked[-1] == {**asked[0], **inductor._TUNED}
    with pytest.raises(EngineUnavailableError, match="it has open sizes"):
        prepare(nn.Tanh(), "inductor-cudagraph", (torch.ones(2),), {}, resizable=True)
