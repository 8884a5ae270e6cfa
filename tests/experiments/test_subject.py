"""Models prepared for experiments, with the prices of PyTorch's kernels or of an engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from experiments import fidelity
from experiments.deployed import SESSIONS, session_engine
from experiments.harness import Settings
from experiments.subject import in_engines, priced
from taso_py.backend import NO_PLAN
from taso_py.driver.prepare import source_of


def _settings(device: str) -> Settings:
    return Settings(device=device, quick=True, out=Path(), seed=0)


def test_only_a_cpu_has_parts_in_engines() -> None:
    assert list(in_engines(["a", "b"], _settings("cpu"))) == [
        f"{name} in {engine}" for engine in SESSIONS for name in ("a", "b")
    ]
    assert not in_engines(["a"], _settings("cuda"))


@pytest.mark.parametrize("name", SESSIONS)
def test_a_subject_in_an_engine_is_priced_and_run_there(name: str) -> None:
    x = torch.randn(4, 8)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU()).eval()
    with priced(source_of(model, (x,), {}), engine=session_engine(name)) as subject:
        seconds, call = subject.build_graph(subject.imported.graph, subject.cost)
        assert 0 < seconds < 1
        torch.testing.assert_close(subject.call(NO_PLAN)(), model(x))
        torch.testing.assert_close(call(), model(x))
        assert any(kernel.startswith(f"{name}:") for kernel, _ in subject.cost.latencies._known)


def test_good_predictions_are_counted_by_engine() -> None:
    ratios = {"a": 1.05, "b": 1.2, "a in openvino": 0.95, "a in onnxruntime": 0.5}
    (said,) = fidelity.EXPERIMENT.headline([{"model": name, "predicted/measured": r} for name, r in ratios.items()])
    assert said.endswith(": PyTorch's kernels: 1 of 2 models; openvino: 1 of 1 models; onnxruntime: 0 of 1 models")
