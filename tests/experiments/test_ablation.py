"""What an ablation takes away is there to begin with."""

from __future__ import annotations

import pytest

from experiments.ablation import EVERYTHING, VARIANTS
from taso_py.rules.database import read_database


@pytest.mark.parametrize("name", VARIANTS)
def test_everything_but_the_whole_lacks_something(name: str) -> None:
    rules = read_database()
    left = [rule for rule in rules if VARIANTS[name].rules(rule)]
    assert left
    assert (len(left) == len(rules) and not VARIANTS[name].options) == (name == EVERYTHING)
