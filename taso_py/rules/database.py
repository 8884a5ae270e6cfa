"""The substitution database: folders of ``*.rules`` text files with a manifest.

The manifest says which vocabulary each file is from, how many rules it has, and the digest of its text. A file that was
edited by hand no longer fits its digest and is refused: what it says was not proved.

Invariant: writing is a function of what is written, byte for byte; reading executes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from taso_py.ir.errors import TasoError
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules, write_rules

MANIFEST = "MANIFEST.json"
SUFFIX = ".rules"
VERSION = 1
"""Of the form of the manifest."""


class DatabaseError(TasoError):
    """A database that cannot be read or written; the message names the file."""


@dataclass(frozen=True)
class Section:
    """One file of a database."""

    name: str
    """The vocabulary, and the file's name without its suffix."""
    rules: Sequence[Substitution]
    facts: Mapping[str, Any]
    """What the manifest says of it beside counts and digest: operators, seed, numbers of terms; never times."""


def read_database(path: Path | None = None) -> tuple[Substitution, ...]:
    """The rules of a file or folder; of the shipped database if no path is given. Each rule occurs once.

    Raises:
        DatabaseError: it cannot be read, or a file does not fit the manifest.
        GraphTextError: a rule cannot be read.
    """
    root: Traversable = files("substitutions") if path is None else path
    if root.is_dir():
        texts = _folder(root)
    elif root.is_file():
        texts = {str(path): _text(root)}
    else:
        raise DatabaseError(f"there is no rule file or folder {path}")
    rules: dict[str, Substitution] = {}
    for name, text in texts.items():
        try:
            rules.update((rule.id, rule) for rule in read_rules(text))
        except TasoError as error:
            raise DatabaseError(f"{name}: {error}") from error
    return tuple(rules.values())


def _folder(root: Traversable) -> dict[str, str]:
    """The texts of a folder's rule files, checked against its manifest if it has one."""
    found = {item.name: item for item in root.iterdir() if item.name.endswith(SUFFIX)}
    manifest = root / MANIFEST
    if not manifest.is_file():
        if not found:
            raise DatabaseError(f"{root} holds no {SUFFIX} files; run 'taso-py generate' to make some")
        return {name: _text(found[name]) for name in sorted(found)}
    try:
        sections = json.loads(_text(manifest))["files"]
        digests = {name: str(facts["digest"]) for name, facts in sections.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DatabaseError(f"{manifest} is damaged; run 'taso-py generate' again") from error
    if set(found) != set(digests):
        odd = min(set(found) ^ set(digests))
        raise DatabaseError(f"{root}: {odd} is {'not in the manifest' if odd in found else 'missing'}")
    texts = {name: _text(found[name]) for name in sorted(found)}
    for name, text in texts.items():
        if _digest(text) != digests[name]:
            raise DatabaseError(f"{root / name} was changed after its rules were proved; run 'taso-py generate' again")
    return texts


def _text(item: Traversable) -> str:
    try:
        return item.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DatabaseError(f"cannot read {item}: {error}") from error


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def write_database(directory: Path, sections: Sequence[Section]) -> None:
    """Writes a database; files of an earlier one that are not in this one are removed.

    Raises:
        DatabaseError: the folder cannot be written.
    """
    texts = {section.name + SUFFIX: _section_text(section) for section in sections}
    facts = {
        section.name + SUFFIX: {
            "rules": len(section.rules),
            "digest": _digest(texts[section.name + SUFFIX]),
            **section.facts,
        }
        for section in sections
    }
    manifest = {"version": VERSION, "rules": sum(len(s.rules) for s in sections), "files": facts}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for old in directory.glob(f"*{SUFFIX}"):
            if old.name not in texts:
                old.unlink()
        for name, text in {**texts, MANIFEST: json.dumps(manifest, indent=2, sort_keys=True) + "\n"}.items():
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise DatabaseError(f"cannot write to {directory}: {error.strerror}; choose another folder") from error


def _section_text(section: Section) -> str:
    """The rules, those with few operators first."""
    rules = sorted(section.rules, key=lambda rule: (sum(rule.size), rule.size, rule.id))
    header = [
        f"// {section.name}: {len(rules)} substitutions, found by enumeration and proved for every size.",
        "// Written by 'taso-py generate'; do not edit. The grammar is described in README.md.",
    ]
    return "\n".join(header) + "\n\n" + write_rules(rules)
