"""Concatenations some of whose operands add nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from taso_py.ops.movement import Concat
from tests.round_trips import opaque_targets, operator_names, round_trip


class _WithNothing(nn.Module):
    """Concatenations with empty tensors, among them one of a single axis, which PyTorch skips."""

    def forward(self, x: Tensor, none: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.cat([x, x[:, 4:], x[:, 1:]], -1),
            torch.cat([x[:0], x]),
            torch.cat([x.T, x.T[:0]]),
            torch.cat([none, x], 1),
            torch.cat([none, x[:, :2]], -2),
            torch.cat([x]),
        )


def test_operands_that_add_nothing_are_left_out() -> None:
    program = round_trip(_WithNothing(), torch.randn(3, 4), torch.tensor([]))
    assert opaque_targets(program) == []
    assert [len(node.inputs) for node in program.graph.nodes if isinstance(node.op, Concat)] == [2]


class _Promoting(nn.Module):
    """A concatenation whose empty operand decides the type of the result."""

    def forward(self, x: Tensor, none: Tensor) -> Tensor:
        return torch.cat([x, none], 0)


def test_an_empty_operand_decides_the_type() -> None:
    program = round_trip(_Promoting(), torch.ones(3, dtype=torch.int32), torch.tensor([]))
    assert program.graph.outputs[0].type.dtype.value == "f32"
    assert "concat" not in operator_names(program)


def test_nothing_alone_stays_nothing() -> None:
    round_trip(_Promoting(), torch.ones(0, 2), torch.ones(0, 2))
