"""Operands of control flow that share memory: PyTorch has no functional form of such calls, so one of them is copied.

A view of a tensor that is made in a body, such as a transposed cache, is made before the call in an export, and passed
beside the tensor. A body that only reads computes the same on a copy, which the imported graph leaves out again.

Invariant: nothing that a body writes to is copied.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Generator, Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import HigherOrderOperator, OpOverload

from taso_py.backend.schema import is_mutable, may_alias, storage_of
from taso_py.ops.nested import CONTROL_FLOW


@contextlib.contextmanager
def operands_apart(module: fx.GraphModule) -> Generator[None]:
    """Copy operands of control flow that share memory with another operand while the body runs."""
    changed: list[tuple[fx.Node, Any, list[fx.Node]]] = []
    try:
        for node in list(_calls(module)):
            made: list[fx.Node] = []
            changed.append((node, node.args, made))
            node.args = _apart(node, made)
        _recompile(changed)
        yield
    finally:
        for node, args, made in changed:
            node.args = args
            for new in made:
                node.graph.erase_node(new)
        _recompile(changed)


def _calls(module: fx.GraphModule) -> Iterator[fx.Node]:
    """Yield the calls of control flow whose bodies write to nothing, in a module and in the bodies in it."""
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            yield from (
                node for node in part.graph.nodes if _is_control_flow(node) and not any(map(_writes, _bodies(node)))
            )


def _is_control_flow(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, HigherOrderOperator) and f"higher_order.{target.name()}" in CONTROL_FLOW


def _bodies(node: fx.Node) -> Iterator[fx.GraphModule]:
    """Yield the bodies of a call."""
    owner: Any = node.graph.owning_module
    for operand in node.all_input_nodes:
        if operand.op == "get_attr":
            body = owner.get_submodule(str(operand.target))
            if isinstance(body, fx.GraphModule):
                yield body


def _writes(body: fx.GraphModule) -> bool:
    """Return whether a body writes to anything, or a body in it does."""
    parts = [part for part in body.modules() if isinstance(part, fx.GraphModule)]
    targets = [node.target for part in parts for node in part.graph.nodes]
    return any(isinstance(target, OpOverload) and is_mutable(target) for target in targets)


def _apart(call: fx.Node, made: list[fx.Node]) -> Any:
    """Return the arguments of a call, with copies of operands whose memory another one before them may have."""
    seen: dict[object, fx.Node] = {}

    def distinct(operand: fx.Node) -> fx.Node:
        if not isinstance(operand.meta.get("val"), Tensor):
            return operand
        if {seen.setdefault(memory, operand) for memory in _memory(operand)} == {operand}:
            return operand
        with call.graph.inserting_before(call):
            made.append(call.graph.call_function(torch.ops.aten.clone.default, (operand,)))
        made[-1].meta["val"] = operand.meta["val"]
        return made[-1]

    return fx.map_arg(call.args, distinct)


def _memory(node: fx.Node) -> set[object]:
    """Return identifiers of the memory that a value may be in; tensors of a program from a file do not tell."""
    found: set[object] = {storage_of(node.meta["val"])} if isinstance(node.meta.get("val"), Tensor) else set()
    source = node.all_input_nodes[0] if node.target is operator.getitem else node
    if isinstance(source.target, OpOverload) and may_alias(source.target):
        return found.union(*map(_memory, source.all_input_nodes))
    return found | {node}


def _recompile(changed: list[tuple[fx.Node, Any, list[fx.Node]]]) -> None:
    """Make modules run their graphs as these are now."""
    for module in {node.graph.owning_module for node, _, made in changed if made}:
        assert module is not None
        module.recompile()
