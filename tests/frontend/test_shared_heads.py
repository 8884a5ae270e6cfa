"""Attention in which several heads of queries share keys and values."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.round_trips import opaque_targets, round_trip


class _Grouped(nn.Module):
    """Attention in each of its forms, by heads that share keys and values."""

    def forward(self, q: Tensor, k: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return (
            F.scaled_dot_product_attention(q, k, k * 2, enable_gqa=True),
            F.scaled_dot_product_attention(q, k, k, is_causal=True, scale=0.3, enable_gqa=True),
            F.scaled_dot_product_attention(q, k, k, mask, enable_gqa=True),
            F.scaled_dot_product_attention(q, q, q, enable_gqa=True),
        )


class _Broadcast(nn.Module):
    """Attention with one head of keys for all, which PyTorch computes by products of matrices, rounded otherwise."""

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, k)


def test_heads_that_share_keys_are_in_the_table() -> None:
    program = round_trip(_Grouped(), torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(5, 5))
    assert opaque_targets(program) == []


def test_heads_that_are_broadcast_are_carried_through() -> None:
    program = round_trip(_Broadcast(), torch.randn(2, 4, 5, 8), torch.randn(2, 1, 5, 8))
    assert opaque_targets(program) == ["scaled_dot_product_attention"]
