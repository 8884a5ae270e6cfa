"""The experiment on correctness finds a wrong rule, and passes a right one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from experiments import correctness
from experiments.harness import Row, Settings
from taso_py.models.source import Source
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules

RIGHT = """rule a: float[..B], b: float[..B], c: float[..B]
  source add(mul(a, b), mul(a, c))
  target mul(a, add(b, c))
  numerics REASSOCIATE
"""
WRONG = RIGHT.replace("add(b, c)", "mul(b, c)")


class _Model(nn.Module):
    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return torch.tanh(a * b + a * c)


def row(rules: Sequence[Substitution], monkeypatch: pytest.MonkeyPatch) -> Row:
    """The first of a few seeds at whose prices the rule is applied."""
    monkeypatch.setattr(correctness, "read_database", lambda: rules)
    inputs = tuple(torch.randn(3, 4, generator=torch.Generator().manual_seed(i)) for i in range(3))
    source = Source("model", _Model().eval(), inputs)
    for seed in range(8):
        with torch.no_grad():
            found = correctness._check_at_random_prices(source, 50, Settings("cpu", quick=True, out=Path(), seed=seed))
        if found["rewrites"]:
            return found
    raise AssertionError("the rule is never applied")


def test_a_right_rule_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert row(read_rules(RIGHT), monkeypatch)["passed"]


def test_a_wrong_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = row(read_rules(WRONG), monkeypatch)
    assert not found["passed"]
    assert "is off by" in found["problem"]
