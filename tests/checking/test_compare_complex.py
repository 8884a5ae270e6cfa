"""Complex outputs are compared as floats are: by their real and imaginary parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from taso_py.backend.input_cases import input_cases
from taso_py.checking.compare import Comparison, Oracle

Z = torch.randn(4, 5, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))


def _compare(candidate: Callable[[Tensor], Tensor], original: Callable[[Tensor], Tensor] = torch.exp) -> Comparison:
    return Oracle(original, original, input_cases((Z,), {}, seed=0)).compare(candidate)


def test_the_reference_is_given_complex128() -> None:
    seen: set[torch.dtype] = set()
    oracle = Oracle(torch.exp, lambda z: (seen.add(z.dtype), torch.exp(z))[1], input_cases((Z,), {}, seed=0))
    assert oracle.compare(torch.exp).passed
    assert seen == {torch.complex128}


def test_another_rounding_passes() -> None:
    comparison = _compare(lambda z: torch.exp(z / 2).square())
    assert comparison.passed
    assert comparison.error > 0


@pytest.mark.parametrize(
    "candidate",
    [
        lambda z: torch.exp(z) * (1 + 1e-4),
        lambda z: torch.exp(z).conj(),
        lambda z: torch.complex(torch.exp(z).real, torch.full(z.shape, float("nan"))),
        lambda z: torch.exp(z).to(torch.complex128),
    ],
)
def test_what_differs_in_either_part_is_refused(candidate: Callable[[Tensor], Tensor]) -> None:
    assert not _compare(candidate).passed


def test_what_is_kept_of_a_conjugate_is_the_conjugate() -> None:
    for function in (torch.conj, lambda z: torch.conj(z).imag, lambda z: torch.conj(z[0]).expand(3, 5)):
        assert _compare(function, function).error == 0.0
        assert _compare(function, function).passed
    assert not _compare(lambda z: z + 0, torch.conj).passed
