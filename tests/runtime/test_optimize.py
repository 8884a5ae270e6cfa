"""The main job on unusual operators and arguments, and under unusual settings of PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from taso_py.runtime.optimize import optimize
from tests.round_trips import Model

X = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
QUICK: dict[str, Any] = {"kernels": False, "race_seconds": 0.1, "time_limit": 1.0, "cache": False}


@pytest.mark.parametrize("error", [AssertionError, TypeError, ValueError])
def test_an_operator_that_checks_its_element_type_is_compared_with_itself(error: type[Exception]) -> None:
    name = f"taso_py_test_checked::{error.__name__}"

    def double(x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise error("single precision only")
        return x * 2

    operator: Any = torch.library.custom_op(name, double, mutates_args=())
    operator.register_fake(torch.empty_like)
    # What depends on weights only is computed when the reference is built.
    found = optimize(Model(lambda s, x: x + operator(s.w), w=X.clone()), X, **QUICK)
    assert found.report.comparison_passed
    assert "nothing computes it in float64 (single precision only); compared with the original" in found.report.notes
