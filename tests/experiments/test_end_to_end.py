"""Models on batches of different sizes are summed up apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.end_to_end import EXPERIMENT, MEAN
from experiments.harness import Row, Settings
from taso_py.runtime import zoo


def _row(model: str, gain: float) -> Row:
    names = ("auto/best_other", "auto/best_other_low", "auto/best_other_high")
    return {"model": model, **dict.fromkeys(names, gain)}


def test_each_batch_has_a_mean_of_its_own() -> None:
    rows = [_row("a", 2.0), _row("b", 0.5), _row("a@8", 4.0)]
    arranged = EXPERIMENT.arrange(rows)
    assert arranged[:3] == rows
    assert {row["model"]: row["auto/best_other"] for row in arranged[3:]} == {MEAN: 1.0, f"{MEAN}@8": 4.0}
    assert "of 2, 1 surely faster than the best of the others, 1 surely slower" in arranged[3]["note"]


@pytest.mark.parametrize(("device", "batch"), [("cpu", "8"), ("cuda", "16")])
def test_larger_batches_depend_on_the_device(device: str, batch: str) -> None:
    parts = EXPERIMENT.parts(Settings(device, quick=False, out=Path(), seed=0))
    larger = [part.partition("@") for part in parts if "@" in part]
    assert larger
    assert {size for _, _, size in larger} == {batch}
    assert {name for name, _, _ in larger} <= set(zoo.names()) & set(parts)
