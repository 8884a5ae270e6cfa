"""Random models with control flow pass; a wrong branch, taken or not, a lost iteration and a false rule are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._higher_order_ops import scan

from fuzz import check, control
from fuzz.campaign import run_batch
from fuzz.check import Checker, DiscrepancyError, _negated
from fuzz.draft import Case
from fuzz.kinds import CONTROL
from fuzz.nudging import nudged_graph
from taso_py.backend.run import run_graph
from taso_py.frontend import importer
from taso_py.frontend.higher_order import nested_call
from taso_py.ops.table import parse_graph
from taso_py.rules.text import read_rules

TEXT = """
import torch
import fuzz.control

def model():
    class Model(torch.nn.Module):
        def forward(self, x):
            y = fuzz.control.branch(x.sum() > 0, lambda a, b: fuzz.control.fresh(a.tanh()), lambda a, b: b * 2, x, x)
            i, z = fuzz.control.repeat(lambda i, a: i < 3, lambda i, a: (i + 1, a.sigmoid() + i), torch.tensor(0), y)
            return y, i, z
    return Model().eval(), (torch.linspace(-2, 3, 12).view(3, 4),)
"""
CASE = Case(TEXT, is_smooth=True, kinds=frozenset({CONTROL}))
FIRST, SECOND = slice(1, 2), slice(2, 3)
"""Where the arguments of a condition are its bodies."""


@pytest.mark.slow
def test_models_with_control_flow_pass() -> None:
    tally = run_batch(1, 12, CONTROL)
    assert [str(failure) for failure in tally.failures] == []
    assert tally.kinds[CONTROL]


def _swapped(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*arguments[:1], *arguments[SECOND], *arguments[FIRST], *arguments[3:])


def _with_other(text: Callable[[str], str], where: slice) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    return lambda given: (*given[: where.start], *map(text, given[where]), *given[where.stop :])


@pytest.mark.parametrize(
    ("target", "changed", "where"),
    [
        ("cond", _swapped, "as imported: the results differ"),
        ("cond", _with_other(lambda text: text.replace("tanh(", "sigmoid("), FIRST), "as imported: the results differ"),
        ("cond", _with_other(lambda text: text.replace("value=2", "value=3"), SECOND), "as imported negated"),
        ("while_loop", _with_other(lambda text: text.replace("gt(", "ge("), slice(0, 1)), "as imported"),
    ],
)
def test_what_is_imported_wrong_is_found(
    target: str, changed: Callable[[Any], Any], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Checker([]).check(CASE, 1).refused == ""

    def wrong(*args: Any, **kwargs: Any) -> Any:
        call = nested_call(*args, **kwargs)
        if not call.op.target.endswith(target):
            return call
        given = changed(call.op.arguments)
        assert given != call.op.arguments
        return replace(call, op=replace(call.op, arguments=given))

    monkeypatch.setattr(importer, "nested_call", wrong)
    with pytest.raises(DiscrepancyError, match=where):
        Checker([]).check(CASE, 1)


def test_a_false_rule_in_a_body_is_found() -> None:
    (false,) = read_rules("rule x: float[..B] source tanh(x) target sigmoid(x) numerics REORDER")
    found: list[str] = []
    for seed in range(5):  # each applies it or not
        try:
            Checker([false]).check(CASE, seed)
        except DiscrepancyError as error:
            found.append(str(error))
    assert found
    assert all(problem.startswith(f"rewritten by {false.id}") for problem in found)


CANCELLING = """
import torch
import fuzz.control

def model():
    class Model(torch.nn.Module):
        def forward(self, x):
            def cancelled(a, b):
                t = (a.relu() + a * 0.3) + a.tanh()
                return ROOT((t - t) * 1000)
            return fuzz.control.branch(x.sum() > 0, cancelled, lambda a, b: b * 2, x, x)
    return Model().eval(), (torch.linspace(-2, 3, 12).view(3, 4),)
"""
IN_ANOTHER_ORDER = """
rule x: float[..B], y: float[..B], z: float[..B]
  source t = add(add(x, y), z); sub(t, t)
  target sub(add(x, add(y, SCALED)), add(add(x, y), z))
  numerics REORDER
"""


def _rewritten(scaled: str, root: str = "", seeds: int = 9) -> tuple[set[str], str]:
    """The rules that were applied to what cancels, and what is wrong with the result."""
    case = replace(CASE, text=CANCELLING.replace("ROOT", root))
    rules = read_rules(IN_ANOTHER_ORDER.replace("SCALED", scaled))
    applied = set[str]()
    for seed in range(seeds):
        try:
            applied.update(Checker(rules).check(case, seed).rules)
        except DiscrepancyError as error:
            return applied, str(error)
    return applied, ""


def test_what_cancels_may_be_off_by_roundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for root in ("", "torch.sqrt"):
        applied, problem = _rewritten("z", root, seeds=3)  # each applies it or not
        assert applied
        assert problem == ""
    monkeypatch.setattr(check, "nudged_graph", lambda graph, share, seed: graph)
    _, problem = _rewritten("z")
    assert "largest 0.0e+00" in problem


def test_what_cancels_may_not_be_off_by_more() -> None:
    _, problem = _rewritten("mul(z, constant{value=1.0000001, dtype=float})")
    assert problem.startswith("rewritten by ")


def test_operands_are_nudged_wherever_they_are_read() -> None:
    text = "graph(x: f64[2,3]) { t = relu(x) return sub(t, t), permute(t){order=[-1,-2]} }"
    graph = parse_graph(text)
    (x,) = (torch.linspace(-2, 3, 6, dtype=torch.float64).view(2, 3),)
    still, moved = run_graph(graph, [x]), run_graph(nudged_graph(graph, 1e-3, 0), [x])
    assert not still[0].any()
    assert 0 < float(moved[0].abs().max()) < 2e-3 * 3
    assert 0 < float((moved[1] - still[1]).abs().max()) < 1e-3 * 3


def test_negated_arguments_lie_as_the_others_do() -> None:
    for x in (torch.randn(2, 1, 3)[..., ::2], torch.randn(3, 2).mT, torch.randn(3).expand(2, 3)):
        assert torch.equal(_negated(x), -x)
        assert _negated(x).stride() == x.stride()
    assert torch.equal(_negated(torch.tensor([True, False])), torch.tensor([False, True]))
    assert torch.equal(_negated(torch.tensor([1, -2])), torch.tensor([1, -2]))


def test_plain_python_is_what_the_operators_compute() -> None:
    x = torch.linspace(-1, 2, 6).view(3, 2)
    with torch.no_grad():
        for reverse in (False, True):
            last, stacked = control.accumulate(lambda c, y: (c + y, c * y), x[0], x, reverse=reverse)
            wanted = scan(lambda c, y: (c + y, c * y), x[0], x, reverse=reverse)
            assert all(map(torch.equal, (last, stacked), wanted))
        assert torch.equal(control.each(lambda y, w: y * w, x, x[1]), x * x[1])
        assert torch.equal(control.branch(x.sum() > 0, lambda y: y + 1, lambda y: y, x), x + 1)
        assert torch.equal(control.branch(x.sum() < 0, lambda y: y + 1, lambda y: y, x), x)
        assert int(control.repeat(lambda i: i < 3, lambda i: (i + 2,), torch.tensor(0))[0]) == 4
