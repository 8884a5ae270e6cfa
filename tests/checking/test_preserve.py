"""What comes back where nothing is faster: the user's own module as it is, or a program with our checks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from taso_py.backend.guard import ArgumentError
from taso_py.driver.optimize import optimize
from taso_py.judging import evaluation

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
QUICK: dict[str, Any] = {"kernels": False, "race_seconds": 0.1, "time_limit": 1.0, "cache": False}


class Counting(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.calls = nn.Buffer(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return self.layer(x) + self.calls


@pytest.fixture(autouse=True)
def nothing_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation.Evaluation, "_confirmed_outcome", lambda *_: None)


def test_a_module_comes_back_itself_and_is_differentiable() -> None:
    model = Counting().eval()
    found = optimize(model, X, **QUICK)
    assert found.keeps_original
    assert found.module is model
    assert model.calls == 0
    assert "the model itself is returned: calls of the result write to the model's buffers" in found.report.notes
    x = X.clone().requires_grad_()
    model(x).sum().backward()
    assert x.grad is not None
    assert model.layer.weight.grad is not None
    assert model.calls == 1


def test_a_program_comes_back_with_our_checks_and_with_state_of_its_own() -> None:
    model = Counting().eval()
    sizes = ({0: torch.export.Dim("batch", max=64)},)
    program = torch.export.export(model, (X,), dynamic_shapes=sizes)
    found = optimize(program, **QUICK)
    assert found.keeps_original
    with torch.no_grad():
        for calls in (1, 2):
            torch.testing.assert_close(found.module(X), model.layer(X) + calls)
        assert program.module()(X).allclose(model.layer(X) + 1), "nobody else's counter has advanced"
        assert found.module(X[:2]).shape == (2, 8)
    for wrong in (torch.zeros(0, 8), torch.zeros(65, 8), torch.zeros(4, 9), X.double(), "text"):
        with pytest.raises(ArgumentError) as caught:
            found.module(wrong)
        assert "\n" not in str(caught.value)
