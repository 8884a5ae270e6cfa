from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random

import pytest

from taso_py.ir.size import Dim, evaluate, floordiv, symbol, symbols
from verify.context import Context

A, J, M, N, P, S = (symbol(name) for name in ("@0", "~1", "M", "N", "P", "S"))
SIZES = {"M": 1, "N": 1, "S": 1, "P": 0, "@0": 0}


@pytest.mark.parametrize(
    "value",
    [M - 1, M * N - 1, 2 * M + P - 2, A * S, M * N * A, 0, M + N - 2, floordiv(M + 3, S), M * floordiv(P, 2)],
)
def test_what_lower_bounds_show(value: Dim) -> None:
    assert Context(SIZES, []).nonnegative(value)


@pytest.mark.parametrize("value", [M - 2, M - N, -1, P - 1, J, J * M, -1 * P, floordiv(J, 2)])
def test_what_lower_bounds_do_not_show(value: Dim) -> None:
    assert not Context(SIZES, []).nonnegative(value)


def test_facts_add_up() -> None:
    context = Context(SIZES, [N - 1 - A, M - N - 2])
    assert context.follows(M - A - 3)
    assert not context.follows(M - A - 4)
    assert context.excludes(A - N)
    assert not context.excludes(A - N + 1)
    assert context.follows(M - J, [N - J])


def test_facts_are_multiplied_by_sizes() -> None:
    context = Context(SIZES, [N - 1 - A])
    assert context.follows(M * N - M * A - M)
    assert not context.follows(M * N - M * A - M - 1)
    assert context.follows(M * N - 1 - J - M * A, [J, M - 1 - J])
    assert context.divide_out(floordiv(J + M * A, M * N), [J, M - 1 - J]) == 0


def test_a_fact_about_one_symbol_is_a_bound() -> None:
    context = Context({}, [2 * M - 5, N + 1])
    assert context.lower == {"M": 3, "N": -1}
    assert context.facts == []


def test_contradictory_facts_are_noticed() -> None:
    assert Context({}, [-1]).is_contradictory
    assert not Context({}, [0]).is_contradictory


def test_evident_divisions_are_carried_out() -> None:
    context = Context(SIZES, [N - 1 - A])
    assert context.divide_out(floordiv(A, N)) == 0
    assert context.divide_out(floordiv(A + N, N)) == 1
    assert context.divide_out(M * floordiv(M * N + A, N) + A) == M * M + A
    assert context.divide_out(floordiv(A + 1, N)) == floordiv(A + 1, N)
    assert context.divide_out(floordiv(J, N), [J, N - 1 - J]) == 0
    assert context.divide_out(floordiv(floordiv(A, M) + S, N)) == floordiv(A + M * S, M * N)
    assert context.divide_out(floordiv(S * M + S * N + A, M + N)) == S


def test_answers_hold_for_all_small_integers() -> None:
    random = Random(7)
    names = ["M", "P", "@0", "~1"]
    for _ in range(300):
        facts = [_random_guard(random, names) for _ in range(4)]
        goal = _random_guard(random, names)
        context = Context({"M": 1, "P": 0, "@0": 0}, facts)
        if not context.follows(goal):
            continue
        for values in itertools.product(range(1, 4), range(3), range(3), range(-3, 4)):
            env = dict(zip(names, values, strict=True))
            if all(evaluate(fact, env) >= 0 for fact in facts):
                assert evaluate(goal, env) >= 0, (facts, goal, env)


def _random_division(random: Random) -> Dim:
    numerator = _random_guard(random, ["M", "P", "@0", "~1"])
    return floordiv(numerator, random.choice((2, 3, M, 2 * M, M * M, M + P)))


def _places() -> Iterator[dict[str, int]]:
    for values in itertools.product(range(1, 4), range(3), range(3), range(-3, 4)):
        yield dict(zip(("M", "P", "@0", "~1"), values, strict=True))


def test_answers_about_divisions_hold_for_all_small_integers() -> None:
    random = Random(11)
    shown = 0
    for _ in range(600):
        facts = [_random_guard(random, ["M", "P", "@0", "~1"]) for _ in range(4)]
        goal = _random_guard(random, ["M", "P", "@0"]) + random.choice((-1, 1, M)) * _random_division(random)
        context = Context({"M": 1, "P": 0, "@0": 0}, facts)
        follows, linear, settled = context.follows(goal), context.linear(goal), context.divide_out(goal)
        shown += follows or linear != goal or settled != goal
        for env in _places():
            if all(evaluate(fact, env) >= 0 for fact in facts):
                value = evaluate(goal, env)
                assert value >= 0 or not follows, (facts, goal, env)
                assert (value >= 0) == (evaluate(linear, env) >= 0), (goal, linear, env)
                assert value == evaluate(settled, env), (facts, goal, settled, env)
    assert shown > 100


def _random_guard(random: Random, names: list[str]) -> Dim:
    guard: Dim = random.randint(-2, 2)
    for name in random.sample(names, 2):
        guard = guard + random.randint(-2, 2) * symbol(name)
    if random.random() < 0.3:
        guard = guard + random.choice((1, -1)) * symbol(names[0]) * symbol(random.choice(names))
    return guard


def test_bounds_are_never_forgotten() -> None:
    context = Context({"M": 1}, []).with_facts({"@0": 0}, [M - 1 - A])
    assert context.follows(M - 1 - A)
    assert symbols(context.facts[0]) == {"M", "@0"}
