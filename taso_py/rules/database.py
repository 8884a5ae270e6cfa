"""The substitution database: folders of ``*.rules`` text files with a manifest.

The manifest lists each file with its vocabulary, number of rules and digest. A file that was edited by hand does not
match its digest and is refused: its content was not proved.

Invariant: writing is a function of what is written, byte for byte; reading executes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from taso_py.collector import collector_paused
from taso_py.files import folder_lock, replace_file
from taso_py.ir.errors import TasoError
from taso_py.rules.ruleset import RuleSet, StoredRule, stored_rules
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules, write_rules

MANIFEST = "MANIFEST.json"
SUFFIX = ".rules"
VERSION = 1
"""Version of the manifest's format."""
MOST_TEXTS = 64
"""Most files whose rules are cached in memory: more than the shipped database has, or none would be found there."""


class DatabaseError(TasoError):
    """A database that cannot be read or written; the message names the file."""


@dataclass(frozen=True)
class Section:
    """One file of a database."""

    name: str
    """Name of the vocabulary, and of the file without its suffix."""
    rules: Sequence[Substitution]
    facts: Mapping[str, Any]
    """Further entries in the manifest: operators, seed, numbers of terms; never times."""


def read_database(path: Path | None = None) -> RuleSet:
    """Return the rules of a file or folder, by default of the shipped database; each rule occurs once.

    Those that a manifest vouches for are read when they are used.

    Raises:
        DatabaseError: it cannot be read, or a file does not fit the manifest.
        GraphTextError: a rule cannot be read.
    """
    root: Traversable = files("substitutions") if path is None else path
    if root.is_dir():
        found = {item.name: item for item in root.iterdir() if item.name.endswith(SUFFIX)}
        manifest = root / MANIFEST
        if manifest.is_file():
            texts = _proved_texts(root, found, manifest)
            return RuleSet(rule for name, text in texts.items() for rule in _stored(name, text))
        if not found:
            raise DatabaseError(f"{root} holds no {SUFFIX} files; run 'taso-py generate' to make some")
        texts = {name: _text(found[name]) for name in sorted(found)}
    elif root.is_file():
        texts = {str(path): _text(root)}
    else:
        raise DatabaseError(f"there is no rule file or folder {path}")
    return RuleSet(rule for name, text in texts.items() for rule in _parsed(name, text))


@lru_cache(maxsize=MOST_TEXTS)
def _stored(name: str, text: str) -> Sequence[StoredRule]:
    """Return the rules of a file that was proved; a process that optimizes several models reads each once."""
    return stored_rules(text, partial(_read, name))


@lru_cache(maxsize=MOST_TEXTS)
def _parsed(name: str, text: str) -> Sequence[StoredRule]:
    """Return the rules of another file, all of them read."""
    with collector_paused():  # parsing makes no reference cycles, and many objects
        return [*map(StoredRule.of, _read(name, text))]


def _read(name: str, text: str) -> Sequence[Substitution]:
    try:
        return read_rules(text)
    except TasoError as error:
        raise DatabaseError(f"{name}: {error}") from error


def _proved_texts(root: Traversable, found: Mapping[str, Traversable], manifest: Traversable) -> Mapping[str, str]:
    """Return the texts of a folder's rule files, which are as the manifest says."""
    digests = {name: facts["digest"] for name, facts in _read_manifest(manifest).items()}
    if set(found) != set(digests):
        odd = min(set(found) ^ set(digests))
        raise DatabaseError(f"{root}: {odd} is {'not in the manifest' if odd in found else 'missing'}")
    texts = {name: _text(found[name]) for name in sorted(found)}
    for name, text in texts.items():
        if _digest(text) != digests[name]:
            raise DatabaseError(f"{root / name} was changed after its rules were proved; run 'taso-py generate' again")
    return texts


def _read_manifest(manifest: Traversable) -> dict[str, dict[str, Any]]:
    """Return the manifest's entries by file."""
    try:
        sections: dict[str, dict[str, Any]] = json.loads(_text(manifest))["files"]
        if all(isinstance(facts["digest"], str) and isinstance(facts["rules"], int) for facts in sections.values()):
            return sections
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise DatabaseError(f"{manifest} is damaged; run 'taso-py generate' again")


def _text(item: Traversable) -> str:
    try:
        return item.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DatabaseError(f"cannot read {item}: {error}") from error


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def write_database(directory: Path, sections: Sequence[Section]) -> None:
    """Write a database; files of an earlier one that are not part of it are removed.

    Raises:
        DatabaseError: the folder cannot be written.
    """
    names = {section.name + SUFFIX for section in sections}
    with _locked(directory):
        _write(directory, sections, {})
        for old in directory.glob(f"*{SUFFIX}"):
            if old.name not in names:
                old.unlink()


def update_database(directory: Path, section: Section) -> None:
    """Write one file of a database, which may be new; the others stay as they are.

    Raises:
        DatabaseError: the folder cannot be written, or one of the other files does not fit the manifest.
    """
    manifest, name = directory / MANIFEST, section.name + SUFFIX
    with _locked(directory):
        listed = _read_manifest(manifest) if manifest.is_file() else {}
        others = {other: facts for other, facts in listed.items() if other != name}
        for path in sorted(directory.glob(f"*{SUFFIX}")):
            if path.name != name and (path.name not in others or _digest(_text(path)) != others[path.name]["digest"]):
                raise DatabaseError(f"{path} does not fit {manifest.name} beside it; choose another folder")
        _write(directory, [section], others)


@contextmanager
def _locked(directory: Path) -> Generator[None]:
    """Make a folder if there is none, and hold a lock on it: others may add files to it and list them meanwhile."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with folder_lock(directory):
            yield
    except OSError as error:
        raise DatabaseError(f"cannot write to {directory}: {error.strerror}; choose another folder") from error


def _write(directory: Path, sections: Sequence[Section], others: Mapping[str, Any]) -> None:
    texts = {section.name + SUFFIX: _section_text(section) for section in sections}
    facts = {**others}
    for section in sections:
        name = section.name + SUFFIX
        facts[name] = {"rules": len(section.rules), "digest": _digest(texts[name]), **section.facts}
    manifest = {"version": VERSION, "rules": sum(file["rules"] for file in facts.values()), "files": facts}
    for name, text in {**texts, MANIFEST: json.dumps(manifest, indent=2, sort_keys=True) + "\n"}.items():
        write_text(directory / name, text)


def write_text(path: Path, text: str) -> None:
    """Write a file atomically.

    Raises:
        DatabaseError: it cannot be written.
    """
    try:
        replace_file(path, text)
    except OSError as error:
        raise DatabaseError(f"cannot write {path}: {error.strerror}; choose another folder") from error


def _section_text(section: Section) -> str:
    """Return the text of a file, rules with few operators first."""
    rules = sorted(section.rules, key=lambda rule: (sum(rule.size), rule.size, rule.id))
    header = [
        f"// {section.name}: {len(rules)} substitutions, found by enumeration and proved for every size.",
        "// Written by 'taso-py generate'; do not edit. The grammar is described in README.md.",
    ]
    return "\n".join(header) + "\n\n" + write_rules(rules)
