"""One pass over an exported program: each call becomes operators of the table, or an opaque node.

Invariant: every value of the graph has the element type, shape *and strides* that the exported program's value has,
when the graph is lowered as it is. Rows of the dialect are held to it one by one, on fake tensors; a row that fails is
replaced by an opaque node. Equal strides are what makes the kernels that run, and so the bits, the same.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true
from torch.utils import _pytree as pytree

from taso_py.backend.bits import VIEWING, bits_of, memory_of, resolved
from taso_py.backend.lowering import lower, materialize, variants
from taso_py.backend.program import Origin
from taso_py.backend.schema import bind, is_trusted, result_count
from taso_py.backend.sizes import size_places
from taso_py.backend.tensors import NO_TENSOR
from taso_py.backend.writes import is_state
from taso_py.frontend.assertions import import_number, is_redundant_assertion
from taso_py.frontend.call import AtenCall, NotInDialectError, Result, apply
from taso_py.frontend.dialect import DIALECT, NEEDS_ROW
from taso_py.frontend.dialect.strides import fixed_layout, without_bits
from taso_py.frontend.higher_order import WRITING, nested_call, outside, writing_call
from taso_py.frontend.opaque import opaque_call
from taso_py.frontend.sizes import OpenSizeError, Sizes
from taso_py.frontend.source import check_sizes, module_path, refuse, source_line, type_of
from taso_py.ir.errors import ShapeError
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make
from taso_py.ir.operator import Constant, Input, Ref, Weight
from taso_py.ir.size import Dim, Open
from taso_py.ops.nested import CONTROL_FLOW
from taso_py.ops.opaque import Opaque

_REFUSALS = (NotInDialectError, ShapeError, TypeError, ValueError, RuntimeError)
"""Errors of rows for calls that they do not import, and of PyTorch for values that cannot be lowered again."""


@dataclass
class Importer:
    """The state of one import: the value of each fx node so far."""

    sizes: Sizes
    device: torch.device
    nested_in: str = ""
    """The operator that takes this graph, if one does; but for control flow, all of it stays as it was captured."""
    around: Importer | None = None
    """The import of the graph that has this operator."""
    inputs: list[Node] = field(default_factory=list[Node])
    env: dict[fx.Node, Any] = field(default_factory=dict[fx.Node, Any])
    """The value of each fx node: a value, a sequence of values for a call with several results, or a size."""
    layouts: dict[Value, Tensor] = field(default_factory=dict[Value, Tensor])
    """A fake tensor per value."""
    effects: list[Node] = field(default_factory=list[Node])
    provenance: dict[str, Origin] = field(default_factory=dict[str, Origin])
    variants: dict[str, int] = field(default_factory=dict[str, int])
    """Node digest -> the variant of its lowering that keeps the original's layout, where it is not the first."""
    tokens: Iterator[int] = field(default_factory=itertools.count)

    def leaf(self, fx_node: fx.Node, op: Input | Weight, *, is_memory: bool = False) -> Node:
        """Import a placeholder; a conjugate or negative view becomes a view of a plain leaf.

        Args:
            fx_node: the placeholder.
            op: the leaf.
            is_memory: whether the leaf has the memory of the placeholder; otherwise it has the placeholder's numbers.
        """
        node, value, fake = make(op), make(op).value, fx_node.meta["val"]
        if isinstance(op, Input):
            self.inputs.append(node)
        with self._fake():
            self.layouts[value] = memory_of(fake) if is_memory else resolved(fake)
        for is_set, (computing, viewing) in zip(bits_of(fake), VIEWING, strict=True):
            for target in ((viewing,) if is_memory else (computing, viewing)) if is_set else ():
                value = apply(Opaque(target, (Ref(0),), (value.type,)), value)
        self._lay_out(value)
        self.env[fx_node] = value
        return node

    def call(self, fx_node: fx.Node) -> None:
        """Import a call.

        Raises:
            ImportRefusal: the graph has no faithful form for it.
        """
        with self.sizes.without_guards():
            self._call(fx_node)

    def _call(self, fx_node: fx.Node) -> None:
        check_sizes(fx_node)
        if fx_node.target is operator.getitem:
            self._getitem(fx_node)
        elif isinstance(fx_node.meta.get("val"), torch.SymInt | torch.SymBool) and self._size(fx_node):
            return
        elif not is_redundant_assertion(fx_node) and not import_number(fx_node, self.env, self.effect):
            if isinstance(fx_node.target, OpOverload):
                call = self._bind(fx_node, fx_node.target)
                found = self._by_table(call) or self._opaque(fx_node, call)
            else:
                found = self._higher_order(fx_node)
            self.env[fx_node] = found if isinstance(fx_node.meta.get("val"), list | tuple) else [*found, None][0]
            self._record_source(fx_node, found)

    def effect(self, op: Opaque, inputs: Sequence[Value]) -> Node:
        """Append an effect."""
        node = make(op, inputs, next(self.tokens))
        self.effects.append(node)
        return node

    def _size(self, fx_node: fx.Node) -> bool:
        """Record a size, or check a condition that must hold for all open sizes; False if it depends on data."""
        val: Any = fx_node.meta["val"]
        if free_unbacked_symbols(val):
            return False
        if isinstance(val, torch.SymBool):
            if not statically_known_true(val):
                refuse(fx_node, f"asks whether {val}, which depends on open sizes", "export with static sizes")
            return True
        try:
            self.env[fx_node] = self.sizes.dim(val)
        except OpenSizeError as error:
            refuse(fx_node, f"computes an open size: {error}", "export with static sizes")
        return True

    def _getitem(self, fx_node: fx.Node) -> None:
        source, index = fx_node.args
        assert isinstance(source, fx.Node)
        results = self.env[source]
        # A list among several results has one value, which is a tuple itself.
        value = None if isinstance(results, Value) else results[index]
        if value is None:
            refuse(fx_node, "reads a result that is not a tensor", "compute it from tensors")
        self.env[fx_node] = value

    def _bind(self, fx_node: fx.Node, overload: OpOverload) -> AtenCall:
        val: Any = fx_node.meta.get("val")
        items: Sequence[Any] = val if isinstance(val, list | tuple) else [val] if result_count(overload) else []
        results = [item if isinstance(item, Tensor) else None for item in items]
        if items and not any(isinstance(item, Tensor) for item in items):
            refuse(fx_node, "returns a number that depends on the data", "keep the computation in tensors")
        types = tuple(NO_TENSOR if result is None else type_of(fx_node, result, self.sizes) for result in results)
        positional = fx.map_arg(fx_node.args, self.env.__getitem__)
        keywords = fx.map_arg(fx_node.kwargs, self.env.__getitem__)
        arguments = bind(overload, positional, keywords)

        def strides(value: Value) -> tuple[Dim, ...] | None:
            return self.sizes.strides(self.layouts[value])

        return AtenCall(
            overload,
            arguments,
            results=tuple(results),
            types=types,
            layouts=self.layouts,
            read=_results_read(fx_node),
            strides=strides,
        )

    def _by_table(self, call: AtenCall) -> Sequence[Value | None] | None:
        """Return the values that the call's row gives; None if it refuses, or their layouts are not the original's."""
        if self.nested_in and self.nested_in not in CONTROL_FLOW:
            return None
        row = DIALECT.get(str(call.overload))
        try:
            found = _choices(row(call)) if row is not None else ()
            return next((values for values in found if self._all_agree(values, call)), None)
        except _REFUSALS:
            return None

    def _all_agree(self, values: Sequence[Value | None], call: AtenCall) -> bool:
        """Return whether all values that are read have the layouts of the call's results."""
        try:
            with self._fake():
                return all(self._agrees(values[index], call.results[index]) for index in sorted(call.read))
        except _REFUSALS:
            return False

    def _agrees(self, value: Value | None, original: Tensor | None) -> bool:
        """Return whether the value, once lowered, has the original's type, strides and device."""
        if value is None or original is None:
            return False
        if value in self.layouts:
            return self._alike(self.layouts[value], original)
        *below, root = self._new_nodes(value.node)
        for node in below:
            self._propagate(node, 0)
        # Nothing tells the lowering of a nested graph which variant to take.
        for variant in range(1) if self.nested_in else variants(root):
            self._propagate(root, variant)
            if self._alike(self.layouts[value], original):
                return True
        self.layouts.pop(value)
        self.variants.pop(root.digest, None)
        return False

    def _alike(self, lowered: Tensor, original: Tensor) -> bool:
        """Return whether fake tensors agree in type, shape, strides, bits and device for all open sizes."""
        return (
            lowered.dtype is original.dtype
            and self.sizes.agree(lowered.shape, original.shape)
            and self.sizes.agree(lowered.stride(), original.stride())
            and bits_of(lowered) == bits_of(original)
            and lowered.device == original.device
        )

    @contextmanager
    def _fake(self) -> Generator[None]:
        """Enter the mode for calls on fake tensors."""
        with self.sizes.in_python(), self.sizes.mode, torch.no_grad():
            yield

    def _new_nodes(self, root: Node) -> list[Node]:
        """Return the nodes without a layout that ``root`` reaches, operands first; few, so that recursion is safe."""
        if root.outputs[0] in self.layouts:
            return []
        below = [node for value in root.inputs for node in self._new_nodes(value.node)]
        return [*dict.fromkeys(below), root]

    def _propagate(self, node: Node, variant: int) -> None:
        """Compute the layout of a node from those of its operands."""
        if isinstance(node.op, Constant):
            self.layouts[node.value] = materialize(self.sizes.call, node.op, self.device)
            return
        operands = [self.layouts[value] for value in node.inputs]
        results = lower(self.sizes.call, node, operands, self.device, variant)
        if variant:
            self.variants[node.digest] = variant
        for value, tensor in zip(node.outputs, results, strict=True):
            self.layouts[value] = tensor

    def _opaque(self, fx_node: fx.Node, call: AtenCall) -> Sequence[Value]:
        if str(call.overload) in NEEDS_ROW:
            refuse(fx_node, "reads memory by strides beyond its operand", "use slices and reshapes instead")
        op, inputs = opaque_call(fx_node, call, self.env.__getitem__)
        if not is_trusted(call.overload):
            inputs = [self._in_original_layout(value) for value in inputs]
        node = make(op, inputs) if op.pure else self.effect(op, inputs)
        for value, result in zip(node.outputs, call.results, strict=True):
            if result is not None:
                self.layouts[value] = result
        return node.outputs

    def _higher_order(self, fx_node: fx.Node) -> Sequence[Value]:
        env, sizes = self.env.__getitem__, self.sizes
        if fx_node.target is WRITING:
            call = writing_call(fx_node, env, layouts=self.layouts, sizes=sizes)
        else:
            call = nested_call(fx_node, env, sizes=sizes, imported=self._nested, shown=self._shown)
        for value in call.inputs:
            self._lay_out(value)
        node = self.effect(call.op, [self._in_original_layout(value) for value in call.inputs])
        self.layouts.update((v, r) for v, r in zip(node.outputs, call.results, strict=True) if r is not None)
        return node.outputs

    def _nested(self, module: fx.GraphModule, called: str) -> Graph:
        """Import a graph that an operator takes, call by call."""
        inner = Importer(self.sizes, self.device, nested_in=called, around=self)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                inner.operand(node)
            elif node.op == "call_function":
                inner.call(node)
        *_, end = module.graph.nodes
        leaves = pytree.tree_leaves(end.args)
        found = (inner.env.get(leaf) for leaf in leaves)
        outputs = tuple(value for value in found if isinstance(value, Value))
        if len(outputs) < len(leaves):
            refuse(end, "of a graph inside an operator is not a tensor", "return tensors only")
        return Graph(tuple(inner.inputs), outputs, tuple(inner.effects))

    def operand(self, fx_node: fx.Node) -> None:
        """Import an operand of a graph inside an operator; an open size, of control flow, is none.

        Raises:
            ImportRefusal: it is something else than a tensor.
        """
        val: Any = fx_node.meta.get("val")
        if self.nested_in in CONTROL_FLOW and isinstance(val, torch.SymInt) and self._size(fx_node):
            return
        if not isinstance(val, Tensor):
            refuse(fx_node, "of a graph inside an operator is not a tensor", "pass tensors only")
        self.leaf(fx_node, Input(f"x{len(self.inputs)}", type_of(fx_node, val, self.sizes)))

    def _shown(self, size: Open) -> Value | None:
        """Return an input that determines an open size, one that the model does not write to if there is one.

        Where none does, it is one of the graph around this one.
        """
        unwritten = [node for node in self.inputs if not is_state(node.value)]
        places = size_places(Graph((*unwritten, *self.inputs), ()))
        own = next((place.input.value for place in places if place.size == size), None)
        given = None if own or self.around is None else self.around._shown(size)
        if given is None or self.around is None:
            return own
        self.layouts[outside(given)] = self.around.layouts[given]
        return outside(given)

    def _in_original_layout(self, value: Value) -> Value:
        """Return the value fixed to the layout it has in the original, however the nodes before it are rewritten."""
        guarded = fixed_layout(without_bits(value), self.layouts[value])
        self._lay_out(guarded)
        return guarded

    def _lay_out(self, value: Value) -> None:
        """Compute the missing layouts of a value and of the nodes before it."""
        with self._fake():
            for node in self._new_nodes(value.node):
                self._propagate(node, 0)

    def _record_source(self, fx_node: fx.Node, found: Sequence[Value | None]) -> None:
        """Record the source line of a call for its nodes, unless an earlier call produced them too."""
        origin = Origin(source_line(fx_node), module_path(fx_node))
        stack = [value.node for value in found if value is not None]
        while stack:
            node = stack.pop()
            if node.digest not in self.provenance and not isinstance(node.op, Input | Weight | Constant):
                self.provenance[node.digest] = origin
                stack += [value.node for value in node.inputs]


def _choices(result: Result) -> Iterator[Sequence[Value | None]]:
    """Yield the values that a row gives, one choice of them after the other."""
    if isinstance(result, Iterator):
        yield from ([value] for value in result)
    else:
        yield [result] if isinstance(result, Value) else result


def _results_read(fx_node: fx.Node) -> frozenset[int]:
    """Return the indices of the results of a call that are read."""
    if not isinstance(fx_node.meta.get("val"), list | tuple):
        return frozenset({0})
    return frozenset(
        index
        for user in fx_node.users
        if user.target is operator.getitem and user.users and isinstance(index := user.args[1], int)
    )
