"""Values for which engines' operators differ from PyTorch's: NaN, infinities, large integers, several at one place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, nan
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from taso_py.backend.guard import ArgumentError
from taso_py.engines.engine import EngineUnavailableError
from taso_py.engines.session import SessionEngine
from tests.engines.sessions import engine_named, program_of

LOWEST = torch.finfo(torch.float32).min
CASES: dict[str, tuple[Callable[..., Tensor | Sequence[Tensor]], Sequence[Any]]] = {
    "amax": (lambda x: torch.amax(x, -1), [[[2.0, nan], [nan, 1.0], [1.0, 2.0]]]),
    "amin": (lambda x: torch.amin(x, -1), [[[2.0, 8.0, nan, 5.0, 6.0], [nan, 1.0, 2.0, 3.0, 4.0]]]),
    "max of all": (torch.max, [[2.0, nan]]),
    "max along an axis": (lambda x: tuple(torch.max(x, -1)), [[[2.0, nan, 1.0], [nan, 1.0, 3.0], [1.0, 2.0, 0.0]]]),
    "norm": (lambda x: torch.linalg.vector_norm(x, inf, -1), [[[2.0, nan], [nan, 1.0]]]),
    "argmax": (lambda x: torch.argmax(x, -1), [[[1.0, nan, 2.0], [nan, 1.0, 2.0], [1.0, inf, nan], [1.0, 3.0, 2.0]]]),
    "argmin of all": (torch.argmin, [[[1.0, 2.0], [nan, 0.0]]]),
    "topk": (lambda x: torch.topk(x, 2).values, [[[1.0, nan, 3.0, 2.0], [nan, 1.0, inf, 2.0], [4.0, 1.0, -inf, 2.0]]]),
    "least": (lambda x: torch.topk(x, 1, largest=False).values, [[[nan, 5.0], [5.0, nan], [-inf, nan]]]),
    "truth": (lambda x: x.bool(), [[nan, 0.0, -0.0, 1.0]]),
    "not": (torch.logical_not, [[nan, 0.0, 1.0]]),
    "any": (lambda x: torch.any(x, -1), [[[nan, 0.0], [0.0, 0.0]]]),
    "all": (lambda x: torch.all(x, -1), [[[nan, 1.0], [0.0, 1.0]]]),
    "log2": (lambda x: torch.floor(torch.log2(x)), [[2.0**power for power in range(-60, 64)]]),
    "log10": (lambda x: torch.ceil(torch.log10(x)), [[1e-3, 1.0, 10.0, 1e3, 1e6, 1e9, inf, 0.0]]),
    "no product": (
        lambda c, a, b: torch.addmm(c, a, b, alpha=0),
        [[[1.0, 1.0]] * 2, [[nan, 1.0]] * 2, [[1.0, 1.0]] * 2],
    ),
    "a product of batches": (
        lambda c, a, b: torch.baddbmm(c, a, b, alpha=0),
        [[[[1.0, 1.0]] * 2], [[[nan, 1.0], [2.0, 1.0]]], [[[1.0, 1.0]] * 2]],
    ),
    "halves": (lambda x: torch.floor_divide(x, 2.0), [[inf, -inf, nan, 5.0, -5.0]]),
    "beyond the border": (
        lambda x, g: F.grid_sample(x, g, padding_mode="border", align_corners=False),
        [[[[[0.0, 1.0], [2.0, 3.0]]]], [[[[inf, 0.0], [1e20, 0.0], [-inf, 0.0], [0.4, -0.3]]]]],
    ),
    "masks of two kinds": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        [[[[[0.0, 0.0]] * 3]], [[[[0.0, 0.0]] * 2]], [[[[1.0], [3.0]]]], [[LOWEST, -inf], [-inf, -inf], [0.0, LOWEST]]],
    ),
    "masks that hide all": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        [[[[[0.0, 0.0]] * 2]], [[[[0.0, 0.0]] * 2]], [[[[1.0], [3.0]]]], [[False, False], [False, True]]],
    ),
}
"""Functions and their arguments, on which both engines have to give what PyTorch gives."""
INTEGERS: dict[str, tuple[Callable[..., Tensor], Sequence[Any]]] = {
    "fmod": (lambda x: torch.fmod(x, 2), [[9007199254740993, -9007199254740993, -7, 6]]),
    "powers": (lambda x: x**5, [[9999, 100000, -3, 0]]),
    "first power": (lambda x: x**1, [[9999, 9007199254740993]]),
    "floors": (lambda x, y: torch.div(x, y, rounding_mode="floor"), [[-(2**63), 7, -7, 7, -6], [3, 2, 2, -2, 3]]),
    "towards zero": (lambda x: torch.div(x, 3, rounding_mode="trunc"), [[-7, 7, -6]]),
}


def _tensors(given: Sequence[Any]) -> list[Tensor]:
    return [torch.tensor(one) for one in given]


def _assert_alike(engine: SessionEngine, function: Callable[..., Any], operands: Sequence[Tensor]) -> None:
    built = engine.build(program_of(function, operands))
    expected, found = function(*operands), built(*operands)
    expected, found = ((one,) if isinstance(one, Tensor) else tuple(one) for one in (expected, found))
    for before, after in zip(expected, found, strict=True):
        assert after.dtype == before.dtype
        torch.testing.assert_close(after, before, rtol=1e-6, atol=1e-30, equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_special_values_give_what_pytorch_gives(engine: SessionEngine, name: str) -> None:
    function, given = CASES[name]
    _assert_alike(engine, function, _tensors(given))


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_not_computed_in_floating_point(name: str) -> None:
    function, given = INTEGERS[name]
    _assert_alike(engine_named("onnxruntime"), function, _tensors(given))


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_all_that_is_added_at_one_place_is_there(engine: SessionEngine, axes: int) -> None:
    """Threads that add at once lose some, so that there are many."""
    places = [torch.tensor([-1, 1, 0, 1]).repeat(20_000) for _ in range(axes)]
    operands = torch.zeros(4, 3, 2), torch.ones(80_000, *(3, 2)[axes - 1 :])
    _assert_alike(engine, lambda x, v, *at: x.index_put(at, v, accumulate=True), [*operands, *[p % 2 for p in places]])
    few = [torch.tensor([[-1], [1]]), torch.tensor([[0, -2, 0]])][:axes]
    _assert_alike(engine, lambda x, *at: x.index_put(at, torch.ones(()), accumulate=True), [torch.zeros(4, 3, 2), *few])


def test_integers_of_32_bits_that_openvino_cannot_compare_are_refused() -> None:
    held = torch.tensor([2**24, 2**24 - 1, -(2**24)], dtype=torch.int32)
    for function in (lambda x: x > x.flip(0), torch.argmax):
        built = engine_named("openvino").build(program_of(function, [held]))
        assert torch.equal(built(held), function(held))
        with pytest.raises(ArgumentError, match="larger ones than 16777216"):
            built(held + 1)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.div(x, 41.0, rounding_mode="trunc"),
        lambda x: torch.floor(x / 41.0),
        lambda x: torch.round(x / (x + 1)),
    ],
)
def test_what_openvino_would_round_is_refused(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(EngineUnavailableError, match="OpenVINO rounds"):
        engine_named("openvino").build(program_of(function, [torch.arange(1.0, 5.0)]))


def test_quotients_by_powers_of_two_may_be_rounded_in_openvino() -> None:
    x = torch.arange(-20.0, 20.0)
    built = engine_named("openvino").build(program_of(lambda x: torch.floor(x / 8.0), [x]))
    assert torch.equal(built(x), torch.floor(x / 8))


@pytest.mark.parametrize("shape", [(1301,), (1301, 1)])
def test_softplus_is_never_negative(engine: SessionEngine, shape: tuple[int, ...]) -> None:
    x = torch.cat([torch.linspace(-100.0, 30.0, 1300), torch.tensor([nan])]).reshape(shape)
    for function, sign in ((F.softplus, 1), (F.logsigmoid, -1), (lambda x: F.softplus(x, 2.0, 5.0) + 1, 1)):
        found = engine.build(program_of(function, [x]))(x)
        torch.testing.assert_close(found, function(x), rtol=1e-5, atol=1e-5, equal_nan=True)
        assert not bool((sign * found < 0).any())


def test_powers_of_integers_that_engines_round_are_refused() -> None:
    x = torch.tensor([2, 3])
    for function in (lambda x: torch.pow(3, x), lambda x: torch.pow(x, x)):
        with pytest.raises(EngineUnavailableError, match="raises integers to other powers"):
            engine_named("onnxruntime").build(program_of(function, [x]))
