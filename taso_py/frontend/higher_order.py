"""Higher-order operators: calls that write to their arguments, and calls that take graphs.

An export inlines plain wrappers (checkpoints, modes of autograd and autocast, nested compilation). What remains are
calls of custom operators that write to their arguments, in PyTorch's functional form, and operators with nested graphs:
control flow and flexible attention.

Invariant: the imported node makes the original's call on operands with the original's strides; a tensor that the call
writes to is a private copy, whose new content is a result.
"""

from __future__ import annotations

import copy
import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._higher_order_ops.flex_attention import sdpa_dense
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils import _pytree as pytree

from taso_py.backend.bits import bits_of
from taso_py.backend.schema import bind, is_mutable, is_trusted, may_alias, written_arguments
from taso_py.backend.sizes import hidden_sizes
from taso_py.backend.tensors import NO_TENSOR, encode
from taso_py.frontend.dialect.creation import FULL
from taso_py.frontend.dialect.strides import memory_order
from taso_py.frontend.opaque import Template
from taso_py.frontend.sizes import Sizes
from taso_py.frontend.source import refuse, type_of
from taso_py.ir.errors import GraphTextError
from taso_py.ir.graph import Graph
from taso_py.ir.node import Value, make
from taso_py.ir.operator import AttributeValue, Input, Ref
from taso_py.ir.size import Open
from taso_py.ops.nested import CONTROL_FLOW, Nested
from taso_py.ops.opaque import Opaque, View

WRITING: Any = torch.ops.higher_order.auto_functionalized_v2
"""The higher-order operator that an export makes of a custom operator's call that writes to its arguments."""
_OUT = getattr(torch.Tag, "out", None)
"""The tag of operators that write their results to given tensors without reading them; PyTorch 2.11 has none."""
_COPY = "write to a copy, and copy that back with PyTorch's own operators"


@dataclass(frozen=True)
class HigherOrderCall:
    """A higher-order call as a node: its operator, its inputs, and fake tensors of its results."""

    op: Opaque
    inputs: Sequence[Value]
    results: Sequence[Tensor | None]


def writing_call(
    fx_node: fx.Node, env: Callable[[fx.Node], Any], *, layouts: Mapping[Value, Tensor], sizes: Sizes
) -> HigherOrderCall:
    """Import a call of an operator that writes to its arguments, which are copied first.

    Raises:
        ImportRefusal: a tensor that it writes to cannot be represented in the graph.
    """
    overload, keywords = fx_node.args[0], dict(fx_node.kwargs)
    if not isinstance(overload, OpOverload):
        refuse(fx_node, "writes to its arguments", "use operators that return new tensors")
    bases: Any = keywords.pop("_all_bases")
    names = written_arguments(overload)
    template = Template(fx_node, env)
    if _OUT in overload.tags:
        return _out_call(fx_node, overload, names, keywords=keywords, template=template, sizes=sizes)
    written = [template(base) for base in bases]
    for value in template.inputs:
        if memory_order(layouts[value]) is None:
            refuse(fx_node, "writes to a tensor with gaps or overlaps in memory", "clone it before")
    views = _Views(fx_node, keywords, [layouts[value] for value in template.inputs])
    targets = {name: views.argument(name) for name in names}
    given = {name: template(value) for name, value in keywords.items()}
    given |= {name: views.reference(target, len(template.inputs)) for name, target in targets.items()}
    results = [item if isinstance(item, Tensor) else None for item in fx_node.meta["val"]]
    op = Opaque(
        str(overload),
        (),
        _types(fx_node, results, sizes),
        tuple(given.items()),
        is_pure=False,
        written=tuple(range(len(written))),
        views=tuple(views.found),
    )
    return HigherOrderCall(op, template.inputs, results)


def _types(fx_node: fx.Node, results: Sequence[Tensor | None], sizes: Sizes) -> tuple[Any, ...]:
    return tuple(NO_TENSOR if result is None else type_of(fx_node, result, sizes) for result in results)


def _out_call(
    fx_node: fx.Node,
    overload: OpOverload,
    names: Sequence[str],
    keywords: dict[str, Any],
    template: Template,
    sizes: Sizes,
) -> HigherOrderCall:
    """Import a call that writes its results to given tensors without reading them: here new ones."""
    val: Any = fx_node.meta["val"]
    results: list[Tensor] = list(val) if isinstance(val, list | tuple) else [val]
    types = _types(fx_node, results, sizes)
    given: dict[str, AttributeValue] = {}
    for name, type_, result in zip(names, types, results, strict=True):
        for what in ("size", "stride", "dtype", "device"):
            keywords.pop(f"_{name}_{what}")
        if not result.is_contiguous():
            refuse(fx_node, "writes its result to a tensor that is not contiguous", _COPY)
        made = (("dtype", type_.dtype), ("device", encode(result.device)))
        given[name] = template.refer(make(Opaque(FULL, (type_.dims, 0), (type_,), made)).value)
    given |= {name: template(value) for name, value in keywords.items()}
    op = Opaque(
        str(overload), (), (*types, *types), tuple(given.items()), is_pure=False, written=tuple(range(len(names)))
    )
    return HigherOrderCall(op, template.inputs, [*results, *results])


class _Views:
    """The tensors that a call writes to, as views of the copies made for it."""

    def __init__(self, fx_node: fx.Node, keywords: dict[str, Any], bases: Sequence[Tensor]) -> None:
        self.found: list[View] = []
        self._node, self._keywords, self._bases = fx_node, keywords, bases

    def argument(self, name: str) -> Any:
        """Return an argument as None, the index of a base, a view, or a list of these."""
        if f"_{name}_length" not in self._keywords:
            return self._view(f"_{name}")
        length: Any = self._keywords.pop(f"_{name}_length")
        return None if length is None else [self._view(f"_{name}_{place}") for place in range(length)]

    def reference(self, target: Any, inputs: int) -> AttributeValue:
        """Return the reference to such an argument in a call with this many inputs, which the views follow."""
        if isinstance(target, list):
            return tuple(self.reference(item, inputs) for item in target)
        if not isinstance(target, tuple):
            return None if target is None else Ref(target)
        self.found.append(target)
        return Ref(inputs + len(self.found) - 1)

    def _view(self, prefix: str) -> int | View | None:
        told = {what: self._keywords.pop(key) for what in _VIEW_INFO if (key := f"{prefix}_{what}") in self._keywords}
        index = told["base_index"]
        if len(told) == 1 or "alias" in told:
            return index
        base = self._bases[index]
        size, stride = list(base.shape), list(base.stride())
        numbers = (*size, *stride, *pytree.tree_leaves(told))
        if not all(isinstance(number, int) for number in numbers) or base.storage_offset():
            refuse(self._node, "writes to a part of a tensor of open sizes, or of a part itself", _COPY)
        if "slice_dim" in told:
            axis, start, end = (told[what] for what in ("slice_dim", "slice_start", "slice_end"))
            size[axis], offset = end - start, start * stride[axis]
        else:
            size, stride, offset = (list(told["size"]), list(told["stride"]), told["storage_offset"])
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if offset < 0 or (0 not in size and last >= base.numel()):
            refuse(self._node, "writes to memory beyond a tensor", _COPY)
        return index, tuple(size), tuple(stride), offset


_VIEW_INFO = (
    *("base_index", "alias", "size", "stride", "storage_offset"),
    *("slice_dim", "slice_start", "slice_end"),
)


def check_written_views(graph: fx.Graph) -> None:
    """Refuse custom operators whose functional form by PyTorch computes something else.

    This happens where they write to a view of another type or to a conjugate, or read memory that they write to through
    another argument.

    Raises:
        ImportRefusal: there is one.
    """
    for node in graph.nodes:
        overload = node.target
        if not isinstance(overload, OpOverload) or is_trusted(overload) or not is_mutable(overload):
            continue
        given = bind(overload, node.args, node.kwargs)
        written = [tensor for name in written_arguments(overload) for tensor in _tensors(given.pop(name))]
        if any(map(_is_reinterpreted, written)):
            refuse(node, "writes to a view of another type, or to a conjugate", _COPY)
        if {_view_base(tensor) for tensor in _tensors(given)} & {_view_base(tensor) for tensor in written}:
            refuse(node, "reads what it writes to by way of another argument", "clone what it reads")


def _tensors(argument: Any) -> list[fx.Node]:
    return [leaf for leaf in pytree.tree_leaves(argument) if isinstance(leaf, fx.Node)]


def view_source(node: fx.Node) -> fx.Node | None:
    """Return the value that a node may be a view of, or None."""
    call = node.all_input_nodes[0] if node.target is operator.getitem else node
    overload: Any = call.target
    is_view = isinstance(overload, OpOverload) and is_trusted(overload) and may_alias(overload)
    return call.all_input_nodes[0] if is_view and call.all_input_nodes else None


def _view_base(node: fx.Node) -> fx.Node:
    """Return the base of a chain of views."""
    while (source := view_source(node)) is not None:
        node = source
    return node


def _is_reinterpreted(node: fx.Node) -> bool:
    """Return whether a value is a view of another value's memory with another type or conjugation."""
    while (source := view_source(node)) is not None:
        one, other = node.meta.get("val"), source.meta.get("val")
        if isinstance(one, Tensor) and isinstance(other, Tensor) and node.target not in _MAY_COPY:
            is_alike = one.dtype is other.dtype and bits_of(one) == bits_of(other)
            if not is_alike:
                return True
        node = source
    return False


_MAY_COPY = frozenset(
    getattr(packet, name)
    for packet in (torch.ops.aten.to, torch.ops.aten.resolve_conj, torch.ops.aten.resolve_neg)
    for name in packet.overloads()
)


def nested_call(
    fx_node: fx.Node,
    env: Callable[[fx.Node], Any],
    *,
    sizes: Sizes,
    imported: Callable[[fx.GraphModule, str], Graph],
    shown: Callable[[Open], Value | None],
) -> HigherOrderCall:
    """Import a call of an operator that takes graphs, which become part of the operator.

    Control flow takes tensors only: bodies compute open sizes from their operands, among which are tensors that show
    those sizes.

    Args:
        fx_node: the call.
        env: gives the value of an operand.
        sizes: the open sizes.
        imported: imports a graph for an operator of a name.
        shown: returns an input that determines an open size.

    Raises:
        ImportRefusal: it has no form in the graph.
    """
    called, val = fx_node.target, fx_node.meta.get("val")
    if not isinstance(called, HigherOrderOperator) or not isinstance(val, list | tuple):
        refuse(fx_node, "cannot be represented in the graph", "write it with tensor operators")
    template, name = Template(fx_node, env), f"higher_order.{called.name()}"
    attributes = [node for node in fx_node.all_input_nodes if node.op == "get_attr"]
    bodies = {node: _nested(fx_node, node, lambda module: imported(module, name)) for node in attributes}
    leaves = _leaves_that_show(fx_node, name, bodies.values(), shown)

    def encoded(argument: Any) -> AttributeValue:
        match argument:
            case fx.Node() if argument in bodies:
                return _checked(fx_node, _with_inputs(bodies[argument], leaves).text)
            case dict():
                return f"dict:{_json(fx_node, argument)}"
            case tuple():
                return ("tuple:", *map(encoded, filter(is_operand, argument)))
            case list():
                return tuple(map(encoded, filter(is_operand, argument)))
            case _:
                return template(argument)

    def is_operand(argument: Any) -> bool:
        is_size = isinstance(argument, fx.Node) and isinstance(argument.meta.get("val"), torch.SymInt)
        return not (is_size and name in CONTROL_FLOW)

    results = [item if isinstance(item, Tensor) else None for item in val]
    keywords = tuple((key, encoded(value)) for key, value in fx_node.kwargs.items())
    arguments, types = tuple(map(encoded, fx_node.args)), _types(fx_node, results, sizes)
    if leaves:
        *first, last = arguments
        assert isinstance(last, tuple)  # the operands that every call of a body gets
        arguments = (*first, (*last, *map(template.refer, leaves)))
    op = Opaque(name, arguments, types, keywords, is_pure=False)
    return HigherOrderCall(op, template.inputs, results)


def _leaves_that_show(
    fx_node: fx.Node, name: str, bodies: Iterable[Nested], shown: Callable[[Open], Value | None]
) -> list[Value]:
    """Return inputs that determine the open sizes that bodies read and their operands do not have."""
    hidden = set[Open]().union(*(hidden_sizes(body.graph) for body in bodies))
    found = dict.fromkeys(map(shown, sorted(hidden, key=str)))
    leaves = [value for value in found if value is not None]
    if hidden and (name not in CONTROL_FLOW or len(leaves) < len(found)):
        refuse(fx_node, "reads an open size that none of its operands has", "pass a tensor that has it as a dimension")
    return leaves


def outside(value: Value) -> Value:
    """Return the leaf that stands in a body for an input of the graph around it, until it becomes an operand."""
    assert isinstance(value.node.op, Input)
    return make(Input(f"outside.{value.node.op.key}", value.type)).value


def _with_inputs(nested: Nested, given: Sequence[Value]) -> Nested:
    """Return a graph that an operator takes with inputs of the graph around it as further operands."""
    graph = nested.graph
    places = range(len(graph.inputs), len(graph.inputs) + len(given))
    added = [make(Input(f"x{place}", value.type)) for place, value in zip(places, given, strict=True)]
    graph = graph.replace({outside(value): node.value for value, node in zip(given, added, strict=True)})
    return replace(nested, graph=replace(graph, inputs=(*graph.inputs, *added)))


def _checked(fx_node: fx.Node, text: str) -> str:
    """Return the text of a graph that an operator takes; refuse sizes that have no text from which they can be read."""
    try:
        Nested.parse(text)
    except GraphTextError as error:
        refuse(fx_node, f"takes a graph whose sizes cannot be written down: {error}", "export with static sizes")
    return text


def _json(fx_node: fx.Node, argument: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(argument))
    except (TypeError, ValueError) as error:
        refuse(fx_node, f"takes options that cannot be saved ({error})", "pass plain numbers and strings")


def _nested(fx_node: fx.Node, attribute: fx.Node, imported: Callable[[fx.GraphModule], Graph]) -> Nested:
    """Return a graph that a call takes."""
    owner = fx_node.graph.owning_module
    module = None if owner is None else owner.get_submodule(str(attribute.target))
    if not isinstance(module, fx.GraphModule):
        refuse(fx_node, "takes something that is neither tensor nor graph", "write it with tensor operators")
    *_, end = module.graph.nodes
    result: Any = end.args[0]
    kind = "tuple" if isinstance(result, tuple) else "list" if isinstance(result, list) else "one"
    results = [leaf.meta["val"] for leaf in pytree.tree_leaves(result) if isinstance(leaf, fx.Node)]
    orders = [memory_order(tensor) if isinstance(tensor, Tensor) else None for tensor in results]
    return Nested(kind, tuple(None if order is None else tuple(order) for order in orders), imported(module))


def without_attention_operator(module: nn.Module) -> nn.Module:
    """Return a module in which flexible attention is computed by plain operators, as without compilation.

    The saved format has no form for the operator. Other modules are returned unchanged.
    """
    operation: Any = torch.ops.higher_order.flex_attention
    if not isinstance(module, fx.GraphModule) or all(node.target is not operation for node in module.graph.nodes):
        return module
    module = fx.GraphModule(module, copy.deepcopy(module.graph))
    for node in module.graph.nodes:
        if node.target is operation:
            node.target = _attention
    module.recompile()
    return module


def _attention(*args: Any, **kwargs: Any) -> Any:
    return sdpa_dense(*args, **kwargs)


_WRAPPERS = frozenset(
    getattr(torch.ops.higher_order, name)
    for name in ("tag_activation_checkpoint", "wrap_activation_checkpoint", "wrap", "invoke_subgraph")
    if hasattr(torch.ops.higher_order, name)
)
"""Operators whose results are those of the graph that they take."""


def without_wrappers(module: fx.GraphModule) -> fx.GraphModule:
    """Return a captured graph with plain wrappers replaced by calls of the wrapped graph, which an export inlines.

    Other graphs are returned unchanged.
    """
    inner = {name: without_wrappers(part) for name, part in module.named_children() if isinstance(part, fx.GraphModule)}
    is_plain = all(inner[name] is part for name, part in module.named_children() if name in inner)
    if is_plain and all(node.target not in _WRAPPERS for node in module.graph.nodes):
        return module
    unwrapped = fx.GraphModule(
        {**dict(module.named_modules()), **_state_tensors(module), **inner}, copy.deepcopy(module.graph)
    )
    for node in unwrapped.graph.nodes:
        if node.target in _WRAPPERS:
            wrapped, *given = node.args
            operands = [operand for operand in given if not isinstance(operand, str)]  # one has a name for the graph
            with unwrapped.graph.inserting_before(node):
                node.replace_all_uses_with(unwrapped.graph.call_module(wrapped.target, tuple(operands)))
            unwrapped.graph.erase_node(node)
    unwrapped.recompile()
    return unwrapped


def _state_tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}
