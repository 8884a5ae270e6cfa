"""A decoder of the usual kind: root-mean-square norms, rotary positions, grouped heads, gated layers; random weights.

Caches are ``[layer, batch, group, position, channel]``. The factories make one step of decoding at the end of a full
cache, in the two forms in which caches are kept, and the prompt before it.

Invariant: all factories make one model, and both forms of a step attend to the same number of positions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, LAYERS, HEADS, GROUPS, GATED, VOCABULARY = 1024, 4, 16, 4, 2816, 32000
"""Sizes: about those of one small layer of a current model, with few layers."""
CONTEXT, PROMPT = 256, 128
"""Positions of the cache, of which the last is being decoded; length of a prompt."""
HEAD = WIDTH // HEADS


class Layer(nn.Module):
    """A transformer's layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.gated_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, heads * HEAD, bias=False) for heads in (HEADS, GROUPS, GROUPS))
        self.out = nn.Linear(HEADS * HEAD, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, GATED, bias=False), nn.Linear(WIDTH, GATED, bias=False)
        self.down = nn.Linear(GATED, WIDTH, bias=False)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values: ``[batch, head, position, channel]``."""
        x = self.attention_norm(x)
        q, k, v = (layer(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return rotated(q, cos, sin), rotated(k, cos, sin), v

    def finish(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor:
        """Return the layer's output, given what to attend to."""
        k, v = (repeated(tensor) for tensor in (k, v))
        found = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        y = self.gated_norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return queries or keys with rotary positions (Su et al. 2021)."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def repeated(x: Tensor) -> Tensor:
    """Return groups repeated for all heads that share them, as libraries write it."""
    return x[:, :, None].expand(-1, -1, HEADS // GROUPS, -1, -1).flatten(1, 2)


class Decoder(nn.Module):
    """Parameters and rotary tables, shared by all forms."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        angles = torch.arange(CONTEXT)[:, None] * 10000 ** (-torch.arange(0, HEAD, 2) / HEAD)
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", torch.cat([angles, angles], -1).cos())
        self.register_buffer("sin", torch.cat([angles, angles], -1).sin())

    def scores(self, x: Tensor) -> Tensor:
        """Return the scores of the next word."""
        return self.head(self.norm(x[:, -1]))


class InPlace(Decoder):
    """A step that writes to the cache, which it is given; positions after its own are not seen."""

    def forward(self, token: Tensor, position: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        x, cos, sin = self.embedding(token), self.cos[position], self.sin[position]
        mask = (torch.arange(CONTEXT) <= position)[None, None, None]
        for layer, held_keys, held_values in zip(self.layers, keys, values, strict=True):
            assert isinstance(layer, Layer)
            q, k, v = layer.project(x, cos, sin)
            held_keys.index_copy_(2, position, k)
            held_values.index_copy_(2, position, v)
            x = layer.finish(x, q, held_keys, held_values, mask, causal=False)
        return self.scores(x)


class InAndOut(Decoder):
    """A step that is given the cache and returns it with one position more."""

    def forward(self, token: Tensor, position: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, cos, sin = self.embedding(token), self.cos[position], self.sin[position]
        longer: list[tuple[Tensor, Tensor]] = []
        for layer, held_keys, held_values in zip(self.layers, keys, values, strict=True):
            assert isinstance(layer, Layer)
            q, k, v = layer.project(x, cos, sin)
            k, v = torch.cat([held_keys, k], 2), torch.cat([held_values, v], 2)
            longer.append((k, v))
            x = layer.finish(x, q, k, v, None, causal=False)
        return self.scores(x), torch.stack([k for k, _ in longer]), torch.stack([v for _, v in longer])


class Prompt(Decoder):
    """The prompt, whose keys and values begin the cache."""

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        length = tokens.shape[1]
        x, cos, sin = self.embedding(tokens), self.cos[:length], self.sin[:length]
        found: list[tuple[Tensor, Tensor]] = []
        for layer in self.layers:
            assert isinstance(layer, Layer)
            q, k, v = layer.project(x, cos, sin)
            found.append((k, v))
            x = layer.finish(x, q, k, v, None, causal=True)
        return self.scores(x), torch.stack([k for k, _ in found]), torch.stack([v for _, v in found])


def _step(model: nn.Module, batch: int, *, held: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    cache = [torch.randn(LAYERS, batch, GROUPS, held, HEAD) for _ in range(2)]
    return model.eval(), (torch.randint(VOCABULARY, (batch, 1)), torch.tensor([CONTEXT - 1]), *cache)


def in_place() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a step that writes to its cache."""
    return _step(InPlace(), 1, held=CONTEXT)


def in_and_out() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a step that is given its cache and returns it."""
    return _step(InAndOut(), 1, held=CONTEXT - 1)


def in_place_4() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a step of four texts at once that writes to its cache."""
    return _step(InPlace(), 4, held=CONTEXT)


def in_and_out_4() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a step of four texts at once that is given its cache and returns it."""
    return _step(InAndOut(), 4, held=CONTEXT - 1)


def prompt() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return the computation of a prompt."""
    return Prompt().eval(), (torch.randint(VOCABULARY, (1, PROMPT)),)
