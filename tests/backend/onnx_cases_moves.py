"""Calls that move elements, put them in rows, or write some of them, as cases for the rows of the lowering to ONNX."""

from __future__ import annotations

import math

import torch

from tests.backend.onnx_calls import B, C, Call, J, M, X, Y, booleans, call, floats, integers, signed


def _moves() -> list[Call]:
    x, line = floats(2, 3, 4), floats(5)
    places = torch.tensor([0.0, 0.5, 2.0, 2.5])
    return [
        *(call("rot90.default", x, k, dims) for k, dims in ((1, [0, 1]), (2, [1, -1]), (3, [0, 2]), (4, [0, 1]))),
        call("rot90.default", x, -1, [-1, 0]),
        call("diff.default", x),
        call("diff.default", x, 2, 1),
        call("diff.default", M, 1, 0),
        call("diff.default", B),
        call("diff.default", x, 1, -1, floats(2, 3, 1), floats(2, 3, 2)),
        call("diff.default", M, 1, 1, J),
        call("trapezoid.dx", x),
        call("trapezoid.dx", x, dx=0.3, dim=1),
        call("trapezoid.dx", M, dx=2),
        call("trapezoid.x", x, places),
        call("trapezoid.x", floats(2, 4, 3), places, dim=1),
        call("trapezoid.x", x, floats(2, 3, 4, seed=1), dim=0),
        call("trapz.dx", x),
        call("trapz.x", x, places),
        call("concat.default", [X, Y], 1),
        call("concat.default", [M, X]),
        call("concatenate.default", [X, Y], -1),
        call("hstack.default", [X, Y]),
        call("hstack.default", [line, torch.tensor(2.0)]),
        *(call(f"{name}.default", tensors) for name in ("vstack", "row_stack") for tensors in ([X, Y], [line, line])),
        call("dstack.default", [X, Y]),
        call("dstack.default", [line, line]),
        call("dstack.default", [x, x]),
        call("column_stack.default", [line, floats(5, 2)]),
        call("column_stack.default", [X, Y]),
        call("block_diag.default", [X, floats(1, 2), M]),
        call("repeat_interleave.self_int", x, 3),
        call("repeat_interleave.self_int", X, 2, -1),
    ]


def _writes() -> list[Call]:
    x, row = floats(4, 5, 6), torch.tensor([True, False, True, True])
    return [
        call("index_put.default", X, [B], torch.tensor(2.0)),
        call("index_put.default", M, [C], torch.tensor(7)),
        call("index_put.default", x, [row], torch.tensor(-math.inf)),
        call("index_put.default", x, [row], floats(6)),
        call("index_put.default", x, [row], floats(5, 1)),
        call("index_put.default", x, [None, booleans(5, 6)], torch.tensor(0.5)),
        call("index_put.default", x, [None, booleans(5)], floats(6)),
        call("index_add.default", x, 0, torch.tensor([3, 3, 1]), floats(3, 5, 6, seed=1), alpha=-2),
        call("index_add.default", M, 1, torch.tensor([2, 0]), integers(2, 2), alpha=3),
        call("index_fill.int_Scalar", x, 1, torch.tensor([4, 0]), 2.5),
        call("index_fill.int_Scalar", x, -1, torch.tensor(3), -1),
        call("index_fill.int_Tensor", x, 0, torch.tensor([1, 1]), torch.tensor(math.inf)),
        call("take.default", x, torch.tensor([[0, 119], [-1, 7]])),
        call("take.default", floats(), torch.tensor([0, 0])),
    ]


def _scatters() -> list[Call]:
    x, source, index = floats(4, 5), floats(4, 3, seed=1), integers(4, 3)
    found = [
        call("scatter_reduce.two", x, 1, index, source, kind, include_self=includes)
        for kind in ("sum", "prod", "mean")
        for includes in (True, False)
    ]
    found += [
        call("scatter_reduce.two", signed(4, 5), 1, index, signed(4, 3), kind, include_self=includes)
        for kind in ("sum", "prod", "amax", "amin")
        for includes in (True, False)
    ]
    nan = torch.tensor([[1.0, math.nan, -math.inf, 3.0, -2.0], [math.nan, 2.0, math.inf, 0.5, -1.0]])
    for kind in ("amax", "amin"):
        for includes in (True, False):
            for a, b in ((x, source), (nan[:, [0, 1, 2]], nan), (nan, nan[:, [0, 3, 2]])):
                places = integers(*b.shape, below=a.shape[1])
                found.append(call("scatter_reduce.two", a, 1, places, b, kind, include_self=includes))
    return [
        *found,
        call("scatter_reduce.two", x, 0, integers(2, 3, below=4), source, "mean"),
        call("scatter_reduce.two", x, -1, index, source * math.inf, "sum", include_self=False),
        *(call("scatter.reduce", x, 1, index, source, reduce=kind) for kind in ("add", "multiply")),
        *(
            call("scatter.value_reduce", x, 0, integers(2, 5, below=4), 1.5, reduce=kind)
            for kind in ("add", "multiply")
        ),
    ]


CASES = [*_moves(), *_writes(), *_scatters()]
