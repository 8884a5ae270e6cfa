"""Oracles expect what the model computes, in float64, and leave its state as it was."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from taso_py.backend import build
from taso_py.backend.input_cases import input_cases
from taso_py.checking.oracles import float64_oracles
from taso_py.frontend import import_module

X = torch.rand(2, 3)


class Counting(nn.Module):
    """Adds how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        calls = self.get_buffer("calls")
        calls.add_(1)
        return x + calls


class Wrong(Counting):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1e-3


def test_each_batch_has_an_oracle_and_none_without_inputs() -> None:
    original, arguments = Counting(), ((X,), {})
    program = import_module(original, (X,))
    (oracle,), note = float64_oracles(program, original, arguments, input_cases(*arguments, seed=0), [])
    assert note == ""
    assert oracle.compare(build(program)).passed
    assert not oracle.compare(Wrong()).passed
    assert original.get_buffer("calls").item() == 0


class Bits(nn.Module):
    """Reads the bits of single precision, which no other type has."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(torch.int32) + 1


def test_without_a_reference_the_original_counts_as_exact() -> None:
    original, arguments = Bits(), ((X,), {})
    program = import_module(original, (X,))
    (oracle,), note = float64_oracles(program, original, arguments, input_cases(*arguments, seed=0))
    found = oracle.compare(build(program))
    assert note or oracle.notes
    assert found.passed
    assert found.original_error == 0.0
