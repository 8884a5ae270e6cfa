"""What a call takes longer in a model: by itself, and for the bytes that it moves."""

from __future__ import annotations

import random

import pytest

from taso_py.cost.calibration import Excess, Part, excess


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
def test_the_line_is_found(constant: float, slope: float, seed: int) -> None:
    found = excess(parts(constant, slope, seed))
    assert found.per_call_s == pytest.approx(constant, rel=0.15)
    assert found.per_byte_s == pytest.approx(slope, rel=0.15, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_disturbed_nodes_do_not_count(seed: int) -> None:
    found = excess(parts(7e-6, 2e-11, seed, disturbed=0.15))
    assert found.per_call_s == pytest.approx(7e-6, rel=0.3)
    assert found.per_byte_s == pytest.approx(2e-11, rel=0.3)


def test_what_only_bytes_cost_is_no_constant() -> None:
    found = excess(parts(0.0, 1e-10, 0))
    assert found.per_call_s < 3e-7
    assert found.per_byte_s == pytest.approx(1e-10, rel=0.1)


def test_it_is_never_negative() -> None:
    faster = [Part(1e-5, 0.8e-5, 1000 * n) for n in range(1, 20)]
    assert excess(faster) == excess([]) == Excess()
    found = excess([Part(1e-5, 1.5e-5, 0)])
    assert (found.per_call_s, found.per_byte_s) == (pytest.approx(5e-6), 0)
