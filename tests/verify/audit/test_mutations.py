"""Mutants of true rules: whatever PyTorch shows to be false must not be proved, and nothing may raise."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from random import Random

import pytest

import substitutions
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules
from taso_py.rules.verdict import Outcome, Verdict
from verify.audit import mutations
from verify.audit.mutations import MutantTally, examine, examine_all, main, mutants

SEED = 20190904


def test_no_false_mutant_is_proved(true_rules: dict[str, Substitution]) -> None:
    tally = MutantTally.of(examine_all(SEED, mutants(list(true_rules.values()), Random(SEED), 100)))
    assert tally.wrong == []
    assert tally.total == 100
    assert tally.false > 50
    assert tally.proved > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_no_false_mutant_is_proved_at_length(true_rules: dict[str, Substitution], seed: int) -> None:
    assert MutantTally.of(examine_all(seed, mutants(list(true_rules.values()), Random(seed), 1000))).wrong == []


def test_a_prover_that_believes_everything_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutations, "prove", lambda _: Verdict(Outcome.PROVED, "it looks true"))
    tally = MutantTally.of([examine((read_rules("rule x: float[M]\n source relu(x)\n target tanh(x)")[0], 0))])
    (found,) = tally.wrong
    assert "target tanh(x)" in found


def test_the_seed_decides(true_rules: dict[str, Substitution]) -> None:
    rules = list(true_rules.values())
    first, again, other = ([m.id for m in islice(mutants(rules, Random(s), 5), 5)] for s in (1, 1, 2))
    assert first == again != other


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    scalars = str(Path(substitutions.__file__).with_name("scalars.rules"))
    assert main([scalars, "--count", "3", "--seed", "1", "--jobs", "1"]) == 0
    assert "3 mutants of" in capsys.readouterr().out
    assert main(["no/such/file"]) == 2
