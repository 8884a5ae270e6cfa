"""Invented prices of kernels and conversions: choices are tested without measuring, and plans drawn at random."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from taso_py.backend.plan import Format
from taso_py.ir.node import Node, Value
from taso_py.kernels.table import covers
from taso_py.kernels.tile import Cover, Formats

CPU = torch.device("cpu")


@dataclass
class Invented:
    """Prices drawn at random, remembered."""

    seed: int
    fused: float = 1.0
    """What fused kernels cost, as a share of what is drawn."""
    drawn: dict[object, float] = field(default_factory=dict[object, float])
    kept: dict[Node, list[Cover]] = field(default_factory=dict[Node, list[Cover]])

    def covers(self, node: Node) -> Sequence[Cover]:
        return self.kept.setdefault(node, covers(node, CPU))

    def cover_seconds(self, cover: Cover, formats: Formats) -> float:
        share = 1.0 if cover.binder is None else self.fused
        return self._draw((cover.name, *(node.digest for node in cover.nodes), formats[0].value), share)

    def conversion_seconds(self, value: Value, format_: Format) -> float:
        return self._draw((*value.key, format_.value), 0.6)

    def _draw(self, key: tuple[object, ...], most: float) -> float:
        return self.drawn.setdefault(key, random.Random(f"{self.seed} {key}").random() * most)
