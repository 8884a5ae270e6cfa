"""The garbage collector runs again when the last of those that paused it is done."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from taso_py.collector import collector_paused


@pytest.fixture(autouse=True)
def _enabled() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_pauses_may_overlap_in_any_order() -> None:
    one, two = collector_paused(), collector_paused()
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    assert not gc.isenabled()
    two.__exit__(None, None, None)
    assert gc.isenabled()


def test_it_stays_off_where_it_was_off() -> None:
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()


def test_a_long_pause_is_for_processes_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as alone:  # other tests may have left threads behind
        alone.setattr(threading, "enumerate", lambda: [threading.current_thread()])
        with collector_paused(shared=False):
            assert not gc.isenabled()
    done = threading.Event()
    thread = threading.Thread(target=done.wait, args=(10,))
    thread.start()
    with collector_paused(shared=False):
        assert gc.isenabled()
    done.set()
    thread.join()
