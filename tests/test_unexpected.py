"""What nobody foresaw is one line that names a report; what was foreseen, interrupts and exits pass through."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from taso_py import cli, unexpected
from taso_py.ir.errors import TasoError
from taso_py.unexpected import UnexpectedError, report_unexpected, shows_tracebacks, tracebacks_shown


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASO_PY_CACHE", str(tmp_path))
    monkeypatch.delenv(unexpected.VARIABLE, raising=False)


def fail(facts: dict[str, object] | None = None) -> UnexpectedError:
    """The error that a mistake becomes."""

    def mistaken() -> None:
        with report_unexpected("testing") as known:
            known |= facts or {}
            raise ZeroDivisionError("one line\nand another")

    with pytest.raises(UnexpectedError) as caught:
        mistaken()
    return caught.value


def report_of(error: UnexpectedError) -> str:
    (path,) = [Path(word.rstrip(";")) for word in str(error).split() if word.rstrip(";").endswith(".txt")]
    return path.read_text()


def test_it_is_one_line_that_names_a_report() -> None:
    error = fail({"graph": lambda: "x0 = relu(a)", "seed": 7, "broken": lambda: 1 // 0})
    assert str(error).startswith("unexpected ZeroDivisionError while testing (one line); please report it with ")
    assert "\n" not in str(error)
    assert isinstance(error.__cause__, ZeroDivisionError)
    text = report_of(error)
    for part in (
        "# graph\nx0 = relu(a)",
        "# seed\n7",
        "# broken\nunknown: ZeroDivisionError",
        "torch 2",
        "in mistaken\n",
    ):
        assert part in text


def test_the_same_error_is_reported_once(tmp_path: Path) -> None:
    for _ in range(2):
        fail()
    assert len(list((tmp_path / "reports").iterdir())) == 1


def test_where_nothing_can_be_written_the_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr(unexpected, "replace_file", full)
    assert "no report could be written" in str(fail())


@pytest.mark.parametrize("error", [TasoError("foreseen"), KeyboardInterrupt(), SystemExit(3), BrokenPipeError()])
def test_others_pass_through(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, report_unexpected("testing"):
        raise error
    assert caught.value is error


@pytest.mark.parametrize(("value", "shown"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_the_environment_shows_tracebacks(
    value: str, shown: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(unexpected.VARIABLE, value)
    with caplog.at_level(logging.ERROR):
        line = str(fail())
    assert ("Traceback" in caplog.text) is shown
    assert (unexpected.VARIABLE in line) is not shown


def test_tracebacks_are_asked_for_in_one_place() -> None:
    with tracebacks_shown():
        assert shows_tracebacks()
    assert not shows_tracebacks()


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("broken"), cli.UNEXPECTED), (TasoError("mistaken"), cli.MISTAKE)]
)
@pytest.mark.parametrize("debug", [False, True])
def test_the_command_line_has_a_line_and_on_request_a_traceback(
    error: Exception, status: int, debug: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*_: Any) -> int:
        raise error

    monkeypatch.setattr("taso_py.commands.rules.read_database", run)
    assert cli.main(["rules", "stats", *(["--debug"] if debug else [])]) == status
    told = capsys.readouterr().err
    assert str(error) in told.splitlines()[-1]
    assert ("Traceback" in told) is debug
    assert len(told.splitlines()) == 1 or debug
