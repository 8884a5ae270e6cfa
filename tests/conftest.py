"""What tests share: one torch thread, so that parallel workers do not fight, and the zoo's libraries on request."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from functools import partial, wraps
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from taso_py.cost import contention, latencies, measuring, roofline
from taso_py.cost.model import CostModel
from taso_py.runtime import calibrating, plausible
from taso_py.runtime.zoo.libraries import declare_missing_torchvision_operators

torch.set_num_threads(1)
# Tests do not wait for a quiet machine: they hold whatever latencies are.
measuring.PATIENCE_S = 0.0
# Nor do they see what else it does, or what they are told would depend on that.
contention.HERE = contention.System(
    read=lambda _: "", waits=lambda: (), load=lambda: None, spins=lambda _: {}, threads=lambda: 1
)
# Nor does what a busy machine shows seem impossible to them.
plausible.SLACK = plausible.CONTENDED_SLACK = math.inf
# Nor do they need to know well what a run takes longer than its calls.
latencies.PASSES, latencies.RUN_S = 1, 0.01


@pytest.fixture(scope="session", autouse=True)
def cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests measure and decide is not the user's, and what the user's machine measured is not theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TASO_PY_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


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
def every_latency_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine, what was measured is good enough to be kept."""
    monkeypatch.setattr(measuring, "DOUBT", math.inf)
    monkeypatch.setattr(measuring, "SAMPLES", 1)
    monkeypatch.setattr(measuring, "Probe", partial(measuring.Probe, most=math.inf))


@pytest.fixture
def small_roofline(every_latency_counts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measures the roofline on little data and in no time: what it shows is worth nothing, but it is there."""
    monkeypatch.setattr(roofline, "CPU_SETS", (2**14,))
    monkeypatch.setattr(roofline, "LEAST_BEYOND", 2**20)
    monkeypatch.setattr(roofline, "MOST_BEYOND", 2**20)
    monkeypatch.setattr(roofline, "BUDGET_S", 0.001)


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
