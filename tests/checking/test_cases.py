"""Inputs on which results are compared let loops end where the example inputs do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops import while_loop

from taso_py.checking.cases import ending_inputs, program_cases
from taso_py.checking.import_check import check_import
from taso_py.models.importing import import_source
from taso_py.models.source import Source
from tests.round_trips import Model

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))


def counting(s: Any, x: Tensor, y: Tensor) -> Tensor:
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))[1] + y


def halving(s: Any, x: Tensor, y: Tensor) -> Tensor:
    """Ends for a positive bound only."""
    bound = y.mean() * 0.1
    return while_loop(lambda x, b: (x > b).any(), lambda x, b: (x * 0.5, b.clone()), (x.exp(), bound))[0]


def root(s: Any, x: Tensor, y: Tensor) -> Tensor:
    """Ends for positive numbers only; the condition reads them in the second iteration."""

    def step(found: Tensor, off: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return 0.5 * (found + y / found), found * found - y, y.clone()

    one = torch.ones_like(y)
    return while_loop(lambda found, off, y: off.abs().max() > 1e-3, step, (one, one * 2, y))[0] + x


def twice(s: Any, x: Tensor, y: Tensor) -> Tensor:
    """Has a loop in a branch."""
    return torch.cond(x.sum() > 100, torch.sin, lambda y: halving(s, y, y), (y.exp(),)) + x[0]


@pytest.mark.parametrize(("function", "ending"), [(counting, ""), (halving, "xy"), (root, "y"), (twice, "xy")])
def test_inputs_that_decide_when_a_loop_ends_are_not_varied(function: Callable[..., Any], ending: str) -> None:
    given = X, torch.tensor([0.5, 0.7, 1.0])
    source = Source("loop", Model(function), given)
    with torch.no_grad():
        program = import_source(source)
        assert ending_inputs(program.graph) == [f"args_{'xy'.index(name)}" for name in ending]
        for _, (varied, _) in program_cases(program, *(source.args, source.kwargs), seed=0)[1:]:
            same = [name for name, one, other in zip("xy", given, varied, strict=True) if torch.equal(one, other)]
            assert same == list(ending)
        assert check_import(source, program, 0) == ()
