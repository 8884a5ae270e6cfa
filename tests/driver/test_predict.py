"""Searching for a device that is not here: by its latencies alone, and with a trace that the device can judge."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from taso_py.cli import main
from taso_py.latency.database import LatencyDatabase
from taso_py.saving.folder import write_result

MODEL = """
import torch

class Product(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.randn(64, 64))
        self.b = torch.nn.Parameter(torch.randn(64, 64))

    def forward(self, x):
        return torch.tanh(x @ self.a @ self.b)

def model():
    return Product().eval(), (torch.randn(4, 64),)
"""
GPU = {
    "device": "cuda", "device_name": "A GPU elsewhere", "instruction_set": "sm_90", "threads": 0,
    "launched_by": "a processor there",
}  # fmt: skip
OTHER = {"device_name": "Another processor", "threads": 64}


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """A model; the latencies of its graphs are in a file."""
    (tmp_path / "mine.py").write_text(MODEL)
    monkeypatch.setenv("TASO_PY_CACHE", str(tmp_path / "here"))
    factory = f"{tmp_path / 'mine.py'}:model"
    assert main(["optimize", factory, "--race-seconds", "0.1", "--time-limit", "5", "--runtime", "eager"]) == 0
    assert main(["latencies", "export", str(tmp_path / "all.json")]) == 0
    monkeypatch.setenv("TASO_PY_CACHE", str(tmp_path / "there"))
    capsys.readouterr()
    return factory


def _import(folder: Path, environment: Mapping[str, Any], without: str = "nothing") -> None:
    """Takes over the latencies as another device's: views cost nothing, and all else the same."""
    document = json.loads((folder / "all.json").read_text())
    for fields in document["environments"].values():
        fields.update(environment)
    document["latencies"] = [row for row in document["latencies"] if not row["kernel"].startswith(without)]
    for row in document["latencies"]:
        seconds = 0.0 if row["signature"].startswith("view") else 1e-5
        row["latency"].update(low_s=seconds, median_s=seconds, high_s=seconds)
    (folder / "there.json").write_text(json.dumps(document))
    assert main(["latencies", "import", str(folder / "there.json")]) == 0


def _key(capsys: pytest.CaptureFixture[str]) -> str:
    return _listed(capsys).split()[0]


def _listed(capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of the only environment."""
    capsys.readouterr()
    assert main(["latencies", "devices"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    return line


@pytest.mark.parametrize("environment", [GPU, OTHER])
def test_a_device_elsewhere_is_searched_for_and_the_result_judged_here(
    factory: str,
    tmp_path: Path,
    environment: Mapping[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _import(tmp_path, environment)
    key, out = _key(capsys), tmp_path / "out"
    with LatencyDatabase() as database:
        known = database.rows()
    command = ["predict", factory, "--environment", key[:6], "--output", str(out), "--json"]
    out.mkdir()
    (out / "trace.rules").write_text("mine")
    assert main(command) == 2
    assert "trace.rules does not belong to a saved result" in capsys.readouterr().err
    assert (out / "trace.rules").read_text() == "mine"
    (out / "trace.rules").unlink()
    assert main(command) == 0
    prediction = json.loads(capsys.readouterr().out)
    before, after = prediction["predicted_ms"]
    assert after < before
    assert prediction["applied"]
    assert prediction["environment"]["device_name"] == environment["device_name"]
    with LatencyDatabase() as database:
        assert database.rows() == known
    assert main([*command[:-1]]) == 0, "its own trace may be replaced"
    assert "nothing was timed" in capsys.readouterr().out

    monkeypatch.setenv("TASO_PY_CACHE", str(tmp_path / "here"))
    assert main(["replay", str(out / "trace.rules"), factory]) == 0
    options = ["--trace", str(out / "trace.rules"), "--runtime", "eager", "--race-seconds", "0.1", "--json"]
    capsys.readouterr()
    assert main(["optimize", factory, *options]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["stop_reason"] == "a trace was followed"
    assert any("rule" in name for name in report["timed"])

    write_result(out, {"model.pt2": b""}, {})
    assert main(["predict", factory, "--environment", key, "--output", str(out)]) == 2
    assert "out holds a saved result with a trace of its own" in capsys.readouterr().err


def test_kernels_that_were_not_measured_there_are_not_chosen(
    factory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _import(tmp_path, OTHER, without="onednn")
    assert main(["predict", factory, "--environment", _key(capsys), "--json"]) == 0
    prediction = json.loads(capsys.readouterr().out)
    assert prediction["unknown"] > 0
    assert prediction["predicted_ms"][1] < prediction["predicted_ms"][0]


def test_too_little_is_known(factory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _import(tmp_path, GPU, without="torch:tanh")
    key = _key(capsys)
    assert main(["predict", factory, "--environment", key]) == 2
    assert "the model's time on A GPU elsewhere cannot be predicted: 1 of its operators" in capsys.readouterr().err
    assert main(["predict", factory, "--environment", "xyz"]) == 2
    assert f"a device 'xyz'; name one of {key} (A GPU elsewhere)" in capsys.readouterr().err
    assert "  A GPU elsewhere, launched by a processor there, torch " in (line := _listed(capsys))
    assert "threads" not in line
