"""Models optimized for engines that take whole graphs: saved, loaded, read by the engine alone; and what refuses them.

The model here sleeps when PyTorch runs it, so that whatever else computes it is surely faster. Prices are invented.
"""

from __future__ import annotations

import ast
import importlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from taso_py.driver import evidence
from taso_py.driver.optimize import optimize
from taso_py.driver.result import Optimized
from taso_py.engines.engine import EngineUnavailableError
from taso_py.engines.prices import SessionLatencies
from taso_py.engines.session import WRITES, SessionEngine
from taso_py.engines.table import engines_to_try
from taso_py.saving.compact import COMPACT
from taso_py.saving.folder import PLAN, ArtifactError
from taso_py.saving.loading import load
from tests.engines.sessions import NAMES, engine_named
from tests.report.test_profile_page import PROFILE

X = torch.linspace(-1, 1, 32).reshape(4, 8)
LIMITS: dict[str, Any] = {"race_seconds": 0.1, "time_limit": 0.2, "search": "templates", "cache": False}


class Sleeper(nn.Module):
    """Two layers, after a sleep that no export sees."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(10e-3)
        return self.layers(x)


class Remembering(nn.Module):
    """Layers whose results are added up in a buffer, and put into an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Sleeper()
        self.total: Tensor
        self.register_buffer("total", torch.zeros(4, 4))

    def forward(self, x: Tensor, last: Tensor) -> Tensor:
        found = self.model(x)
        self.total.add_(found)
        last.copy_(found)
        return self.total * 2


class Gamma(nn.Module):
    """An operator that engines have no row for."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 2).lgamma()


@pytest.fixture(scope="module", autouse=True)
def invented_prices() -> Iterator[None]:
    """Nothing is measured but the race."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SessionLatencies, "of_cover", lambda *_: 1e-5)
        patch.setattr(SessionLatencies, "of_conversion", lambda *_: 1e-5)
        patch.setattr(evidence, "profile_modules", lambda *_: [PROFILE, PROFILE])
        yield


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
        return torch.allclose(torch.as_tensor(found), Sleeper().layers.eval()(x), atol=1e-5)


def test_a_model_is_optimized_saved_and_loaded(engine: SessionEngine, saved: tuple[Optimized, Path]) -> None:
    optimized, folder = saved
    assert not optimized.keeps_original
    assert optimized.report.runtime == engine.name
    assert optimized.report.comparison_passed
    loaded = load(folder)
    assert isinstance(loaded, nn.Module)
    assert isinstance(optimized.module, nn.Module)
    for runner in (optimized.module, loaded):
        assert all(close(runner(x), x) for x in (X, X.flip(0)))
    assert engine.files(loaded).keys() == engine.files(optimized.module).keys() != set()


@pytest.fixture(scope="module")
def remembering(engine: SessionEngine, tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Optimized, Path]:
    """A model with state after a call, optimized for the engine, and its folder."""
    folder, model = tmp_path_factory.mktemp(engine.name), Remembering().eval()
    model(X, torch.zeros(4, 4))
    return model, optimize(model, (X, torch.zeros(4, 4)), output=folder, runtime=engine.name, **LIMITS), folder


def test_a_model_with_state_is_optimized_saved_and_loaded(
    engine: SessionEngine, remembering: tuple[nn.Module, Optimized, Path]
) -> None:
    """All that was loaded goes on from the state that the model had."""
    model, optimized, folder = remembering
    assert optimized.report.runtime == engine.name
    assert optimized.report.comparison_passed
    modules = model, optimized.module, load(folder)
    for x in (X, X * 2):
        found: list[list[Tensor]] = []
        for module in modules:
            assert isinstance(module, nn.Module)
            last = torch.zeros(4, 4)
            with torch.no_grad():
                found.append([module(x, last), last, module.get_buffer("total").clone()])
        torch.testing.assert_close(found[1:], [found[0]] * 2, rtol=1e-5, atol=1e-5)


def test_the_engine_reads_its_file_without_us(engine: SessionEngine, saved: tuple[Optimized, Path]) -> None:
    path = saved[1] / engine.file
    if engine.name == "onnxruntime":
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        (found,) = session.run(None, {"x": X.numpy()})
    else:
        import openvino

        # On processors that compute bfloat16 faster, it would use that otherwise.
        settings = {"INFERENCE_PRECISION_HINT": "f32"}
        found = openvino.Core().compile_model(path, "CPU", settings)({"x": X.numpy()})["output_0"]
    assert close(found)


def test_a_folder_whose_engine_is_missing_is_run_by_pytorch(
    engine: SessionEngine,
    saved: tuple[Optimized, Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    missing(engine, monkeypatch, ImportError("No module named it"))
    assert close(load(saved[1])(X))
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith(f"{engine.name} needs {engine.library} (")
    assert said.endswith(f"; {saved[1]} is run by PyTorch instead")
    assert "\n" not in said


def test_a_result_loads_without_the_compiler(
    engine: SessionEngine, saved: tuple[Optimized, Path], remembering: tuple[nn.Module, Optimized, Path]
) -> None:
    script = (
        "import sys, torch, taso_py; model = taso_py.load(sys.argv[1]); print(list(model.state_dict()));"
        "x = torch.linspace(-1, 1, 32).reshape(4, 8); y = model(x, *[torch.zeros(4, 4)] * int(sys.argv[2]));"
        "heavy = {'torch._dynamo', 'torch._inductor', 'sympy', 'networkx', 'z3', 'jinja2', 'onnx',"
        " 'onnx_ir', 'taso_py.frontend', 'taso_py.search', 'taso_py.engines.table', 'taso_py.saving.artifact'};"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys();"
        "assert type(model.computes).__module__ == 'taso_py.engines.' + sys.argv[3]; print(y.tolist())"
    )
    for folder, more, state in ((saved[1], 0, []), (remembering[2], 1, ["total"])):
        arguments = [sys.executable, "-c", script, str(folder), str(more), engine.name]
        ran = subprocess.run(arguments, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        held, found = ran.stdout.splitlines()
        assert held == str(state)
        assert more or close(ast.literal_eval(found))


def test_a_result_of_an_earlier_release_loads_as_well(saved: tuple[Optimized, Path], tmp_path: Path) -> None:
    folder = tmp_path / "out"
    shutil.copytree(saved[1], folder)
    said = json.loads((folder / PLAN).read_text())
    del said["files"][COMPACT]
    (folder / PLAN).write_text(json.dumps(said))
    (folder / COMPACT).unlink()
    assert close(load(folder)(X))


@pytest.mark.parametrize("has_compact", [True, False])
@pytest.mark.parametrize("change", [lambda content: content + b" ", lambda content: content[:-9]], ids=["more", "less"])
def test_an_engines_file_that_was_exchanged_is_refused(
    engine: SessionEngine,
    remembering: tuple[nn.Module, Optimized, Path],
    tmp_path: Path,
    change: Any,
    has_compact: bool,
) -> None:
    present = {file.name for file in remembering[2].iterdir()}
    for name in present.intersection((engine.file, *engine.beside)):
        folder = tmp_path / name
        shutil.copytree(remembering[2], folder)
        if not has_compact:
            (folder / COMPACT).unlink()
        load(folder)
        (folder / name).write_bytes(change((folder / name).read_bytes()))
        with pytest.raises(ArtifactError, match=f"plan.json belongs to another {name}; optimize") as refusal:
            load(folder)
        assert "\n" not in str(refusal.value)


def test_a_file_that_says_what_is_written_is_not_missed(
    engine: SessionEngine, remembering: tuple[nn.Module, Optimized, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    shutil.copytree(remembering[2], folder)
    (folder / WRITES).unlink()
    with pytest.raises(ArtifactError, match=f"lacks {WRITES}, which {engine.file} needs; optimize the model again"):
        load(folder)


def missing(engine: SessionEngine, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Lets the package of an engine be missing, or fail to load."""
    found = importlib.import_module

    def import_module(name: str, package: str | None = None) -> Any:
        if name == engine.library:
            raise error
        return found(name, package)

    monkeypatch.setattr(importlib, "import_module", import_module)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ImportError("No module named it"), "{engine} needs {package} (No module named it); pip install"),
        (OSError("version `GLIBC_9.9' not found\nin all of it"), "{package} does not load here: version `GLIBC_9.9'"),
    ],
    ids=["absent", "of another version"],
)
def test_an_engine_that_does_not_load_is_one_note_and_the_others_go_on(
    engine: SessionEngine, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    cpu = torch.device("cpu")
    before, _ = engines_to_try("auto", cpu)
    missing(engine, monkeypatch, error)
    left, notes = engines_to_try("auto", cpu)
    assert [other for other in before if other is not engine] == left
    (note,) = [note for note in notes if engine.library in note]
    assert note.startswith(said.format(engine=engine.name, package=engine.library))
    assert "\n" not in note
    with pytest.raises(EngineUnavailableError) as refusal:
        engines_to_try(engine.name, cpu)
    assert str(refusal.value) == note


def test_what_an_engine_refuses_stays_as_it_is(engine: SessionEngine) -> None:
    optimized = optimize(Gamma().eval(), X, runtime=engine.name, **LIMITS)
    assert optimized.keeps_original
    (note,) = [note for note in optimized.report.notes if "cannot run this module" in note]
    assert note.startswith(f"{engine.name} cannot run this module: aten.lgamma.default has no row")
    assert "\n" not in note
    assert torch.equal(optimized.module(X), Gamma()(X))
