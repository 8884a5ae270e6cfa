"""Temporary folders: they last as long as their object, and never longer than the process that made them."""

from __future__ import annotations

import gc
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from taso_py.files import ScratchFolder

KEPT: list[ScratchFolder] = []


def _keep() -> str:
    """Create a folder with a file that is still in use when the process ends."""
    KEPT.append(ScratchFolder())
    (KEPT[-1].path / "weights").write_bytes(b"0")
    return str(KEPT[-1].path)


def test_it_is_deleted_with_its_object() -> None:
    folder = ScratchFolder()
    path = folder.path
    (path / "weights").write_bytes(b"0")
    gc.collect()
    assert path.exists()
    del folder
    gc.collect()
    assert not path.exists()


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_it_is_deleted_where_a_worker_process_ends(method: str) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
        path = Path(pool.submit(_keep).result())
        assert path.exists()
    assert not path.exists()
