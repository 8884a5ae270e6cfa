"""Linear algebra, norms and distances as cases for the rows of the lowering to ONNX."""

from __future__ import annotations

import math

import torch

from tests.backend.onnx_calls import Call, J, M, X, Y, call, floats, integers


def _products() -> list[Call]:
    square, batch, three = floats(4, 4), floats(3, 2, 4), floats(2, 3, 5)
    return [
        call("vdot.default", floats(5), floats(5, seed=1)),
        call("ger.default", X[0], Y[:, 0]),
        call("outer.default", X[0], Y[:, 0]),
        call("chain_matmul.default", [X, floats(3, 4), square]),
        call("addmv.default", floats(2), X, Y[0]),
        call("addmv.default", floats(1), X, Y[0], beta=0.5, alpha=2),
        call("addbmm.default", floats(2, 5), batch, floats(3, 4, 5), beta=2),
        call("addbmm.default", floats(2, 5) * math.nan, batch, floats(3, 4, 5), beta=0, alpha=0.5),
        call("addr.default", X, floats(2), floats(3), beta=0.5, alpha=-1),
        *(call("matrix_power.default", square, power) for power in (1, 2, 3, 7)),
        call("matrix_power.default", floats(2, 3, 3), 4),
        call("bilinear.default", X, floats(2, 4), floats(5, 3, 4), floats(5)),
        call("bilinear.default", floats(2, 3, 4), floats(2, 3, 5), floats(6, 4, 5)),
        call("linalg_cross.default", X, Y),
        call("linalg_cross.default", three, floats(2, 3, 1), dim=-2),
        call("cross.default", floats(4, 3), floats(4, 3, seed=1)),
        call("cross.default", floats(3, 4), floats(3, 4, seed=1), 0),
        call("kron.default", X, floats(4, 2)),
        call("kron.default", floats(3), floats(2, 1, 4)),
        call("kron.default", M, J),
        *(call("diagonal.default", floats(4, 6), offset) for offset in (0, 2, -1, 5)),
        call("diagonal.default", floats(2, 3, 4, 5), 1, 2, 0),
        call("diagonal.default", floats(2, 3, 4), -1, -2, -1),
        call("diag.default", floats(4, 3)),
        call("diag.default", floats(4, 3), -1),
        *(call("trace.default", x) for x in (square, X, integers(5, 3))),
    ]


def _distances() -> list[Call]:
    x, many = floats(2, 4, 3), floats(30, 3, seed=1)
    nan = torch.tensor([[math.nan, 1.0, 2.0], [3.0, math.inf, 4.0]])
    return [
        *(call("cdist.default", x, floats(2, 5, 3, seed=1), p) for p in (1.0, 2.0, 2.5)),
        call("cdist.default", x, many),
        call("cdist.default", torch.cat([x, x * math.nan, x * math.inf], 1), many),
        call("cdist.default", X, Y, 2.0, 1),
        call("cdist.default", many, X, 2.0, 2),
        *(call("cdist.default", nan, Y, p) for p in (1.0, 2.0, 3.0)),
        call("dist.default", nan, Y, math.inf),
        call("linalg_vector_norm.default", nan, -math.inf, [1]),
        *(call("dist.default", X, Y, p) for p in (2, 1, 3, 0, math.inf)),
        call("dist.default", X, Y[0]),
        *(call("linalg_vector_norm.default", x * (x > 0), p, [1]) for p in (0, 3, 0.5)),
        call("linalg_vector_norm.default", x, -math.inf, [1], True),
        call("linalg_vector_norm.default", x, -1.5),
        call("pairwise_distance.default", X, Y, 3.0),
        call("linalg_norm.default", x),
        call("linalg_norm.default", x, None, [0, 2], True),
        call("linalg_norm.default", x, 1, [1]),
        call("linalg_norm.default", floats(5), math.inf),
        call("linalg_norm.ord_str", X, "fro"),
        call("linalg_norm.ord_str", x, "fro", [0, -1], True),
        call("linalg_matrix_norm.str_ord", x),
        call("norm.Scalar", x),
        call("norm.Scalar", x, 1),
    ]


def _reductions() -> list[Call]:
    x = torch.tensor([[1.0, math.nan, -2.0], [math.nan, math.nan, math.nan], [0.0, 3.0, math.inf]])
    found: list[Call] = []
    for name in ("nansum", "nanmean"):
        found += [call(f"{name}.default", x, [1]), call(f"{name}.default", x), call(f"{name}.default", x, [0], True)]
    return [
        *found,
        call("nansum.default", M),
        call("aminmax.default", X),
        call("aminmax.default", x, dim=1),
        call("aminmax.default", M, dim=0),
        call("aminmax.default", floats(2, 3, 4), dim=1, keepdim=True),
        call("count_nonzero.default", x),
        call("count_nonzero.default", M, 1),
        call("count_nonzero.dim_IntList", M > 0, [0, 1]),
    ]


CASES = [*_products(), *_distances(), *_reductions()]
