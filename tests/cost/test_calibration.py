"""What a call takes longer in a model, told apart from what the bytes that it moves take."""

from __future__ import annotations

import random

import pytest

from taso_py.cost.calibration import Part, cold_call_seconds


def parts(constant: float, slope: float, seed: int, disturbed: float = 0.0) -> list[Part]:
    draw = random.Random(seed)
    found: list[Part] = []
    for _ in range(120):
        alone, moved = draw.lognormvariate(-10, 1.5), round(draw.lognormvariate(11, 2))
        inside = (alone + constant + slope * moved) * draw.lognormvariate(0, 0.02)
        if draw.random() < disturbed:
            inside *= draw.uniform(2, 20)
        found.append(Part(alone, inside, moved))
    return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("constant", "slope"), [(7e-6, 2e-11), (7e-6, 0.0), (1e-6, 1e-11)])
def test_the_constant_is_found(constant: float, slope: float, seed: int) -> None:
    assert cold_call_seconds(parts(constant, slope, seed)) == pytest.approx(constant, rel=0.15)


@pytest.mark.parametrize("seed", range(5))
def test_disturbed_nodes_do_not_count(seed: int) -> None:
    assert cold_call_seconds(parts(7e-6, 2e-11, seed, disturbed=0.15)) == pytest.approx(7e-6, rel=0.3)


def test_what_only_bytes_cost_is_no_constant() -> None:
    assert cold_call_seconds(parts(0.0, 1e-10, 0)) < 3e-7


def test_it_is_never_negative() -> None:
    faster = [Part(1e-5, 0.8e-5, 1000 * n) for n in range(1, 20)]
    assert cold_call_seconds(faster) == 0
    assert cold_call_seconds([]) == 0
    assert cold_call_seconds([Part(1e-5, 1.5e-5, 0)]) == pytest.approx(5e-6)
