"""A model as a graph: the graph, its weights, and the contract with the original's callers.

Invariant: a program is immutable, and its weights are the tensors the graph's weight nodes name, no more and no fewer;
tied weights have one key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec

from taso_py.ir.graph import Graph
from taso_py.ir.size import Dim, Open, Poly

Literal: TypeAlias = bool | int | float | str | None


@dataclass(frozen=True)
class Fixed:
    """A place in the inputs or outputs that holds no tensor: a value that the import fixed."""

    value: Literal


@dataclass(frozen=True)
class Signature:
    """How the original is called and what it returns."""

    in_spec: TreeSpec
    """The tree of (positional arguments, keyword arguments)."""
    out_spec: TreeSpec
    """The tree of the result."""
    argument_names: tuple[str, ...]
    """Names for the arguments at the top of the tree: positional ones in order, then keywords."""
    inputs: tuple[str | Fixed, ...]
    """For each leaf of the arguments, the key of the graph input or the value it was imported with."""
    outputs: tuple[int | Fixed, ...]
    """For each leaf of the result, the number of the graph output or a value."""


@dataclass(frozen=True)
class Contract:
    """What callers can observe of the outputs beside their values, as the original had it on the example inputs."""

    strides: tuple[tuple[Dim, ...], ...]
    """Per graph output."""
    shared: frozenset[tuple[str, str]]
    """Which share storage: pairs of an output's label (``output 0``) and another output's, an input's or a weight's."""
    bits: tuple[tuple[bool, bool], ...]
    """Per graph output, whether it is a conjugate view, and whether a negative one."""


@dataclass(frozen=True, order=True)
class Origin:
    """Where in the user's model a node comes from."""

    line: str
    """``file.py:12: y = self.conv(x)``, or what else is known of the place."""
    module: str = ""
    """The path of the module whose ``forward`` it is in, e.g. ``encoder.layer.0``; empty for the model itself."""


@dataclass(frozen=True)
class Program:
    """A model, imported."""

    graph: Graph
    weights: Mapping[str, Tensor]
    """Parameters, buffers and lifted constants by their name in the module; detached, sharing storage with the model's
    except for the buffers that the model writes to, which are copies."""
    parameters: Mapping[str, bool]
    """The keys of the weights that are parameters, and whether they require gradients: ``matmul`` and ``linear`` choose
    their algorithm by that even where none are computed. The other weights are buffers and constants."""
    signature: Signature
    contract: Contract
    example_inputs: tuple[Tensor, ...]
    """One tensor per graph input. Open sizes in the types of the inputs are those of these tensors."""
    device: torch.device
    """Where constants are made."""
    variants: Mapping[str, int] = field(default_factory=dict[str, int])
    """Node digest -> the variant of its lowering that has the original's layout, where it is not the first."""
    provenance: Mapping[str, Origin] = field(default_factory=dict[str, Origin])
    """Node digest -> what it was imported from."""

    conditions: nn.Module | None = None
    """Called with the leaves of the arguments, raises where open sizes are not as the export assumed: a model may go
    other ways at other sizes, and the graph is of one."""

    @property
    def open(self) -> tuple[Open, ...]:
        """The sizes that callers choose, in the order in which the inputs show them."""
        dims = [dim for node in self.graph.inputs for dim in node.types[0].shape if isinstance(dim, Poly)]
        return tuple(dict.fromkeys(size for dim in dims for size in sorted(dim.open, key=str)))
