"""Whoever traces is alone and quiet; other threads log, warn, print and run compiled functions as ever."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch._export.utils import _compiling_state_context
from torch._functorch.aot_autograd import aot_export_module
from torch.fx import traceback

from taso_py.backend.tracing import quiet, tracing_lock
from tests.process_state import changes, process_state


def elsewhere(action: Callable[[], Any]) -> Any:
    """What an action returns in another thread; raises what it raises."""
    found: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(action())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]


def speak() -> None:
    logging.getLogger("torch.export").error("a log")
    sys.stderr.write("a print\n")
    warnings.warn("a warning", stacklevel=1)


@pytest.fixture(autouse=True)
def _shown() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        yield


def heard(action: Callable[[], Any], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is heard of speaking while something is traced, or not."""
    caplog.clear()
    capsys.readouterr()
    action()
    told = capsys.readouterr().err + caplog.text
    return [what for what in ("a log", "a print", "a warning") if what in told]


def test_only_the_thread_that_traces_is_quiet(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(message: Any, *_: Any, **__: Any) -> None:
        sys.stderr.write(f"{message}\n")

    monkeypatch.setattr(warnings, "showwarning", show)
    everything = ["a log", "a print", "a warning"]
    assert heard(speak, capsys, caplog) == everything
    with quiet():
        assert heard(speak, capsys, caplog) == []
        assert heard(lambda: elsewhere(speak), capsys, caplog) == everything
    assert heard(speak, capsys, caplog) == everything


def test_our_own_lines_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with quiet():
        logging.getLogger("taso_py.driver").warning("ours")
    assert "ours" in caplog.text


@pytest.mark.parametrize("ending", [None, ValueError, KeyboardInterrupt])
def test_the_process_is_as_before_however_it_ends(ending: type[BaseException] | None) -> None:
    before = process_state()
    with pytest.raises(ending) if ending else nullcontext(), quiet():
        assert set(changes(before, process_state())) >= {"standard error", "warning filters", "is_compiling"}
        if ending:
            raise ending
    assert changes(before, process_state()) == {}


def test_what_another_thread_sets_meanwhile_stays() -> None:
    handler = logging.StreamHandler()
    with quiet():
        elsewhere(lambda: logging.getLogger("some.library").addHandler(handler))
        elsewhere(lambda: warnings.filterwarnings("ignore", message="set meanwhile"))
        stream = sys.stderr
    assert logging.getLogger("some.library").handlers == [handler]
    assert any(entry[1] is not None and entry[1].pattern == "set meanwhile" for entry in warnings.filters)
    logging.getLogger("some.library").removeHandler(handler)
    assert stream.write("") == 0  # whoever holds on to it writes to the stream itself
    assert stream is not sys.stderr


def test_one_thread_traces_at_a_time() -> None:
    order: list[str] = []
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with tracing_lock():
            inside.set()
            leave.wait(10)
            order.append("first")

    def second() -> None:
        inside.wait(10)
        with tracing_lock():
            order.append("second")

    threads = [threading.Thread(target=run) for run in (first, second)]
    for thread in threads:
        thread.start()
    inside.wait(10)
    leave.set()
    for thread in threads:
        thread.join()
    assert order == ["first", "second"]


@pytest.mark.parametrize("within", [quiet, tracing_lock])
def test_compiled_functions_run_while_something_is_traced(within: Any) -> None:
    compiled = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
    x = torch.zeros(3)
    compiled(x)

    def traced(y: torch.Tensor) -> torch.Tensor:
        found.append(elsewhere(lambda: compiled(x)))
        return y * 2

    found: list[torch.Tensor] = []
    # PyTorch refuses the call where what traces does not say that it compiles, which is what this guards against.
    refused = nullcontext() if within is quiet else pytest.raises(RuntimeError, match="symbolically trace")
    with refused, within():
        torch.fx.symbolic_trace(traced)
    assert len(found) == (within is quiet)


def test_other_threads_act_as_if_nothing_were_exported() -> None:
    def marked() -> bool:
        with traceback.annotate({"mark": True}):
            return "custom" in traceback.get_current_meta()

    def seen() -> tuple[bool, bool, bool]:
        compiled: Any = torch.compile(torch.relu, backend="eager")
        return torch.compiler.is_exporting(), compiled is torch.relu, marked()

    functions = torch.compiler.is_exporting, traceback.annotate, traceback.set_current_meta
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with quiet(), _compiling_state_context():
            assert seen() == (True, True, True)  # what PyTorch does for the process, here for this thread only
            assert elsewhere(seen) == (False, False, False)
    assert seen() == (False, False, True)
    assert functions == (torch.compiler.is_exporting, traceback.annotate, traceback.set_current_meta)


def test_a_body_may_ask_whether_it_is_exported() -> None:
    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def yes(y: torch.Tensor) -> torch.Tensor:
                return y + 1 if torch.compiler.is_exporting() else y + 2

            return torch.cond(x.sum() > 0, yes, lambda y: y * 2, (x,))

    x = torch.ones(3)
    with quiet():
        exported = torch.export.export(Branching(), (x,))
    assert torch.equal(exported.module()(x), x + 1)


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_trace_leaves_random_numbers_drawn_elsewhere_drawn(is_ours: bool) -> None:
    class Drawn(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            elsewhere(lambda: torch.rand(3))
            return (x * 2,)

    before = torch.get_rng_state()
    with quiet() if is_ours else nullcontext():
        aot_export_module(Drawn(), [torch.zeros(3)], trace_joint=False)
    # PyTorch alone undoes them; else there would be nothing to replace.
    assert torch.equal(torch.get_rng_state(), before) != is_ours
