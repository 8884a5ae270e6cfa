"""The page on operators of one's own says what happens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taso_py.ir.errors import InvariantError
from taso_py.ops.elementwise import Relu
from taso_py.ops.table import DEFINED, OPERATORS, declare
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules
from taso_py.rules.verdict import Outcome
from verify import prove

PAGE = (Path(__file__).parents[2] / "docs" / "own-operator.md").read_text(encoding="utf-8")


@pytest.fixture
def shown() -> Iterator[dict[str, Any]]:
    """The names that the page's code defines."""
    pytest.importorskip("egglog")
    names: dict[str, Any] = {"__name__": "own_operator"}
    try:
        exec("\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)), names)
        yield names
    finally:
        OPERATORS.pop("squared_relu", None)
        DEFINED.pop("squared_relu", None)


def test_the_page_does_what_it_says(shown: dict[str, Any]) -> None:
    rules: tuple[Substitution, ...] = shown["found"].rules
    (output,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    printed = read_rules("rule\n" + output.replace("\n\n", "\nrule\n"))
    assert len(printed) == 3
    assert {rule.id for rule in printed} <= {rule.id for rule in rules}
    assert all(prove(rule).outcome is Outcome.PROVED for rule in rules)
    assert len(shown["found"].report.fates) > len(rules)


def test_a_wrong_rule_of_it_is_not_proved(shown: dict[str, Any]) -> None:
    assert shown["SquaredRelu"] is DEFINED["squared_relu"]
    wrong = "rule a: float[N], b: float[N] source squared_relu(add(a, b)) target add(squared_relu(a), squared_relu(b))"
    assert prove(read_rules(wrong)[0]).outcome is not Outcome.PROVED


def test_names_are_given_once() -> None:
    assert declare(Relu) is Relu
    with pytest.raises(InvariantError, match="an operator is called relu already"):
        declare(type("Other", (Relu,), {}))
