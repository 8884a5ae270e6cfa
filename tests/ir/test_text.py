"""The grammar: printing then reading gives the same graph; mistakes are one line with a place."""

import random

import pytest

from taso_py.ir.errors import GraphTextError
from taso_py.ir.graph import Graph
from taso_py.ir.node import Value, make
from taso_py.ir.operator import Input
from taso_py.ir.size import Open, Poly, floordiv, open_size, symbol
from taso_py.ir.text import print_graph
from taso_py.ir.types import DType, Group, TensorType
from taso_py.ops.contraction import Linear
from taso_py.ops.elementwise import Add, Mul, Relu, Sub, Tanh
from taso_py.ops.table import parse_graph

EVERYTHING = """graph(x: f32[1,3,8,8], y: i64[2]) {
  w0 = weight{key="a.b \\"c\\"", type=f32[4,3,3,3]}
  v0 = conv2d(x, w0){stride=[2,2], padding=[1,1]}
  v1 = reshape(v0){shape=[4,16]}
  v2 = opaque#1(v1, y){target="aten.f", arguments=[$0,[1,1.0],true,-2,-inf,nan], types=[f32[4],bool[]], is_pure=false}
  v3 = opaque(v2.1){target="aten.g", arguments=[$0,"s",none], types=[f16[]], keywords=[["dtype",f16]]}
  v4 = cast(v3){dtype=f32}
  effects v2
  return v4, v2.1, v1, v1
}
"""


def test_everything_survives_a_round_trip() -> None:
    assert print_graph(parse_graph(EVERYTHING)) == EVERYTHING


def test_inputs_that_are_written_to_survive() -> None:
    text = "graph(x: f32[2], mutable: mutable f32[2]) {\n  v0 = add(x, mutable)\n  return v0, mutable\n}\n"
    graph = parse_graph(text)
    assert print_graph(graph) == text
    assert [isinstance(node.op, Input) and node.op.mutable for node in graph.inputs] == [False, True]
    assert graph != parse_graph(text.replace(": mutable", ":"))


def test_symbolic_types_survive() -> None:
    text = """graph(a: float[..B,M,K], b: float[2*N+1,K]) {
  v0 = linear(a, b)
  v1 = slice(v0){axis=-1, start=0, stop=((M-1)//2)+1}
  return v1
}
"""
    graph = parse_graph(text)
    assert parse_graph(print_graph(graph)) == graph
    assert graph.inputs[0].types[0].shape[0] == Group("B")
    assert str(graph.outputs[0].type) == "float[..B,M,((M-1)//(2))+1]"


ROWS, HALF = open_size(Open("x.0", 4, 1, None)), open_size(Open("(y.1 - 3) // 2", 5, 2, 64))
REST = open_size(Open(f"z.0 - ({ROWS}+1)", 3, 1, None))


@pytest.mark.parametrize(
    "size",
    [ROWS, HALF, REST, 2 * ROWS * HALF + 3, floordiv(HALF - 1, 2) * ROWS, floordiv(ROWS + HALF, 2 * REST) - 1],
    ids=str,
)
def test_open_sizes_survive(size: Poly) -> None:
    text = f"graph(x: f32[{size},3]) {{\n  v0 = constant{{value={size}, dtype=f32}}\n  return mul(x, v0)\n}}"
    graph = parse_graph(text)
    assert graph.inputs[0].types[0].shape == (size, 3)
    again = parse_graph(print_graph(graph))
    assert again == graph
    assert graph.inputs[0].types[0].open == size.open


def test_random_graphs_survive() -> None:
    rng = random.Random(7)
    for _ in range(50):
        graph = _random_graph(rng)
        assert parse_graph(print_graph(graph)) == graph


def _random_graph(rng: random.Random) -> Graph:
    size = symbol("N") if rng.random() < 0.5 else 4
    inputs = tuple(make(Input(name, TensorType(DType.FLOAT, (Group("G"), size, size)))) for name in "abc")
    weights = make(Input("w", TensorType(DType.FLOAT, (size, size))))
    values: list[Value] = [node.value for node in inputs]
    for _ in range(rng.randint(1, 12)):
        op = rng.choice([Add(), Sub(), Mul(), Relu(), Tanh(), Linear()])
        operands = [rng.choice(values)]
        if isinstance(op, Linear):
            operands.append(weights.value)
        elif not isinstance(op, Relu | Tanh):
            operands.append(rng.choice(values))
        values.append(make(op, operands).value)
    return Graph((*inputs, weights), tuple(rng.sample(values, 2)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("graph(x: f32[2]) { return frobnicate(x) }", "line 1, column 27: no value or operator is called frobnicate"),
        ("graph(x: f33[2]) { return x }", "no element type is called f33"),
        ("graph(x: f32[2]) { return add(x) }", "add takes 2 to 2 operands"),
        ("graph(x: f32[2]) { return relu(x){depth=3} }", "unexpected keyword argument 'depth'"),
        ("graph(x: f32[2]) { return x", "expected }, found the end"),
        ("graph(x: f32[2]) {\n  return x ? }", "line 2, column 12: unexpected character '?'"),
        ("graph(x: f32[2]) { return relu(x).3 }", "expected }"),
        ("graph(x: f32[2]) { v = relu(x) return v.3 }", "relu has no output 3"),
        ("graph(x: f32[2], y: f32[3]) { return add(x, y) }", "add: 2 is not 3"),
        ('graph(x: f32[2]) { return gelu(x){approximate="sin"} }', "none and tanh"),
    ],
)
def test_mistakes_are_one_line_with_a_place(text: str, message: str) -> None:
    with pytest.raises(GraphTextError) as caught:
        parse_graph(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
