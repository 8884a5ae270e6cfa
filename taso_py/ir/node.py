"""Nodes: immutable and interned, so that equality is identity.

Invariant: two live nodes with equal operator, inputs, types and token are the same object. Common subexpressions
can therefore not exist, and whatever is derived from a node alone may be remembered by node. Nodes that are not pure
carry a token of their own and so are never merged. (Hash consing: Filliatre and Conchon, ML Workshop 2006.)
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from taso_py.ir.errors import InvariantError
from taso_py.ir.operator import Constant, Input, Operator, Weight
from taso_py.ir.types import TensorType
from taso_py.ir.unify import STRICT


class Node:
    """An operator applied to values. Build one with :func:`make`."""

    __slots__ = ("__weakref__", "_digest", "inputs", "is_static", "op", "token", "types")

    _digest: str
    op: Operator
    """The operator that the node applies."""
    inputs: tuple[Value, ...]
    """The operands; those of commutative operators are ordered by content."""
    types: tuple[TensorType, ...]
    """One type per output."""
    token: int | None
    """A number that tells impure nodes apart; None for pure ones."""
    is_static: bool
    """True if the value depends on weights and constants only, not on open sizes, so that it can be computed once."""

    @property
    def digest(self) -> str:
        """Digest of the content, equal in every process; computed on first use."""
        try:
            return self._digest
        except AttributeError:
            return self._digested()

    def _digested(self) -> str:
        """Compute the missing digests of the node and of everything it is computed from."""
        stack = [self]
        while stack:
            node = stack[-1]
            waiting = [operand for operand, _ in node.inputs if not hasattr(operand, "_digest")]
            if waiting:
                stack += waiting
            else:
                node._digest = _digest(node.op, node.inputs, node.token)
                stack.pop()
        return self._digest

    def __repr__(self) -> str:
        return f"<{self.op.text} {self.digest[:8]}>"

    def __reduce__(self) -> tuple[object, ...]:
        from taso_py.ir.graph import node_from_records, to_records  # graphs are made of nodes; only pickling turns back

        return node_from_records, (to_records((self,)),)

    @property
    def value(self) -> Value:
        """The node's only output.

        Raises:
            InvariantError: it has several.
        """
        if len(self.types) != 1:
            raise InvariantError(f"{self.op.name} has {len(self.types)} outputs, one was expected")
        return Value(self, 0)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """All outputs."""
        return tuple([Value(self, index) for index in range(len(self.types))])


class Value(NamedTuple):
    """One output of a node."""

    node: Node
    output: int

    @property
    def type(self) -> TensorType:
        """Element type and shape."""
        return self.node.types[self.output]

    @property
    def key(self) -> tuple[str, int]:
        """A sort key that is equal in every process."""
        return self.node.digest, self.output


_Key: TypeAlias = tuple[str, int | None, tuple[Value, ...]]
_interned: weakref.WeakValueDictionary[_Key, Node] = weakref.WeakValueDictionary()


def make(op: Operator, inputs: Sequence[Value] = (), token: int | None = None) -> Node:
    """Return the interned node that applies ``op`` to ``inputs``, creating it if it does not exist yet.

    Raises:
        ShapeError: the operator does not accept the operands.
        InvariantError: an impure operator without a token, or a pure one with a token.
    """
    if op.pure != (token is None):
        raise InvariantError(f"{op.name}: exactly the operators that are not pure carry a token")
    return _interned_node(op, inputs, token, None)


def make_as(op: Operator, inputs: Sequence[Value], types: tuple[TensorType, ...]) -> Node:
    """Return the interned node of a pure operator whose output ``types`` are known, which are not inferred again."""
    return _interned_node(op, inputs, None, types)


def remake(node: Node, inputs: Sequence[Value]) -> Node:
    """Return the node that applies the operator of ``node`` to other inputs.

    Raises:
        ShapeError: the operator does not accept the operands.
    """
    for (old, i), (new, j) in zip(node.inputs, inputs, strict=True):
        if old is new:
            continue
        before, now = old.types[i], new.types[j]
        if before is not now and before != now:
            return _interned_node(node.op, inputs, node.token, None)
    return _interned_node(node.op, inputs, node.token, node.types)


def _interned_node(
    op: Operator, inputs: Sequence[Value], token: int | None, types: tuple[TensorType, ...] | None
) -> Node:
    """Return the interned node; its types are inferred unless they are given."""
    operands = tuple(sorted(inputs, key=_order) if op.commutative else inputs)
    key = op.text, token, operands
    known = _interned.get(key)
    if known is not None:
        return known
    node = Node()
    node.op, node.inputs, node.token = op, operands, token
    node.types = op.infer([value.type for value in operands], STRICT) if types is None else types
    node.is_static = is_static(op, (value.node.is_static for value in operands))
    # Threads may race here: setdefault keeps one winner.
    return _interned.setdefault(key, node)


def _order(value: Value) -> tuple[str, int]:
    return value.node.digest, value.output


def _digest(op: Operator, inputs: tuple[Value, ...], token: int | None) -> str:
    operands = "".join([f",{node.digest}.{output}" for node, output in inputs])
    return hashlib.blake2b(f"{op.text}#{token}{operands}".encode(), digest_size=16).hexdigest()


def is_running(node: Node) -> bool:
    """Return whether a node is computed on every run: it is neither a leaf nor static."""
    return not node.is_static and not isinstance(node.op, Input | Weight)


def is_static(op: Operator, operands: Iterable[bool]) -> bool:
    """Return whether a result depends on weights and constants only, given whether each operand does."""
    if isinstance(op, Input) or not op.pure:
        return False
    if isinstance(op, Weight):
        return not op.mutable
    return isinstance(op, Constant) or (all(operands) and not op.is_open)
