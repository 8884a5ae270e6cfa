"""Blocks of models whose libraries are not among those that the zoo uses: diffusion, and recurrent networks.

Invariant: each is written as the papers and their public implementations write it, in plain PyTorch.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TimeEmbedding(nn.Module):
    """Sines and cosines of a time step, and two layers of them (Ho et al. 2020)."""

    def __init__(self, width: int, features: int) -> None:
        super().__init__()
        self.width = width
        self.first, self.second = nn.Linear(width, features), nn.Linear(features, features)

    def forward(self, step: Tensor) -> Tensor:
        half = self.width // 2
        frequencies = torch.exp(torch.arange(half, dtype=torch.float32) * (-math.log(10000.0) / half))
        angles = step[:, None].float() * frequencies[None]
        return self.second(F.silu(self.first(torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1))))


class ResidualBlock(nn.Module):
    """Two convolutions with group normalization, the time's features added between them."""

    def __init__(self, channels: int, out: int, features: int | None) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, channels), nn.Conv2d(channels, out, 3, padding=1)
        self.time = nn.Linear(features, out) if features is not None else None
        self.norm2, self.conv2 = nn.GroupNorm(8, out), nn.Conv2d(out, out, 3, padding=1)
        self.shortcut = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: Tensor, features: Tensor | None = None) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        if self.time is not None and features is not None:
            y = y + self.time(F.silu(features))[:, :, None, None]
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(y)))


class CrossAttention(nn.Module):
    """Attention of a sequence to itself or to another."""

    def __init__(self, width: int, other: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(size, width, bias=False) for size in (width, other, other))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        q, k, v = (
            layer(part).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, part in ((self.query, x), (self.key, context), (self.value, context))
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class SpatialTransformer(nn.Module):
    """Attention of an image's places to each other and to a text, and a gated layer (Rombach et al. 2022)."""

    def __init__(self, channels: int, text: int) -> None:
        super().__init__()
        self.norm, self.enter = nn.GroupNorm(8, channels), nn.Conv2d(channels, channels, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(3))
        self.self_attention, self.cross_attention = CrossAttention(channels, channels), CrossAttention(channels, text)
        self.gated, self.down = nn.Linear(channels, 8 * channels), nn.Linear(4 * channels, channels)
        self.leave = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        height, width = x.shape[2:]
        y = self.enter(self.norm(x)).flatten(2).transpose(1, 2)
        normed = self.norms[0](y)
        y = y + self.self_attention(normed, normed)
        y = y + self.cross_attention(self.norms[1](y), text)
        up, gate = self.gated(self.norms[2](y)).chunk(2, dim=-1)
        y = y + self.down(up * F.gelu(gate))
        return x + self.leave(y.transpose(1, 2).unflatten(2, (height, width)))


class UNet(nn.Module):
    """A small network of the kind that latent diffusion denoises with: down, middle and up, with skips."""

    def __init__(self, channels: int = 32, text: int = 48) -> None:
        super().__init__()
        features = 4 * channels
        self.time = TimeEmbedding(channels, features)
        self.enter = nn.Conv2d(4, channels, 3, padding=1)
        self.first, self.second = (ResidualBlock(channels, channels, features) for _ in range(2))
        self.attention = SpatialTransformer(channels, text)
        self.down = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.middle = ResidualBlock(channels, 2 * channels, features)
        self.middle_attention = SpatialTransformer(2 * channels, text)
        self.up = nn.Conv2d(2 * channels, 2 * channels, 3, padding=1)
        self.last = ResidualBlock(3 * channels, channels, features)
        self.norm, self.leave = nn.GroupNorm(8, channels), nn.Conv2d(channels, 4, 3, padding=1)

    def forward(self, x: Tensor, step: Tensor, text: Tensor) -> Tensor:
        features = self.time(step)
        x = self.second(self.first(self.enter(x), features), features)
        skip = self.attention(x, text)
        y = self.middle_attention(self.middle(self.down(skip), features), text)
        y = self.up(F.interpolate(y, scale_factor=2.0, mode="nearest"))
        y = self.last(torch.cat([y, skip], dim=1), features)
        return self.leave(F.silu(self.norm(y)))


class ImageDecoder(nn.Module):
    """The decoder of a latent image: residual blocks, attention with one head, and doubled sizes."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.enter = nn.Conv2d(4, channels, 3, padding=1)
        self.blocks = nn.ModuleList(ResidualBlock(channels, channels, None) for _ in range(3))
        self.norm = nn.GroupNorm(8, channels)
        self.query, self.key, self.value, self.out = (nn.Conv2d(channels, channels, 1) for _ in range(4))
        self.ups = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.leave = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[0](self.enter(x))
        normed = self.norm(x)
        q, k, v = (layer(normed).flatten(2).transpose(1, 2) for layer in (self.query, self.key, self.value))
        weights = torch.softmax(torch.bmm(q, k.transpose(1, 2)) * q.shape[-1] ** -0.5, dim=-1)
        x = x + self.out(torch.bmm(weights, v).transpose(1, 2).reshape(x.shape))
        for block, up in zip(list(self.blocks)[1:], self.ups, strict=True):
            x = block(up(F.interpolate(x, scale_factor=2.0, mode="nearest")))
        return torch.tanh(self.leave(F.silu(x)))


class DiffusionTransformer(nn.Module):
    """Blocks whose layer normalization is scaled and shifted by features of the time (Peebles and Xie 2023)."""

    def __init__(self, width: int = 64, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.time = TimeEmbedding(32, width)
        self.enter, self.leave = nn.Linear(16, width), nn.Linear(width, 16)
        self.modulations = nn.ModuleList(nn.Linear(width, 6 * width) for _ in range(depth))
        self.projections = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.ups = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(depth))
        self.downs = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        features, x = F.silu(self.time(step)), self.enter(x)
        layers = zip(self.modulations, self.projections, self.outs, self.ups, self.downs, strict=True)
        for modulation, projection, out, up, down in layers:
            shift, scale, gate, shift2, scale2, gate2 = modulation(features)[:, None].chunk(6, dim=-1)
            y = self.norm(x) * (1 + scale) + shift
            q, k, v = projection(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
            x = x + gate * out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            y = self.norm(x) * (1 + scale2) + shift2
            x = x + gate2 * down(F.gelu(up(y), approximate="tanh"))
        return self.leave(self.norm(x))


class Recurrent(nn.Module):
    """PyTorch's own recurrent layers, whole operators of their own."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU], width: int = 32) -> None:
        super().__init__()
        self.layers = kind(width, width, num_layers=2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(x)[0])


class WrittenLstm(nn.Module):
    """A long short-term memory written out, one step after the other."""

    def __init__(self, width: int = 32, steps: int = 4) -> None:
        super().__init__()
        self.steps = steps
        self.of_input, self.of_state = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width)

    def forward(self, x: Tensor, state: Tensor, memory: Tensor) -> Tensor:
        for step in range(self.steps):
            gates = self.of_input(x[:, step]) + self.of_state(state)
            enter, forget, new, leave = gates.chunk(4, dim=-1)
            memory = torch.sigmoid(forget) * memory + torch.sigmoid(enter) * torch.tanh(new)
            state = torch.sigmoid(leave) * torch.tanh(memory)
        return state
