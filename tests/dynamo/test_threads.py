"""Threads: first calls that come in together, optimizations side by side, other compiled models beside them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from taso_py import lock
from taso_py.backend import Program
from taso_py.driver.decisions import Decision
from taso_py.driver.optimize import optimize
from taso_py.dynamo import backend as dynamo
from taso_py.search.templates import read_templates, search
from taso_py.search.trace import write_trace
from tests.search.examples import FakeCost

QUICK: dict[str, Any] = {"freeze": True, "race_seconds": 0.1, "time_limit": 1.0, "search": "templates-measured"}
WAIT_S = 60.0


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()


def image(batch: int = 1) -> Tensor:
    return torch.randn(batch, 3, 8, 8, generator=torch.Generator().manual_seed(batch))


pytestmark = pytest.mark.usefixtures("fresh_compilations")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[dynamo._Compiled]:
    """The captured graphs from now on; what is decided of them is surely to rewrite them, without timing."""
    found: list[dynamo._Compiled] = []
    init = dynamo._Compiled.__init__

    def noted(self: dynamo._Compiled, *args: Any) -> None:
        init(self, *args)
        found.append(self)

    def decided(self: Any, source: Any, program: Program) -> tuple[Decision, None]:
        trace = search(program.graph, read_templates(), FakeCost()).best.trace
        assert trace.steps
        return Decision(False, "eager", write_trace(trace)), None

    monkeypatch.setattr(dynamo._Compiled, "__init__", noted)
    monkeypatch.setattr(dynamo._Compiled, "_decide", decided)
    return found


def at_once(*actions: Callable[[], object]) -> None:
    """Runs actions, each in a thread, from the same moment on; raises the first error of any."""
    gate, errors = threading.Barrier(len(actions)), list[BaseException]()

    def run(action: Callable[[], object]) -> None:
        try:
            gate.wait()
            with torch.no_grad():
                action()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def calling(function: Callable[..., Tensor], model: nn.Module, inputs: Sequence[Tensor], rounds: int) -> None:
    """Calls something as often, and compares it with the model."""
    with torch.no_grad():
        expected = [model(x) for x in inputs]
    for turn_ in range(rounds):
        place = turn_ % len(inputs)
        torch.testing.assert_close(function(inputs[place]), expected[place], rtol=1e-4, atol=1e-4)


class Beside:
    """Another model, compiled by PyTorch, that is called in a thread for as long as the body runs."""

    def __enter__(self) -> None:
        self._model, self._x, self._done = net(), image(3), threading.Event()
        self._compiled = torch.compile(self._model, backend="aot_eager", dynamic=False)
        self._errors: list[Exception] = []
        with torch.no_grad():
            self._compiled(self._x)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._done.wait(0.002):
            try:
                with torch.no_grad():
                    calling(self._compiled, self._model, [self._x], 1)
            except Exception as error:
                self._errors.append(error)

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        assert self._errors == []


def test_first_calls_that_come_in_together(made: list[dynamo._Compiled], caplog: pytest.LogCaptureFixture) -> None:
    model, x = net(), image()
    compiled = torch.compile(model, backend=dynamo.taso, dynamic=False, options=QUICK)
    with Beside():
        at_once(*[lambda: calling(compiled, model, [x], 3)] * 12)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("taso_py")] == []
    with torch.no_grad():
        calling(compiled, model, [x], 1)
    assert any(each._is_prepared for each in made)
    assert {each._left for each in made} <= {dynamo.REFREEZES, dynamo.REFREEZES - 1}  # weights never changed


def test_who_calls_while_a_graph_is_prepared_does_not_wait(
    made: list[dynamo._Compiled], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = net(), image()
    compiled = torch.compile(model, backend=dynamo.taso, dynamic=False, options=QUICK)
    preparing, leave = threading.Event(), threading.Event()
    prepare = dynamo._Compiled._make

    def slowly(self: Any, args: Any) -> Any:
        preparing.set()
        assert leave.wait(WAIT_S)
        return prepare(self, args)

    def first() -> None:
        calling(compiled, model, [x], 1)

    def others() -> None:
        assert preparing.wait(WAIT_S)
        try:
            calling(compiled, model, [x], 9)
        finally:
            leave.set()

    monkeypatch.setattr(dynamo._Compiled, "_make", slowly)
    at_once(first, others)
    (graph,) = made
    assert graph._left == dynamo.REFREEZES - 1
    assert graph._running is not graph._captured
    model.get_submodule("0").get_parameter("weight").data = torch.randn(8, 3, 3, 3)
    with torch.no_grad():
        calling(compiled, model, [x], 1)
    assert graph._left == dynamo.REFREEZES - 2


def test_nobody_who_serves_waits_for_an_optimization(made: list[dynamo._Compiled]) -> None:
    model, x = net(), image()
    compiled = torch.compile(model, backend=dynamo.taso, dynamic=False, options=QUICK)
    with lock.optimization_lock():  # this thread optimizes something
        at_once(lambda: calling(compiled, model, [x], 2))
        assert not made[0]._is_prepared
    with torch.no_grad():
        calling(compiled, model, [x], 1)
    assert made[0]._is_prepared


def test_turns_are_taken_one_after_the_other() -> None:
    inside: list[int] = []

    def take() -> None:
        with lock.optimization_lock():
            inside.append(1)
            time.sleep(0.01)
            assert len(inside) == 1
            inside.pop()

    at_once(*[take] * 3)
    with lock.optimization_lock(), lock.try_optimization_lock() as free:
        assert free  # a thread may be inside several times
        seen: list[bool] = []

        def ask() -> None:
            with lock.try_optimization_lock() as is_free:
                seen.append(is_free)

        at_once(ask)
        assert seen == [False]


class Drawing:
    """A thread that draws random numbers meanwhile."""

    def __enter__(self) -> list[Tensor]:
        self._found, self._done = list[Tensor](), threading.Event()
        self._thread = threading.Thread(target=self._draw)
        self._thread.start()
        return self._found

    def _draw(self) -> None:
        while not self._done.wait(0.001):
            self._found.append(torch.rand(1))

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


@pytest.mark.slow
def test_two_optimizations_at_once_beside_others() -> None:
    def both() -> None:
        assert optimize(net(), image(2), race_seconds=0.1, time_limit=1.0).report.comparison_passed

    with Beside():
        at_once(both, both)


@pytest.mark.slow
def test_a_model_that_draws_nothing_leaves_the_random_numbers_of_others_alone() -> None:
    model = net()  # draws its weights
    torch.manual_seed(5)
    with Drawing() as found:
        optimize(model, image(2), race_seconds=0.1, time_limit=1.0)
    torch.manual_seed(5)
    assert found == [torch.rand(1) for _ in found]


@pytest.mark.slow
@pytest.mark.parametrize("freeze", [False, True])
def test_a_server_under_stress(freeze: bool) -> None:
    """Twelve threads, fifty rounds, four sizes, each optimized while the others are served; a model beside them."""
    model, sizes = net(), [image(batch) for batch in (1, 2, 4, 5)]
    compiled = torch.compile(model, backend=dynamo.taso, dynamic=False, options={**QUICK, "freeze": freeze})

    def another() -> None:
        optimize(net(), image(7), race_seconds=0.1, time_limit=1.0)

    with Beside():
        at_once(another, *[lambda: calling(compiled, model, sizes, 50)] * 12)
        at_once(*[lambda: calling(compiled, model, sizes, 50)] * 12)
