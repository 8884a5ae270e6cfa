"""Saved results: they load without the optimizer, and damaged ones are refused in one line."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from taso_py.files import replace_file
from taso_py.report.optimization import Report, Speedup
from taso_py.saving.artifact import save, serialize
from taso_py.saving.folder import ArtifactError, check_writable
from taso_py.saving.loading import load

REPORT = Report(
    model="m", device="cpu", runtime="eager", original_ms=2.0, optimized_ms=1.0, speedup=2.0, speedup_low=1.9,
    speedup_high=float("inf"), rules_speedup=Speedup(1.5, 1.4, 1.6), applied=("r1", "r1"), error=1e-7,
    original_error=1e-7, comparison_passed=True, stop_reason="done", search_seconds=0.1, expansions=1, candidates=2,
    estimated_ms=(2.0, 1.0), operators=(4, 2), weight_bytes=(100, 100), rounds=9,
)  # fmt: skip
MODULE = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()).eval()
X = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save(tmp_path / "out", serialize(MODULE, (X,), {}), REPORT.as_dict(), "the trace")
    return tmp_path / "out"


def test_a_saved_result_has_every_file_and_no_other(saved: Path) -> None:
    names = {path.name for path in saved.iterdir()}
    assert names == {"model.pt2", "plan.json", "report.json", "trace.rules"}
    report = json.loads((saved / "report.json").read_text())
    assert (report["speedup"], report["speedup_high"], report["applied"]) == (2.0, None, ["r1", "r1"])
    assert (saved / "trace.rules").read_text() == "the trace"


def test_what_an_earlier_result_left_goes(saved: Path) -> None:
    arguments = (saved, serialize(MODULE, (X,), {}), REPORT.as_dict(), "trace")
    save(*arguments, others={"model.py": b"code", "model.onnx": b"graph"})
    assert {"model.py", "model.onnx"} <= {path.name for path in saved.iterdir()}
    save(*arguments, others={"model.py": b"code"})
    names = {path.name for path in saved.iterdir()}
    assert "model.py" in names
    assert "model.onnx" not in names


def test_a_saved_result_computes_the_same(saved: Path) -> None:
    assert torch.equal(load(saved)(X), MODULE(X))


def test_a_tensor_that_is_given_twice_is_saved_as_two_arguments(tmp_path: Path) -> None:
    class Weighted(torch.nn.Module):
        """Its arguments do not count alike."""

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return 2 * a + 3 * b

    save(tmp_path / "out", serialize(Weighted(), (X, X), {}), REPORT.as_dict(), "trace")
    assert torch.equal(load(tmp_path / "out")(X, 5 * X), 2 * X + 15 * X)


def test_the_program_loads_without_this_package(saved: Path) -> None:
    script = (
        "import sys, torch; x = torch.ones(2, 3); y = torch.export.load(sys.argv[1]).module()(x);"
        "assert not any(name.startswith('taso_py') for name in sys.modules); print(y.tolist())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(saved / "model.pt2")], capture_output=True, text=True, check=True
    )
    assert torch.allclose(torch.tensor(json.loads(ran.stdout)), MODULE(torch.ones(2, 3)))


def test_what_is_loaded_in_inference_mode_can_be_called_outside_of_it(tmp_path: Path) -> None:
    """It writes to its buffers."""
    module = torch.nn.BatchNorm1d(3)
    save(tmp_path / "out", serialize(module, (X,), {}), REPORT.as_dict(), "trace")
    with torch.inference_mode():
        loaded = load(tmp_path / "out")
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(loaded(X), module(X))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("plan.json", b"{", "holds no saved result"),
        (
            "plan.json",
            b'{"version": 5, "runtime": "warp", "model": "model.pt2", "files": {}}',
            "unknown runtime 'warp'",
        ),
        ("plan.json", b'{"version": 3, "runtime": "eager", "model": "model.pt2"}', "optimize the model again"),
        ("plan.json", b'{"version": 5, "runtime": "eager", "model": "model.pt2"}', "holds no saved result"),
        ("model.pt2", b"PK damaged", "cannot be read"),
    ],
)
def test_damage_is_one_line(saved: Path, file: str, content: bytes, message: str) -> None:
    (saved / file).write_bytes(content)
    with pytest.raises(ArtifactError) as caught:
        load(saved)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("plan", [{}, [], "text", {"steps": [{}], "overwrites": True}, {"steps": 3, "overwrites": 1}])
def test_a_plan_that_is_none_is_blamed_not_the_model(saved: Path, plan: object) -> None:
    document = json.loads((saved / "plan.json").read_text())
    (saved / "plan.json").write_text(json.dumps({**document, "plan": plan}))
    with pytest.raises(ArtifactError, match=r"plan\.json has no plan for model\.pt2: .*; optimize the model again"):
        load(saved)


def test_files_may_be_read_by_whom_the_umask_lets(tmp_path: Path) -> None:
    for mask in (0o022, 0o077):
        before = os.umask(mask)
        try:
            replace_file(tmp_path / "file", "content")
        finally:
            os.umask(before)
        assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666 & ~mask
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="cannot write to"):
        check_writable(tmp_path / "file" / "out")
    with pytest.raises(ArtifactError, match="holds no saved result"):
        load(tmp_path / "absent")


@pytest.mark.parametrize("given", [None, ""])
def test_what_is_no_folder_is_refused(given: Any) -> None:
    with pytest.raises(ArtifactError, match=f"\\Adirectory must be the path of a folder, not {given!r}; the current"):
        load(given)


def test_another_number_of_threads_than_a_result_was_measured_with_is_said(tmp_path: Path) -> None:
    def saved_with(threads: int) -> Path:
        report = replace(REPORT, environment={"threads": threads})
        folder = tmp_path / str(threads)
        save(folder, serialize(MODULE, (X,), {}), report.as_dict(), "the trace")
        return folder

    here = torch.get_num_threads()
    with pytest.warns(UserWarning, match=rf"with {here + 1} threads, and PyTorch uses {here} here"):
        assert torch.equal(load(saved_with(here + 1))(X), MODULE(X))
    for threads in (here, 0):  # as warnings are errors, nothing is said; a GPU has none
        assert torch.equal(load(saved_with(threads))(X), MODULE(X))
