"""The soak serves, reloads and deploys, and notices wrong answers, errors and growth."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import soak


def right(graph: Any, _: Any, **__: Any) -> Callable[..., Any]:
    return graph.forward


def wrong(graph: Any, _: Any, **__: Any) -> Callable[..., Any]:
    return lambda *args: [result + 1 for result in graph.forward(*args)]


def failing(graph: Any, _: Any, **__: Any) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("a call that fails")

    return fail


@pytest.mark.parametrize(
    ("backend", "status", "told"),
    [(right, 0, ""), (wrong, 1, "Tensor-likes are not close"), (failing, 1, "ZeroDivisionError: a call that fails")],
)
def test_every_answer_counts(
    backend: Any, status: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(soak, "taso", backend)
    assert soak.main(["--minutes", "0.02", "--threads", "2", "--out", str(tmp_path)]) == status
    assert told in capsys.readouterr().err
    with (tmp_path / "soak.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert (float(rows[-1]["failures"]) > 0) is (status == 1)
    assert float(rows[-1]["calls"]) > 0
    assert (tmp_path / "soak.png").stat().st_size > 0
    torch._dynamo.reset()


def test_a_server_reloads_weights_and_replaces_models() -> None:
    server = soak.Server(0)
    model, weight = server.model, server.model.left.weight.clone()
    server.reload()
    assert server.model is model
    assert not torch.equal(model.left.weight, weight)
    server.deploy()
    assert server.model is not model
    assert server.counts == {"calls": 0, "reloads": 1, "deployments": 2}


def test_growth_is_that_of_the_last_quarter_over_the_second() -> None:
    def rows(*sizes: float) -> list[dict[str, float]]:
        return [{"resident_mib": size} for size in sizes]

    assert soak.growth(rows(50, 60, 100, 100, 110, 115, 120, 120)) == pytest.approx(0.2)
    assert soak.growth(rows(50, 100, 100, 100)) == 0.0
    assert soak.growth(rows(70)) == 0.0


def test_memory_is_that_of_the_process() -> None:
    assert 10 < soak.resident_mib() < 100_000


def test_who_writes_is_alone() -> None:
    gate = soak.Gate()
    with gate.reading(), gate.reading():
        assert gate._readers == 2
    with gate.writing():
        assert gate._readers == 0
        assert gate._writers == 1
    assert (gate._readers, gate._writers) == (0, 0)
