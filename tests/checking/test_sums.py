"""Sums in another order: what they may cost is allowed where a model amplifies it, and nothing that is less exact."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taso_py.backend import Program, retype
from taso_py.backend.input_cases import input_cases
from taso_py.checking.compare import Oracle
from taso_py.checking.oracles import float64_oracles
from taso_py.checking.sums import ReorderedSums
from taso_py.frontend import import_module
from tests.engines.sessions import program_of

TERMS = 1024
Linear: TypeAlias = Callable[[Tensor, Tensor], Tensor]
X = torch.randn(4, TERMS, generator=torch.Generator().manual_seed(0))


class Cancelling(nn.Module):
    """The difference of two products that are nearly equal, by which roundings grow a thousandfold."""

    def __init__(self, linear: Linear = F.linear, near: Linear | None = None) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        weight, other = (torch.randn(8, TERMS, generator=generator) for _ in range(2))
        self.weight, self.near = nn.Buffer(weight), nn.Buffer(weight + 1e-3 * other)
        self.functions = linear, near or linear

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.functions
        return one(x, self.weight) - other(x, self.near)


def _rounded_once(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x.double(), weight.double()).float()


def _one_after_the_other(x: Tensor, weight: Tensor) -> Tensor:
    total = torch.zeros(len(x), len(weight))
    for place in range(TERMS):
        total += x[:, place : place + 1] * weight[:, place]
    return total


def _of_short_operands(x: Tensor, weight: Tensor) -> Tensor:
    """What a GPU computes where it may: it reads 10 of 23 bits."""
    return F.linear(x, (weight.view(torch.int32) & ~0x1FFF).view(torch.float32))


WRONG: dict[str, Linear] = {
    "short operands": _of_short_operands,
    "bfloat16": lambda x, weight: F.linear(x.bfloat16(), weight.bfloat16()).float(),
    "a term is missing": lambda x, weight: F.linear(x[:, 1:], weight[:, 1:]),
    "one weight is another": lambda x, weight: F.linear(x, weight) + 1e-2 * x[:, :1],
    "a factor": lambda x, weight: F.linear(x, weight) * (1 + 1e-5),
}


def _oracle(*, allows_orders: bool) -> Oracle:
    program = import_module(Cancelling(), (X,))
    sums = ReorderedSums(program, retype(program)) if allows_orders else None
    cases = input_cases((X,), {}, seed=0)
    return Oracle(Cancelling(_rounded_once), Cancelling().double(), cases, sums=sums)


@pytest.mark.parametrize("allows_orders", [True, False])
def test_another_order_passes_if_it_is_allowed(allows_orders: bool) -> None:
    found = _oracle(allows_orders=allows_orders).compare(Cancelling(_one_after_the_other))
    assert found.passed == allows_orders
    assert min(output.error for output in found.outputs) > 4 * max(output.original_error for output in found.outputs)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_less_exact_than_any_order_is_refused(name: str) -> None:
    compared = _oracle(allows_orders=True).compare(Cancelling(WRONG[name], F.linear))
    assert not any(output.passed for output in compared.outputs)
    assert not any(output.problem for output in compared.outputs)


def _draws(program: Program, *args: Tensor) -> list[Tensor]:
    """Return a program's result in several draws."""
    exact = [arg.double() if arg.is_floating_point() else arg for arg in args]
    return [*ReorderedSums(program, retype(program)).runs(lambda module: module(*exact), 3)]


def _errors(results: list[Tensor]) -> list[float]:
    """Return the greatest relative changes of a result."""
    mean = torch.stack(results).mean(0)
    return [float((result - mean).abs().max() / mean.abs().max()) for result in results]


@pytest.mark.parametrize(
    ("function", "terms"),
    [
        (lambda x: x @ x.mT, 64),
        (lambda x: x.sum(1), 64),
        (lambda x: x.cumsum(1), 64),
        (lambda x: F.conv1d(x[:, None], x[:3, None, :16]), 16),
        (lambda x: F.avg_pool1d(x[None], 8), 8),
    ],
)
@pytest.mark.parametrize(("dtype", "eps"), [(torch.float32, 2**-23), (torch.float64, 2**-52), (torch.bfloat16, 2**-23)])
def test_outputs_move_by_the_roundings_of_sums(
    function: Callable[[Tensor], Tensor], terms: int, dtype: torch.dtype, eps: float
) -> None:
    """Sums of bfloat16 are accumulated in float32."""
    x = X[:8, :64].to(dtype)
    first, *others = results = _draws(program_of(function, (x,)), x)
    assert not any(torch.equal(first, other) for other in others)
    assert all(0.01 * math.sqrt(terms) * eps < error < 4 * math.sqrt(terms) * eps for error in _errors(results))


@pytest.mark.parametrize("function", [lambda x: x * 2 + 1, lambda x: (x * 100).long() @ torch.ones(8).long()])
def test_without_sums_nothing_is_allowed(function: Callable[[Tensor], Any]) -> None:
    program = program_of(function, (X[:8, :8],))
    assert not [*ReorderedSums(program, retype(program)).runs(lambda module: module(X[:8, :8].double()), 3)]


def test_open_sizes_stay_open() -> None:
    program = program_of(lambda x: x @ torch.ones(TERMS, 2), (X,), is_open=True)
    assert max(_errors(_draws(program, X))) < max(_errors(_draws(program, torch.cat([X, X])))) * 10 < 1e-3


class Counting(nn.Module):
    """A product that adds up in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.total = nn.Buffer(torch.ones(TERMS, 2)), nn.Buffer(torch.zeros(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        self.total += x @ self.weight
        return self.total * 2


def test_what_is_written_is_restored() -> None:
    program = import_module(Counting(), (X,))
    assert max(_errors(_draws(program, X))) < 1e-3


def test_oracles_of_programs_allow_other_orders() -> None:
    model = Cancelling(_rounded_once)
    program = import_module(Cancelling(), (X,))
    (oracle,), _ = float64_oracles(program, model, ((X,), {}), input_cases((X,), {}, seed=0))
    assert oracle.compare(Cancelling(_one_after_the_other)).passed
    assert not oracle.compare(Cancelling(_of_short_operands, F.linear)).passed
