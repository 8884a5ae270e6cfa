"""What tests share: one torch thread, so that parallel workers do not fight, and the zoo's libraries on request."""

from __future__ import annotations

import gc
import math
import tomllib
from collections.abc import Iterator
from functools import wraps
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch

from taso_py.cost.model import CostModel
from taso_py.driver import calibrating
from taso_py.driver.result import Optimized
from taso_py.dynamo import backend as dynamo
from taso_py.dynamo.captured import CapturedSource
from taso_py.dynamo.prospects import Prospects
from taso_py.judging import plausible, timing
from taso_py.latency import contention, latencies, measuring, roofline
from taso_py.models.zoo.libraries import declare_missing_torchvision_operators
from tests.gains import take_any_gain

torch.set_num_threads(1)
# Tests do not wait for a quiet machine: they hold whatever latencies are.
measuring.PATIENCE_S = 0.0
# Nor do they see what else it does, or what they are told would depend on that.
contention.HERE = contention.System(
    read=lambda _: "", waits=lambda: (), load=lambda: None, spins=lambda _: {}, threads=lambda: 1
)
# Nor does what a busy machine shows seem impossible to them.
plausible.SLACK = plausible.CONTENDED_SLACK = math.inf
# Nor do they need to know latencies well, nor what a run takes longer than its calls; but each is kept for all tests.
_CAREFULLY = {
    name: getattr(measuring, name) for name in ("ATTEMPTS", "DOUBT", "REST", "SAMPLES", "ROUNDS", "LEAST_ROUNDS")
}
measuring.ATTEMPTS, measuring.DOUBT, measuring.REST, measuring.SAMPLES = 1, math.inf, math.inf, 1
measuring.ROUNDS = measuring.LEAST_ROUNDS = 6
latencies.BUDGET_S, latencies.PASSES, latencies.RUN_S = 0.005, 1, 0.01
# Nor do they wait for a race to show small gains: those that have to be seen are large.
timing.SAMPLE_S = 0.003
# Nor do they need to know what the machine could do at best: little data shows something, in no time.
roofline.CPU_SETS, roofline.LEAST_BEYOND, roofline.MOST_BEYOND, roofline.BUDGET_S = (2**14,), 2**20, 2**20, 0.001


@pytest.fixture(scope="session", autouse=True)
def cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests measure and decide is not the user's, and what the user's machine measured is not theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TASO_PY_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def old_objects_apart() -> None:
    """The collector, which optimizations run, does not look at all tests and libraries each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def network_timed_once() -> Iterator[None]:
    """Predictions are scaled by a run of a small network, which is timed once for all tests instead of in each."""
    known: dict[tuple[torch.device, bool], tuple[float, float]] = {}
    measured = calibrating.network_seconds

    @wraps(measured)
    def kept(cost: CostModel) -> tuple[float, float]:
        key = cost.device, cost.captured
        if key not in known:
            known[key] = measured(cost)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrating, "network_seconds", kept)
        yield


@pytest.fixture
def fresh_compilations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What ``torch.compile`` has compiled, and what was found of it, is forgotten before and after the test."""
    monkeypatch.setenv("TASO_PY_CACHE", str(tmp_path))
    monkeypatch.setattr(dynamo, "_prospects", Prospects())
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def disturbances_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of how latencies are measured: what disturbs them is told from what does not, as ever."""
    for name, value in _CAREFULLY.items():
        monkeypatch.setattr(measuring, name, value)


@pytest.fixture
def any_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is built is the result, whether it is faster or not."""
    take_any_gain(monkeypatch)


@pytest.fixture(scope="session")
def zoo_libraries() -> None:
    """For tests that import torchvision, timm or transformers themselves; skips where they are not installed.

    The development environment pairs a CPU build of torch with PyPI's torchvision; see the function that this calls.
    """
    declare_missing_torchvision_operators()
    for library in ("torchvision", "timm", "transformers"):
        pytest.importorskip(library)


@pytest.fixture
def taso_backend() -> None:
    """The backend ``taso`` as pyproject.toml declares it, also where the tree was installed before it did."""
    if "taso" not in torch._dynamo.list_backends():
        project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        declared = project["entry-points"]["torch_dynamo_backends"]["taso"]
        torch._dynamo.register_backend(EntryPoint("taso", declared, "torch_dynamo_backends").load(), "taso")


@pytest.fixture
def optimizations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the graphs that are optimized from now on."""
    names: list[str] = []
    optimize = dynamo.optimize_source

    def noted(source: Any, *args: Any, **kwargs: Any) -> Optimized:
        names.append(source.name)
        assert isinstance(source, CapturedSource), "what is raced is what calls take"
        return optimize(source, *args, **kwargs)

    monkeypatch.setattr(dynamo, "optimize_source", noted)
    return names
