"""The contract with the original's callers: strides, bits and sharing of storage, observed and restored.

Invariant: after repair, outputs have the strides and bits the original's had, share storage only where the original's
did, and keep no more memory than twice their own and :data:`SLACK_BYTES`, on the example inputs; that of arguments and
weights, which is there anyway, is not counted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from ctypes import string_at
from typing import Any, cast

import torch
from torch import Tensor, fx

from taso_py.backend.bits import Bits, bits_of
from taso_py.backend.program import Contract, Fixed, Program
from taso_py.backend.schema import may_draw, overload_named, storage_of
from taso_py.ir.node import Node
from taso_py.ir.operator import Input
from taso_py.ir.size import Dim, at_example
from taso_py.ops.opaque import Opaque

aten = torch.ops.aten

SLACK_BYTES = 4096
"""How much memory an output may keep beside twice its own: a copy takes longer than so little is worth."""


def observe(outputs: Sequence[Tensor], inputs: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> Contract:
    """What the outputs of a run show: strides, bits, and which share storage with what."""
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


_generators = threading.RLock()
"""Held while the random generators of the process are set to a state of ours."""


@contextmanager
def random_state_kept() -> Generator[None]:
    """Restores the state of the random generators, of the accelerators in use too, if the body has drawn from them.

    Other threads draw from the same ones: what draws nothing leaves them alone.
    """
    with _generators:
        before = _random_states()
        try:
            yield
        finally:
            for generator, state in before:
                if _bytes(generator.get_state()) != _bytes(state):
                    generator.set_state(state)


@contextmanager
def random_state_seeded(seed: int = 0) -> Generator[None]:
    """Sets the random generators to a state for the body, and restores theirs."""
    with _generators:
        before = _random_states()
        try:
            # Not torch.manual_seed: before a GPU is used, that seeds it for later on.
            for generator, _ in before:
                generator.manual_seed(seed)
            yield
        finally:
            for generator, state in before:
                generator.set_state(state)


def _random_states() -> list[tuple[torch.Generator, Tensor]]:
    """The random generators that are in use, with the states they are in."""
    gpus = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return [(generator, generator.get_state()) for generator in (torch.default_generator, *gpus)]


def _bytes(state: Tensor) -> bytes:
    """The content of a random state, which no mode of the caller, such as one for fake tensors, takes for a call."""
    return string_at(state.data_ptr(), state.nbytes)


def may_be_random(effect: Node) -> bool:
    """Whether an effect may draw random numbers, not only write or check something."""
    return not isinstance(effect.op, Opaque) or may_draw(overload_named(effect.op.target))


def draws(program: Program) -> bool:
    """Whether a program may draw random numbers."""
    return any(map(may_be_random, program.graph.effects))


def draws_undone(program: Program) -> AbstractContextManager[None]:
    """:func:`random_state_kept`, at no cost for a program that draws nothing."""
    return random_state_kept() if draws(program) else nullcontext()


def keep_contract(
    module: fx.GraphModule, program: Program, weights: Mapping[str, Tensor], written: Callable[[Dim], Any]
) -> None:
    """Runs a module with flat arguments and results on the example inputs; puts copies in where the contract asks.

    Args:
        module: its output node returns the leaves of the original's result.
        program: gives example inputs and contract.
        weights: the module's own tensors, by key.
        written: what stands for a size in the module's graph.
    """
    found = _run(module, program)
    inputs = dict(zip(input_keys(program), program.example_inputs, strict=True))
    seen, wanted = observe(found, inputs, weights), program.contract
    *_, end = module.graph.nodes
    places = [place for place, leaf in enumerate(program.signature.outputs) if isinstance(leaf, int)]
    leaves = list(end.args[0])
    apart = {
        index
        for index in range(len(found))
        if any(pair[0] == f"output {index}" for pair in seen.shared - wanted.shared)
    }
    lent = {*map(storage_of, (*program.example_inputs, *weights.values()))}
    wasteful = _wasteful({i: (leaves[places[i]], tensor) for i, tensor in enumerate(found) if i not in apart}, lent)
    copies: dict[fx.Node, fx.Node] = {}
    with module.graph.inserting_before(end):
        for index, (place, tensor) in enumerate(zip(places, found, strict=True)):
            shape, strides, leaf = program.graph.outputs[index].type.dims, wanted.strides[index], leaves[place]
            example = [at_example(stride) for stride in strides]
            lies_alike = _places(tensor.shape, tensor.stride()) == _places(tensor.shape, example)
            bits = wanted.bits[index]
            if lies_alike and index in wasteful and leaf in copies:
                leaves[place] = copies[leaf]  # what is returned twice stays one tensor
            elif not lies_alike or index in apart or index in wasteful or seen.bits[index] != bits:
                # In memory is the conjugate, or the negative, of what is read as such.
                stored = _called(module.graph, leaf, bits, (aten.conj_physical, aten.neg))
                copy = copied(module.graph, stored, tensor, shape, strides, written)
                leaves[place] = copies[leaf] = _called(module.graph, copy, bits, (aten._conj, aten._neg_view))
            elif list(tensor.stride()) != example:
                arguments = (leaf, [written(step) for step in strides])
                leaves[place] = module.graph.call_function(restrided, arguments)
    end.args = (leaves,)
    module.recompile()


def _wasteful(outputs: Mapping[int, tuple[fx.Node, Tensor]], lent: Collection[int]) -> set[int]:
    """Which outputs would keep much more memory than their own: views of what else was computed.

    Args:
        outputs: by index, as node and example.
        lent: storages that are there anyway.
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
    """A value with the given strides of axes of size one, which place no element, but callers can see them.

    The other strides may follow those of the module's arguments, and stay as they are. An exported program would have
    them as they are now, and be wrong for other arguments; so there the value is as it comes.
    """
    # Another thread may be the one that exports.
    if torch.compiler.is_exporting() and (torch.compiler.is_dynamo_compiling() or type(value) is not Tensor):
        return value
    sizes, steps = value.shape, zip(value.shape, strides, value.stride(), strict=True)
    return value.as_strided(sizes, [wanted if size == 1 else found for size, wanted, found in steps])


def _called(graph: fx.Graph, node: fx.Node, bits: Bits, operators: Sequence[Any]) -> fx.Node:
    """A value after a call for each bit that is set."""
    for is_set, operator in zip(bits, operators, strict=True):
        node = graph.call_function(operator.default, (node,)) if is_set else node
    return node


def _places(shape: Sequence[int], strides: Sequence[Dim]) -> list[tuple[int, Dim]]:
    """What decides where elements lie: sizes and strides of the axes that have more than one element."""
    return [(size, stride) for size, stride in zip(shape, strides, strict=True) if size > 1]


def copied(
    graph: fx.Graph,
    node: fx.Node,
    tensor: Tensor,
    shape: Sequence[Dim],
    strides: Sequence[Dim],
    written: Callable[[Dim], Any],
) -> fx.Node:
    """A copy of a value, ``tensor`` in the example, with the given strides.

    Axes of stride 0 are expanded from a copy of one slice; where elements share memory otherwise, the copy is dense.
    """
    compact = [1 if stride == 0 else size for size, stride in zip(shape, strides, strict=True)]
    if not _is_injective(compact, strides):
        return graph.call_function(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
    for axis, (size, kept) in enumerate(zip(shape, compact, strict=True)):
        if size != kept:
            node = graph.call_function(aten.slice.Tensor, (node, axis, 0, 1))
    keywords: dict[str, Any] = {"dtype": tensor.dtype, "device": tensor.device}
    places = [written(size) for size in compact], [written(stride) for stride in strides]
    fresh = graph.call_function(aten.empty_strided.default, places, keywords)
    copy = graph.call_function(aten.copy_.default, (fresh, node))
    whole = [written(size) for size in shape]
    return copy if compact == list(shape) else graph.call_function(aten.expand.default, (copy, whole))


def _is_injective(shape: Sequence[Dim], strides: Sequence[Dim]) -> bool:
    """Whether distinct elements are certainly at distinct places, in the example inputs."""
    reach = 0
    sizes, steps = (cast(list[int], list(map(at_example, dims))) for dims in (shape, strides))
    for stride, size in sorted(zip(steps, sizes, strict=True)):
        if size > 1 and stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def input_keys(program: Program) -> list[str]:
    """The keys of the graph's inputs, in the order of the example inputs."""
    return [node.op.key for node in program.graph.inputs if isinstance(node.op, Input)]


def _run(module: fx.GraphModule, program: Program) -> list[Tensor]:
    """The graph's outputs on the example inputs; buffers and random state as they were."""
    tensors = dict(zip(input_keys(program), program.example_inputs, strict=True))
    leaves = [leaf.value if isinstance(leaf, Fixed) else tensors[leaf] for leaf in program.signature.inputs]
    saved = {name: buffer.clone() for name, buffer in module.named_buffers() if _is_written(module, name)}
    with torch.no_grad(), draws_undone(program):
        results = module(*leaves)
        for name, content in saved.items():
            module.get_buffer(name).copy_(content)
    return [tensor for tensor, leaf in zip(results, program.signature.outputs, strict=True) if isinstance(leaf, int)]


def _is_written(module: fx.GraphModule, name: str) -> bool:
    """Whether the module writes to a buffer."""
    return any(
        node.op == "get_attr" and node.target == name and any(user.target is aten.copy_.default for user in node.users)
        for node in module.graph.nodes
    )
