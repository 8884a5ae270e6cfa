"""The folder of a result: whatever writes to it, what is read from it is of one run."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from taso_py import files
from taso_py.driver.optimize import optimize, optimize_source
from taso_py.driver.replay import load_trace
from taso_py.models.source import Source
from taso_py.options import Options
from taso_py.saving.artifact import check_files, save, serialize
from taso_py.saving.folder import ArtifactError, add_page, check_result_writable, write_files
from taso_py.saving.loading import load
from taso_py.saving.result import read
from tests.saving.test_artifact import REPORT, X

TWO = tuple(torch.nn.Linear(3, 4).eval() for _ in range(2))
CONTENT = tuple(serialize(module, (X,), {}) for module in TWO)


def _save(out: Path, run: int, others: Mapping[str, bytes] | None = None) -> Mapping[str, Any]:
    return save(out, CONTENT[run], REPORT.as_dict(), f"trace {run}", others=others)


class Killed(BaseException):
    """What ends a run at once."""


@pytest.mark.parametrize("count", range(5))
def test_a_run_that_is_killed_between_two_files_leaves_no_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    done: list[str] = []

    def replace(source: Path, target: Path) -> None:
        if len(done) == count:
            raise Killed
        done.append(target.name)
        real(source, target)

    _save(tmp_path, 0)
    real = os.replace
    monkeypatch.setattr(files.os, "replace", replace)
    with suppress(Killed):
        _save(tmp_path, 1)
    if count in (0, 4):
        assert torch.equal(load(tmp_path)(X), TWO[bool(count)](X))
        return
    with pytest.raises(ArtifactError, match=r"files of several runs: plan\.json belongs to another .*again$"):
        load(tmp_path)
    with pytest.raises(ArtifactError, match="files of several runs"):
        check_files(read(tmp_path))
    if "trace.rules" in done:
        with pytest.raises(ArtifactError, match="files of several runs"):
            load_trace(tmp_path / "trace.rules")


def test_a_disk_that_is_full_costs_nothing_of_an_earlier_result(tmp_path: Path) -> None:
    said = _save(tmp_path, 0, {"model.py": b"code", "beside/it.txt": b"it"})
    add_page(tmp_path, said, "page")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ArtifactError, match="cannot write"):
        _save(tmp_path, 1, {"x" * 300: b""})  # no disk takes such a name
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    _save(tmp_path, 1)
    assert not (tmp_path / "beside").exists()


def test_runs_that_save_to_one_folder_at_once_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(source: Path, target: Path) -> None:
        time.sleep(0.01)
        real(source, target)

    def run(number: int) -> None:
        for _ in range(3):
            said = _save(tmp_path, number)
            added.append(add_page(tmp_path, said, f"page {number}"))

    added: list[bool] = []
    real = os.replace
    monkeypatch.setattr(files.os, "replace", slow)
    runs = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for each in runs:
        each.start()
    for each in runs:
        each.join()
    winner = int((tmp_path / "trace.rules").read_text().removeprefix("trace "))
    assert torch.equal(load(tmp_path)(X), TWO[winner](X))
    assert any(added)
    assert (tmp_path / "report.html").read_text() == f"page {winner}"


def test_the_page_of_a_run_is_not_added_to_the_result_of_another(tmp_path: Path) -> None:
    first, second = _save(tmp_path, 0), _save(tmp_path, 1)
    assert not add_page(tmp_path, first, "first")
    assert not (tmp_path / "report.html").exists()
    assert add_page(tmp_path, second, "second")
    (tmp_path / "report.html").write_text("first")
    with pytest.raises(ArtifactError, match="files of several runs"):
        load(tmp_path)


def test_a_run_whose_result_was_replaced_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def meanwhile(directory: Path, said: Mapping[str, Any], page: str) -> bool:
        _save(directory, 1)
        return add_page(directory, said, page)

    monkeypatch.setattr("taso_py.driver.write.add_page", meanwhile)
    found = optimize(TWO[0], X, race_seconds=0.1, time_limit=1.0, cache=False, output=tmp_path)
    assert any("another run has saved its result" in note for note in found.report.notes)
    assert found.report.saved is None
    assert torch.equal(load(tmp_path)(X), TWO[1](X))


def test_files_that_are_no_results_stay(tmp_path: Path) -> None:
    mine = {"model.py": b"mine", "model.onnx": b"mine", "notes.txt": b"mine"}
    write_files(tmp_path, mine)
    _save(tmp_path, 0)
    assert {name: (tmp_path / name).read_bytes() for name in mine} == mine


@pytest.mark.parametrize(
    ("name", "runtime"),
    [
        *((name, "eager") for name in ("model.pt2", "model.py", "report.html", "report.json", "original.pt")),
        *(("model.onnx", runtime) for runtime in ("auto", "onnxruntime")),
        ("openvino_model.bin", "openvino"),
    ],
)
def test_files_of_the_users_own_are_not_replaced(tmp_path: Path, name: str, runtime: str) -> None:
    """Their names are those of a result, as in ``optimize model.pt2 --output .``."""
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(ArtifactError, match=rf"{name} does not belong to a saved result, .* choose another --output"):
        optimize_source(Source("two", TWO[0], (X,)), Options(runtime=runtime), [], tmp_path, forms=("pt2", "code"))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    (tmp_path / name).unlink()
    _save(tmp_path, 0, {"model.py": b"code"})
    check_result_writable(tmp_path, ("model.pt2", "model.py"))
    (tmp_path / "model.onnx").write_bytes(b"mine")
    with pytest.raises(ArtifactError, match=r"model\.onnx does not belong to a saved result"):
        check_result_writable(tmp_path, ("model.pt2", "model.onnx"))


@pytest.mark.parametrize(
    ("index", "content", "message"),
    [
        *(
            ("plan.json", content, "may be your own: .*; move them away")
            for content in ('{"version": 5, "fi', "[" * 9999)
        ),
        *(
            (index, content, rf"{index} does not belong to a saved result")
            for index in ("plan.json", "entries.json")
            for content in (
                '{"trips": ["Rome"]}',
                '{"version": 2, "mine": 1}',
                '"version"',
                '{"files": {"report.json": ""}}',
            )
        ),
        ("entries.json", "hi", "may be your own: .*; move them away"),
    ],
)
def test_a_list_of_files_is_a_results_by_its_keys_only(tmp_path: Path, index: str, content: str, message: str) -> None:
    (tmp_path / index).write_text(content)
    (tmp_path / "report.json").write_text("precious")
    with pytest.raises(ArtifactError, match=rf"\A.*{message}.* choose another --output\Z"):
        check_result_writable(tmp_path, ("report.json",), index)


@pytest.mark.parametrize(
    ("index", "content"),
    [
        ("plan.json", '{"version": 3, "runtime": "eager", "model": "model.pt2"}'),
        ("entries.json", '{"version": 0, "folder": "run-0", "entries": ["a"]}'),
    ],
)
def test_a_result_of_another_version_may_be_replaced(tmp_path: Path, index: str, content: str) -> None:
    (tmp_path / index).write_text(content)
    (tmp_path / "report.json").write_text("{}")
    check_result_writable(tmp_path, ("report.json",), index)


def test_files_outside_of_the_folder_are_not_deleted(tmp_path: Path) -> None:
    """A plan that somebody sent may list any."""
    out, mine = tmp_path / "out", tmp_path / "notes.txt"
    _save(out, 0)
    mine.write_text("mine")
    plan = json.loads((out / "plan.json").read_text())
    plan["files"] |= {"../notes.txt": "", str(mine): ""}
    (out / "plan.json").write_text(json.dumps(plan))
    _save(out, 1)
    assert mine.read_text() == "mine"
    assert torch.equal(load(out)(X), TWO[1](X))


def test_what_is_the_users_to_change_or_to_delete_is_not_missed(tmp_path: Path) -> None:
    _save(tmp_path, 0, {"model.py": b"code"})
    (tmp_path / "model.py").write_bytes(b"edited")
    for name in ("report.json", "trace.rules"):
        (tmp_path / name).unlink()
    assert torch.equal(load(tmp_path)(X), TWO[0](X))


def test_without_locks_a_folder_is_written_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    _save(tmp_path, 0)
    assert torch.equal(load(tmp_path)(X), TWO[0](X))


def test_what_is_read_waits_for_a_run_that_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(source: Path, target: Path) -> None:
        begun.set()
        time.sleep(0.05)
        real(source, target)

    begun, real = threading.Event(), os.replace
    _save(tmp_path, 0)
    monkeypatch.setattr(files.os, "replace", slow)
    run = threading.Thread(target=_save, args=(tmp_path, 1))
    run.start()
    assert begun.wait(10)
    assert torch.equal(load(tmp_path)(X), TWO[1](X))
    run.join()
