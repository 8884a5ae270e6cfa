"""Rules of known truth, each under a comment that names it: every one of them is a test of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules

_HERE = Path(__file__).parent


def load(name: str) -> dict[str, Substitution]:
    text = (_HERE / name).read_text(encoding="utf-8")
    parts = (part.split("\n", 1) for part in re.split(r"^// ", text, flags=re.MULTILINE)[1:])
    return {title: read_rules(body)[0] for title, body in parts}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for fixture, name in (("true_rule", "true.rules"), ("false_rule", "false.rules")):
        if fixture in metafunc.fixturenames:
            rules = load(name)
            metafunc.parametrize(fixture, list(rules.values()), ids=list(rules))


@pytest.fixture(scope="session")
def true_rules() -> dict[str, Substitution]:
    return load("true.rules")
