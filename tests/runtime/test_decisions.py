"""Decisions that are remembered: for what, and how they are carried out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from taso_py.backend import Program
from taso_py.frontend import import_module
from taso_py.runtime.decisions import Decision, decision_key
from taso_py.runtime.result import Options
from taso_py.search.trace import Trace, write_trace


class Outer(nn.Module):
    """Adds what is computed from two small weights, and takes more memory than a search may add to others."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.columns = nn.Parameter(torch.rand(700, 1)), nn.Parameter(torch.rand(1, 700))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.exp(self.rows * self.columns)


def unchanged(program: Program) -> Decision:
    """The decision for a program as it is."""
    return Decision(False, "eager", write_trace(Trace(program.graph.digest, (), ())))


def key(module: nn.Module, x: Tensor) -> str:
    return decision_key(import_module(module.eval(), (x,)), Options(), ())


def test_what_is_carried_out_is_folded_as_what_was_timed() -> None:
    x, module = torch.rand(700, 700), Outer()
    runner = unchanged(program := import_module(module, (x,))).carry_out(program, (x,))
    assert isinstance(runner, torch.fx.GraphModule)
    assert not [node for node in runner.graph.nodes if "exp" in str(node.target)]
    torch.testing.assert_close(runner(x), module(x))


def test_a_decision_depends_on_how_weights_lie_in_memory_and_not_on_what_they_are() -> None:
    x, made = torch.rand(1, 4, 8, 8), lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    other: nn.Module = made().to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue] -- undeclared
    assert key(made(), x) == key(made(), x) != key(other, x)
