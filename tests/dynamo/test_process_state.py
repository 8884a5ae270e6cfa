"""Public entry points leave the settings of the process as they were, however they end."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import taso_py
from taso_py.driver.optimize import Options, optimize_source
from taso_py.driver.predict import predict
from taso_py.driver.replay import replay_trace
from taso_py.driver.searches import rules_for
from taso_py.dynamo import backend as dynamo
from taso_py.dynamo.prospects import Prospects
from taso_py.latency.database import LatencyDatabase
from taso_py.models.source import Source, load_source
from taso_py.profiling.profile import ProfileOptions, profile_source
from tests.process_state import changes, process_state

QUICK: dict[str, Any] = {"race_seconds": 0.05, "time_limit": 0.5, "search": "templates-measured"}
X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
FACTORY = """
import torch
def model():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval(), (torch.randn(2, 4),)
"""


MODEL = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU(inplace=True)).eval()


def source() -> Source:
    return Source("a model", MODEL, (X,))


def optimize(folder: Path) -> None:
    taso_py.optimize(MODEL, X, output=folder / "again", **QUICK)


def load(folder: Path) -> None:
    taso_py.load(folder / "out")(X)


def compile_(folder: Path) -> None:
    with torch.no_grad():
        torch.compile(MODEL, backend=dynamo.taso, options={"freeze": True, "cache": False, **QUICK})(X)


def profile(folder: Path) -> None:
    profile_source(source(), ProfileOptions(seconds=0.05), folder / "profile")


def predict_(folder: Path) -> None:
    with LatencyDatabase() as database:
        (here,) = database.environments()
    options = Options(**QUICK)
    predict(source(), options, rules_for(options), here)


def replay(folder: Path) -> None:
    replay_trace(folder / "out" / "trace.rules", load_source(str(folder / "out" / "model.pt2")))


def from_file(folder: Path) -> None:
    (folder / "mine.py").write_text(FACTORY, encoding="utf-8")
    load_source(f"{folder / 'mine.py'}:model")


ENTRIES: tuple[Callable[[Path], None], ...] = (optimize, load, compile_, profile, predict_, replay, from_file)


@pytest.fixture(autouse=True)
def _untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No graph has failed or gained nothing before."""
    monkeypatch.setattr(dynamo, "_prospects", Prospects())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a saved result, in which each entry point has been used: what is imported late is there."""
    found = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TASO_PY_CACHE", str(found / "cache"))
        taso_py.optimize(MODEL, X, output=found / "out", **QUICK)
    return found


def check(entry: Callable[[Path], None], folder: Path) -> dict[str, Any]:
    torch._dynamo.reset()
    before = process_state()
    try:
        entry(folder)
    finally:
        found = changes(before, process_state())
    return found


@pytest.mark.parametrize("entry", ENTRIES)
def test_nothing_is_set_when_it_returns(entry: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASO_PY_CACHE", str(folder / "cache"))
    assert check(entry, folder) == {}


_PLACES = {
    "while it traces": ("torch.export.export", (optimize, compile_, profile)),
    "while it decomposes": ("torch.export.ExportedProgram.run_decompositions", (optimize, compile_, profile, predict_)),
    "while it reads": ("torch.export.load", (replay,)),
    "while it maps weights": ("taso_py.saving.result.restore", (load,)),
    "while it calls the model": ("taso_py.frontend.original.copy_arguments", (optimize, compile_, profile, predict_)),
    "while it times": ("taso_py.latency.clock.collector_paused", (optimize, compile_, profile)),
    "while it compares": ("taso_py.checking.compare.compare_output", (optimize, compile_)),
    "while it runs the factory": ("torch.nn.Linear.__init__", (from_file,)),
}


@pytest.mark.parametrize("ending", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize(("where", "entry"), [(where, each) for where, (_, named) in _PLACES.items() for each in named])
def test_nothing_is_set_when_it_fails(
    where: str, entry: Any, ending: type[BaseException], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASO_PY_CACHE", str(folder / "cache"))
    reached: list[str] = []

    def fails(*_: Any, **__: Any) -> Any:
        reached.append(where)
        raise ending("on purpose")

    torch._dynamo.reset()
    before = process_state()
    with monkeypatch.context() as patch, warnings.catch_warnings():
        patch.setattr(_PLACES[where][0], fails)
        inside = process_state()
        with suppress(taso_py.TasoError, KeyboardInterrupt):
            entry(folder)
        assert changes(inside, process_state()) == {}
    assert reached
    assert changes(before, process_state()) == {}


def test_a_change_is_seen() -> None:
    before = process_state()
    warnings.filterwarnings("ignore", message="a filter too many")
    torch.rand(1)
    seen = changes(before, process_state())
    del warnings.filters[0]  # pyright: ignore[reportIndexIssue] -- it is a list
    assert set(seen) == {"warning filters", "random state"}


def test_a_model_that_draws_leaves_the_random_state_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASO_PY_CACHE", str(folder / "cache"))
    torch.manual_seed(3)
    options = Options(**QUICK)

    def draws(_: Path) -> None:
        optimize_source(Source("a model", deepcopy(MODEL).train(), (X,)), options, rules_for(options))

    assert check(draws, folder) == {}


def test_other_threads_keep_their_settings_meanwhile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen from another thread, logging is on and warnings are filtered as ever, at any moment."""
    # PyTorch's own code ignores the warnings of all threads here, for some microseconds (2.13).
    theirs = SimpleNamespace(catch_warnings=nullcontext, simplefilter=lambda _: None)
    monkeypatch.setattr("torch.export._unlift.warnings", theirs)
    monkeypatch.setenv("TASO_PY_CACHE", str(folder / "cache"))
    done, heard = threading.Event(), set[bool]()

    def listen() -> None:
        while not done.wait(0.001):
            try:
                warnings.warn("from another thread", UserWarning, stacklevel=1)
            except UserWarning:
                heard.add(True)  # tests take warnings for errors
            else:
                heard.add(False)

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        taso_py.optimize(MODEL, X, **QUICK)
    finally:
        done.set()
        thread.join()
    assert heard == {True}
