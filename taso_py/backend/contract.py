"""The contract with the original's callers: strides, bits and storage sharing of outputs, observed and restored.

Invariant: after repair, outputs have the strides and bits the original's had, share storage only where the original's
did, and keep no more memory than twice their own and :data:`SLACK_BYTES`, on the example inputs; that of arguments and
weights, which is there anyway, is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from typing import Any, cast

import torch
from torch import Tensor, fx

from taso_py.backend.bits import Bits, bits_of
from taso_py.backend.generators import undo_random_draws
from taso_py.backend.program import Contract, Fixed, Program
from taso_py.backend.schema import overlaps_itself, storage_of
from taso_py.backend.writes import Writes
from taso_py.ir.errors import TasoError
from taso_py.ir.operator import Input
from taso_py.ir.size import Dim, at_example

aten = torch.ops.aten

SLACK_BYTES = 4096
"""Bytes that an output may keep alive beyond twice its own; a copy to free less takes longer than it is worth."""


class ContractError(TasoError):
    """Raised if a module cannot be built such that its outputs have the properties that the original's have."""


def observe(outputs: Sequence[Tensor], inputs: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> Contract:
    """Return the observable properties of a run's outputs: strides, bits, and shared storage."""
    owners: dict[int, list[str]] = {}
    for kind, named in (("input", inputs), ("weight", weights)):
        for name, tensor in named.items():
            owners.setdefault(storage_of(tensor), []).append(f"{kind} {name}")
    shared: set[tuple[str, str]] = set()
    for index, output in enumerate(outputs):
        beside = owners.setdefault(storage_of(output), [])
        shared |= {(f"output {index}", other) for other in beside}
        beside.append(f"output {index}")
    return Contract(tuple(output.stride() for output in outputs), frozenset(shared), tuple(map(bits_of, outputs)))


def keep_contract(
    module: fx.GraphModule, program: Program, weights: Mapping[str, Tensor], written: Callable[[Dim], Any]
) -> None:
    """Run a module with flat arguments and results on the example inputs; add copies where the contract needs them.

    Args:
        module: its output node returns the leaves of the original's result.
        program: gives example inputs and contract.
        weights: the module's own tensors, by key.
        written: returns a size for the module's graph, a number or a node.

    Raises:
        ContractError: the module returns other shapes than the program.
    """
    writes = Writes.of(program.graph)
    inputs = dict(zip(input_keys(program), program.example_inputs, strict=True))
    inputs = deepcopy(inputs) if writes.inputs else inputs
    found = _run(module, program, inputs, [weights[key] for key in writes.buffers if key in weights])
    for tensor, value in zip(found, program.graph.outputs, strict=True):
        if tuple(tensor.shape) != value.type.at_example.sizes:
            raise ContractError(f"it returns the shape {list(tensor.shape)} in place of {value.type.text}")
    seen, wanted = observe(found, inputs, weights), program.contract
    *_, end = module.graph.nodes
    places = [place for place, leaf in enumerate(program.signature.outputs) if isinstance(leaf, int)]
    leaves = list(end.args[0])
    apart = {
        index
        for index in range(len(found))
        if any(pair[0] == f"output {index}" for pair in seen.shared - wanted.shared)
    }
    lent = {*map(storage_of, (*inputs.values(), *weights.values()))}
    wasteful = _wasteful({i: (leaves[places[i]], tensor) for i, tensor in enumerate(found) if i not in apart}, lent)
    repeated, copies = outputs_of_repeated_arguments(program), dict[fx.Node, fx.Node]()
    with module.graph.inserting_before(end):
        for index, (place, tensor) in enumerate(zip(places, found, strict=True)):
            shape, strides, leaf = program.graph.outputs[index].type.dims, wanted.strides[index], leaves[place]
            example = [at_example(stride) for stride in strides]
            lies_alike = _places(tensor.shape, tensor.stride()) == _places(tensor.shape, example)
            bits = wanted.bits[index]
            if lies_alike and index in wasteful and leaf in copies:
                leaves[place] = copies[leaf]  # a value that is returned twice stays one tensor
            elif not lies_alike or index in apart or index in wasteful or seen.bits[index] != bits:
                # In memory is the conjugate, or the negative, of what is read as such.
                stored = _called(module.graph, leaf, bits, (aten.conj_physical, aten.neg))
                if index in repeated:
                    # Arguments of other calls may have distinct elements where those of the example share memory.
                    copy = _dense_copy(module.graph, stored)
                else:
                    copy = strided_copy(module.graph, stored, tensor, shape=shape, strides=strides, written=written)
                leaves[place] = copies[leaf] = _called(module.graph, copy, bits, (aten._conj, aten._neg_view))
            elif list(tensor.stride()) != example:
                arguments = (leaf, [written(step) for step in strides])
                leaves[place] = module.graph.call_function(restrided, arguments)
    end.args = (leaves,)
    module.recompile()


def outputs_of_repeated_arguments(program: Program) -> set[int]:
    """Return the outputs whose elements share memory because those of an argument do: views of expanded arguments.

    In all other views with a stride of 0 the model itself repeats elements, whatever its arguments.
    """
    examples = dict(zip(input_keys(program), program.example_inputs, strict=True))
    repeated = {f"input {key}" for key, tensor in examples.items() if overlaps_itself(tensor)}
    sharing = {one for one, other in program.contract.shared if other in repeated}
    laid_out = zip(program.graph.outputs, program.contract.strides, strict=True)
    return {
        index
        for index, (value, strides) in enumerate(laid_out)
        if f"output {index}" in sharing
        and any(stride == 0 and size != 1 for size, stride in zip(value.type.dims, strides, strict=True))
    }


def _wasteful(outputs: Mapping[int, tuple[fx.Node, Tensor]], lent: Collection[int]) -> set[int]:
    """Return the outputs that keep much more memory alive than their own: views of larger intermediate results.

    Args:
        outputs: node and example tensor, by index.
        lent: storages that stay alive anyway.
    """
    sharing: dict[int, list[int]] = {}
    for index, (_, tensor) in outputs.items():
        sharing.setdefault(storage_of(tensor), []).append(index)
    found: set[int] = set()
    for storage, indices in sharing.items():
        own = {node: tensor.numel() * tensor.element_size() for node, tensor in map(outputs.__getitem__, indices)}
        held = outputs[indices[0]][1].untyped_storage().nbytes()
        if storage not in lent and held > 2 * sum(own.values()) + SLACK_BYTES:
            found.update(indices)
    return found


def restrided(value: Tensor, strides: Sequence[int]) -> Tensor:
    """Return a value with the given strides on axes of size one, which place no element but are visible to callers.

    The other strides may depend on those of the module's arguments, and stay as they are. An exported program would
    have the present ones fixed, and be wrong for other arguments; so there the value is returned unchanged.
    """
    # Another thread may be the one that exports.
    if torch.compiler.is_exporting() and (torch.compiler.is_dynamo_compiling() or type(value) is not Tensor):
        return value
    sizes, steps = value.shape, zip(value.shape, strides, value.stride(), strict=True)
    return value.as_strided(sizes, [wanted if size == 1 else found for size, wanted, found in steps])


def _called(graph: fx.Graph, node: fx.Node, bits: Bits, operators: Sequence[Any]) -> fx.Node:
    """Append a call for each bit that is set; return the resulting node."""
    for is_set, operator in zip(bits, operators, strict=True):
        node = graph.call_function(operator.default, (node,)) if is_set else node
    return node


def _places(shape: Sequence[int], strides: Sequence[Dim]) -> list[tuple[int, Dim]]:
    """Return sizes and strides of the axes with more than one element, which determine where elements lie."""
    return [(size, stride) for size, stride in zip(shape, strides, strict=True) if size > 1]


def strided_copy(
    graph: fx.Graph,
    node: fx.Node,
    tensor: Tensor,
    shape: Sequence[Dim],
    strides: Sequence[Dim],
    written: Callable[[Dim], Any],
) -> fx.Node:
    """Write a copy of a value, ``tensor`` in the example, with the given strides.

    Axes of stride 0 are expanded from a copy of one slice; if elements share memory otherwise, the copy is dense.
    """
    compact = [1 if stride == 0 else size for size, stride in zip(shape, strides, strict=True)]
    if _is_contiguous(shape, strides) or not _is_injective(compact, strides):
        return _dense_copy(graph, node)
    for axis, (size, kept) in enumerate(zip(shape, compact, strict=True)):
        if size != kept:
            node = graph.call_function(aten.slice.Tensor, (node, axis, 0, 1))
    keywords: dict[str, Any] = {"dtype": tensor.dtype, "device": tensor.device}
    places = [written(size) for size in compact], [written(stride) for stride in strides]
    fresh = graph.call_function(aten.empty_strided.default, places, keywords)
    copy = graph.call_function(aten.copy_.default, (fresh, node))
    whole = [written(size) for size in shape]
    return copy if compact == list(shape) else graph.call_function(aten.expand.default, (copy, whole))


def _dense_copy(graph: fx.Graph, node: fx.Node) -> fx.Node:
    return graph.call_function(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})


def _is_contiguous(shape: Sequence[Dim], strides: Sequence[Dim]) -> bool:
    """Return whether strides are those that PyTorch gives a new tensor which has elements."""
    step: Dim = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if stride != step or size == 0:
            return False
        step = step * size
    return True


def _is_injective(shape: Sequence[Dim], strides: Sequence[Dim]) -> bool:
    """Return whether distinct elements certainly have distinct addresses, in the example inputs."""
    reach = 0
    sizes, steps = (cast(list[int], list(map(at_example, dims))) for dims in (shape, strides))
    for stride, size in sorted(zip(steps, sizes, strict=True)):
        if size > 1 and stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def input_keys(program: Program) -> list[str]:
    """Return the keys of the graph's inputs, in the order of the example inputs."""
    return [node.op.key for node in program.graph.inputs if isinstance(node.op, Input)]


def _run(
    module: fx.GraphModule, program: Program, inputs: Mapping[str, Tensor], buffers: Sequence[Tensor]
) -> list[Tensor]:
    """Return the graph's outputs for inputs; the buffers that it writes to and the random state are restored."""
    leaves = [leaf.value if isinstance(leaf, Fixed) else inputs[leaf] for leaf in program.signature.inputs]
    saved = [buffer.clone() for buffer in buffers]
    with torch.no_grad(), undo_random_draws(program):
        results = module(*leaves)
        for buffer, content in zip(buffers, saved, strict=True):
            buffer.copy_(content)
    return [tensor for tensor, leaf in zip(results, program.signature.outputs, strict=True) if isinstance(leaf, int)]
