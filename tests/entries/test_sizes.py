"""Several sizes of one model: each call goes to the result of its size; weights are shared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import taso_py
from taso_py.backend import build
from taso_py.backend.guard import ArgumentError
from taso_py.cli import main
from taso_py.entries.entry import EntryPointError
from taso_py.entries.sizes import OptimizedSizes, optimize_sizes
from taso_py.frontend import import_module
from taso_py.saving.sized import SizedModule, shapes_of, text_of
from taso_py.saving.warmup import WarmupError

QUICK: dict[str, Any] = {"race_seconds": 0.1, "time_limit": 1.0, "kernels": False, "cache": False}
SIZES = (1, 5)


def _image(batch: int) -> Tensor:
    return torch.linspace(-1, 1, batch * 3 * 6 * 6).view(batch, 3, 6, 6)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 7))
    return layers.eval()


@pytest.fixture(scope="module")
def optimized(model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> tuple[OptimizedSizes, Path]:
    folder = tmp_path_factory.mktemp("sizes") / "out"
    return optimize_sizes(model, [_image(batch) for batch in SIZES], output=folder, **QUICK), folder


def test_each_size_is_computed(model: nn.Module, optimized: tuple[OptimizedSizes, Path]) -> None:
    result, folder = optimized
    loaded = taso_py.load(folder)
    assert isinstance(loaded, SizedModule)
    assert loaded.sizes == result.module.sizes == ("1x3x6x6", "5x3x6x6") == tuple(result.results)
    with torch.no_grad():
        for batch in SIZES:
            for calls in (result.module, loaded):
                torch.testing.assert_close(calls(_image(batch)), model(_image(batch)))


class Shifted(nn.Module):
    """Two keywords of one size."""

    def forward(self, x: Tensor, factor: Tensor | None = None, shift: Tensor | None = None) -> Tensor:
        return (x if factor is None else x * factor) + (0 if shift is None else shift)


def test_calls_with_other_keywords_are_the_models_own() -> None:
    x = torch.linspace(-1, 1, 4)
    calls = SizedModule({shapes_of((x,), {"shift": x}): build(import_module(Shifted(), (x,), {"shift": x}))}, Shifted())
    for args, kwargs in (((x,), {"shift": x}), ((x,), {"factor": x}), ((x, x), {})):
        assert torch.equal(calls(*args, **kwargs), Shifted()(*args, **kwargs))
    with pytest.raises(TypeError, match="other"):
        calls(x, other=x)


def test_other_sizes_are_the_models_own_or_refused(model: nn.Module, optimized: tuple[OptimizedSizes, Path]) -> None:
    result, folder = optimized
    with torch.no_grad():
        torch.testing.assert_close(result.module(_image(3)), model(_image(3)))
    with pytest.raises(ArgumentError, match=r"of sizes 1x3x6x6 and 5x3x6x6, not 3x3x6x6; optimize it for that"):
        taso_py.load(folder)(_image(3))
    with pytest.raises(WarmupError, match="several entry points"):
        taso_py.load(folder, warmup=[5])


def test_weights_are_stored_once(model: nn.Module, optimized: tuple[OptimizedSizes, Path]) -> None:
    files = [path for path in optimized[1].rglob("*") if path.is_file()]
    assert len([path for path in files if path.name == "weights.pt"]) == 1
    said = json.loads((optimized[1] / "entries.json").read_text())
    assert said["sizes"] == {"1x3x6x6": [[1, 3, 6, 6]], "5x3x6x6": [[5, 3, 6, 6]]}


def test_a_model_with_state_refuses_other_sizes(tmp_path: Path) -> None:
    class Counting(nn.Module):
        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls.add_(1)
            return x * self.calls

    result = optimize_sizes(Counting().eval(), [torch.ones(2), torch.ones(3)], output=tmp_path / "out", **QUICK)
    for calls in (result.module, taso_py.load(tmp_path / "out")):
        first, second = calls(torch.ones(2)), calls(torch.ones(3))
        assert (float(first[0]), float(second[0])) == (1.0, 2.0), "they share it"
        with pytest.raises(ArgumentError):
            calls(torch.ones(4))


def test_keyword_inputs() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor, *, by: Tensor) -> Tensor:
            return x * by

    examples = [{"x": torch.ones(2), "by": torch.ones(size)} for size in (1, 2)]
    result = optimize_sizes(Scaled().eval(), examples, **QUICK)
    assert result.module.sizes == ("1,2", "2,2"), "in the order of the names"
    for example in examples:
        torch.testing.assert_close(result.module(**example), example["x"] * example["by"])


@pytest.mark.parametrize(
    ("examples", "said"),
    [
        ([torch.ones(2), torch.zeros(2)], "size 2 is given twice"),
        ([], "no size is given"),
        *(
            (given, "examples must be a list of the example inputs of each size, not ")
            for given in (None, 5, "2", torch.ones(2), {"x": torch.ones(2)})
        ),
    ],
)
def test_wrong_sizes_are_one_line(examples: Sequence[Tensor], said: str) -> None:
    with pytest.raises(EntryPointError, match=said):
        optimize_sizes(nn.ReLU().eval(), examples, **QUICK)


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((torch.ones(2, 3), torch.ones(())), {}, "2x3,number"),
        (([torch.ones(1), 3],), {"y": torch.ones(4)}, "1,4"),
        ((), {}, "nothing"),
    ],
)
def test_sizes_as_text(args: tuple[Any, ...], kwargs: Mapping[str, Any], text: str) -> None:
    assert text_of(shapes_of(args, kwargs)) == text


FACTORY = """
import torch

def model():
    return torch.nn.Linear(4, 3).eval(), (torch.ones(2, 4),)
"""


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sized_factory.py").write_text(FACTORY)
    return "sized_factory.py:model"


def test_the_command(factory: str, capsys: pytest.CaptureFixture[str]) -> None:
    quick = ("--time-limit", "1", "--race-seconds", "0.1", "--runtime", "eager")
    assert main(["optimize", factory, "--sizes", "8x4", "--sizes", "1x4", "--output", "out", *quick]) == 0
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()] == ["size", "2x4", "8x4", "1x4"]
    assert taso_py.load("out")(torch.ones(8, 4)).shape == (8, 3)
    assert main(["optimize", factory, "--sizes", "8x4", "--json", *quick]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["2x4", "8x4"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sizes", "8x4,1"], "is 2 inputs, and sized_factory.py:model takes 1"),
        (["--sizes", "2x4"], "size 2x4 is given twice"),
        (["--sizes", "8xA"], "is not SHAPE"),
        (["--sizes", "8x4", "--output", "out", "--emit", "onnx"], "--sizes goes with none of --emit"),
    ],
)
def test_wrong_options_are_one_line(
    options: list[str], said: str, factory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["optimize", factory, *options]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert said in line


def test_keyword_arguments_come_in_any_order() -> None:
    runners = {shapes_of((), {"x": torch.ones(2), "by": torch.ones(n)}): (lambda n=n, **_: n) for n in (1, 2)}
    assert SizedModule(runners)(by=torch.ones(1), x=torch.ones(2)) == 1


def test_the_original_is_no_part_of_the_module() -> None:
    original = nn.Linear(4, 4)
    sized = SizedModule({((1, 4),): lambda x: x}, original)
    assert [*sized.modules()] == [sized]
    assert original.training
    assert torch.equal(sized(torch.ones(2, 4)), original(torch.ones(2, 4)))
