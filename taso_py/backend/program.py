"""A model as a graph: the graph, its weights, and the contract with the original's callers.

Invariant: a program is immutable, and its weights are the tensors the graph's weight nodes name, no more and no fewer;
tied weights have one key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._pytree import TreeSpec

from taso_py.ir.graph import Graph
from taso_py.ir.size import Dim, Open, Poly

Literal: TypeAlias = bool | int | float | str | None


@dataclass(frozen=True)
class Fixed:
    """A leaf of the inputs or outputs that is not a tensor: a value that was fixed at import."""

    value: Literal


def leaves_in_order(args: Sequence[Any], kwargs: Mapping[str, Any], in_spec: TreeSpec) -> list[Any]:
    """Return the leaves of arguments in the order of a tree of them, which may order keywords differently."""
    names: Sequence[str] = in_spec.child(1).context
    return pytree.tree_leaves((tuple(args), {name: kwargs[name] for name in names}))


@dataclass(frozen=True)
class Signature:
    """The calling convention of the original: the structure of its arguments and of its result."""

    in_spec: TreeSpec
    """The tree of (positional arguments, keyword arguments)."""
    out_spec: TreeSpec
    """The tree of the result."""
    argument_names: tuple[str, ...]
    """Names for the arguments at the top of the tree: positional ones in order, then keywords."""
    inputs: tuple[str | Fixed, ...]
    """For each leaf of the arguments, the key of the graph input, or the value it was imported with."""
    outputs: tuple[int | Fixed, ...]
    """For each leaf of the result, the index of the graph output, or a value."""


@dataclass(frozen=True)
class Contract:
    """Observable properties of the outputs besides their values, as the original had them on the example inputs."""

    strides: tuple[tuple[Dim, ...], ...]
    """Strides of each graph output."""
    shared: frozenset[tuple[str, str]]
    """Storage sharing: pairs of an output's label (``output 0``) and that of another output, an input or a weight."""
    bits: tuple[tuple[bool, bool], ...]
    """For each graph output, whether it is a conjugate view, and whether it is a negative view."""


@dataclass(frozen=True, order=True)
class Origin:
    """The place in the user's model that a node comes from."""

    line: str
    """``file.py:12: y = self.conv(x)``, or whatever else is known of the place."""
    module: str = ""
    """The path of the module whose ``forward`` it is in, e.g. ``encoder.layer.0``; empty for the model itself."""


@dataclass(frozen=True)
class Program:
    """An imported model."""

    graph: Graph
    weights: Mapping[str, Tensor]
    """Parameters, buffers and lifted constants by their name in the module; detached, sharing storage with the model's
    except for the buffers that the model writes to, which are copies."""
    parameters: Mapping[str, bool]
    """The keys of the weights that are parameters, and whether they require gradients: ``matmul`` and ``linear`` choose
    their algorithm by that even if none are computed. The other weights are buffers and constants."""
    signature: Signature
    contract: Contract
    state: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor], kw_only=True)
    """The buffers that the model, or another entry point of it, writes to, as the model itself holds them."""
    example_inputs: tuple[Tensor, ...]
    """One tensor per graph input. Open sizes in the types of the inputs are those of these tensors."""
    device: torch.device
    """The device on which constants are made."""
    variants: Mapping[str, int] = field(default_factory=dict[str, int])
    """Node digest -> the variant of its lowering with the original's layout, if it is not the first."""
    provenance: Mapping[str, Origin] = field(default_factory=dict[str, Origin])
    """Node digest -> the place in the model that it was imported from."""

    conditions: nn.Module | None = None
    """Called with the leaves of the arguments, raises if open sizes violate the assumptions of the export: a model may
    take other branches at other sizes, and the graph holds only one."""

    @property
    def open(self) -> tuple[Open, ...]:
        """The open sizes, in the order in which the inputs show them."""
        dims = [dim for node in self.graph.inputs for dim in node.types[0].shape if isinstance(dim, Poly)]
        return tuple(dict.fromkeys(size for dim in dims for size in sorted(dim.open, key=str)))
