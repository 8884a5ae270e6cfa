"""Einsums that are products of matrices are imported as such, bit for bit; others as PyTorch takes them apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from taso_py.frontend.einsum import as_product
from tests.round_trips import Model, operator_names, randn, round_trip

SIZES = {"b": 2, "h": 3, "g": 2, "q": 5, "k": 6, "d": 7, "e": 4, "o": 1}
PRODUCTS = {
    "bhqd,bhkd->bhqk": ["matmul", "permute"],
    "bqhd,bkhd->bhqk": ["matmul", "permute", "permute", "permute"],
    "bhqk,bhkd->bhqd": ["matmul"],
    "bhqk,bkhd->bqhd": ["matmul", "permute", "permute"],
    "b h q d, b h k d -> b h k q": ["matmul", "permute", "permute"],
    "bqd,bdk->bqk": ["matmul"],
    "bdq,bkd->kbq": ["matmul", "permute", "permute", "permute"],
    "ohqd,ohkd->ohqk": ["matmul", "permute"],
    "bhod,bhkd->bhok": ["matmul", "permute"],
    "bqo,bko->bqk": ["matmul", "permute"],
    "bqd,bqe->bde": ["matmul", "permute"],
}
OTHERS = (
    *("qd,kd->qk", "qd,dk", "bqd,dk->bqk", "bqd,bqd->bqd", "bqd,bqd->bq", "bhqd,bkd->bhqk"),
    *("bqd,bkd->b", "bqe,bkd->bqk", "...qd,...kd->...qk", "bqq,bqk->bqk", "bqd,bgkd->bqk"),
)


def _operands(equation: str) -> list[Tensor]:
    letters = equation.replace(" ", "").partition("->")[0].replace("...", "b").split(",")
    return [randn(*(SIZES[letter] for letter in part)) + shift for shift, part in enumerate(letters)]


@pytest.mark.parametrize("equation", PRODUCTS)
def test_a_product_of_matrices_is_one(equation: str) -> None:
    program = round_trip(Model(lambda s, x, y: torch.einsum(equation, x, y)), *_operands(equation))
    assert sorted(operator_names(program)) == PRODUCTS[equation]


@pytest.mark.parametrize("equation", [*OTHERS, "bqd,bdk,bke->bqe", "bqd->bdq"])
def test_others_are_computed_as_before(equation: str) -> None:
    assert as_product(equation) is None
    round_trip(Model(lambda s, *xs: torch.einsum(equation, *xs)), *_operands(equation))


def test_operands_in_another_order_of_memory() -> None:
    def computed(s: Any, x: Tensor, y: Tensor) -> Tensor:
        return torch.einsum("bhqd,bhkd->bhqk", x.transpose(1, 2), y.transpose(1, 2)[:, :, 1:])

    round_trip(Model(computed), randn(2, 5, 3, 7), randn(2, 6, 3, 7))


@pytest.mark.parametrize("shapes", [((2, 3, 1), (2, 5, 4)), ((1, 3, 5), (2, 5, 4)), ((2, 3, 5), (1, 5, 4))])
def test_sizes_of_one_that_are_repeated_are_computed_as_before(shapes: Sequence[Sequence[int]]) -> None:
    round_trip(Model(lambda s, x, y: torch.einsum("bij,bjk->bik", x, y)), *(randn(*shape) for shape in shapes))
