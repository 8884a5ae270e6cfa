"""Graphs in the arguments of operators: their text, and what belongs to control flow."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from taso_py.ir.node import Node, make
from taso_py.ir.operator import AttributeValue, Input, Ref
from taso_py.ir.types import DType, TensorType
from taso_py.ops.nested import ControlFlow, Nested
from taso_py.ops.opaque import Opaque
from taso_py.ops.table import parse_graph

ADD = Nested("tuple", ((0, 1),), parse_graph("graph(x0: f32[2,3], x1: f32[3]) { return add(x0, x1) }"))
SUB = Nested("tuple", ((0, 1),), parse_graph("graph(x0: f32[2,3], x1: f32[3]) { return sub(x0, x1) }"))


def node(target: str, arguments: Sequence[AttributeValue], count: int) -> Node:
    types = [TensorType(DType.F32, (2, 3)), TensorType(DType.F32, (3,)), TensorType(DType.BOOL, ())]
    inputs = [make(Input(f"i{place}", types[place])).value for place in range(count)]
    return make(Opaque(target, tuple(arguments), (types[0],), is_pure=False), inputs, 0)


@pytest.mark.parametrize("orders", [((0, 1),), (None,), ((),), ((1, 0), None)])
@pytest.mark.parametrize("kind", ["tuple", "list", "one"])
def test_a_nested_graph_survives_a_round_trip(kind: str, orders: tuple[tuple[int, ...] | None, ...]) -> None:
    nested = Nested(kind, orders, ADD.graph)
    assert nested.text.startswith(f"graph:{kind} ")
    assert Nested.parse(nested.text) == nested
    assert Nested.parse(nested.text) is Nested.parse(nested.text), "a search looks at it again and again"


def test_operands_are_what_varies_and_what_is_shared() -> None:
    loop = ControlFlow.of(node("higher_order.map_impl", [ADD.text, (Ref(0),), ("tuple:", Ref(1))], 2))
    assert loop is not None
    assert (loop.bodies, loop.varying, loop.shared) == ((ADD,), (0,), (1,))
    branches = ControlFlow.of(node("higher_order.cond", [Ref(2), ADD.text, SUB.text, (Ref(0), Ref(1))], 3))
    assert branches is not None
    assert (branches.bodies, branches.varying, branches.shared) == ((ADD, SUB), (), (0, 1))
    op = branches.with_bodies([SUB, SUB], kept=(1,), added=2)
    assert op.arguments == (Ref(1), SUB.text, SUB.text, (Ref(0), Ref(2), Ref(3)))


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        ("higher_order.flex_attention", [ADD.text, (Ref(0), Ref(1))]),
        ("higher_order.cond", [Ref(2), ADD.text, ADD.text, (Ref(0),)]),
        ("higher_order.cond", [Ref(2), ADD.text, ADD.text, (Ref(0), 3)]),
        ("higher_order.cond", [Ref(2), (Ref(0), Ref(1))]),
        ("aten.add.Tensor", [Ref(0), Ref(1)]),
    ],
)
def test_other_operators_have_no_bodies(target: str, arguments: list[AttributeValue]) -> None:
    """Nor have those that take more than tensors and graphs, or another number of operands than their graphs."""
    assert ControlFlow.of(node(target, arguments, 3)) is None
