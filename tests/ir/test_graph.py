"""Nodes and graphs: interning, tokens, effects, replacement, pickling."""

import gc
import pickle
import weakref

import pytest

from taso_py.ir.errors import InvariantError, ShapeError
from taso_py.ir.graph import Graph
from taso_py.ir.node import is_running, make
from taso_py.ir.operator import Constant, Input, Weight
from taso_py.ir.types import DType, TensorType
from taso_py.ops.elementwise import Add, Relu, Sub
from taso_py.ops.opaque import Opaque
from taso_py.ops.table import parse_graph

VECTOR = TensorType(DType.F32, (3,))
X, Y = make(Input("x", VECTOR)).value, make(Input("y", VECTOR)).value


def _random() -> Opaque:
    return Opaque("aten.rand.default", ((3,),), (VECTOR,), is_pure=False)


def test_equal_nodes_are_the_same_object() -> None:
    assert make(Relu(), [X]) is make(Relu(), [X])
    assert make(Relu(), [X]) is not make(Relu(), [Y])


def test_arguments_of_commutative_operators_have_one_order() -> None:
    assert make(Add(), [X, Y]) is make(Add(), [Y, X])
    assert make(Sub(), [X, Y]) is not make(Sub(), [Y, X])


def test_constants_of_different_kind_are_different() -> None:
    kinds = [Constant(1, DType.F32), Constant(1.0, DType.F32), Constant(True, DType.F32), Constant(-0.0, DType.F32)]
    assert len({make(op) for op in [*kinds, Constant(0.0, DType.F32)]}) == 5


def test_impure_nodes_with_different_tokens_are_never_merged() -> None:
    assert make(_random(), [], 0) is not make(_random(), [], 1)
    with pytest.raises(InvariantError, match="carry a token"):
        make(_random(), [])
    with pytest.raises(InvariantError, match="carry a token"):
        make(Relu(), [X], 0)


def test_the_table_of_nodes_is_weak() -> None:
    node = make(Input("only here", VECTOR))
    reference = weakref.ref(node)
    del node
    gc.collect()
    assert reference() is None


def test_operands_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match="add"):
        make(Add(), [X, make(Input("z", TensorType(DType.F32, (4,)))).value])


def test_static_values_depend_on_weights_and_constants_only() -> None:
    graph = parse_graph(
        """graph(x: f32[3]) {
          w = weight{key="w", type=f32[3]}
          m = weight{key="m", type=f32[3], mutable=true}
          r = opaque#0{target="aten.rand", arguments=[], types=[f32[3]], is_pure=false}
          return relu(w), add(w, constant{value=2, dtype=f32}), relu(x), relu(m), relu(r)
        }"""
    )
    assert [value.node.is_static for value in graph.outputs] == [True, True, False, False, False]
    running = {node.op.name for node in graph.nodes if is_running(node)}
    assert running == {"relu", "opaque"}
    assert not any(is_running(node) for node in graph.nodes if isinstance(node.op, Input | Weight | Constant))


def test_effects_are_part_of_a_graph_even_when_nothing_reads_them() -> None:
    drawn = make(_random(), [], 0)
    graph = Graph((X.node,), (make(Relu(), [X]).value,), (drawn,))
    assert drawn in graph.nodes
    assert graph != Graph((X.node,), graph.outputs)


def test_replacement_rebuilds_what_is_downstream_only() -> None:
    before = parse_graph("graph(x: f32[3], y: f32[3]) { a = relu(x) b = tanh(y) return add(a, b), b }")
    tanh = before.outputs[1]
    after = before.replace({make(Relu(), [X]).value: make(Sub(), [X, Y]).value})
    assert after == parse_graph("graph(x: f32[3], y: f32[3]) { b = tanh(y) return add(sub(x, y), b), b }")
    assert after.outputs[1] == tanh


def test_a_replacing_value_may_read_the_replaced_one() -> None:
    before = parse_graph("graph(x: f32[3]) { return tanh(relu(x)) }")
    relu = make(Relu(), [X]).value
    after = before.replace({relu: make(Sub(), [relu, X]).value})
    assert after == parse_graph("graph(x: f32[3]) { return tanh(sub(relu(x), x)) }")


def test_pickling_interns_again() -> None:
    graph = parse_graph("graph(x: f32[3], y: f32[3]) { a = relu(x) return add(a, y), a }")
    assert pickle.loads(pickle.dumps(graph)) == graph
    assert pickle.loads(pickle.dumps(graph.outputs[0].node)) is graph.outputs[0].node


def test_graphs_deeper_than_the_recursion_limit() -> None:
    value = X
    for _ in range(5000):
        value = make(Sub(), [value, Y]).value
    graph = Graph((X.node, Y.node), (value,))
    assert len(graph.nodes) == 5002
    assert pickle.loads(pickle.dumps(graph)) == graph


def test_networkx_view_has_an_edge_per_use() -> None:
    graph = parse_graph("graph(x: f32[3]) { return add(x, x), relu(x) }")
    view = graph.to_networkx()
    assert view.number_of_edges() == 3
    assert view.out_degree(X.node) == 3
    assert len(graph.users[X.node]) == 2
