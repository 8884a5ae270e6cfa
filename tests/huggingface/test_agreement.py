"""Agreement of generation: ties are told from faults, and what is off is named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", "5.23", reason="its caches changed")

from tests.huggingface.agreement import Agreement, assert_agrees

TOKENS = torch.tensor([[5, 1, 2]])
"""A prompt of one token, and two steps."""


def result(first: list[float], second: list[float], kept: list[float], dtype: torch.dtype = torch.float32) -> Any:
    """What was generated: logits of three tokens in two steps, and a cache."""
    logits = tuple(torch.tensor([row], dtype=dtype) for row in (first, second))
    return Result(sequences=TOKENS, logits=logits, past_key_values=[torch.tensor(kept, dtype=dtype), 3])


class Result(SimpleNamespace):
    """What ``generate`` returns."""

    def __contains__(self, name: str) -> bool:
        return name in vars(self)

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]


EXPECTED = result([0.0, 1.0, 0.9], [0.0, 0.5, 1.0], [1.0, 2.0])
CLOSE = result([0.0, 1.0, 1.0 - 1e-6], [0.0, 0.5, 1.0], [1.0, 2.0])


def test_roundings_agree() -> None:
    found = result([0.0, 1.0 + 1e-7, 0.9], [0.0, 0.5, 1.0], [1.0, 2.0 + 2e-7])
    agreement = assert_agrees(found, EXPECTED, EXPECTED)
    assert not agreement.differences
    assert str(agreement).startswith("2 of 2 tokens equal, logits off by 1.2e-07 (the original by 0.0e+00), 2 of 2")


def test_another_token_is_right_only_where_the_original_could_not_tell() -> None:
    found = result([0.0, 1.0, 1.0 + 1e-6], [0.0, 0.5, 1.0], [1.0, 2.0])
    exact = result([0.0, 1.0 - 3e-6, 1.0], [0.0, 0.5, 1.0], [1.0, 2.0], torch.float64)
    agreement = assert_agrees(found, CLOSE, exact)
    assert [(one.step, one.row, one.is_tie) for one in agreement.differences] == [(0, 0, True)]
    with pytest.raises(AssertionError, match=r"1 of 2 tokens .* step 0, row 0: margin 1\.0e-06"):
        assert_agrees(found, CLOSE, CLOSE)  # which is exact itself


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (result([0.0, 1.0, 0.9], [0.0, 0.501, 1.0], [1.0, 2.0]), "logits 0: off by 1.0e-03, the limit is 7.6e-06"),
        (result([0.0, 1.0, 0.9], [0.0, 0.5, 1.0], [1.0, 2.001]), "state 0: off by 5.0e-04, the limit is 7.6e-06"),
        (result([0.0, 1.0, 0.9], [0.0, 0.5, float("nan")], [1.0, 2.0]), "logits 0: not finite where the original is"),
    ],
)
def test_what_is_off_is_named(found: Any, problem: str) -> None:
    assert problem in Agreement.of(found, EXPECTED, EXPECTED).problems


def test_a_count_that_differs_is_named() -> None:
    found = result([0.0, 1.0, 0.9], [0.0, 0.5, 1.0], [1.0, 2.0])
    found.past_key_values[1] = 4
    assert Agreement.of(found, EXPECTED, EXPECTED).problems == ["state 1: an exact output differs"]
