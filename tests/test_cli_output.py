"""What the command line prints, and where: mistakes in a line, full disks, readers that have gone, pipes."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.panel import Panel

from taso_py.cli import main
from taso_py.commands.common import show
from taso_py.saving import emit

BUFFERED = {**os.environ, "PYTHONUNBUFFERED": ""}
"""As Python writes by itself: what cannot be written it tries to write again when it ends."""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
@pytest.mark.parametrize("action", ["list", "stats"])
def test_output_that_cannot_be_written_is_one_line(action: str) -> None:
    command = [sys.executable, "-m", "taso_py.cli", "rules", action]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=BUFFERED)
    assert done.returncode == 2
    assert re.fullmatch(r"taso-py: error: .*No space left on device\n", done.stderr)


@pytest.mark.parametrize("action", ["list", "stats"])
def test_a_reader_that_has_gone_is_no_mistake(action: str) -> None:
    command = [sys.executable, "-m", "taso_py.cli", "rules", action]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False, env=BUFFERED)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_nobody_need_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python has no standard output where that is closed when it begins."""
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["rules", "stats"]) == 0


JAPANESE = """
import torch
class 日本(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.層 = torch.nn.Linear(3, 4)
    def forward(self, x):
        return torch.relu(self.層(x))
def model():
    return 日本(), (torch.ones(2, 3),)
"""


@pytest.mark.parametrize(("encoding", "said"), [("latin-1", r"\u5c64"), ("utf-8", "層")])
def test_what_the_output_has_no_characters_for_is_escaped(
    tmp_path: Path, encoding: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd.py").write_text(JAPANESE, encoding="utf-8")
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding=encoding))
    assert main(["profile", f"{tmp_path / 'odd.py'}:model", "--seconds", "0.01"]) == 0
    assert said in printed.getvalue().decode(encoding)


@pytest.mark.skipif(sys.platform != "linux", reason="needs names of files that are no text")
def test_a_model_in_a_file_whose_name_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.py")
    path.write_text("import torch\ndef model():\n    return torch.nn.Linear(3, 4), (torch.ones(2, 3),)\n")
    out = tmp_path / "out"
    assert main(["profile", f"{path}:model", "--seconds", "0.01", "--output", str(out)]) == 0
    assert r"caf\udce9.py:model" in (out / "profile.html").read_text(encoding="utf-8")
    options = ["--race-seconds", "0.1", "--time-limit", "1", "--runtime", "eager"]
    assert main(["optimize", f"{path}:model", *options, "--output", str(tmp_path / "result")]) == 0
    assert r"caf\udce9.py:model" in (tmp_path / "result" / "report.html").read_text(encoding="utf-8")


def test_what_is_piped_is_as_wide_as_it_has_to_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    show(Panel("all"))
    assert {len(line) for line in capsys.readouterr().out.splitlines()} == {80}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "taso-py: error: the following arguments are required: COMMAND; see taso-py --help"),
        (["optimise"], r"taso-py: error: argument COMMAND: invalid choice: 'optimise' .*; see taso-py --help"),
        (["optimize"], "taso-py optimize: error: the following arguments are required: MODEL; see .* optimize --help"),
        (
            ["profile", "a\nb", "--seconds", "1\n2"],
            "taso-py profile: error: argument --seconds: .*; see .* --help",
        ),
    ],
)
def test_a_mistake_in_the_arguments_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert re.fullmatch(f"{said}\n", printed.err)
    assert printed.out == ""


def test_help_on_latencies_says_what_is_imported_without_a_reference_speed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["latencies", "--help"])
    assert "without a reference speed are imported unchanged" in capsys.readouterr().out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert re.fullmatch(r"taso-py \S+, PyTorch \d+\.\d+\S*\n", capsys.readouterr().out)


@pytest.mark.parametrize("command", [["optimize"], ["profile"], ["predict", "--environment", "any"]])
def test_the_zoo_is_listed(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command[0], "zoo:?", *command[1:]]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "zoo:nasrnn" in printed.out.splitlines()
    assert main([command[0], "zoo:?", *command[1:], "--json"]) == 0
    assert "nasrnn" in json.loads(capsys.readouterr().out)


def test_what_is_missing_to_emit_is_said_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(emit, "find_spec", lambda name: None if name == "onnxscript" else name)
    command = ["optimize", str(tmp_path / "absent.py:model"), "--output", str(tmp_path / "out")]
    assert main([*command, "--emit", "pt2,onnx"]) == 2
    assert "emitting onnx needs onnxscript, not installed here: pip install 'taso-py[onnx]'" in capsys.readouterr().err
    assert main([*command, "--emit", "pt2,code"]) == 2
    assert "there is no file" in capsys.readouterr().err
