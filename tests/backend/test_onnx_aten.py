"""Rows of calls outside the table compute in engines what PyTorch does."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from taso_py.backend.onnx import OPAQUE_IN_ONNX, NotInOnnx, onnx_model
from tests.backend.onnx_calls import IMAGE, B, Call, M, X, Y, call, first, floats, graph_of, integers, positive
from tests.backend.onnx_cases import CASES, RECURRENT
from tests.backend.onnx_engines import ENGINES, run_onnx

engines = pytest.mark.parametrize("engine", ENGINES)


def assert_agrees(engine: str, given: Call, weights: Sequence[int] = ()) -> None:
    graph, inputs, held, results = graph_of(given, weights)
    found = run_onnx(engine, graph, inputs, held)
    for before, after in zip(results, found, strict=True):
        assert before is not None
        assert before.dtype == after.dtype
        torch.testing.assert_close(after, before, rtol=5e-5, atol=5e-5, equal_nan=True)


@engines
@pytest.mark.parametrize("given", CASES, ids=lambda given: given.target.removeprefix("aten."))
def test_engines_compute_what_pytorch_does(engine: str, given: Call) -> None:
    assert_agrees(engine, given)


_MIXED = [math.nan, math.inf, -0.0, 2.0, -math.inf, 0.0, math.nan, 2.0, math.inf, -math.inf]


# OpenVINO puts NaN anywhere, and equal elements into an order of its own: graphs that sort are not given to it.
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool])
def test_equal_elements_keep_their_order_and_nan_is_greatest(descending: bool, dtype: torch.dtype) -> None:
    x = torch.tensor(_MIXED) if dtype.is_floating_point else integers(2, 40)
    for name in ("sort.stable", "argsort.stable"):
        assert_agrees("onnxruntime", call(name, x.to(dtype), stable=True, dim=-1, descending=descending))
    # Of equal elements, PyTorch gives any order unless it is asked to keep theirs.
    assert_agrees("onnxruntime", first(call("sort.default", x.to(dtype), -1, descending)))


# OpenVINO rounds the quotient first: graphs with such divisions are not given to it.
@pytest.mark.parametrize("name", ["floor_divide.default", "remainder.Tensor", "fmod.Tensor"])
def test_a_quotient_that_is_rounded_up_to_an_integer_is_less_than_it(name: str) -> None:
    left = torch.tensor([1.0, 7.0, -1.0, 3.0, 0.3, 1e8, 5.0, -5.0, 2.0, math.inf, math.nan, -3.0])
    right = torch.tensor([0.1, 0.1, 0.1, -0.1, 0.1, 0.3, math.inf, math.inf, 0.7, 2.0, 1.0, 0.0])
    assert_agrees("onnxruntime", call(name, left, right))


@engines
@pytest.mark.parametrize("mode", [0, 1])
def test_bags_of_one_size_are_sums_along_an_axis(engine: str, mode: int) -> None:
    arguments = [
        floats(5, 3),
        torch.tensor([1, 4, 0, 3, 3, 2]),
        torch.tensor([0, 2, 4]),
        False,
        mode,
        False,
        None,
        False,
    ]
    given = first(call("embedding_bag.padding_idx", *arguments, 3))
    graph, _, held, _ = graph_of(given, [2])
    assert "ScatterElements" not in [node.op_type for node in onnx_model(graph, held).graph]
    assert_agrees(engine, given, [2])


def test_rows_write_no_node_that_nothing_reads() -> None:
    for given in CASES:
        graph, _, held, _ = graph_of(given)
        model = onnx_model(graph, held)
        read = set(model.graph.outputs)
        unread = [node.op_type for node in model.graph if not any(x.uses() or x in read for x in node.outputs)]
        assert not unread, given.target


@engines
@pytest.mark.parametrize("name", ["expm1", "log1p"])
def test_results_close_to_zero_are_accurate(engine: str, name: str) -> None:
    given = call(f"{name}.default", torch.logspace(-20, 1, 200) * torch.tensor([[1.0], [-0.09]]))
    graph, inputs, held, results = graph_of(given)
    torch.testing.assert_close(run_onnx(engine, graph, inputs, held), results, rtol=1e-6, atol=0)


@pytest.mark.parametrize("k", range(1, len(_MIXED) + 1))
def test_nan_has_the_last_ranks(k: int) -> None:
    assert_agrees("onnxruntime", first(call("kthvalue.default", torch.tensor(_MIXED), k)))


def test_every_row_is_compared() -> None:
    # Tensors of fixed sizes are computed when the model is made: these rows are for open ones.
    made = {
        "arange",
        "full",
        "zeros",
        "ones",
        "full_like",
        "zeros_like",
        "ones_like",
        "new_full",
        "new_zeros",
        "new_ones",
    }
    assert OPAQUE_IN_ONNX - {given.target for given in CASES} == {
        target for target in OPAQUE_IN_ONNX if target.split(".")[1] in made
    }


@engines
@pytest.mark.parametrize("given", RECURRENT, ids=lambda given: given.target)
def test_recurrent_layers_with_weights_of_their_own_are_one_operator_a_layer(engine: str, given: Call) -> None:
    free = 3 if given.target == "aten.lstm.input" else 2
    weights = range(free, free + len(given.args[2]))
    graph, _, held, _ = graph_of(given, weights)
    kinds = [node.op_type for node in onnx_model(graph, held).graph]
    assert len([kind for kind in kinds if kind in ("LSTM", "GRU", "RNN")]) == given.args[4]
    assert "Split" not in kinds
    assert_agrees(engine, given, weights)


def test_layers_that_drop_out_or_project_are_refused() -> None:
    projected = torch.nn.LSTM(4, 6, proj_size=3)
    parameters = [p.detach() for p in projected.parameters()]
    hx = [floats(1, 2, 3), floats(1, 2, 6)]
    given = call("lstm.input", floats(5, 2, 4), hx, parameters, True, 1, 0.0, False, False, False)
    with pytest.raises(NotInOnnx, match=r"aten\.lstm\.input projects its state, which cannot be expressed"):
        onnx_model(graph_of(given)[0], {})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (call("index.Tensor", X, [B]), "indexes with a mask"),
        (call("gather.default", floats(), 0, torch.tensor(0)), "reads a number by an index"),
        (call("scatter.src", floats(), 0, torch.tensor(0), floats()), "writes to a number"),
        (call("cosine_similarity.default", X, X[:, :1]), "repeats a vector's elements"),
        (call("cosine_similarity.default", IMAGE, IMAGE[0, 0]), "repeats a vector's elements"),
        (call("one_hot.default", torch.tensor(1), 3), "a number as its operand"),
        (call("sort.default", floats()), "sorts a number"),
        (call("sort.default", X.double()), "double precision"),
        (call("quantile.scalar", floats(), 0.5, 0), "sorts a number"),
        (call("kthvalue.default", X, 2), "result 1 of aten.kthvalue"),
        (call("median.dim", X, 1), "result 1 of aten.median"),
        (call("searchsorted.Tensor", X[0], Y, sorter=torch.tensor([0, 2, 1])), "not in order"),
        (call("unfold.default", floats(), 0, 1, 1), "windows of a number"),
        (call("cdist.default", X, Y, math.inf), "rules of its own for NaN"),
        (call("cdist.default", X, Y, 0.0), "rules of its own for NaN"),
        (call("linalg_norm.default", X, 1), "norm of matrices of order 1"),
        (call("linalg_norm.ord_str", X, "nuc"), "takes the norm nuc"),
        (call("matrix_power.default", floats(3, 3), -1), "inverts a matrix"),
        (call("matrix_power.default", floats(3, 3), 0), "inverts a matrix, or makes one"),
        (call("diag.default", floats(3), 1), "makes a matrix"),
        (call("diagonal.default", X, 3), "diagonal without elements"),
        (call("trapezoid.x", floats(2, 3, 4), floats(3, 4)), "fewer axes of places"),
        (call("block_diag.default", [X, floats(3)]), "puts vectors on a diagonal"),
        (call("index_put.default", X, [B], floats(int(B.sum()))), "values of their own"),
        (call("index_put.default", X, [B], torch.tensor(1.0), True), "values of their own"),
        (call("index_fill.int_Scalar", floats(), 0, torch.tensor([0]), 1.0), "writes to a number"),
        (call("scatter_reduce.two", M, 1, integers(2, 3, below=3), M, "mean"), "means of integers"),
        (call("cumprod.default", floats(2, 129), 1), "more than 128 steps"),
        (call("cumprod.default", floats(), 0), "runs along no axis"),
        (call("cummax.default", B, 0), "compares booleans"),
        (call("rrelu.default", X, 0.1, 0.3, True), "draws slopes"),
        (call("__lshift__.Scalar", integers(3), 63), "shifts"),
        (call("__rshift__.Scalar", integers(3).to(torch.int8), 1), "shifts"),
        (call("instance_norm.default", IMAGE, None, None, floats(4), positive(4), False, 0.1, 1e-5, False), "running"),
        (call("adaptive_max_pool2d.default", IMAGE, [3, 2]), "result 1 of aten.adaptive_max_pool2d"),
        (first(call("embedding_bag.default", X, *2 * [torch.tensor([0, 1])], False, 2)), "takes maxima"),
        (call("max_pool2d_with_indices.default", IMAGE, [3]), "result 1 of aten.max_pool2d_with_indices"),
    ],
    ids=lambda argument: argument.target if isinstance(argument, Call) else "",
)
def test_what_a_row_does_not_know_is_refused(given: Call, why: str) -> None:
    with pytest.raises(NotInOnnx, match=why):
        onnx_model(graph_of(given)[0], {})
