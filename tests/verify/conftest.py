"""Rules of known truth, one file a class, each under a comment that names it: every one of them is a test of its own.

``tests/sound`` holds true statements; those that the prover is known not to prove are marked ``unproved:``.
``tests/unsound`` holds false ones; those that PyTorch does not refute are marked ``unrefuted:``.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules

_TESTS = Path(__file__).parent.parent


@cache
def load(folder: str) -> dict[str, dict[str, Substitution]]:
    """The rules of a folder of tests/ by class and name."""
    classes: dict[str, dict[str, Substitution]] = {}
    for path in sorted((_TESTS / folder).glob("*.rules")):
        parts = re.split(r"^// ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
        named = (part.split("\n", 1) for part in parts)
        classes[path.stem] = {title: read_rules(body)[0] for title, body in named}
    return classes


def _named(folder: str, without: str = "\n") -> dict[str, Substitution]:
    classes = load(folder).values()
    return {name: rule for rules in classes for name, rule in rules.items() if not name.startswith(without)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for fixture, rules in (("true_rule", _named("sound", "unproved:")), ("false_rule", _named("unsound"))):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, list(rules.values()), ids=list(rules))
    for fixture, folder in (("sound_class", "sound"), ("unsound_class", "unsound")):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, list(load(folder).values()), ids=list(load(folder)))


@pytest.fixture(scope="session")
def true_rules() -> dict[str, Substitution]:
    return _named("sound", "unproved:")


@pytest.fixture(scope="session")
def unproved_rules() -> dict[str, Substitution]:
    return {name: rule for name, rule in _named("sound").items() if name.startswith("unproved:")}


@pytest.fixture(scope="session")
def false_rules() -> dict[str, Substitution]:
    return _named("unsound")
