"""Models optimized for engines that take whole graphs: saved, loaded, read by the engine alone; and what refuses them.

Models here sleep when PyTorch runs them, so that whatever else computes them is surely faster.
"""

from __future__ import annotations

import importlib
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from taso_py.cli import main
from taso_py.engines.engine import EngineUnavailableError
from taso_py.engines.session import SessionEngine
from taso_py.runtime.artifact import load
from taso_py.runtime.folder import ArtifactError
from taso_py.runtime.optimize import optimize
from taso_py.runtime.result import Optimized
from tests.engines.sessions import NAMES, engine_named

X = torch.linspace(-1, 1, 32).reshape(4, 8)
LIMITS: dict[str, Any] = {"race_seconds": 0.2, "time_limit": 0.2, "cache": False}


class Sleeper(nn.Module):
    """Two layers, after a sleep that no export sees."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(2e-3)
        return self.layers(x)


class Sorting(nn.Module):
    """An operator that engines have no row for."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 2).sort()[0]


class Counting(nn.Module):
    """A buffer that is written to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * 2


@pytest.fixture(scope="module", params=NAMES)
def engine(request: pytest.FixtureRequest) -> SessionEngine:
    return engine_named(request.param)


@pytest.fixture(scope="module")
def saved(engine: SessionEngine, tmp_path_factory: pytest.TempPathFactory) -> tuple[Optimized, Path]:
    """A model optimized for the engine, and its folder."""
    folder = tmp_path_factory.mktemp(engine.name)
    return optimize(Sleeper().eval(), X, output=folder, runtime=engine.name, **LIMITS), folder


def close(found: Any, x: Tensor = X) -> bool:
    with torch.no_grad():
        return torch.allclose(torch.as_tensor(found), Sleeper().eval()(x), atol=1e-5)


def test_a_model_is_optimized_saved_and_loaded(engine: SessionEngine, saved: tuple[Optimized, Path]) -> None:
    optimized, folder = saved
    assert not optimized.keeps_original
    assert optimized.report.runtime == engine.name
    assert optimized.report.comparison_passed
    loaded = load(folder)
    for runner in (optimized.module, loaded):
        assert all(close(runner(x), x) for x in (X, X.flip(0)))
    assert engine.files(loaded) == engine.files(optimized.module)


def test_the_engine_reads_its_file_without_us(engine: SessionEngine, saved: tuple[Optimized, Path]) -> None:
    path = saved[1] / engine.file
    if engine.name == "onnxruntime":
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        (found,) = session.run(None, {"x": X.numpy()})
    else:
        import openvino

        found = openvino.Core().compile_model(path, "CPU")({"x": X.numpy()})["output_0"]
    assert close(found)


def test_a_folder_whose_engine_is_missing_is_run_by_pytorch(
    engine: SessionEngine,
    saved: tuple[Optimized, Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    missing(engine, monkeypatch)
    assert close(load(saved[1])(X))
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith(f"{engine.name} needs {engine.packages[0]} (")
    assert said.endswith(f"; {saved[1]} is run by PyTorch instead")
    assert "\n" not in said


def test_an_engines_file_that_was_exchanged_is_refused(engine: SessionEngine, saved: tuple[Optimized, Path]) -> None:
    path = saved[1] / engine.file
    content = path.read_bytes()
    try:
        path.write_bytes(content + b" ")
        with pytest.raises(ArtifactError, match=f"plan.json was saved with another {engine.file}; optimize"):
            load(saved[1])
    finally:
        path.write_bytes(content)


def test_an_engine_that_is_missing_is_one_line(
    engine: SessionEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing(engine, monkeypatch)
    with pytest.raises(EngineUnavailableError, match=f"{engine.name} needs {engine.packages[0]} .*pip install"):
        optimize(Sleeper().eval(), X, runtime=engine.name, **LIMITS)
    model = f"{__file__}:Sleeper"
    assert main(["optimize", model, "--input", "4x8", "--runtime", engine.name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{engine.name} needs {engine.packages[0]}" in line


def missing(engine: SessionEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the package of an engine be missing."""
    found = importlib.import_module

    def import_module(name: str, package: str | None = None) -> Any:
        if name == engine.packages[0]:
            raise ImportError(f"No module named {name!r}")
        return found(name, package)

    monkeypatch.setattr(importlib, "import_module", import_module)


@pytest.mark.parametrize(
    ("module", "reason"),
    [(Sorting(), "aten.sort.default has no row in the lowering to ONNX"), (Counting(), "it writes, checks or draws")],
    ids=["no row", "effects"],
)
def test_what_an_engine_refuses_stays_as_it_is(engine: SessionEngine, module: nn.Module, reason: str) -> None:
    optimized = optimize(module.eval(), X, runtime=engine.name, **LIMITS)
    assert optimized.keeps_original
    (note,) = [note for note in optimized.report.notes if "cannot run this module" in note]
    assert note.startswith(f"{engine.name} cannot run this module: ")
    assert reason in note
    assert "\n" not in note


@pytest.mark.parametrize("freeze", [True, False])
def test_torch_compile_hands_graphs_to_an_engine(engine: SessionEngine, freeze: bool, taso_backend: None) -> None:
    options = {"runtime": engine.name, "freeze": freeze, **LIMITS}
    module = Sleeper().eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        compiled: Any = torch.compile(module.layers, backend="taso", options=options)
        assert torch.allclose(compiled(X), module.layers(X), atol=1e-5)
        for parameter in module.parameters():
            parameter.mul_(2)
        assert torch.allclose(compiled(X), module.layers(X), atol=1e-5)
    torch._dynamo.reset()
