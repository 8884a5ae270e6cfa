"""Graphs that will not gain anything are said to be left out, and cost no more time."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from taso_py.driver.decisions import Decisions
from taso_py.dynamo import backend as dynamo
from taso_py.dynamo import captured
from taso_py.dynamo.captured import weight_positions, why_untouched
from taso_py.dynamo.prospects import LOSSES, Prospects, family_of

pytestmark = pytest.mark.usefixtures("fresh_compilations")


@pytest.fixture(autouse=True)
def _undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamo, "_decisions", Decisions())


class Kept:
    """The result where nothing was faster."""

    keeps_original, module, report = True, None, SimpleNamespace(is_final=True)


def note_loss(source: Any, optimized: list[int]) -> Any:
    """Note the batch size of a source in place of optimizing it, and gain nothing."""
    optimized.append(source.args[-1].shape[0])
    return Kept()


def test_nothing_gained_at_some_sizes_is_not_tried_at_others() -> None:
    prospects = Prospects()
    for _ in range(LOSSES):
        assert prospects.why_not("a", 60) == ""
        prospects.note("a", 1.0, gained=False)
    assert "nothing was gained for it at 2 other sizes" in prospects.why_not("a", 60)
    assert prospects.why_not("b", 60) == ""
    prospects.note("a", 1.0, gained=True)
    assert prospects.why_not("a", 60) == ""


def test_patience_ends_and_a_gain_restores_it() -> None:
    prospects = Prospects()
    prospects.note("good", 1.0, gained=True)
    for family in "abc":
        prospects.note(family, 25.0, gained=False)
    assert "nothing was gained in 3 graphs and 75 seconds" in prospects.why_not("d", 60)
    assert prospects.why_not("d", 80) == ""
    assert prospects.why_not("good", 60) == ""
    prospects.note("d", 1.0, gained=True)
    assert prospects.why_not("e", 60) == ""


def test_what_was_refused_is_refused_at_all_sizes() -> None:
    prospects = Prospects()
    prospects.refuse("a", 100.0, "it cannot be exported")
    assert prospects.why_not("a", 1000) == "it cannot be exported"
    assert "in 1 graphs and 100 seconds" in prospects.why_not("b", 60)


def test_a_family_is_the_same_graph_at_any_size() -> None:
    def of(function: Any, **options: Any) -> str:
        return family_of(fx.symbolic_trace(function), dynamo.BackendOptions(**options))

    one = of(lambda x: torch.relu(x.reshape(2, 3)) + 1)
    assert one == of(lambda x: torch.relu(x.reshape(4, 5)) + 2)
    assert one != of(lambda x: torch.tanh(x.reshape(2, 3)) + 1)
    assert one != of(lambda x: torch.relu(x.reshape(2, 3)) + 1, runtime="openvino")
    assert of(lambda x, y: x - y) != of(lambda x, y: y - x)
    assert of(lambda x: functional.gelu(x)) != of(lambda x: functional.gelu(x, approximate="tanh"))
    assert of(lambda x: x.to(torch.float16)) != of(lambda x: x.to(torch.float64))


@pytest.mark.parametrize(
    ("other", "dtype", "tried"),
    [
        ({}, torch.float32, [2, 3]),
        ({"freeze": True}, torch.float32, [2, 3, 4]),
        ({"runtime": "onnxruntime"}, torch.float32, [2, 3, 4]),
        ({}, torch.float64, [2, 3, 4]),
    ],
)
def test_losses_say_nothing_of_other_options_and_types(
    other: dict[str, Any], dtype: torch.dtype, tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    optimized: list[int] = []
    monkeypatch.setattr(dynamo, "optimize_source", lambda source, *_, **__: note_loss(source, optimized))
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    for batch, options in ((2, {}), (3, {}), (4, other)):
        torch._dynamo.reset()
        model = model.to(dtype if batch == 4 else torch.float32)
        x = torch.randn(batch, 4, dtype=dtype if batch == 4 else torch.float32)
        with torch.no_grad():
            compiled = torch.compile(model, backend="taso", dynamic=False, options=options)
            torch.testing.assert_close(compiled(x), model(x))
    assert optimized == tried


@pytest.mark.parametrize(
    ("function", "is_state", "writes"),
    [
        (lambda x: x.add_(1), True, True),
        (lambda x: x.add_(1), False, False),
        (lambda x: x.relu().add_(1), True, False),
        (lambda x: x.__add__(1), True, False),
        (lambda x: x + 1, True, False),
    ],
)
def test_what_is_surely_written_to_is_no_weight(function: Any, is_state: bool, writes: bool) -> None:
    graph = fx.symbolic_trace(function)
    (placeholder,) = (node for node in graph.graph.nodes if node.op == "placeholder")
    placeholder.meta["tensor_dict"] = {"_dynamo_static_input_type": "guarded"} if is_state else {}
    assert why_untouched(graph, ()) == ""
    assert weight_positions(graph) == ((0,) if is_state and not writes else ())


def test_other_sizes_cost_nothing_where_nothing_was_gained(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    optimized: list[int] = []
    monkeypatch.setattr(dynamo, "optimize_source", lambda source, *_, **__: note_loss(source, optimized))
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    compiled = torch.compile(model, backend=dynamo.taso, dynamic=False)
    with torch.no_grad():
        for batch in (2, 3, 4, 5):
            x = torch.randn(batch, 4)
            torch.testing.assert_close(compiled(x), model(x))
    assert optimized == [2, 3]
    assert caplog.text.count("nothing was gained for it at 2 other sizes") == 2


def test_a_graph_without_known_operators_is_not_searched(caplog: pytest.LogCaptureFixture) -> None:
    def ordered(x: Tensor) -> Tensor:
        return torch.cumprod(torch.sort(x).values, 0)

    x = torch.randn(5)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(ordered, backend=dynamo.taso)(x), ordered(x))
    assert "rules and kernels know none of its operators" in caplog.text


def fails(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("nobody foresaw this")


@pytest.mark.parametrize(
    ("home", "where"),
    [(captured, "import_source"), (dynamo, "optimize_source"), (dynamo, "decision_key"), (dynamo, "family_of")],
)
def test_what_nobody_foresaw_runs_the_captured_graph_with_one_line(
    home: ModuleType, where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(home, where, fails)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), torch.randn(2, 4)
    compiled = torch.compile(model, backend=dynamo.taso, dynamic=False)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), model(x))
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("taso_py")]
    assert "runs as it is: unexpected ZeroDivisionError" in line
    assert len(list((tmp_path / "reports").iterdir())) == 1


@pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_passes_and_the_next_call_tries_again(
    ending: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        raise ending

    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), torch.randn(2, 4)
    compiled = torch.compile(model, backend=dynamo.taso, dynamic=False)
    with torch.no_grad():
        with monkeypatch.context() as patch:
            patch.setattr(captured, "import_source", interrupted)
            with pytest.raises(ending):
                compiled(x)
        seen: list[Any] = []
        monkeypatch.setattr(captured, "import_source", lambda source: seen.append(source) or fails())
        torch.testing.assert_close(compiled(x), model(x))
    assert len(seen) == 1


@pytest.mark.parametrize("is_models", [False, True])
def test_a_result_that_fails_gives_way_unless_the_model_fails_too(
    is_models: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """What the model itself raises is the caller's to see, and no reason to give up a result."""
    graph = fx.symbolic_trace(lambda x: functional.relu(x).view(2, 3))
    compiled = dynamo._Compiled("a graph", graph, dynamo.BackendOptions(), dynamo.AutocastState("cpu"))
    compiled._running, compiled._is_prepared = dynamo.BoundRunner(fails), True
    if is_models:
        with pytest.raises(RuntimeError, match="shape"):
            compiled(torch.ones(7))
        assert compiled._running is not compiled._captured
        assert caplog.text == ""
    else:
        assert compiled(torch.ones(6)).shape == (2, 3)
        assert compiled._running is compiled._captured
        assert "unexpected ZeroDivisionError while running a graph" in caplog.text
