"""Laws of positive numbers in small models: where an analysis shows the sign, or an input is declared to have it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import taso_py
from taso_py.driver.prepare import source_of
from taso_py.driver.replay import replay_trace
from taso_py.frontend import ImportRefusal
from tests.driver.test_practice import IMAGE, ROWS, Case, check, randn

OTHER = randn(64, 96)
PAIR = (ROWS, OTHER)
MAGNITUDES = (ROWS.abs() + 0.1, OTHER.abs() + 0.1)

EVIDENT = {
    "a probability over its root": Case(lambda m, x: x.softmax(-1) / x.softmax(-1).sqrt(), (ROWS,), "softmax sqrt"),
    "a power by a logarithm": Case(lambda m, x: torch.exp(0.5 * torch.log(x * x + 1e-5)), (ROWS,), "add mul sqrt"),
    "a positive sum times its reciprocal root": Case(
        lambda m, x: (x.square().mean(-1) + 1e-5) * torch.rsqrt(x.square().mean(-1) + 1e-5),
        (ROWS,),
        "add mean mul sqrt",
    ),
    "a logarithm of a root": Case(lambda m, x: torch.log(torch.sqrt(x.exp())), (ROWS,), "mul"),
    "averages of what is rectified": Case(lambda m, x: F.relu(F.avg_pool2d(F.relu(x), 2)), (IMAGE,), "avg_pool2d relu"),
    "a sum of rectified values": Case(lambda m, x, y: F.relu(F.relu(x) + F.relu(y)), PAIR, "add relu relu"),
    "joined maps that are rectified": Case(
        lambda m, x, y: F.leaky_relu(torch.cat([F.sigmoid(x), F.relu(y)], 1)), PAIR, "concat relu sigmoid"
    ),
    "the greater of a square and nothing": Case(lambda m, x: torch.clamp(x * x, min=0), (ROWS,), "mul"),
    "a logarithm of one more": Case(lambda m, x: torch.log(1 + x), MAGNITUDES[:1], "log1p"),
    "a quotient by a reciprocal root": Case(lambda m, x, y: x / torch.rsqrt(y), MAGNITUDES, "mul sqrt"),
    "a root of a square of probabilities": Case(
        lambda m, x: torch.sqrt(x.softmax(-1) * x.softmax(-1)), (ROWS,), "softmax"
    ),
    "a product by logarithms of declared inputs": Case(
        lambda m, x, y: torch.exp(torch.log(x) + torch.log(y)), MAGNITUDES, "mul", positive=("args_0", "args_1")
    ),
    "a quotient by logarithms of declared inputs": Case(
        lambda m, x, y: torch.exp(torch.log(x) - torch.log(y)), MAGNITUDES, "div", positive=("args_0", "args_1")
    ),
}
"""Models, and the operators that are left."""

NEAR_MISSES = {
    "a value over its root": Case(lambda m, x: (x - 1) / (x - 1).sqrt(), (ROWS.abs() + 2,), "mul rsqrt sub"),
    "averages of what is not rectified": Case(lambda m, x: F.relu(F.avg_pool2d(x, 2)), (IMAGE,), "avg_pool2d relu"),
    "a difference of rectified values": Case(lambda m, x, y: F.relu(F.relu(x) - F.relu(y)), PAIR, "relu relu relu sub"),
    "a logarithm of two more": Case(lambda m, x: torch.log(2 + x), MAGNITUDES[:1], "add log"),
    "a rectified reciprocal root": Case(lambda m, x: F.relu(torch.rsqrt(F.relu(x))), (ROWS,), "relu relu rsqrt"),
    "a root of a square": Case(lambda m, x: torch.sqrt(x * x), (ROWS,), "abs"),
    "logarithms that are added": Case(
        lambda m, x, y: torch.log(x.softmax(-1)) + torch.log(y.softmax(-1)), PAIR, "add log log softmax softmax"
    ),
    "roots that are multiplied": Case(
        lambda m, x, y: (x * x).sum(-1).sqrt() * (y * y).sum(-1).sqrt(), PAIR, "mul vector_norm vector_norm"
    ),
    "a product by logarithms, of which one is declared": Case(
        lambda m, x, y: torch.exp(torch.log(x) + torch.log(y)), MAGNITUDES, "add exp log log", positive=("args_1",)
    ),
}
"""Models that look alike: the sign is not evident, or a product may be out of range that is not written."""


@pytest.mark.parametrize("name", [*EVIDENT, *NEAR_MISSES])
def test_what_runs_after_a_search(name: str) -> None:
    check({**EVIDENT, **NEAR_MISSES}[name])


class _Product(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(torch.log(a) + torch.log(b)) / a.sqrt()


@pytest.mark.parametrize("declared", [(), ("a", "b")])
def test_a_result_for_declared_inputs_is_saved_and_replayed(declared: tuple[str, ...], tmp_path: Path) -> None:
    found = taso_py.optimize(
        _Product(), MAGNITUDES, positive=declared, output=tmp_path, cache=False, race_seconds=0.1, effort="quick"
    )
    assert any("as declared" in note for note in found.report.notes) == bool(declared)
    source = replace(source_of(_Product(), MAGNITUDES, {}), positive=declared)
    assert replay_trace(tmp_path / "trace.rules", source) == len(found.trace.applied)
    given = (randn(64, 96).abs() + 2, MAGNITUDES[0])
    for module in (found.module, taso_py.load(tmp_path)):
        torch.testing.assert_close(module(*given), _Product()(*given))


@pytest.mark.parametrize(
    ("positive", "shift", "message"),
    [
        (("c",), 0.0, "there is no tensor 'c' among the inputs to be positive: a, b"),
        (("a",), -5.0, "input a was declared positive, and its example has elements that are not"),
        ("b", float("nan"), "input b was declared positive, and its example has elements that are not"),
    ],
)
def test_wrong_declarations_are_refused(positive: Any, shift: float, message: str) -> None:
    with pytest.raises(ImportRefusal, match=message):
        taso_py.optimize(_Product(), tuple(x + shift for x in MAGNITUDES), positive=positive)
