"""A generation that was interrupted anywhere goes on, and ends the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from taso_py.executors import open_pool
from taso_py.generate.journal import Journal
from taso_py.generate.pipeline import Config, generate
from taso_py.generate.vocabulary import DATA, Family, Production, Variables
from taso_py.ir.errors import TasoError
from taso_py.ops.elementwise import Relu, Sub
from taso_py.ops.movement import Permute
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import write_rules
from taso_py.rules.verdict import Verdict
from verify import prove

NAME = "tiny.journal"
TINY = Family(
    "tiny",
    (Variables("x", (3, 2), DATA, 2),),
    (Production(Relu(), "d"), Production(Permute((-1, -2)), "d"), Production(Sub(), "dd")),
    operators=2,
)


class Counted:
    """A prover that counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, rule: Substitution) -> Verdict:
        self.asked += 1
        return prove(rule)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taso_py.generate.pipeline.VOCABULARIES", {"tiny": (TINY,)})


def _run(path: Path, prover: Counted, *, resume: bool) -> tuple[str, list[str]]:
    pytest.importorskip("egglog")
    with Journal(path, {"seed": 0}, resume=resume) as journal:
        found = generate(Config(("tiny",)), prover, journal=journal)
    return write_rules(found.rules), [repr(fate) for fate in found.report.fates]


def test_a_journal_that_ends_anywhere_leads_to_the_same_end(tmp_path: Path) -> None:
    path, first = tmp_path / NAME, Counted()
    whole = _run(path, first, resume=False)
    written = path.read_bytes()
    assert "permute" in whole[0]
    for share in (0.0, 0.1, 0.5, 0.9, 1.0):
        # Killed in the middle of a line, as a rule.
        path.write_bytes(written[: int(share * len(written))])
        again = Counted()
        assert _run(path, again, resume=True) == whole
        assert path.read_bytes() == written
        assert (again.asked == 0) if share == 1.0 else (again.asked <= first.asked)


def test_without_resuming_nothing_is_remembered(tmp_path: Path) -> None:
    first, again = Counted(), Counted()
    whole = _run(tmp_path / NAME, first, resume=False)
    assert _run(tmp_path / NAME, again, resume=False) == whole
    assert again.asked == first.asked > 0


def test_several_workers_find_the_same(tmp_path: Path) -> None:
    alone = generate(Config(("tiny",)), prove)
    with open_pool(jobs=2) as pool:
        together = generate(Config(("tiny",)), prove, pool=pool)
    assert write_rules(together.rules) == write_rules(alone.rules)
    assert together.report == alone.report


def test_what_was_computed_is_not_computed_again(tmp_path: Path) -> None:
    path = tmp_path / NAME
    with Journal(path, {"seed": 0}) as journal:
        assert journal.recall("one", lambda: 1) == 1
        assert journal.recall_all({"one": 1, "two": 2}, lambda items: (item for item in items)) == [1, 2]
    with path.open("a") as file:
        file.write('["three", ')
    with Journal(path, {"seed": 0}, resume=True) as resumed:
        assert resumed.recall("two", lambda: pytest.fail("it is known")) == 2
        assert resumed.recall("three", lambda: 3) == 3
        resumed.remove()
    assert not list(tmp_path.iterdir())


def test_a_journal_of_something_else_is_refused(tmp_path: Path) -> None:
    with Journal(tmp_path / NAME, {"seed": 0}) as journal:
        journal.recall("one", lambda: 1)
    with pytest.raises(TasoError, match="leave out --resume to start anew"):
        Journal(tmp_path / NAME, {"seed": 1}, resume=True)


@pytest.mark.parametrize("line", ["[1, 2", "7", '["a", 1, 2]', "[[], 1]"])
def test_a_damaged_journal_is_refused(tmp_path: Path, line: str) -> None:
    with Journal(tmp_path / NAME, {"seed": 0}) as journal:
        journal.recall("one", lambda: 1)
    with (tmp_path / NAME).open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(TasoError, match="is damaged; leave out --resume"):
        Journal(tmp_path / NAME, {"seed": 0}, resume=True)


def test_one_process_at_a_time_has_a_journal(tmp_path: Path) -> None:
    path = tmp_path / NAME
    with Journal(path, {"seed": 0}) as journal:
        journal.recall("one", lambda: 1)
        for resume in (False, True):
            with pytest.raises(TasoError, match=r"another run writes .*; wait for it"):
                Journal(path, {"seed": 0}, resume=resume)
        journal.recall("two", lambda: 2)
    with Journal(path, {"seed": 0}, resume=True) as resumed:
        assert [resumed.recall(name, lambda: pytest.fail("it is known")) for name in ("one", "two")] == [1, 2]
