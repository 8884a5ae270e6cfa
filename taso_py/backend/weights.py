"""Weights as the state of a built module.

Invariant: a weight that the model only reads shares storage with the program's tensor; one that it writes to is a copy,
so that modules built from one program do not see each other's writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from taso_py.backend.frozen import FrozenModule
from taso_py.backend.program import Program
from taso_py.backend.storage import COMPUTES
from taso_py.ir.errors import InvariantError
from taso_py.ir.graph import Graph
from taso_py.ir.operator import Weight

STATE = "state"
"""The ``meta`` key under which a built module says where it holds the buffers that are written to: paths by key."""
CONDITIONS = "conditions_on_sizes"
"""The name of the submodule that checks a program's conditions on open sizes."""


def assemble(
    graph: Graph, weights: Mapping[str, Tensor], parameters: Mapping[str, bool]
) -> tuple[nn.Module, dict[str, str]]:
    """Return a module that holds the weights a graph names, and the attribute path of each key in it.

    A key is its own place, as in the original's state dict, unless that is no valid one.

    Raises:
        InvariantError: a weight is missing, or is not of the type that the graph says.
    """
    root = nn.Module()
    places: dict[str, str] = {}
    for node in graph.nodes:
        if not isinstance(node.op, Weight):
            continue
        key = node.op.key
        if key not in weights or weights[key].shape != node.types[0].sizes:
            raise InvariantError(
                f"the graph names weight {key} of type {node.types[0]}, which is not among the weights"
            )
        tensor = weights[key].detach()
        place = _place(root, key)
        parent = _submodule(root, place)
        name = place.rpartition(".")[2]
        if key in parameters and not node.op.mutable:
            parent.register_parameter(name, nn.Parameter(tensor, requires_grad=parameters[key]))
        else:
            parent.register_buffer(name, tensor.clone() if node.op.mutable else tensor)
        places[key] = place
    return root, places


def with_own_weights(program: Program, copies: dict[int, Any] | None = None) -> Program:
    """Return the program with copies of its weights, unaffected by later writes to the model; tied ones stay tied.

    Args:
        program: the program.
        copies: the copies made before, as :func:`copy.deepcopy` notes them: programs that are given one dict share the
            memory that their originals share.
    """
    memo: dict[int, Any] = {} if copies is None else copies

    def own(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return deepcopy({key: tensor.detach() for key, tensor in tensors.items()}, memo)

    return replace(program, weights=own(program.weights), state=own(program.state))


def tie(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Make a built module read and write the given tensors in place of its own state.

    Args:
        module: its ``meta`` says where its state is, under ``STATE``.
        state: tensors by key; they are not copied.
    """
    places: Mapping[str, str] = getattr(module, "meta", {}).get(STATE, {})
    for key in state.keys() & places.keys():
        parent, _, name = places[key].rpartition(".")
        module.get_submodule(parent).register_buffer(name, state[key])


def attach(root: nn.Module, tensor: Tensor) -> str:
    """Add a buffer to a module; return its name."""
    place = _made_up(root)
    root.register_buffer(place, tensor)
    return place


def _place(root: nn.Module, key: str) -> str:
    """Return a free attribute path for a weight: its key if it is valid, else a generated name."""
    module = root
    *path, name = key.split(".")
    for step in path:
        if not step or not isinstance(getattr(module, step, None), nn.Module | None) or step in _RESERVED:
            return _made_up(root)
        module = dict(module.named_children()).get(step) or nn.Module()
    return key if name and not hasattr(module, name) and name not in _RESERVED else _made_up(root)


_RESERVED = frozenset({*dir(FrozenModule), "meta", "shape_env", COMPUTES, CONDITIONS})
"""Attributes that a built module has in addition to those of every module."""


def _made_up(root: nn.Module) -> str:
    return next(name for index in range(1 << 30) if not hasattr(root, name := f"weight_{index}"))


def _submodule(root: nn.Module, place: str) -> nn.Module:
    """Return the parent module of an attribute path, creating it if needed."""
    module = root
    for step in place.split(".")[:-1]:
        if step not in dict(module.named_children()):
            module.add_module(step, nn.Module())
        module = module.get_submodule(step)
    return module
