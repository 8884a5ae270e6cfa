"""Runtimes: which ones a device has, and that a prepared module computes the same."""

import pytest
import torch

from taso_py.runtime.runtimes import RuntimeUnavailableError, prepare, runtimes_to_try

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_auto_stands_for_what_the_device_has() -> None:
    assert runtimes_to_try("auto", CPU) == ("eager", "inductor", "inductor-freezing")
    assert runtimes_to_try("auto", CUDA) == ("eager", "cudagraph", "inductor", "inductor-freezing")
    assert runtimes_to_try("inductor", CPU) == ("inductor", "inductor-freezing")
    assert runtimes_to_try("eager", CPU) == ("eager",)
    with pytest.raises(RuntimeUnavailableError, match="need a GPU"):
        runtimes_to_try("cudagraph", CPU)


def test_eager_is_the_module_itself() -> None:
    module = torch.nn.Linear(3, 4)
    assert prepare(module, "eager", (torch.ones(2, 3),), {}) is module


def test_a_compiler_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> object:
        raise RuntimeError("no C++ compiler\nwith\nmany\nlines")

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(RuntimeUnavailableError, match=r"inductor cannot run this module: no C\+\+ compiler$"):
        prepare(torch.nn.Linear(3, 4), "inductor", (torch.ones(2, 3),), {})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_captured_graph_computes_the_same_on_other_inputs() -> None:
    module = torch.nn.Linear(3, 4).cuda()
    x = torch.ones(2, 3, device="cuda")
    replay = prepare(module, "cudagraph", (x,), {})
    assert torch.allclose(replay(2 * x), module(2 * x))
