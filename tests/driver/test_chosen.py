"""Small models that choose elements of each row by integers, with the shipped rules at default limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fuzz.prices import ModelledCost
from taso_py.backend import UNLIMITED, Program, build, fold
from taso_py.frontend import import_module
from taso_py.search.backtracking import search
from tests.driver.test_practice import ROWS, TOKENS, Case, Model, check, layer_norm, matcher, randn

OTHER = randn(64, 96) + 1
LABELS = (torch.arange(64) * 7 % 96)[:, None]
PLACES = torch.arange(4 * 5).reshape(4, 5, 1) * 3 % 32


def _rows(x: Tensor, places: Tensor) -> Tensor:
    return x.gather(1, places.expand(-1, -1, x.shape[-1]))


def _searched(case: Case) -> Program:
    program = fold(import_module(Model(case.function, case.parts), case.args))
    return replace(program, graph=search(program.graph, matcher(), ModelledCost(0)).best.graph)


def _scores(m: Any, x: Tensor, places: Tensor) -> Tensor:
    return _rows(m.b(m.n(x)), places)


CASES = {
    "a table of which elements are chosen": Case(
        lambda m, i: torch.sigmoid(m.t.gather(-1, i) * 0.5), (LABELS,), "gather", {"t": OTHER}
    ),
    "elements chosen twice": Case(
        lambda m, x, i: torch.cat([x.gather(-1, i), x.gather(-1, i - 0)], -1), (ROWS, LABELS), "concat gather sub"
    ),
    "rows of one table": Case(
        lambda m, x, i: x.gather(0, i[:5].expand(5, 96)), (ROWS, LABELS // 2), "reshape slice take"
    ),
}
"""Models, and the operators that are left."""

LARGE = nn.Linear(64, 640)
SMALLER = {
    "rows of a layer": (
        Case(lambda m, x, i: _rows(m.a(x), i), (TOKENS, PLACES), "expand gather linear", {"a": LARGE}),
        {"linear": (4, 5, 640)},
    ),
    "rows of a layer behind a norm": (
        Case(_scores, (TOKENS, PLACES), "expand gather layer_norm linear", {"n": layer_norm(64), "b": LARGE}),
        {"linear": (4, 5, 640), "layer_norm": (4, 5, 64)},
    ),
    "a logarithm of which little is read": (
        Case(lambda m, x, i: x.softmax(-1).log().gather(-1, i), (ROWS, LABELS), "gather log softmax"),
        {"log": (64, 1), "softmax": (64, 96)},
    ),
    "a quotient of which little is read": (
        Case(lambda m, x, y, i: (x / y).gather(-1, i), (ROWS, OTHER, LABELS), "div gather gather"),
        {"div": (64, 1)},
    ),
}
"""Models in which less is computed by the same operators, and the shapes of what these compute then."""

NEAR_MISSES = {
    "other integers": Case(
        lambda m, x, i, j: x.gather(-1, i) + x.gather(-1, j), (ROWS, LABELS, LABELS // 2), "add gather gather"
    ),
    "a softmax of what is chosen": Case(lambda m, x, i: x.softmax(-1).gather(-1, i), (ROWS, LABELS), "gather softmax"),
    "parts of what is chosen": Case(lambda m, x, i: x.gather(-1, i)[3:9], (ROWS, LABELS), "gather slice"),
}
"""Models that look alike, of which nothing may be left out: integers that stand for no place have to stay errors."""


@pytest.mark.parametrize("name", [*CASES, *NEAR_MISSES])
def test_what_runs_after_a_search(name: str) -> None:
    check({**CASES, **NEAR_MISSES}[name])


@pytest.mark.parametrize("name", SMALLER)
def test_little_is_computed_where_little_is_read(name: str) -> None:
    case, shapes = SMALLER[name]
    check(case)
    found = _searched(case).graph.nodes
    assert {node.op.name: node.types[0].shape for node in found if node.op.name in shapes} == shapes


@pytest.mark.parametrize("name", ["a table of which elements are chosen", "rows of one table"])
@pytest.mark.parametrize("wrong", [96, -200])
def test_integers_that_stand_for_no_place_are_errors_as_before(name: str, wrong: int) -> None:
    case = CASES[name]
    *args, labels = case.args
    for computes in (Model(case.function, case.parts), build(fold(_searched(case), UNLIMITED))):
        with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)"), torch.no_grad():
            computes(*args, labels + wrong)
