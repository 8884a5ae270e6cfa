"""The examples run, as commands do, on small models and in little time; none is left out."""

from __future__ import annotations

import re
import runpy
import sys
import threading
from pathlib import Path
from urllib.error import HTTPError

import pytest
import torch

import taso_py
from taso_py.cli import main

EXAMPLES = Path(__file__).parents[1] / "examples"
QUICK = ("--time-limit", "1", "--race-seconds", "0.1")


@pytest.fixture(autouse=True)
def compiled_anew() -> None:
    torch.compiler.reset()


def run(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> None:
    """Runs an example as the main program; in this process, which has torch already."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


@pytest.mark.usefixtures("zoo_libraries")
def test_image_classifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, "image_classifier.py", "--size", "32", "--blocks", "1", "--output", str(tmp_path / "out"), *QUICK)
    printed = capsys.readouterr().out
    assert "same class: True" in printed
    assert "model.pt2" in printed


@pytest.mark.usefixtures("zoo_libraries")
def test_text_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--layers", "1", "--width", "64", "--tokens", "8", "--output", str(tmp_path / "out"))
    run(monkeypatch, "text_encoder.py", *small, *QUICK)
    printed = capsys.readouterr().out
    found = re.search(r"largest difference (\S+) of values up to (\S+)", printed)
    assert found is not None
    assert float(found[1]) < 1e-5 * float(found[2])
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize(
    ("name", "library"), [("image_classifier.py", "torchvision.models.resnet"), ("text_encoder.py", "transformers")]
)
def test_a_library_that_does_not_import_is_told(name: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SystemExit, match=r"does not import; this says what to install: .* taso_py\.models\.zoo$"):
        run(monkeypatch, name)


@pytest.mark.usefixtures("taso_backend")
def test_compile_backend(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, "compile_backend.py", "--width", "32", *QUICK)
    printed = capsys.readouterr().out
    assert all(float(error) < 1e-5 for error in re.findall(r"(?:difference|weights) (\S+)", printed))
    assert "with other weights" in printed


@pytest.fixture
def served(tmp_path: Path) -> str:
    folder = str(tmp_path / "served")
    assert main(["optimize", f"{EXAMPLES / 'serve.py'}:model", "--output", folder, *QUICK]) == 0
    return folder


def test_serve(served: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, "serve.py", served, "--port", "0", "--requests", "20")
    assert re.search(r"module +median \S+ ms", capsys.readouterr().out)

    names = runpy.run_path(str(EXAMPLES / "serve.py"))
    with names["server"](taso_py.load(served), 0, []) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        with pytest.raises(HTTPError, match="400") as refused:
            names["ask"](serving.server_port, [[1.0, 2.0]])
        refused.value.close()
        row = torch.linspace(-1, 1, names["FEATURES"])[None]
        answer = torch.tensor(names["ask"](serving.server_port, row.tolist()))
        torch.testing.assert_close(answer, names["model"]()[0](row))
        serving.shutdown()


def test_every_example_is_tested() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [path.name for path in EXAMPLES.glob("*.py") if f'"{path.name}"' not in source] == []
