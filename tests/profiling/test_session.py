"""Profiles of results that engines run by themselves: rows by operators of the engine, work by nodes of the graph."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from taso_py.backend import fold
from taso_py.engines.engine import EngineUnavailableError
from taso_py.models.source import load_source
from taso_py.profiling.profile import DATA, PAGE, TRACE, ProfileOptions, profile_source
from taso_py.report.profile import PROFILER_COST, Profile
from taso_py.report.profile_page import agreement
from taso_py.saving.artifact import reimport, serialize
from taso_py.saving.folder import MODEL, ArtifactError, write_result
from taso_py.saving.result import VERSION, read
from tests.engines.sessions import NAMES, engine_named
from tests.report.pages import problems, text_of

IMAGE = torch.linspace(-1, 1, 3 * 64).reshape(1, 3, 8, 8)


class Small(nn.Module):
    """A normalised convolution, which engines compute at once, and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3))).softmax(-1)


@pytest.fixture(scope="module", params=NAMES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """An engine, and the folder of a result that it runs."""
    engine, folder = engine_named(request.param), tmp_path_factory.mktemp(request.param)
    content = serialize(Small().eval(), (IMAGE,), {})
    files = engine.files(engine.build(fold(reimport(content))))
    write_result(folder, {MODEL: content, **files}, {"version": VERSION, "model": MODEL, "runtime": engine.name})
    return engine.name, folder


def profiled(folder: Path, output: Path | None = None) -> Profile:
    found = read(folder)
    return profile_source(load_source(str(found.program)), ProfileOptions(seconds=0.02), output, found)


def test_operators_of_the_engine_are_rows_with_the_work_of_our_nodes(saved: tuple[str, Path], tmp_path: Path) -> None:
    name, folder = saved
    profile = profiled(folder, tmp_path / "out")
    assert profile.engine == name
    found = {region.kind: region for region in profile.regions}
    convolution = found["Conv" if name == "onnxruntime" else "Convolution"]
    # What is computed at once is one row; its operations are those of all its nodes.
    assert [text.split("{")[0] for text in convolution.operators] == ["conv2d", "batch_norm", "relu"]
    assert convolution.flops is not None
    assert convolution.flops > 2 * 3 * 9 * 16 * 6 * 6
    assert convolution.moved_bytes >= 4 * (3 + 16) * 64
    product = found["Gemm" if name == "onnxruntime" else "FullyConnected"]
    assert product.types.endswith("-> f32[1,10]")
    assert product.flops == 2 * 16 * 10 + 10
    assert sum(row.share for row in profile.kinds) == pytest.approx(1)
    assert all(region.time.ms > 0 for region in profile.regions)
    starts = [region.start_ms for region in profile.regions]
    assert starts == sorted(starts)

    page = (tmp_path / "out" / PAGE).read_text()
    assert problems(page) == []
    for part in (f"{name}, {profile.rounds} runs measured by its profiler", PROFILER_COST, convolution.kind):
        assert part in text_of(page), part
    assert "alone, ms" not in page
    assert json.loads((tmp_path / "out" / DATA).read_text())["engine"] == name
    assert not (tmp_path / "out" / TRACE).exists()


def test_the_terminal_says_what_the_profiler_costs(saved: tuple[str, Path]) -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    profile = profiled(saved[1])
    console.print(profile)
    text = console.export_text()
    assert PROFILER_COST in text
    assert "alone" not in text
    assert PROFILER_COST in agreement(profile)
    assert "dispatch" not in text


def test_a_file_of_another_run_and_an_engine_that_is_missing_are_one_line(
    saved: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, folder = saved
    engine = engine_named(name)
    with monkeypatch.context() as patch:
        patch.setattr(type(engine), "library", "no_such_package")
        with pytest.raises(EngineUnavailableError, match=f"{name} needs no_such_package"):
            profiled(folder)
    path = folder / engine.file
    content = path.read_bytes()
    try:
        path.write_bytes(content + b" ")
        with pytest.raises(ArtifactError, match="belongs to another"):
            profiled(folder)
    finally:
        path.write_bytes(content)
