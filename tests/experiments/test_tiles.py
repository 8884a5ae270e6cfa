"""The experiment on kernels: none is left out, and what is wrong is a row that says so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

from experiments import tiles
from experiments.harness import Row, Settings
from taso_py.kernels.cudnn import CUDNN
from taso_py.kernels.mkl import MKL
from taso_py.kernels.onednn import ONEDNN
from taso_py.kernels.tile import Tile
from taso_py.kernels.winograd import WINOGRAD
from tests.kernels.doctored import doctored_covers

SETTINGS = Settings("cpu", quick=True, out=Path(), seed=0)


@pytest.mark.parametrize(("device", "own"), [("cpu", (*ONEDNN, MKL, WINOGRAD)), ("cuda", CUDNN)])
def test_every_tile_of_a_device_is_among_them(device: str, own: Sequence[Tile]) -> None:
    found = {cover.name for _, graph in tiles._graphs("f32") for cover in tiles._kernels(graph, torch.device(device))}
    assert {name.partition("_")[0] for name in found} == {"aten.addcmul", *(tile.name for tile in own)}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One convolution and one linear layer."""
    monkeypatch.setattr(tiles, "CONVOLUTIONS", {"small": (4, 4, 5, 3, 1)})
    monkeypatch.setattr(tiles, "LINEARS", {"small": (3, 4, 5)})


@pytest.mark.usefixtures("small")
def test_kernels_are_right_and_have_latencies() -> None:
    rows = tiles._measure("f32", SETTINGS)
    assert {row["tile"] for row in rows} >= {"aten.addcmul"}
    for row in rows:
        assert row["passed"], row
        assert row["gain"] == pytest.approx(row["plain_ms"] / row["kernel_ms"])
    tiles._plot(Figure(), rows)


@pytest.mark.usefixtures("small")
def test_a_wrong_kernel_is_a_row_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "_plain_seconds", lambda *_: 1e-3)
    monkeypatch.setattr(tiles, "covers", doctored_covers(lambda _, *operands: operands[0].new_zeros(1)))
    rows: Sequence[Row] = tiles._measure("f32", SETTINGS)
    assert len(rows) > 3
    assert all(not row["passed"] and row["problem"].startswith("it gives") for row in rows)
    tiles._plot(Figure(), rows)


@pytest.mark.usefixtures("small")
def test_a_kernel_that_a_library_lacks_is_neither_right_nor_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*_: object) -> object:
        raise RuntimeError("no engine supports this")

    monkeypatch.setattr(tiles, "_plain_seconds", lambda *_: 1e-3)
    monkeypatch.setattr(tiles, "covers", doctored_covers(lacking))
    rows: Sequence[Row] = tiles._measure("f32", SETTINGS)
    assert {(row.get("passed"), row["problem"]) for row in rows} == {(None, "not available: no engine supports this")}
    tiles._plot(Figure(), rows)
