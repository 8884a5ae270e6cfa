"""Progress bars: as quick as the eye on a terminal, a line now and then in a log."""

from __future__ import annotations

import io
import sys
import time

import pytest

from taso_py.progress import progress_bar


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
    assert _states(io.StringIO(), monkeypatch) == 1
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
    assert list(progress_bar(range(3), desc="measure")) == [0, 1, 2]
    assert "measure: " in stream.written


@pytest.mark.parametrize("shown", [True, False])
def test_there_need_be_no_standard_error(shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program without a console."""
    monkeypatch.setattr(sys, "stderr", None)
    assert list(progress_bar(range(3), desc="measure", shown=shown)) == [0, 1, 2]
