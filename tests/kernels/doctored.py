"""Kernels that compute something else than they should."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from taso_py.backend.plan import BoundKernel, Packs
from taso_py.ir.node import Node
from taso_py.kernels.table import covers
from taso_py.kernels.tile import Cover


def doctored(cover: Cover, change: Callable[..., object], overwriting: Callable[..., object] | None = None) -> Cover:
    """A cover whose kernel gives way to a function of it and its operands.

    Args:
        cover: with a kernel of its own.
        change: called with the kernel and its operands.
        overwriting: the same for the form that overwrites an operand, which there is none of otherwise.
    """

    def bind(statics: Sequence[Tensor], packs: Packs) -> BoundKernel:
        right, wrong = cover.bind(statics, packs), None
        if overwriting is not None:
            wrong = partial(overwriting, right.overwriting_function)
        return BoundKernel("doctored", partial(change, right.function), (), wrong)

    return replace(cover, binder=bind)


def doctored_covers(change: Callable[..., object]) -> Callable[..., list[Cover]]:
    """What finds the covers of a node, all kernels doctored."""

    def found(node: Node, device: torch.device, *_: object) -> list[Cover]:
        return [cover if cover.binder is None else doctored(cover, change) for cover in covers(node, device)]

    return found
