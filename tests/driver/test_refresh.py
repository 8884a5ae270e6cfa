"""Saved results that are made again with other weights."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import taso_py
from taso_py.cli import main
from taso_py.driver import refresh as refreshing
from taso_py.driver.optimize import optimize_source
from taso_py.driver.prepare import source_of
from taso_py.driver.searches import rules_for
from taso_py.frontend import import_program
from taso_py.ir.errors import TasoError
from taso_py.options import Options
from taso_py.saving import artifact
from taso_py.saving.folder import MODEL, PLAN, REPORT, ArtifactError
from taso_py.saving.original import PROGRAM
from taso_py.unexpected import UnexpectedError
from tests.gains import take_any_gain

QUICK: Mapping[str, Any] = {"effort": "quick", "time_limit": 3.0, "race_seconds": 0.1, "cache": False}


class Layers(nn.Module):
    """A convolution that is folded with its normalization, tied layers, one that shares its input, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.one, self.two, self.other = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.two.weight = self.one.weight
        self.unused = nn.Parameter(torch.zeros(2))
        self.register_buffer("shift", torch.full((8,), 0.5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.conv(x))).mean((2, 3))
        return self.two(functional.relu(self.one(x) + self.shift)) * self.other(x) + torch.tensor([2.0])


def made(seed: int) -> Layers:
    torch.manual_seed(seed)
    module = Layers().eval()
    with torch.no_grad():
        for tensor in module.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.1)
    return module


X = torch.randn(2, 3, 10, 10, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved result that rules and kernels made, whatever they gain."""
    out = tmp_path_factory.mktemp("refresh") / "out"
    with pytest.MonkeyPatch.context() as patch:
        take_any_gain(patch)
        assert not taso_py.optimize(made(0), X, output=out, **QUICK).keeps_original
    return out


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "out"))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_result_computes_the_model_with_the_new_weights(folder: Path) -> None:
    plan = json.loads((folder / PLAN).read_text())["plan"]
    new = made(1)
    assert not torch.allclose(taso_py.load(folder)(X), new(X), rtol=0.1)
    result = taso_py.refresh(folder, new.state_dict())
    torch.testing.assert_close(result(X), new(X), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(taso_py.load(folder)(X), new(X), rtol=1e-4, atol=1e-4)
    said = json.loads((folder / PLAN).read_text())
    assert said["plan"] == plan
    report = json.loads((folder / REPORT).read_text())
    assert report["notes"][-1].startswith("weights were replaced on ")
    assert 0 < report["error"] < 1e-5
    # And again, from what was written.
    third = made(2)
    torch.testing.assert_close(taso_py.refresh(folder, third.state_dict())(X), third(X), rtol=1e-4, atol=1e-4)
    notes = json.loads((folder / REPORT).read_text())["notes"]
    assert sum(note.startswith("weights were replaced") for note in notes) == 1


def test_the_first_result_stays_where_another_folder_is_given(folder: Path, tmp_path: Path) -> None:
    before, new = files(folder), made(1)
    taso_py.refresh(folder, new.state_dict(), output=tmp_path / "new")
    assert files(folder) == before
    torch.testing.assert_close(taso_py.load(tmp_path / "new")(X), new(X), rtol=1e-4, atol=1e-4)


class Lookup(nn.Module):
    """Looks rows up by numbers from one on, so that zeros are no inputs of it."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(4, 3)

    def forward(self, i: Tensor) -> Tensor:
        return self.rows(i - 1) * 2


def test_the_model_is_run_on_its_example_inputs(tmp_path: Path) -> None:
    first, new, i = Lookup().eval(), Lookup().eval(), torch.tensor([1, 4])
    taso_py.optimize(first, i, output=tmp_path, **QUICK)
    torch.testing.assert_close(taso_py.load(tmp_path)(i), first(i))
    torch.testing.assert_close(taso_py.refresh(tmp_path, new.state_dict())(i), new(i))


def _without(state: dict[str, Any]) -> None:
    del state["conv.weight"]


def _with(state: dict[str, Any]) -> None:
    state["conv.scale"] = torch.ones(1)


def _reshaped(state: dict[str, Any]) -> None:
    state["other.bias"] = torch.zeros(9)


def _retyped(state: dict[str, Any]) -> None:
    state["other.bias"] = torch.zeros(8, dtype=torch.float64)


def _untied(state: dict[str, Any]) -> None:
    state["two.weight"] = state["two.weight"] + 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without, "lacks conv.weight"),
        (_with, "has conv.scale, which the model does not have"),
        (_reshaped, r"other.bias has the type torch.float32 and the shape \[9\]"),
        (_retyped, r"other.bias has the type torch.float64 .* not torch.float32"),
        (_untied, "two.weight and one.weight are one tensor in the model"),
    ],
)
def test_weights_of_another_model_are_refused_and_nothing_is_lost(
    change: Callable[[dict[str, Any]], None], message: str, folder: Path
) -> None:
    before, state = files(folder), dict(made(1).state_dict())
    change(state)
    with pytest.raises(taso_py.TasoError, match=message) as caught:
        taso_py.refresh(folder, state)
    assert "\n" not in str(caught.value)
    assert files(folder) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"state_dict": made(1)}, "given as a .*, not as a state dict; give model.state_dict"),
        ({"state_dict": {**made(1).state_dict(), "conv.weight": 3}}, "has conv.weight as a int, not as a tensor"),
        ({"directory": 5}, "directory must be the path of a folder, not 5"),
        ({"directory": made(1)}, "directory must be the path of a folder"),
        ({"output": ""}, "output must be the path of a folder, not ''"),
        ({"seed": "x"}, "seed must be a whole number, not 'x'"),
    ],
)
def test_a_mistaken_argument_is_one_line(arguments: dict[str, Any], message: str, folder: Path) -> None:
    before = files(folder)
    given: dict[str, Any] = {"directory": folder, "state_dict": made(1).state_dict(), **arguments}
    with pytest.raises(taso_py.TasoError, match=message) as caught:
        taso_py.refresh(**given)
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, UnexpectedError)
    assert files(folder) == before


def test_a_result_that_would_be_wrong_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison sees it: here one weight is spoilt on the way into the result."""
    fold = refreshing.fold

    def spoilt(program: Any, *args: Any) -> Any:
        folded = fold(program, *args)
        return replace(folded, weights={key: t + 0.01 * (t.dim() == 4) for key, t in folded.weights.items()})

    monkeypatch.setattr(refreshing, "fold", spoilt)
    before = files(folder)
    with pytest.raises(refreshing.RefreshError, match="refused the saved program with these weights: output 0"):
        taso_py.refresh(folder, made(1).state_dict())
    assert files(folder) == before


def test_a_folder_without_the_original_program_is_one_line(folder: Path) -> None:
    (folder / PROGRAM).unlink()
    with pytest.raises(taso_py.TasoError, match="does not hold the model's original program"):
        taso_py.refresh(folder, made(1).state_dict())
    (folder / PROGRAM).write_bytes(b"no archive")
    with pytest.raises(taso_py.TasoError, match="optimize the model again"):
        taso_py.refresh(folder, made(1).state_dict())


def test_a_damaged_result_is_one_line(folder: Path) -> None:
    content = bytearray((folder / MODEL).read_bytes())
    content[len(content) // 2 :] = b""
    (folder / MODEL).write_bytes(content)
    with pytest.raises(ArtifactError, match=r"model\.pt2; optimize the model again"):
        taso_py.refresh(folder, made(1).state_dict())


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_the_file_of_an_engine_is_made_again(runtime: str, tmp_path: Path, any_gain: None) -> None:
    pytest.importorskip(runtime)
    optimized = taso_py.optimize(made(0), X, runtime=runtime, output=tmp_path / "out", **QUICK)
    assert optimized.report.runtime == runtime
    new = made(1)
    taso_py.refresh(tmp_path / "out", new.state_dict())
    torch.testing.assert_close(taso_py.load(tmp_path / "out")(X), new(X), rtol=1e-3, atol=1e-3)


def test_what_was_made_is_read_back_once(tmp_path: Path, any_gain: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module that is compared and the engine's file are of one import."""
    pytest.importorskip("onnxruntime")
    taso_py.optimize(made(0), X, runtime="onnxruntime", output=tmp_path / "out", **QUICK)
    imported: list[str] = []

    def counted(exported: Any, *rest: Any) -> Any:
        imported.append("program")
        return import_program(exported, *rest)

    monkeypatch.setattr(artifact, "import_program", counted)
    monkeypatch.setattr(refreshing, "load", lambda _: imported.append("result"))
    taso_py.refresh(tmp_path / "out", made(1).state_dict())
    assert imported == ["program", "result"]


def test_other_formats_are_written_again(tmp_path: Path, any_gain: None) -> None:
    options = Options.from_mapping(dict(QUICK))
    optimize_source(source_of(made(0), X, {}), options, rules_for(options), tmp_path / "out", forms=["code"])
    taso_py.refresh(tmp_path / "out", made(1).state_dict())
    assert (tmp_path / "out" / "model.py").is_file()
    assert not (tmp_path / "out" / "report.html").exists()


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = made(1)
    torch.save(new.state_dict(), tmp_path / "new.pt")
    assert main(["refresh", str(folder), str(tmp_path / "new.pt")]) == 0
    assert "computes the model with the weights in" in capsys.readouterr().out
    torch.testing.assert_close(taso_py.load(folder)(X), new(X), rtol=1e-4, atol=1e-4)
    torch.save([1], tmp_path / "list.pt")
    assert main(["refresh", str(folder), str(tmp_path / "list.pt")]) == 2
    assert main(["refresh", str(folder), str(tmp_path / "none.pt")]) == 2
    assert main(["refresh", str(tmp_path), str(tmp_path / "new.pt")]) == 2
    assert all(line.startswith("taso-py: error: ") for line in capsys.readouterr().err.splitlines())


def test_state_that_is_written_comes_from_the_state_dict(tmp_path: Path, any_gain: None) -> None:
    class Counting(Layers):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.get_buffer("count").add_(1)
            return super().forward(x) + self.get_buffer("count")

    torch.manual_seed(0)
    module = Counting().eval()
    taso_py.optimize(module, X, output=tmp_path / "out", **QUICK)
    new = copy.deepcopy(module)
    with torch.no_grad():
        new.get_buffer("count").fill_(5)
        new.other.bias.add_(1)
    result = taso_py.refresh(tmp_path / "out", new.state_dict())
    for _ in range(2):
        torch.testing.assert_close(result(X), new(X), rtol=1e-4, atol=1e-4)


def test_files_of_the_users_own_are_not_replaced(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / MODEL).write_bytes(b"mine")
    with pytest.raises(ArtifactError, match=r"model\.pt2 does not belong to a saved result"):
        taso_py.refresh(folder, made(1).state_dict(), output=other)
    assert [path.read_bytes() for path in other.iterdir()] == [b"mine"]


def test_elements_that_the_model_repeats_are_one(tmp_path: Path) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("mask", torch.ones(1, 4).expand(3, 4))

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * self.mask

    x = torch.randn(3, 4)
    taso_py.optimize(Masked().eval(), x, output=tmp_path, **QUICK)
    state = Masked().state_dict()
    state["mask"] = torch.full((3, 4), 2.0)
    found = taso_py.refresh(tmp_path, state)(x)
    torch.testing.assert_close(found, functional.linear(x, state["layer.weight"], state["layer.bias"]) * 2)
    state["mask"] = torch.arange(12.0).view(3, 4)
    with pytest.raises(TasoError, match="mask repeats elements in the model that was optimized, but not here"):
        taso_py.refresh(tmp_path, state)
