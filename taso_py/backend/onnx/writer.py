"""Writer of the nodes of one ONNX graph; the rows of the tables call it.

Invariant: equal constants, and equal computations of sizes, are written once.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from taso_py.backend.fold import evaluate
from taso_py.backend.onnx.errors import NotInOnnx
from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Constant, Weight
from taso_py.ir.size import Atom, Dim, FloorDiv, Open, Poly, is_never_negative, open_size
from taso_py.ir.types import DType, TensorType

if TYPE_CHECKING:
    import onnx_ir as ir

_T = TypeVar("_T")

OnnxValue: TypeAlias = "ir.Value"
"""A value of the ONNX graph."""

_NOT_IN_ONNX = frozenset({DType.C64, DType.C128, DType.FLOAT, DType.INT})


class Writer:
    """The nodes and initializers written so far."""

    def __init__(self, graph: Graph, weights: Mapping[str, Tensor]) -> None:
        """Start an empty ONNX graph; ``weights`` holds the weights that ``graph`` names, by key."""
        import onnx_ir as ir
        from onnx_ir import tensor_adapters

        self._ir, self._adapters = ir, tensor_adapters
        self._graph = graph
        self._weights = weights
        self.nodes: list[ir.Node] = []
        self.domains: dict[str, int] = {}
        """Versions of the operator sets that nodes are of beside the default one, by domain."""
        self._initializers: list[ir.Value] = []
        self._names: set[str] = set()
        self._constants: dict[object, ir.Value] = {}
        self._sizes: dict[Dim, ir.Value] = {}
        self._shared: dict[object, Any] = {}
        self._origin, self._count = "", 0

    def inside(self, graph: Graph, *, apart: bool) -> Writer:
        """Return a writer of a graph inside of this one's, which may read all that this one has written so far.

        Args:
            graph: the graph.
            apart: true if its nodes are a graph of their own in the ONNX model; false if they go among this one's.
        """
        made = copy.copy(self)
        made._graph, made._sizes, made._shared = graph, dict(self._sizes), {}
        if apart:
            made.nodes = []
        return made

    def closed(self, inputs: Sequence[OnnxValue], outputs: Sequence[OnnxValue]) -> ir.Graph:
        """Return what was written as a graph inside of another one, whose initializers it reads."""
        return self._ir.Graph(inputs, outputs, nodes=self.nodes, name=self.unique(f"{self._origin}.graph"))

    @property
    def initializers(self) -> Sequence[OnnxValue]:
        """The initializers that are used."""
        return [value for value in self._initializers if value.uses()]

    def begin(self, node: Node) -> None:
        """Begin the nodes written for a node of our graph, whose digest starts their names."""
        self._origin, self._count = f"{node.op.name}.{node.digest[:16]}", 0

    def op(self, name: str, *inputs: OnnxValue | None, **attributes: Any) -> OnnxValue:
        """Write an ONNX operator with one result and return it; inputs and attributes that are None are left out."""
        return self.ops(name, 1, *inputs, **attributes)[0]

    def ops(self, name: str, count: int, *inputs: OnnxValue | None, **attributes: Any) -> Sequence[OnnxValue]:
        """Write an ONNX operator with ``count`` results and return them."""
        given = {key: self._attribute(key, value) for key, value in attributes.items() if value is not None}
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        node = self._ir.node(name, inputs, given, num_outputs=count, name=self._fresh())
        self.nodes.append(node)
        for index, value in enumerate(node.outputs):
            value.name = f"{node.name}/{index}"
        return node.outputs

    def inlined(self, graph: ir.Graph, operands: Sequence[OnnxValue]) -> Sequence[OnnxValue]:
        """Write the nodes of another ONNX graph and return its results.

        Args:
            graph: the graph; its default operator set must be of the version that is written here.
            operands: a value for each of its inputs.
        """
        held = dict(zip(graph.inputs, operands, strict=True))
        for value in graph.initializers.values():
            name = f"{self._origin}.{value.name}"
            held[value] = self.tensor(("inlined", name), name, partial(_content, value))
        for node in graph:
            inputs = [None if value is None else held[value] for value in node.inputs]
            attributes, count = node.attributes.values(), len(node.outputs)
            copied = self._ir.Node(node.domain, node.op_type, inputs, attributes, num_outputs=count, name=self._fresh())
            for index, (old, new) in enumerate(zip(node.outputs, copied.outputs, strict=True)):
                new.name = f"{copied.name}/{index}" if old.name else ""
                held[old] = new
            self.nodes.append(copied)
            if node.domain:
                self.domains[node.domain] = graph.opset_imports[node.domain]
        return [held[value] for value in graph.outputs]

    def _attribute(self, name: str, value: Any) -> Any:
        """Return an attribute of a node, integers with their type.

        To find that, onnx-ir compares them with one protocol after the other, which takes longer than all else here.
        """
        has_integers = isinstance(value, list | tuple) and value and all(isinstance(item, int) for item in value)
        return self._ir.AttrInt64s(name, value) if has_integers else value

    def typed(self, name: str, type_: TensorType) -> OnnxValue:
        """Return a new value of a name and type; open sizes become dimensions named by their text."""
        shape = [re.sub(r"\W", "_", _short(dim)) if isinstance(dim, Poly) else dim for dim in type_.dims]
        ir = self._ir
        return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(self.dtype(type_.dtype)))

    def output(self, value: OnnxValue, type_: TensorType, others: Sequence[OnnxValue]) -> OnnxValue:
        """Return a value as an output with a type: ``Identity`` of it if no node written here computes it.

        Args:
            value: the value.
            type_: its type.
            others: inputs and earlier outputs, from which an output must differ.
        """
        producer = value.producer()
        if value in others or producer is None or producer not in self.nodes:
            value = self.op("Identity", value)
        like = self.typed("", type_)
        value.type, value.shape = like.type, like.shape
        return value

    def _fresh(self) -> str:
        """Return a name for the next node."""
        self._count += 1
        return self.unique(f"{self._origin}.{self._count}")

    def unique(self, wanted: str) -> str:
        """Return an unused name, ``wanted`` if it is free."""
        name, count = wanted, 1
        while name in self._names:
            count += 1
            name = f"{wanted}.{count}"
        self._names.add(name)
        return name

    def tensor(self, key: object, name: str, make: Callable[[], Tensor]) -> OnnxValue:
        """Return an initializer with the content of a tensor, made when ``key`` is first asked for."""
        known = self._constants.get(key)
        if known is None:
            content = make().detach()
            fresh = self.unique(name)
            held = self._adapters.TorchTensor(content, name=fresh)
            known = self._ir.Value(
                name=fresh,
                shape=self._ir.Shape(tuple(content.shape)),
                type=self._ir.TensorType(held.dtype),
                const_value=held,
            )
            self._initializers.append(known)
            self._constants[key] = known
        return known

    def is_read_only_as(self, value: Value, allowed: Callable[[Node], bool]) -> bool:
        """Return whether a value is not an output of our graph, and all its readers are allowed."""
        return value not in self._graph.outputs and all(map(allowed, self._graph.users[value.node]))

    def is_unread(self, value: Value) -> bool:
        """Return whether a value is not an output of our graph, and no node reads it."""
        return self.is_read_only_as(value, lambda reader: value not in reader.inputs)

    def weight(self, op: Weight, *, transposed: bool = False) -> OnnxValue:
        """Return a weight as an initializer, which shares the tensor's memory; a matrix may be transposed."""
        tensor = self._weights[op.key]
        make = (lambda: tensor.t()) if transposed else (lambda: tensor)
        return self.tensor(("weight", op.key, transposed), f"{op.key}.T" if transposed else op.key, make)

    def once(self, key: object, write: Callable[[], _T]) -> _T:
        """Return the result of ``write``, which is called once per key; several nodes of our graph may share it."""
        if key not in self._shared:
            self._shared[key] = write()
        return self._shared[key]

    def computed(self, value: Value) -> OnnxValue:
        """Return a value that depends on weights only as an initializer, computed now."""
        key = ("computed", *value.key)
        name = f"computed_{value.node.digest[:16]}_{value.output}"
        return self.tensor(key, name, lambda: evaluate(value, self._weights, torch.device("cpu")))

    def held(self, value: Value) -> Tensor | None:
        """Return the content of a value that is a weight the model does not write to, else None."""
        op = value.node.op
        return self._weights[op.key] if isinstance(op, Weight) and not op.mutable else None

    def number(self, value: float | Poly, dtype: DType) -> OnnxValue:
        """Return a number as a tensor of rank 0; an open size is computed."""
        if isinstance(value, Poly):
            return self.cast(self.scalar(value), dtype)
        text = f"{value!r}"

        def make() -> Tensor:
            return torch.scalar_tensor(value, dtype=TORCH_DTYPES[dtype], device="cpu")

        return self.tensor(("number", text, dtype), f"{dtype}_{text}", make)

    def integers(self, values: Sequence[int]) -> OnnxValue:
        """Return integers as a vector of type i64."""
        key = ("integers", *values)
        name = "_".join(("integers", *map(str, values)))
        return self.tensor(key, name, lambda: torch.tensor(list(values), dtype=torch.int64, device="cpu"))

    def constant(self, constant: Constant) -> OnnxValue:
        """Return a constant of our graph as a tensor of rank 0."""
        return self.number(constant.value, constant.dtype)

    def cast(self, value: OnnxValue, dtype: DType) -> OnnxValue:
        """Return a value cast to another element type."""
        return self.op("Cast", value, to=self.dtype(dtype))

    def dtype(self, dtype: DType) -> ir.DataType:
        """Return ONNX's element type for ours.

        Raises:
            NotInOnnx: the engines know none.
        """
        if dtype in _NOT_IN_ONNX:
            raise NotInOnnx(f"element type {dtype} cannot be expressed in ONNX for any engine")
        return self._adapters.from_torch_dtype(TORCH_DTYPES[dtype])

    def declare(self, size: Open, value: OnnxValue) -> None:
        """Declare the vector of one integer that holds an open size."""
        self._sizes[open_size(size)] = value

    def dims(self, dims: Sequence[Dim]) -> OnnxValue:
        """Return sizes as a vector of type i64, computed where they are open."""
        numbers = [dim for dim in dims if isinstance(dim, int)]
        if len(numbers) == len(dims):
            return self.integers(numbers)
        if len(dims) == 1:
            return self._size(dims[0])
        return self.op("Concat", *map(self._size, dims), axis=0)

    def scalar(self, dim: Dim) -> OnnxValue:
        """Return a size as a tensor of rank 0."""
        if isinstance(dim, int):
            return self.number(dim, DType.I64)
        return self.op("Squeeze", self._size(dim), self.integers([0]))

    def _size(self, dim: Dim) -> OnnxValue:
        """Return a size as a vector of one integer."""
        if isinstance(dim, int):
            return self.integers([dim])
        if dim not in self._sizes:
            self._sizes[dim] = self._sum(dim)
        return self._sizes[dim]

    def _sum(self, dim: Poly) -> OnnxValue:
        total: OnnxValue | None = None
        for monomial, coefficient in dim.terms:
            product: OnnxValue | None = self._size(coefficient) if coefficient != 1 or not monomial else None
            for atom in monomial:
                factor = self._quotient(atom) if isinstance(atom, FloorDiv) else self._known(atom)
                product = factor if product is None else self.op("Mul", product, factor)
            assert product is not None
            total = product if total is None else self.op("Add", total, product)
        assert total is not None
        return total

    def _known(self, atom: Atom) -> OnnxValue:
        found = self._sizes.get(open_size(atom)) if isinstance(atom, Open) else None
        if found is None:
            raise NotInOnnx(f"the size {atom} shows in no input of the graph; give it one that has it as a dimension")
        return found

    def _quotient(self, atom: FloorDiv) -> OnnxValue:
        numerator, denominator = self._size(atom.numerator), self._size(atom.denominator)
        if not is_never_negative(atom.numerator):
            # ONNX divides towards zero; with the remainder taken off, which has the divisor's sign, that is the floor.
            numerator = self.op("Sub", numerator, self.op("Mod", numerator, denominator))
        return self.op("Div", numerator, denominator)


def _content(value: OnnxValue) -> Tensor:
    """Return the content of an initializer."""
    assert value.const_value is not None
    return torch.from_numpy(value.const_value.numpy().copy())


def _short(dim: Poly) -> str:
    """Return the text of a size without example values and ranges."""
    return re.sub(r"\{[^}]*\}", "", str(dim))


def as_number(dim: Dim | float) -> int:
    """Return a size that ONNX accepts as a number only.

    Raises:
        NotInOnnx: it is open.
    """
    if isinstance(dim, int):
        return dim
    raise NotInOnnx(f"ONNX takes no open size as a stride, a padding or the size of a window: {dim}")


def as_float(value: float | Poly) -> float:
    """Return a number attribute; only rules have symbols there."""
    assert isinstance(value, int | float), value
    return float(value)


def overflows(value: float, dtype: DType) -> bool:
    """Return whether a finite number becomes infinite in an element type."""
    return (
        dtype.is_floating
        and math.isfinite(value)
        and not bool(torch.isfinite(torch.scalar_tensor(value, dtype=TORCH_DTYPES[dtype])))
    )
