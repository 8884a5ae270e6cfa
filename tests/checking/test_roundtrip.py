"""The round-trip command tells identical from different."""

from __future__ import annotations

import math

import pytest
import torch

from taso_py.checking import roundtrip
from taso_py.checking.roundtrip import equal_outputs, main, round_trip
from taso_py.models import zoo

X = torch.arange(6.0).view(2, 3)


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (X.clone(), True),
        (X + 1e-6, False),
        (X.double(), False),
        (X.t().contiguous().t(), False),
        (X.view(3, 2), False),
        (None, False),
    ],
)
def test_same(other: object, is_same: bool) -> None:
    assert equal_outputs([X], [other]) is is_same


def test_same_compares_nan_and_plain_values() -> None:
    nan = torch.tensor([float("nan"), 0.0])
    assert equal_outputs([nan, 1, None], [nan.clone(), 1, None])
    assert not equal_outputs([nan], [torch.zeros(2)])
    assert not equal_outputs([torch.zeros(2)], [nan])
    assert not equal_outputs([1], [2])
    assert not equal_outputs([X], [X, X])


def test_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["--small", "nasrnn"]) == 0
    assert capsys.readouterr().out.startswith("nasrnn                           identical")
    assert main(["--small", "nasrn"]) == 1
    assert "did you mean nasrnn" in capsys.readouterr().out
    monkeypatch.setattr(roundtrip, "equal_outputs", lambda _left, _right: False)
    assert main(["--small", "nasrnn"]) == 1
    assert "DIFFERENT" in capsys.readouterr().out


def test_operators_outside_the_table_are_counted() -> None:
    result = round_trip(zoo.get("nasrnn"), small=True)
    assert result.identical
    assert result.opaque.total() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_outputs_are_the_same_if_their_numbers_are(dtype: torch.dtype) -> None:
    numbers = torch.tensor([0.0, -0.0, 1.5, math.inf, -math.inf, math.nan]).to(dtype)
    assert equal_outputs([numbers], [numbers.clone()])
    assert equal_outputs([torch.zeros(2, dtype=dtype)], [-torch.zeros(2, dtype=dtype)])
    greatest = torch.finfo(dtype).max
    for place, other in ((2, 1.6), (3, greatest), (3, -math.inf), (4, -greatest), (5, 0.0), (0, math.nan)):
        changed = numbers.clone()
        changed[place] = other
        assert not equal_outputs([numbers], [changed]), other
