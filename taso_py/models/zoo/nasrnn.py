"""NasRNN: a recurrent network over a cell found by neural architecture search, unrolled for a few steps.

Invariant: every matrix product is a plain ``x @ W`` with a parameter, and eight of them share each operand, so that all
algebraic rewrites are left for a search to find.

The cell is the base-8 cell of Zoph and Le, "Neural Architecture Search with Reinforcement Learning" (ICLR 2017,
appendix A): eight sums of two products, combined pairwise up a binary tree. As a benchmark, with 5 steps and 512 hidden
units at batch 1, it follows Jia et al., "TASO" (SOSP 2019, section 7).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from taso_py.models.zoo.entry import ZooEntry

_LEAVES = 8
_STEPS, _HIDDEN = 5, 512
_SMALL_STEPS, _SMALL_HIDDEN = 2, 16


class NasRnn(nn.Module):
    """The unrolled network: from one input ``[batch, hidden]`` a step to the last state ``[batch, hidden]``."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        scale = hidden**-0.5
        self.input_weights = nn.ParameterList(torch.randn(hidden, hidden) * scale for _ in range(_LEAVES))
        self.state_weights = nn.ParameterList(torch.randn(hidden, hidden) * scale for _ in range(_LEAVES))
        self.initial_state = nn.Parameter(torch.randn(1, hidden))

    def forward(self, *inputs: Tensor) -> Tensor:
        state: Tensor = self.initial_state
        for x in inputs:
            state = self.cell(x, state)
        return state

    def cell(self, x: Tensor, state: Tensor) -> Tensor:
        """Return the next state from an input and a state, both ``[batch, hidden]``."""
        leaves = [x @ w + state @ u for w, u in zip(self.input_weights, self.state_weights, strict=True)]
        a = torch.relu(leaves[0]) + torch.sigmoid(leaves[3])
        b = torch.sigmoid(leaves[1]) + torch.tanh(leaves[2])
        c = torch.sigmoid(leaves[4]) * torch.tanh(leaves[5])
        d = torch.sigmoid(leaves[6]) * torch.relu(leaves[7])
        left = torch.tanh(a) * torch.tanh(d)
        right = torch.sigmoid(b) + torch.tanh(c)
        return torch.tanh(torch.tanh(left) * torch.tanh(right))


def _build(small: bool) -> nn.Module:
    return NasRnn(_SMALL_HIDDEN if small else _HIDDEN)


def _inputs(small: bool, batch: int) -> tuple[Tensor, ...]:
    steps, hidden = (_SMALL_STEPS, _SMALL_HIDDEN) if small else (_STEPS, _HIDDEN)
    return tuple(torch.randn(batch, hidden) for _ in range(steps))


ENTRIES = (ZooEntry("nasrnn", None, _build, _inputs),)
"""The project's own models."""
