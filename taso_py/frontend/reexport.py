"""Export of a module that was built from a program, with the sizes open that are open in the program.

Invariant: the exported program takes every size that the program takes, or the export fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from taso_py.backend.program import Fixed, Program
from taso_py.backend.tracing import draws_kept
from taso_py.frontend.export import distinct_arguments
from taso_py.frontend.higher_order import without_attention_operator
from taso_py.ir.operator import Input
from taso_py.ir.size import Open, Poly, open_size, substitute_open


def reexport(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: dict[str, Any] | None = None
) -> ExportedProgram:
    """Return a built module as an exported program; call it within :func:`taso_py.backend.tracing.quiet`.

    Args:
        module: the module.
        args: positional example inputs.
        kwargs: keyword example inputs.
        shapes: the open sizes, as returned by :func:`open_shapes`.

    Raises:
        UserError: torch.export cannot keep these sizes open.
    """
    given, named = distinct_arguments(args, kwargs)
    plain = without_attention_operator(module)
    with draws_kept():
        exported = torch.export.export(plain, given, named, dynamic_shapes=shapes)
        # Otherwise it was traced with functions that cannot be written to a file; decomposition removes them.
        return exported if plain is module else exported.run_decompositions({})


def example_arguments(program: Program) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the example inputs of a program as the original took them: positional and keyword arguments."""
    keys = (node.op.key for node in program.graph.inputs if isinstance(node.op, Input))
    inputs = dict(zip(keys, program.example_inputs, strict=True))
    signature = program.signature
    leaves = [leaf.value if isinstance(leaf, Fixed) else inputs[leaf] for leaf in signature.inputs]
    args, kwargs = pytree.tree_unflatten(leaves, signature.in_spec)
    return tuple(args), dict(kwargs)


def open_shapes(program: Program) -> dict[str, Any] | None:
    """Return the open dimensions of a program's arguments for ``torch.export.export``; None if there are none."""
    if not program.open:
        return None
    types = {node.op.key: node.types[0] for node in program.graph.inputs if isinstance(node.op, Input)}
    dims = {size: _named_dimension(size, place) for place, size in enumerate(program.open)}

    def axes(leaf: str | Fixed) -> dict[int, Any] | None:
        shape = () if isinstance(leaf, Fixed) else types[leaf].shape
        return {axis: _dimension(size, dims) for axis, size in enumerate(shape) if isinstance(size, Poly)} or None

    signature = program.signature
    args, kwargs = _shapes_tree(map(axes, signature.inputs), signature.in_spec)
    return dict(zip(signature.argument_names, [*args, *kwargs.values()], strict=True))


def _shapes_tree(leaves: Iterator[Any], spec: pytree.TreeSpec) -> Any:
    """Return a tree of open dimensions as torch.export takes it: nodes of types that users registered are lists."""
    if spec.is_leaf():
        return next(leaves)
    children = [_shapes_tree(leaves, child) for child in spec.children()]
    is_builtin = spec.type in pytree.BUILTIN_TYPES
    return pytree.SUPPORTED_NODES[spec.type].unflatten_fn(children, spec.context) if is_builtin else children


def _named_dimension(size: Open, place: int) -> Any:
    return torch.export.Dim(f"open_{place}", min=size.least, max=size.most)


def _dimension(size: Poly, dims: Mapping[Open, Any]) -> Any:
    """Return a dimension as torch.export takes it.

    Named dimensions may be 1 and may be terms of others, but must not have further conditions; for the others the
    export derives range and conditions from the checks in the module.
    """
    (variable, *more), rest = size.open, substitute_open(size, dict.fromkeys(size.open, 0))
    factor = substitute_open(size, {variable: 1}) - rest
    is_linear = isinstance(rest, int) and isinstance(factor, int) and size == factor * open_size(variable) + rest
    if more or not is_linear or (factor == 1 and not rest and variable.least > 1):
        return torch.export.Dim.DYNAMIC
    dimension = dims[variable] if factor == 1 else factor * dims[variable]
    return dimension + rest if rest else dimension
