"""Work of a built module that stays outside of what a compiler makes of it: checks of arguments, copies of results.

Compilers trace tensors, not the memory that these are in. They see neither the bits of an argument, nor that it shares
memory with another, nor the sign of a zero; and what is computed of weights only they may keep, and return at every
call, although callers write to what they are given.

Invariant: compiled code is given arguments without bits that passed the module's checks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from taso_py.backend.bits import memory_of
from taso_py.backend.frozen import FrozenModule
from taso_py.backend.guard import CHECKS, check_tensor
from taso_py.backend.schema import is_mutable, target_of
from taso_py.backend.storage import allocates


class Checks:
    """The checks of a built module's arguments, which resolve their bits."""

    def __init__(self, module: FrozenModule) -> None:
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in module.graph.nodes:
            is_read = node.op == "get_attr" and any(user.target in CHECKS for user in node.users)
            if node.op == "placeholder" or node.target in CHECKS or is_read:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        checked = {node.args[0]: node for node in copies.values() if node.target is check_tensor}
        graph.output([checked.get(node, node) for node in copies.values() if node.op == "placeholder"])
        codegen: Any = copy.copy(module.graph._codegen)  # pyright: ignore[reportPrivateUsage]
        positional, named = codegen.pytree_info.in_spec.children()
        given = pytree.TreeSpec(tuple, None, [*positional.children(), *named.children()])
        codegen.pytree_info = codegen.pytree_info._replace(out_spec=given)
        graph.set_codegen(codegen)
        self._check = FrozenModule(module, graph, "Checks").forward
        self._count, self._names = positional.num_children, tuple(named.context)

    @staticmethod
    def of(module: nn.Module) -> Checks | None:
        """Return the checks of a built module; None for others, which have none."""
        return Checks(module) if isinstance(module, FrozenModule) else None

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return the arguments of a call, as compiled code may have them."""
        given = self._check(*args, **kwargs)
        return given[: self._count], dict(zip(self._names, given[self._count :], strict=True))

    def before(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls another one with the arguments that are given to it, checked."""

        def call(*args: Any, **kwargs: Any) -> Any:
            given, named = self(args, kwargs)
            return run(*given, **named)

        return call


def with_own_constants(module: nn.Module, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls the compiled form of a module, and copies results that are made of weights only."""
    constant = _constant_results(module) if isinstance(module, FrozenModule) else []
    if not constant:
        return run

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = pytree.tree_flatten(run(*args, **kwargs))
        made = {id(leaves[place]): leaves[place] for place in constant}
        copies = {key: _copy(tensor) for key, tensor in made.items()}
        return pytree.tree_unflatten([copies.get(id(leaf), leaf) for leaf in leaves], structure)

    return call


def _constant_results(module: fx.GraphModule) -> list[int]:
    """Return the places of the results that no argument's elements enter, and that are new at each call."""
    *_, end = module.graph.nodes
    varying = set[fx.Node]()
    for node in module.graph.nodes:
        # Compiled code is for certain sizes of arguments, and what is made of these is as constant.
        is_size = node.target is torch.ops.aten.sym_size.int
        if node.op == "placeholder" or (not is_size and not varying.isdisjoint(node.all_input_nodes)):
            varying.add(node)
    results = [(place, leaf) for place, leaf in enumerate(end.args[0]) if isinstance(leaf, fx.Node)]
    return [place for place, leaf in results if leaf not in varying and not _may_show_weight(leaf)]


def _may_show_weight(node: fx.Node) -> bool:
    """Return whether the result of a call may be a view of a weight."""
    stack = [node]
    while stack:
        node = stack.pop()
        if node.op == "get_attr":
            return True
        if not allocates(node):
            target = target_of(node)
            writes = isinstance(target, OpOverload) and is_mutable(target)
            stack += node.all_input_nodes[:1] if writes else node.all_input_nodes
    return False


def _copy(tensor: Tensor) -> Tensor:
    """Return a copy with the same strides and bits, whose elements share memory as the tensor's do."""
    memory = memory_of(tensor)
    reach = sum((size - 1) * step for size, step in zip(memory.shape, memory.stride(), strict=True))
    whole = memory.as_strided((1 + reach if memory.numel() else 0,), (1,)).clone()
    copied = whole.as_strided(memory.shape, memory.stride())
    copied = torch.ops.aten._neg_view.default(copied) if tensor.is_neg() else copied
    return copied.conj() if tensor.is_conj() else copied
