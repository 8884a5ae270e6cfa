"""The database: a round trip, and files that were changed by hand are refused."""

import hashlib
import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from taso_py.ir.errors import TasoError
from taso_py.ops.table import parse_graph
from taso_py.rules import database as databases
from taso_py.rules.database import MANIFEST, DatabaseError, Section, read_database, update_database, write_database
from taso_py.rules.match import Matcher
from taso_py.rules.ruleset import RuleSet, StoredRule
from taso_py.rules.substitution import Substitution, canonical
from taso_py.rules.text import read_rules

TEXT = """rule x: float[N] source relu(relu(x)) target relu(x)
rule x: float[N], y: float[N] source sub(add(x, y), y) target x numerics REASSOCIATE
rule x: float[M,N] source permute(permute(x){order=[-1,-2]}){order=[-1,-2]} target x
"""
RULES = tuple(canonical(rule) for rule in read_rules(TEXT))


@pytest.fixture
def database(tmp_path: Path) -> Path:
    write_database(tmp_path, [Section("one", RULES[:2], {"seed": 0}), Section("two", RULES[2:], {"seed": 0})])
    return tmp_path


def _ids(rules: Sequence[Substitution]) -> set[str]:
    return {rule.id for rule in rules}


def test_what_was_read_is_not_parsed_again() -> None:
    assert all(one is other for one, other in zip(read_database(), read_database(), strict=True))


def test_what_is_told_of_rules_before_they_are_read_is_true() -> None:
    rules = read_database()
    assert len(rules) == len(rules.ids) == len(set(rules.ids))
    for stored in rules.stored:
        assert stored.kinds == StoredRule.of(stored.rule).kinds
        assert stored.id == stored.rule.id


def test_rules_that_no_graph_has_the_operators_of_are_not_read(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(databases, "read_rules", lambda text: [*read_rules(text), read.append(text)][:1])
    matcher = Matcher(read_database(database))
    matcher.matches(parse_graph("graph(x: f32[3]) { return relu(relu(x)) }"))
    assert len(read) == 1
    assert "relu(relu(" in read[0]


def test_a_set_has_rules_by_place_and_identifier(database: Path) -> None:
    rules = read_database(database)
    assert [rule.id for rule in rules[1:]] == [*rules.ids[1:]]
    assert rules.get(rules.ids[1]) is rules[1]
    assert rules.get("r0") is None
    assert RuleSet.of(rules) is rules
    assert RuleSet.of([*rules, *rules]).ids == rules.ids


def test_a_rule_that_a_manifest_vouches_for_is_still_compared_with_its_identifier(database: Path) -> None:
    path = database / "one.rules"
    path.write_text(path.read_text().replace("source relu(relu(a))", "source tanh(relu(a))"))
    manifest = json.loads((database / MANIFEST).read_text())
    manifest["files"]["one.rules"]["digest"] = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    (database / MANIFEST).write_text(json.dumps(manifest))
    rules = read_database(database)
    line = 1 + path.read_text().splitlines().index("  source tanh(relu(a))")
    with pytest.raises(DatabaseError, match=rf"one\.rules: line {line + 3}, .* changed after it was proved"):
        list(rules)


def test_what_is_written_is_read(database: Path) -> None:
    assert _ids(read_database(database)) == _ids(RULES)
    assert _ids(read_database(database / "two.rules")) == _ids(RULES[2:])


def test_writing_is_reproducible_and_removes_old_files(database: Path) -> None:
    before = {path.name: path.read_bytes() for path in database.iterdir()}
    write_database(database, [Section("two", RULES[2:], {"seed": 0}), Section("one", RULES[1::-1], {"seed": 0})])
    assert {path.name: path.read_bytes() for path in database.iterdir()} == before
    write_database(database, [Section("two", RULES[2:], {})])
    assert {path.name for path in database.iterdir()} == {"two.rules", MANIFEST}


def test_one_file_is_written_and_the_others_stay(database: Path, tmp_path: Path) -> None:
    before = (database / "one.rules").read_bytes()
    update_database(database, Section("two", RULES[1:], {"seed": 0}))
    update_database(database, Section("three", RULES[:1], {"seed": 0}))
    assert (database / "one.rules").read_bytes() == before
    assert _ids(read_database(database / "two.rules")) == _ids(RULES[1:])
    assert _ids(read_database(database)) == _ids(RULES)
    write_database(database, [Section("two", RULES[1:], {"seed": 0})])
    fresh = tmp_path / "fresh"
    update_database(fresh, Section("two", RULES[1:], {"seed": 0}))
    assert (fresh / MANIFEST).read_bytes() == (database / MANIFEST).read_bytes()
    (fresh / "mine.rules").write_text(TEXT)
    with pytest.raises(DatabaseError, match="does not fit"):
        update_database(fresh, Section("two", RULES, {}))


def test_files_that_are_written_at_once_are_all_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text_of, both = databases._section_text, threading.Barrier(2)

    def late(section: Section) -> str:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.3)  # until the other one has read the manifest, if it may
        return text_of(section)

    monkeypatch.setattr(databases, "_section_text", late)
    with ThreadPoolExecutor(2) as pool:
        sections = [Section(name, RULES[:1], {}) for name in ("one", "two")]
        list(pool.map(lambda section: update_database(tmp_path, section), sections))
    assert set(json.loads((tmp_path / MANIFEST).read_text())["files"]) == {"one.rules", "two.rules"}
    assert _ids(read_database(tmp_path)) == _ids(RULES[:1])


def test_a_file_that_was_edited_is_refused(database: Path) -> None:
    path = database / "one.rules"
    path.write_text(path.read_text().replace("source relu(relu(a))", "source tanh(relu(a))"))
    with pytest.raises(DatabaseError, match="changed after its rules were proved"):
        read_database(database)
    with pytest.raises(TasoError, match="changed after it was proved"):
        read_database(path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (MANIFEST, "{", "is damaged"),
        (MANIFEST, '{"files": []}', "is damaged"),
        ("three.rules", "", "three.rules is not in the manifest"),
    ],
)
def test_damage_is_one_line(database: Path, file: str, content: str, message: str) -> None:
    (database / file).write_text(content)
    with pytest.raises(DatabaseError) as caught:
        read_database(database)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_said(database: Path, tmp_path: Path) -> None:
    (database / "two.rules").unlink()
    with pytest.raises(DatabaseError, match=r"two\.rules is missing"):
        read_database(database)
    with pytest.raises(DatabaseError, match="there is no rule file or folder"):
        read_database(tmp_path / "absent")


def test_the_shipped_database_is_whole() -> None:
    rules = read_database()
    assert rules
    assert all(rule.proof for rule in rules)
