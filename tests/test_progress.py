"""Progress bars: as quick as the eye on a terminal, a line now and then in a log."""

from __future__ import annotations

import io
import sys
import time

import pytest

from taso_py import progress
from taso_py.progress import Phases, progress_bar, share_bar


class Terminal(io.StringIO):
    """Standard error of somebody who watches."""

    def isatty(self) -> bool:
        return True


def _states(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a bar is written in some tenths of a second."""
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar(desc="search", total=60) as bar:
        for _ in range(60):
            time.sleep(0.005)
            bar.set_postfix_str("best 0.9 of the original", refresh=False)
            bar.update(1)
    return stream.getvalue().count("search: ")


def test_a_log_gets_few_states(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _states(io.StringIO(), monkeypatch) == 0, "it is over in a moment"
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.15)
    assert _states(io.StringIO(), monkeypatch) > 0
    assert _states(Terminal(), monkeypatch) > 1


def test_nothing_is_written_where_no_bar_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress_bar(range(3), desc="measure", shown=False)) == [0, 1, 2]
    assert capsys.readouterr().err == ""


class Minimal:
    """What programs put in the place of standard error to collect it."""

    def __init__(self) -> None:
        self.written = ""

    def write(self, text: str) -> None:
        """Collects it."""
        self.written += text

    def flush(self) -> None:
        """Does nothing."""


def test_standard_error_need_not_know_of_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Minimal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.0)
    assert list(progress_bar(range(3), desc="measure")) == [0, 1, 2]
    assert "measure: " in stream.written


@pytest.mark.parametrize("shown", [True, False])
def test_there_need_be_no_standard_error(shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program without a console."""
    monkeypatch.setattr(sys, "stderr", None)
    assert list(progress_bar(range(3), desc="measure", shown=shown)) == [0, 1, 2]


def test_a_share_bar_says_how_long_it_takes_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with share_bar("race") as on_share:
        for share in (0.25, 0.5, 0.25, 7.0):  # a race may go on for longer, so that less of it is over
            time.sleep(0.11)
            on_share(share)
    states = [state for state in stream.getvalue().split("\r") if "race" in state]
    assert [f"{share}%|" in state for share, state in zip((0, 25, 50, 100), (*states[:3], states[-1]), strict=True)]
    assert " left" in states[1]


def test_phases_share_the_time_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, time_now = io.StringIO(), [10.0]
    monkeypatch.setattr(sys, "stderr", stream)
    phases = Phases(shown=True, now=lambda: time_now[0])

    def passes(seconds: float) -> None:
        time_now[0] += seconds

    with phases.phase("build", "modules"):
        passes(2.0)
        with phases.phase_with_bar("race") as on_share:
            passes(5.0)
            on_share(1.0)
        passes(1.0)

    def fails() -> None:
        with phases.phase("race"):
            passes(0.5)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert phases.seconds == {"build": 3.0, "race": 5.5}
    lines = [line.split() for line in stream.getvalue().splitlines()]
    assert lines == [["race", "5.0", "s"], ["build", "3.0", "s", "modules"], ["race", "0.5", "s"]]


def test_phases_are_silent_where_nobody_asked(capsys: pytest.CaptureFixture[str]) -> None:
    phases = Phases()
    with phases.phase_with_bar("race") as on_share:
        on_share(0.5)
    phases.say("note: nothing")
    assert capsys.readouterr().err == ""
    assert list(phases.seconds) == ["race"]
