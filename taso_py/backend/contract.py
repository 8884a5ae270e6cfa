"""The contract with the original's callers: strides and sharing of storage, observed and restored.

Invariant: after repair, outputs have the strides the original's had, and share storage only where the original's did.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx

from taso_py.backend.program import Contract, Fixed, Program
from taso_py.backend.schema import storage_of
from taso_py.ir.operator import Input

aten = torch.ops.aten


def observe(outputs: Sequence[Tensor], inputs: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> Contract:
    """What the outputs of a run show: strides, and which share storage with what."""
    owners: dict[int, list[str]] = {}
    for kind, named in (("input", inputs), ("weight", weights)):
        for name, tensor in named.items():
            owners.setdefault(storage_of(tensor), []).append(f"{kind} {name}")
    shared: set[tuple[str, str]] = set()
    for index, output in enumerate(outputs):
        beside = owners.setdefault(storage_of(output), [])
        shared |= {(f"output {index}", other) for other in beside}
        beside.append(f"output {index}")
    return Contract(tuple(output.stride() for output in outputs), frozenset(shared))


@contextmanager
def random_state_kept() -> Generator[None]:
    """Restores the state of the random generators afterwards, those of the accelerators in use included."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        yield


def keep_contract(module: fx.GraphModule, program: Program, weights: Mapping[str, Tensor]) -> None:
    """Runs a module with flat arguments and results on the example inputs; puts copies in where the contract asks.

    Args:
        module: its output node returns the leaves of the original's result.
        program: gives example inputs and contract.
        weights: the module's own tensors, by key.
    """
    found = _run(module, program)
    inputs = dict(zip(input_keys(program), program.example_inputs, strict=True))
    seen, wanted = observe(found, inputs, weights), program.contract
    *_, end = module.graph.nodes
    places = [place for place, leaf in enumerate(program.signature.outputs) if isinstance(leaf, int)]
    leaves = list(end.args[0])
    with module.graph.inserting_before(end):
        for index, (place, tensor) in enumerate(zip(places, found, strict=True)):
            strides = wanted.strides[index]
            lies_alike = _places(tensor.shape, tensor.stride()) == _places(tensor.shape, strides)
            if not lies_alike or any(pair[0] == f"output {index}" for pair in seen.shared - wanted.shared):
                leaves[place] = copied(module.graph, leaves[place], tensor, strides)
            elif tensor.stride() != strides:
                # The strides of axes of size 1 place no element, but callers can see them.
                arguments = (leaves[place], list(tensor.shape), list(strides))
                leaves[place] = module.graph.call_function(aten.as_strided.default, arguments)
    end.args = (leaves,)
    module.recompile()


def _places(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """What decides where elements lie: sizes and strides of the axes that have more than one element."""
    return [(size, stride) for size, stride in zip(shape, strides, strict=True) if size > 1]


def copied(graph: fx.Graph, node: fx.Node, tensor: Tensor, strides: Sequence[int]) -> fx.Node:
    """A copy of a value with the given strides.

    Axes of stride 0 are expanded from a copy of one slice; where elements share memory otherwise, the copy is dense.
    """
    shape = list(tensor.shape)
    compact = [1 if stride == 0 else size for size, stride in zip(shape, strides, strict=True)]
    if not _is_injective(compact, strides):
        return graph.call_function(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
    for axis, (size, kept) in enumerate(zip(shape, compact, strict=True)):
        if size != kept:
            node = graph.call_function(aten.slice.Tensor, (node, axis, 0, 1))
    keywords: dict[str, Any] = {"dtype": tensor.dtype, "device": tensor.device}
    fresh = graph.call_function(aten.empty_strided.default, (compact, list(strides)), keywords)
    copy = graph.call_function(aten.copy_.default, (fresh, node))
    return copy if compact == shape else graph.call_function(aten.expand.default, (copy, shape))


def _is_injective(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether distinct elements are certainly at distinct places."""
    reach = 0
    for stride, size in sorted(zip(strides, shape, strict=True)):
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
    with torch.no_grad(), random_state_kept():
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
