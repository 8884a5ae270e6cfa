"""The soak serves, reloads and deploys, and notices wrong answers, errors and growth."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from experiments import soak
from experiments.table import read_csv


def right(graph: Any, _: Any, **__: Any) -> Callable[..., Any]:
    return graph.forward


def wrong(graph: Any, _: Any, **__: Any) -> Callable[..., Any]:
    return lambda *args: [result + 1 for result in graph.forward(*args)]


def stale(graph: Any, _: Any, **__: Any) -> Callable[..., Any]:
    """Runs on the weights that were there at the first call."""
    kept: list[Any] = []

    def run(*args: Any) -> Any:
        kept[:] = kept or [x.detach().clone() if isinstance(x, nn.Parameter) else None for x in args]
        return graph.forward(*[new if old is None else old for old, new in zip(kept, args, strict=True)])

    return run


def failing(graph: Any, _: Any, **__: Any) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("a call that fails")

    return fail


class Tiny(nn.Module):
    """Stands in for the model, as compiling that takes seconds."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.left = width, nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x.mean((2, 3)))


def test_the_model_takes_every_size() -> None:
    for width in (*soak.WIDTHS, soak.UNREHEARSED):
        model = soak.Model(width).eval()
        for batch, side in soak.SIZES:
            assert model(torch.randn(batch, 3, side, side)).shape == (batch, 16)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(soak, "SIZES", ((1, 10), (2, 10)))
    monkeypatch.setattr(soak, "Model", Tiny)
    monkeypatch.setattr(soak, "taso", right)
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(
    ("backend", "told"),
    [
        (right, []),
        (wrong, ["AssertionError: Tensor-likes are not close!"] * 2),
        (stale, ["AssertionError: Tensor-likes are not close!"]),
        (failing, ["ZeroDivisionError: a call that fails"] * 2),
    ],
)
def test_every_answer_counts(backend: Any, told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "taso", backend)
    server, generator = soak.Server(0), torch.Generator()
    server.call((1, 10), generator)
    server.reload()
    server.call((1, 10), generator)
    assert server.failures == told
    assert (server.counts["calls"], server.counts["failures"]) == (2, len(told))


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(("backend", "status"), [(right, 0), (wrong, soak.FAILED)])
def test_a_run_writes_table_plot_and_circumstances(
    backend: Any, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(soak, "taso", backend)
    assert soak.main(["--minutes", "0.005", "--threads", "2", "--out", str(tmp_path)]) == status
    assert ("Tensor-likes are not close" in capsys.readouterr().err) is (status != 0)
    rows = read_csv(tmp_path / "soak.csv")
    assert (rows[-1]["failures"] > 0) is (status != 0)
    assert rows[-1]["calls"] > 0
    assert json.loads((tmp_path / "soak.json").read_text())["interrupted"] is False
    assert (tmp_path / "soak.png").stat().st_size > 0


@pytest.mark.usefixtures("served")
def test_an_interrupt_keeps_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(soak.Server, "deploy", _once(soak.Server.deploy, interrupt))
    monkeypatch.setattr(soak, "draw", lambda *_: None)
    assert soak.main(["--minutes", "9", "--threads", "2", "--out", str(tmp_path)]) == soak.INTERRUPTED
    assert json.loads((tmp_path / "soak.json").read_text())["interrupted"] is True
    assert len(read_csv(tmp_path / "soak.csv")) == 1
    assert "1 models, 0 failures" in capsys.readouterr().out


def _once(first: Callable[..., None], then: Callable[..., None]) -> Callable[..., None]:
    calls = iter([first])
    return lambda *args: next(calls, lambda *_: then(None))(*args)


@pytest.mark.usefixtures("served")
def test_a_server_reloads_weights_and_replaces_models() -> None:
    server = soak.Server(0)
    model, weight = server.model, server.model.left.weight.clone()
    server.reload()
    assert server.model is model
    assert not torch.equal(model.left.weight, weight)
    server.deploy(soak.UNREHEARSED)
    assert server.model is not model
    assert server.model.width == soak.UNREHEARSED
    assert (server.counts["reloads"], server.counts["deployments"]) == (1, 2)


@pytest.mark.usefixtures("served")
def test_a_rehearsal_calls_every_size_until_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "WIDTHS", (16, 32))
    server = soak.Server(0)
    server.rehearse(0.0)
    assert server.counts["calls"] == 0
    server.rehearse(100.0)
    assert server.counts["calls"] == 4
    assert server.counts["failures"] == 0


def test_a_row_counts_the_graphs_that_run_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    class Compiled:
        def __init__(self, runs_result: bool) -> None:
            self.runs_result = runs_result

        def __call__(self, *_: Any) -> Any: ...

    made = iter([Compiled(True), Compiled(False), right])
    monkeypatch.setattr(soak, "taso", lambda *_, **__: next(made))
    server = soak.Server(0)
    kept = [server._backend(None, ()) for _ in range(3)]
    row = server.row(1.0)
    assert (row["graphs"], row["results"]) == (2, 1)
    assert len(kept) == 3


def test_growth_is_that_of_the_last_quarter_over_the_second() -> None:
    def rows(*sizes: float) -> list[dict[str, float]]:
        return [{"resident_mib": size, "captured": 8 * place} for place, size in enumerate(sizes)]

    assert soak.growth(rows(50, 60, 100, 100, 110, 115, 120, 120)) == pytest.approx(0.2)
    assert soak.growth(rows(50, 100, 100, 100)) == 0.0
    assert soak.growth(rows(70)) == 0.0
    steady = rows(50, 60, 100, 100, 104, 104, 108, 108)  # eight graphs a row, for a quarter of a MiB each
    assert soak.growth(steady, 0.25) == pytest.approx(0.0)
    assert soak.growth(steady, 0.1) > 0.04


def test_memory_is_that_of_the_process() -> None:
    assert 10 < soak.resident_mib() < 100_000


def test_a_call_that_never_comes_back_is_an_error_and_an_interrupt_lets_others_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = soak.Gate()
    monkeypatch.setattr(soak, "STALL_S", 0.01)
    with gate.reading(), pytest.raises(soak.StallError, match="has not come back"), gate.writing():
        pass
    with pytest.raises(KeyboardInterrupt), gate.writing():
        raise KeyboardInterrupt
    assert (gate._readers, gate._writers) == (0, 0)


def test_who_writes_is_alone() -> None:
    gate = soak.Gate()
    with gate.reading(), gate.reading():
        assert gate._readers == 2
    with gate.writing():
        assert gate._readers == 0
        assert gate._writers == 1
    assert (gate._readers, gate._writers) == (0, 0)
