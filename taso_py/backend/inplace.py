"""Updates of written leaves in place: a cache of which one row changes is not copied for that.

Exported programs are functional: where a model writes a row to a cache, its program computes a second cache with that
row, and copies all of it over the first at the end. Here the calls that lead from a leaf to its new content write to
the leaf itself. (Inductor does the same as "reinplacing": torch/_inductor/fx_passes/reinplace.py.)

Invariant: every call reads the version of the leaf that it read before, and calls with effects keep their order. Where
that is not certain, the copy stays.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx
from torch._C import DispatchKey
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from taso_py.backend.guard import check_tensor
from taso_py.backend.overwrite import COMMUTE, TYPE
from taso_py.backend.schema import bind, in_place_form, is_mutable, is_trusted, may_alias, may_draw
from taso_py.backend.storage import KERNEL, OVERWRITES, allocates
from taso_py.ir.types import TensorType

aten = torch.ops.aten

_PARTS: Mapping[Any, tuple[OpOverload, Sequence[str]]] = {
    aten.slice_scatter.default: (aten.slice.Tensor, ("dim", "start", "end", "step")),
    aten.select_scatter.default: (aten.select.int, ("dim", "index")),
}
"""For operators that replace a part of their first operand by the second: the view of that part, and the names of its
arguments beyond the operand, which are theirs too."""
_VIEWS = dict(_PARTS.values())
"""The names of the arguments of these views."""
_RESHAPING = (aten.squeeze.dim, aten.squeeze.dims, aten.unsqueeze.default)
"""Views of the operand's elements in the same order."""
_SAME_ORDER = (*_RESHAPING, aten.reshape.default)
"""Calls whose result has the operand's elements in the same order, as a view or a copy."""


@dataclass(frozen=True)
class _Update:
    """A write of a leaf's new content at the end of a graph, and the calls that can make it in its place."""

    write: fx.Node
    leaf: fx.Node
    steps: Sequence[fx.Node]
    """Each makes the next version of the leaf's content from the one before."""


def write_in_place(graph: fx.Graph) -> None:
    """Make calls that compute the new content of leaves write to these leaves, in place of copies at the end."""
    updates: list[_Update] = []
    for node in graph.nodes:
        update = _update(node)
        if update is not None and _make_room(graph, update, settled=[s for known in updates for s in known.steps]):
            updates.append(update)
    versions = [node for update in updates for node in (update.leaf, *update.steps)]
    shown = {node for version in versions for node in _showing(version)}
    for update in updates:
        version = update.leaf
        for step in update.steps:
            version = _in_place(graph, step, version, shown)
        detached = cast(fx.Node, update.write.args[1])
        update.write.replace_all_uses_with(version)
        graph.erase_node(update.write)
        if detached.target is aten.detach.default:
            graph.erase_node(detached)


def _update(write: fx.Node) -> _Update | None:
    """Return the update that a write makes, or None if a call on the way cannot write to its operand."""
    if write.target is not aten.copy_.default:
        return None
    leaf, content = cast(tuple[fx.Node, fx.Node], write.args)
    content = cast(fx.Node, content.args[0]) if content.target is aten.detach.default else content
    if content is leaf or not (leaf.op == "get_attr" or leaf.target is check_tensor):
        return None
    reader, stack = dict[fx.Node, fx.Node](), [content]
    while stack and leaf not in reader:
        node = stack.pop()
        new = [operand for operand in _updated(node) if operand not in reader]
        reader.update(dict.fromkeys(new, node))
        stack += new
    steps, node = list[fx.Node](), leaf
    while node in reader:
        node = reader[node]
        steps.append(node)
    return _Update(write, leaf, steps) if steps else None


def _updated(node: fx.Node) -> Sequence[fx.Node]:
    """Return the operands that a call could write its result to."""
    target, type_ = node.target, node.meta.get(TYPE)
    if not isinstance(target, OpOverload) or not _is_pure(node) or not _is_new(node):
        return ()
    # Products of complex numbers are rounded by the order of operands, and otherwise in place.
    has_form = target in _PARTS or in_place_form(target) is not None
    if not has_form or not isinstance(type_, TensorType) or type_.dtype.is_complex:
        return ()
    commutes = target in COMMUTE and not node.kwargs
    first = [operand for operand in node.args[: 1 + commutes] if isinstance(operand, fx.Node)]
    return [operand for operand in first if operand.meta.get(TYPE) == type_]


def _is_new(node: fx.Node) -> bool:
    """Return whether a call's result has memory of its own."""
    target = node.target
    if allocates(node):
        return True
    if not isinstance(target, OpOverload) or not _is_pure(node) or may_alias(target):
        return False
    # Some operators that PyTorch composes of others, like dropout, return the operand where there is nothing to do.
    return not target.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd)


def _is_pure(node: fx.Node) -> bool:
    """Return whether a node may be moved: it has no effect and depends on its operands only."""
    target = node.target
    if node.op == "get_attr" or KERNEL in node.meta or target is operator.getitem:
        return True
    return isinstance(target, OpOverload) and is_trusted(target) and not is_mutable(target) and not may_draw(target)


def _make_room(graph: fx.Graph, update: _Update, settled: Collection[fx.Node]) -> bool:
    """Move all readers of each version of a leaf before the call that makes the next one; return whether that can be.

    Args:
        graph: the graph.
        update: the update of the leaf.
        settled: calls that must stay where they are.
    """
    ends = [node for node in (update.write, *update.write.all_input_nodes) if node not in (update.leaf, *update.steps)]
    for version, step in zip((update.leaf, *update.steps[:-1]), update.steps, strict=True):
        order = {node: place for place, node in enumerate(graph.nodes)}
        showing = _showing(version, without=(step, *ends))
        readers = {user for node in showing for user in node.users} - {step, *ends}
        is_read_beside = sum(operand in showing for operand in step.all_input_nodes) > 1
        late = _with_operands([node for node in readers if order[node] > order[step]], after=order[step], order=order)
        if is_read_beside or step in late or not all(_is_pure(node) and node not in settled for node in late):
            return False
        for node in sorted(late, key=order.__getitem__):
            step.prepend(node)
    return True


def _showing(version: fx.Node, without: Sequence[fx.Node] = ()) -> set[fx.Node]:
    """Return the nodes whose results may share memory with a version of a leaf, some left out."""
    found, stack = {version}, [version]
    while stack:
        for user in stack.pop().users:
            if user.op != "output" and user not in found and user not in without and not _is_new(user):
                found.add(user)
                stack.append(user)
    return found


def _with_operands(nodes: Sequence[fx.Node], after: int, order: Mapping[fx.Node, int]) -> set[fx.Node]:
    """Return nodes with all that they depend on from a place in the graph on."""
    found, stack = set[fx.Node](), [*nodes]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += [operand for operand in node.all_input_nodes if order[operand] >= after]
    return found


def _in_place(graph: fx.Graph, step: fx.Node, version: fx.Node, shown: Set[fx.Node]) -> fx.Node:
    """Make a call write to its first operand, ``version``; return the node of the result.

    Args:
        graph: the graph.
        step: the call.
        version: the leaf's content before it.
        shown: the nodes whose results may share memory with a version of any leaf that is written to in place.
    """
    target = cast(OpOverload, step.target)
    if target not in _PARTS:
        others = list(step.args)
        others.remove(version)
        with graph.inserting_before(step):
            step.args = (version, *(_without_history(graph, operand) for operand in others))
        step.target = cast(Any, in_place_form(target))
        step.meta[OVERWRITES] = 0
        return step
    view, names = _PARTS[target]
    bound = bind(target, step.args, step.kwargs)
    source: fx.Node = bound["src"]
    made = _before_reshaping(source)
    read = _read_part(graph, step, made, version=version)
    if read is not None:
        step.prepend(made)
        _in_place(graph, made, read, shown)
    else:
        content = _copied(source, shown)
        with graph.inserting_before(step):
            part = graph.call_function(view, (version, *(bound[name] for name in names)))
            written = graph.call_function(aten.copy_.default, (part, _without_history(graph, content)))
        written.meta = {**step.meta, OVERWRITES: 0}
    step.replace_all_uses_with(version)
    graph.erase_node(step)
    if read is None or source is not made:
        _erase_unread(graph, source)
    return version


def _copied(source: fx.Node, shown: Set[fx.Node]) -> Any:
    """Return what can be written in place of a value: what that is a copy of, if nothing writes to its memory.

    An export of ``cache[i] = x`` first makes what is written from x, in the form of what it replaces. The copy was made
    where x still had its content; where the step is, x may have been written to, if it is among ``shown``.
    """
    return source.args[1] if source.target is aten.copy.default and source.args[1] not in shown else source


def _before_reshaping(node: fx.Node) -> fx.Node:
    """Return the call that computed the elements of a node, before any reshaping that nothing else reads."""
    while node.target in _SAME_ORDER and len(node.users) == 1 and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _read_part(graph: fx.Graph, step: fx.Node, source: fx.Node, version: fx.Node) -> fx.Node | None:
    """Return the view of the part that a step replaces, if ``source``, with its new elements, is computed from that.

    The call that computes it can write to the view then, in the place of the step: nothing else reads its result, and
    nothing is written between the two, or will be.
    """
    between = _between(graph, source, step)
    if len(source.users) != 1 or not all(_is_pure(node) and not _updated(node) for node in between):
        return None
    read = next((operand for operand in _updated(source) if _is_same_part(operand, step, version)), None)
    others = [operand for operand in source.all_input_nodes if operand is not read]
    is_apart = _showing(version, without=(step, source)).isdisjoint(others)
    return read if is_apart and sum(operand is read for operand in pytree.tree_leaves(source.args)) == 1 else None


def _between(graph: fx.Graph, first: fx.Node, last: fx.Node) -> Sequence[fx.Node]:
    """Return the nodes between two nodes of a graph; all, the second too, unless the first comes first."""
    nodes = list(graph.nodes)
    start, end = nodes.index(first), nodes.index(last)
    return nodes[start + 1 : end] if start < end else nodes


def _is_same_part(read: fx.Node, step: fx.Node, version: fx.Node) -> bool:
    """Return whether a value is the part of a version that a step replaces: the same elements in the same order."""
    wanted = _range(step, version)
    while read.target in _RESHAPING and isinstance(read.args[0], fx.Node):
        read = read.args[0]
    return wanted is not None and wanted == _range(read, version)


def _range(node: fx.Node, version: fx.Node) -> tuple[int, slice] | None:
    """Return the axis and the indices of the part of a version that a call takes or replaces; None if unknown."""
    target, shape = node.target, _shape(version)
    if not isinstance(target, OpOverload) or node.all_input_nodes[:1] != [version] or shape is None:
        return None
    view, names = _PARTS.get(target) or (target, _VIEWS.get(target, ()))
    bound = bind(target, node.args, node.kwargs)
    found: list[Any] = [bound.get(name) for name in names] or [None]
    axis, *numbers = found
    if not isinstance(axis, int) or any(isinstance(number, fx.Node) for number in numbers):
        return None
    size = shape[axis % len(shape)]
    if view is aten.select.int:
        numbers = [numbers[0] % size, numbers[0] % size + 1]
    start, stop, step = slice(*numbers).indices(size)
    return axis % len(shape), slice(start, max(start, stop), step)


def _shape(node: fx.Node) -> tuple[int, ...] | None:
    """Return the sizes of a node's result if none is open and all are known."""
    type_ = node.meta.get(TYPE)
    return None if not isinstance(type_, TensorType) or type_.open else type_.sizes


def _without_history(graph: fx.Graph, operand: Any) -> Any:
    """Return an operand without its history of gradients, which state must not have."""
    type_ = operand.meta.get(TYPE) if isinstance(operand, fx.Node) else None
    has_history = isinstance(type_, TensorType) and type_.dtype.is_floating
    return graph.call_function(aten.detach.default, (operand,)) if has_history else operand


def _erase_unread(graph: fx.Graph, node: fx.Node) -> None:
    """Erase a node, and then its operands, if nothing reads it and it has no effect."""
    if not node.users and _is_pure(node):
        operands = node.all_input_nodes
        graph.erase_node(node)
        for operand in operands:
            _erase_unread(graph, operand)
