"""The examples run, as commands do, on small models and in little time; none is left out."""

from __future__ import annotations

import json
import re
import runpy
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import torch
from torch import Tensor

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
    command = ["optimize", f"{EXAMPLES / 'serve.py'}:model", "--runtime", "eager", "--sizes", "2x256", *QUICK]
    assert main([*command, "--output", folder]) == 0
    return folder


def test_serve(served: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, "serve.py", served, "--port", "0", "--requests", "20", "--clients", "4")
    printed = capsys.readouterr().out
    assert re.findall(r"^(\w+) +\d+ rows/s, median \S+ ms, 99 of 100 within \S+ ms$", printed, re.MULTILINE) == [
        "result",
        "original",
    ]


def post(port: int, row: list[float]) -> list[float]:
    """Asks the server as any client does."""
    asked = Request(f"http://localhost:{port}", json.dumps(row).encode(), headers={"Content-Type": "application/json"})
    with urlopen(asked) as response:
        return json.load(response)


def test_rows_that_are_served_together_get_their_own_answers() -> None:
    names = runpy.run_path(str(EXAMPLES / "serve.py"))
    plain, sizes = names["model"]()[0], []

    def module(rows: Tensor) -> Tensor:
        sizes.append(len(rows))
        time.sleep(0.05)  # the other rows arrive meanwhile
        return plain(rows)

    rows = torch.randn(7, names["FEATURES"], generator=torch.Generator().manual_seed(0))
    with names["serving"](module, [1, 2, 4], 0) as port:
        with pytest.raises(HTTPError, match="400") as refused:
            post(port, [1.0, 2.0])
        refused.value.close()
        with ThreadPoolExecutor(len(rows)) as pool:
            answers = list(pool.map(partial(post, port), rows.tolist()))
    torch.testing.assert_close(torch.tensor(answers), plain(rows))
    assert set(sizes) <= {1, 2, 4}
    assert len(sizes) < len(rows)


def test_a_module_that_fails_fails_the_requests_it_was_called_for() -> None:
    names = runpy.run_path(str(EXAMPLES / "serve.py"))
    calls = iter([ValueError("out of order"), torch.ones(1, 10)])

    def module(_: Tensor) -> Tensor:
        found = next(calls)
        if isinstance(found, ValueError):
            raise found
        return found

    row = [0.0] * names["FEATURES"]
    with names["serving"](module, [1], 0) as port:
        with pytest.raises(HTTPError, match="500") as failed:
            post(port, row)
        failed.value.close()
        assert post(port, row) == [1.0] * 10


def test_every_example_is_tested() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [path.name for path in EXAMPLES.glob("*.py") if f'"{path.name}"' not in source] == []
