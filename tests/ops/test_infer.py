"""Shape inference: strict in models, solving in rules; PyTorch agrees about shapes in tests of the definitions."""

import pytest

from taso_py.ir.errors import GraphTextError, ShapeError
from taso_py.ir.operator import Input
from taso_py.ir.size import symbol
from taso_py.ir.types import DType, Group, TensorType
from taso_py.ir.unify import SizeSolver
from taso_py.ops.contraction import Conv2d, Linear, Matmul
from taso_py.ops.elementwise import Add
from taso_py.ops.movement import Concat, Slice
from taso_py.ops.table import DEFINED, OPERATORS, parse_graph

HEADER = "graph(x: float[..B,M,K], w: float[N,K], i: float[N,2*C,H,W], k: float[2*O,C,3,3], v: float[K])"


@pytest.mark.parametrize(
    ("expression", "type_"),
    [
        ("linear(x, w)", "float[..B,M,N]"),
        ("add(x, v)", "float[..B,M,K]"),
        ("permute(x){order=[-1,-2]}", "float[..B,K,M]"),
        ("concat(w, w){axis=-2}", "float[2*N,K]"),
        ("slice(concat(w, w){axis=-1}){axis=-1, start=K, stop=2*K}", "float[N,K]"),
        ("conv2d(i, k){groups=2, padding=[1,1]}", "float[N,2*O,H,W]"),
        ("conv2d(i, k){groups=2, stride=[2,2]}", "float[N,2*O,((H-3)//(2))+1,((W-3)//(2))+1]"),
        ("max_pool2d(i){kernel=[3,3], stride=[S,S]}", "float[N,2*C,((H-3)//(S))+1,((W-3)//(S))+1]"),
        ("enlarge(k){kernel=[5,5]}", "float[2*O,C,5,5]"),
        ("sum(x){axes=[-2]}", "float[..B,K]"),
        ("mean(x){axes=[-2,-1], keepdim=true}", "float[..B,1,1]"),
        ("reshape(w){shape=[N,K,1]}", "float[N,K,1]"),
        ("expand(v){shape=[M,K]}", "float[M,K]"),
        ("pad(w){widths=[[1,2]]}", "float[N,K+3]"),
        ("attention(x, x, x)", "float[..B,M,K]"),
    ],
)
def test_types_follow_from_symbolic_operands(expression: str, type_: str) -> None:
    assert str(parse_graph(f"{HEADER} {{ return {expression} }}").outputs[0].type) == type_


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("add(x, w)", "is not"),
        ("matmul(w, w)", "matmul: K is not N"),
        ("sum(x){axes=[-3]}", "is a group"),
        ("concat(x, w){axis=-1}", "differ in rank"),
        ("slice(w){axis=-1, start=3, stop=1}", "length is out of range"),
        ("pad(w){widths=[[-1,2]]}", "pad cannot cut off"),
        ("permute(w){order=[-1,-1]}", "not a permutation"),
        ("reshape(w){shape=[N]}", "reshape"),
        ("conv2d(i, k)", "conv2d channels"),
        ("sum(w){axes=[0]}", "not negative"),
        ("attention(x, x, x, v){causal=true}", "attention is causal or has a mask"),
    ],
)
def test_operands_that_do_not_fit_are_refused(expression: str, message: str) -> None:
    with pytest.raises(GraphTextError, match=message):
        parse_graph(f"{HEADER} {{ return {expression} }}")


def test_the_solver_finds_the_equalities_that_make_operands_fit() -> None:
    m, k, n, o = map(symbol, "MKNO")
    solver = SizeSolver()
    (product,) = Matmul().infer([TensorType(DType.FLOAT, (m, k)), TensorType(DType.FLOAT, (n, o))], solver)
    assert solver.resolve(k) == solver.resolve(n)
    with pytest.raises(ShapeError, match="add"):
        Add().infer([product, TensorType(DType.FLOAT, (m + 1, o))], solver)


def test_a_solution_reaches_earlier_bindings() -> None:
    a, b, c = map(symbol, "abc")
    solver = SizeSolver()
    solver.equal(a, b + 1, "")
    solver.equal(b, 2 * c, "")
    assert solver.resolve(a) == 2 * c + 1


def test_element_types_are_not_mixed() -> None:
    with pytest.raises(ShapeError, match="mixes element types"):
        Linear().infer([TensorType(DType.F32, (2, 3)), TensorType(DType.F16, (4, 3))])


def test_a_window_larger_than_the_padded_image_is_refused() -> None:
    image, kernel = TensorType(DType.F32, (1, 2, 2, 2)), TensorType(DType.F32, (1, 2, 3, 3))
    with pytest.raises(ShapeError, match="window"):
        Conv2d().infer([image, kernel])
    assert Conv2d(padding=(1, 1)).infer([image, kernel])[0].shape == (1, 1, 2, 2)


def test_groups_are_axes_that_operators_leave_alone() -> None:
    grouped = TensorType(DType.FLOAT, (Group("B"), 4))
    with pytest.raises(ShapeError):
        Concat(axis=-1).infer([grouped, TensorType(DType.FLOAT, (Group("C"), 4))])
    with pytest.raises(ShapeError, match="is a group"):
        Slice(axis=-2, start=0, stop=1).infer([grouped])


def test_the_table_names_each_operator_once() -> None:
    assert all(OPERATORS[name].name == name for name in OPERATORS)
    assert set(DEFINED) < set(OPERATORS)
    assert OPERATORS["input"] is Input
