"""Calls of PyTorch that the table of operators does not know, as cases for the rows of the lowering to ONNX."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tests.backend import (
    onnx_cases_functions,
    onnx_cases_images,
    onnx_cases_linear,
    onnx_cases_losses,
    onnx_cases_moves,
    onnx_cases_order,
)
from tests.backend.onnx_calls import (
    IMAGE,
    B,
    C,
    Call,
    J,
    M,
    P,
    X,
    Y,
    booleans,
    call,
    first,
    floats,
    integers,
    positive,
)


def _functions() -> list[Call]:
    plain = "log_sigmoid relu abs neg sin cos tan asin acos atan sinh cosh asinh acosh"
    plain += " atanh log exp sqrt tanh sigmoid erf reciprocal sign log2 log10 floor ceil round trunc isnan isinf"
    domain: dict[str, Tensor] = dict.fromkeys(("log", "log2", "log10", "sqrt"), P)
    domain |= {name: X.tanh() for name in ("asin", "acos", "atanh")}
    domain |= {
        "acosh": P + 1,
        "isnan": torch.tensor([1.0, math.nan, math.inf]),
        "isinf": torch.tensor([math.nan, -math.inf]),
    }
    domain |= {
        name: torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 7.2]) for name in ("round", "floor", "ceil", "trunc")
    }
    return [call(f"{name}.default", domain.get(name, 2 * X)) for name in plain.split()] + [
        call("abs.default", M),
        call("neg.default", M),
        call("round.default", M),
        call("floor.default", M),
        call("trunc.default", M),
        call("sin.default", M),
        call("sqrt.default", J),
        call("log1p.default", torch.tensor([-1.0, -0.9, -1e-6, 0.0, 1e-9, 1e-4, 0.5, 7.0, math.inf])),
        call("hardtanh.default", X, -0.5, 0.5),
        call("clamp.default", X, -0.3),
        call("clamp.default", X, None, 0.3),
        call("clamp.default", M, -3, 4),
        call("clamp.default", M, None, 4),
        *(call("clamp.default", torch.tensor([-math.inf, 1.0, math.inf]), *limits) for limits in ((0.5,), (None, 0.5))),
        call("clamp.Tensor", X, Y, Y + 1),
        call("clamp_min.default", X, 0.1),
        call("clamp_min.Tensor", X, Y),
        call("clamp_max.default", X, 0.1),
        call("clamp_max.Tensor", X, Y),
        call("elu.default", X),
        call("elu.default", X, 1.67, 1.05),
        call("celu.default", X, 0.7),
        call("softplus.default", 30 * X),
        call("softplus.default", X, 2.0, 1.0),
        call("glu.default", floats(2, 6), -1),
        call("prelu.default", IMAGE, floats(4)),
        call("prelu.default", X, floats(1)),
        call("_prelu_kernel.default", X, floats(1, 1)),
    ]


def _arithmetic() -> list[Call]:
    whole = torch.tensor([-7, -6, 6, 7, 0])
    return [
        call("add.Tensor", M, J),
        call("add.Tensor", X, Y, alpha=0.5),
        call("add.Tensor", M, X),
        call("add.Scalar", M, 3),
        call("sub.Tensor", M, J, alpha=2),
        call("sub.Scalar", M, 3),
        call("mul.Tensor", M, J),
        call("mul.Scalar", M, 3),
        call("div.Tensor", M, J),
        call("div.Scalar", M, 3),
        *(
            call("div.Tensor_mode", a, b, rounding_mode=mode)
            for mode in ("floor", "trunc")
            for a, b in ((M, J), (M, -J), (X, Y))
        ),
        call("div.Scalar_mode", whole, 4, rounding_mode="floor"),
        call("floor_divide.default", whole, torch.tensor(4)),
        call("floor_divide.Scalar", whole, -4)
        if hasattr(torch.ops.aten.floor_divide, "Scalar")
        else call("floor_divide.default", whole, torch.tensor(-4)),
        *(call("remainder.Tensor", a, b) for a, b in ((M, J), (M, -J), (X, Y), (X, P))),
        call("remainder.Scalar", whole, 4),
        call("remainder.Scalar", X, -0.3),
        call("fmod.Tensor", X, Y),
        call("fmod.Scalar", whole, 4),
        call("maximum.default", X, Y),
        call("minimum.default", M, J),
        call("pow.Tensor_Scalar", P, 3),
        call("pow.Tensor_Scalar", X, 2),
        call("pow.Tensor_Scalar", P, 0.5),
        call("pow.Tensor_Scalar", P, -1.5),
        call("pow.Tensor_Tensor", P, X),
        call("pow.Scalar", 2.0, X),
        call("addcmul.default", X, Y, P, value=0.3),
        call("addcdiv.default", X, Y, P),
    ]


def _comparisons() -> list[Call]:
    found: list[Call] = []
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        found += [
            call(f"{name}.Tensor", M, J),
            call(f"{name}.Tensor", X, Y),
            call(f"{name}.Tensor", M, X),
            call(f"{name}.Tensor", B, C),
            call(f"{name}.Scalar", M, 0.5),
            call(f"{name}.Scalar", X, 0),
        ]
    for name in ("and", "or", "xor"):
        found += [
            call(f"{stem}.Tensor", *pair) for stem in (f"bitwise_{name}", f"__{name}__") for pair in ((B, C), (M, J))
        ]
        found += [call(f"{stem}.Scalar", M, 5) for stem in (f"bitwise_{name}", f"__{name}__")]
        found += [call(f"logical_{name}.default", B, C), call(f"logical_{name}.default", X, M)]
    return [
        *found,
        call("bitwise_not.default", B),
        call("bitwise_not.default", M),
        call("logical_not.default", M),
        call("where.self", B, X, Y),
        call("where.self", booleans(3), X, torch.tensor(2.0)),
        call("where.ScalarOther", B, X, -math.inf),
        call("where.ScalarSelf", B, 0.5, X),
        call("where.Scalar", B, 1.0, 0.0),
        call("masked_fill.Scalar", X, B, -math.inf),
        call("masked_fill.Tensor", X, B, torch.tensor(3.0)),
        call("threshold.default", torch.tensor([-1.0, 0.5, 0.6, math.nan]), 0.5, -3.0),
        call("lerp.Scalar", X, Y, 0.3),
        call("lerp.Scalar", 1e8 * X, Y, 1.0),
        call("lerp.Tensor", 1e8 * X, Y, torch.tensor([0.0, 1.0, 1.0])),
        call("lerp.Tensor", X, Y, 2 * floats(2, 3, seed=2)),
    ]


def _reductions() -> list[Call]:
    x = floats(2, 3, 4)
    found: list[Call] = []
    for name in ("sum.dim_IntList", "mean.dim", "amax.default", "amin.default", "logsumexp.default"):
        found += [call(name, x, [1]), call(name, x, [0, 2], True), call(name, x, [-1])]
    for name in ("any", "all"):
        found += [call(f"{name}.default", B), call(f"{name}.dim", B, 1), call(f"{name}.dims", B, [0, 1], True)]
    for name in ("max", "min"):
        found += [call(f"{name}.default", x), call(f"{name}.dim", x, 1), call(f"{name}.dim", x, -1, True)]
        found.append(first(call(f"{name}.dim", x, 0)))
        found += [
            call(f"arg{name}.default", x),
            call(f"arg{name}.default", x, 1),
            call(f"arg{name}.default", x, -1, True),
        ]
    return [
        *found,
        call("sum.default", M),
        call("sum.dim_IntList", J, [1]),
        *(call(target, floats(), [-1]) for target in ("sum.dim_IntList", "amax.default")),
        call("std.correction", floats(), [0], correction=0),
        call("mean.default", x),
        call("prod.default", x),
        call("prod.dim_int", x, 1, True),
        call("topk.default", x, 2),
        call("topk.default", x, 2, 1, False),
        call("cumsum.default", x, 1),
        call("cumsum.default", B, -1),
        call("softmax.int", x, 1),
        call("_softmax.default", x, 1, False),
        call("log_softmax.int", x, -1),
        call("_log_softmax.default", x, 0, False),
        call("var.correction", x, [1]),
        call("var.correction", x, [0, 2], correction=0, keepdim=True),
        call("std.correction", x, [-1], correction=1),
        call("var_mean.correction", x, [-1], correction=0),
        call("std_mean.correction", x, [0, 2], keepdim=True),
        call("linalg_vector_norm.default", x, 2, [1], True),
        call("linalg_vector_norm.default", x, math.inf, [1]),
        call("linalg_vector_norm.default", x, 1),
        call("norm.ScalarOpt_dim", x, 2, [1], True),
        call("cosine_similarity.default", x, x[:1] + 1),
        call("cosine_similarity.default", x, x[0] + 1, 2),
        call("cosine_similarity.default", x * 0, x, -1, 0.1),
        call("pairwise_distance.default", X, Y),
        call("pairwise_distance.default", X, Y[:1], 1.0, 0.5, True),
    ]


def _attention() -> list[Call]:
    q, k, shared = floats(2, 4, 5, 8), floats(2, 1, 5, 8, seed=1), floats(1, 1, 7, 8, seed=2)
    name = "scaled_dot_product_attention.default"
    return [
        call(name, q, k, k),
        call(name, q, shared, shared, scale=0.3),
        call(name, q, k, k, None, 0.0, True),
        call(name, q, shared, shared, floats(5, 7, seed=3)),
        call(name, q, shared, shared, booleans(2, 1, 5, 7)),
    ]


def _movement() -> list[Call]:
    x = floats(2, 3, 4)
    return [
        *(call(f"{name}.default", X) for name in ("clone", "contiguous", "alias", "detach", "lift_fresh_copy")),
        call("_to_copy.default", X, dtype=torch.int64),
        call("to.dtype", B, torch.float32),
        *(call(f"{name}.default", x, [6, 4]) for name in ("reshape", "view", "_unsafe_view", "view_copy")),
        call("expand.default", floats(2, 1), [4, 2, -1]),
        call("roll.default", x, [1, -2], [0, 2]),
        call("roll.default", x, [5]),
        call("flip.default", x, [0, 2]),
        call("flip.default", floats(), [-1]),
        call("repeat.default", X, [2, 1, 3]),
        call("repeat_interleave.self_int", x, 3, 1),
        call("tril.default", x),
        call("triu.default", x, 1),
        *(call("pad.default", IMAGE, [1, 2, 2, 1], mode) for mode in ("constant", "reflect", "replicate", "circular")),
        call("pad.default", IMAGE, [1, 2, 2, 1], "constant", -math.inf),
        call("pad.default", IMAGE, [-1, 2]),
        call("constant_pad_nd.default", M, [1, 2], 7),
        call("reflection_pad1d.default", x, [1, 2]),
        call("reflection_pad2d.default", IMAGE, [1, 2, 0, 1]),
        call("reflection_pad3d.default", floats(1, 2, 3, 4, 3), [1, 2, 0, 1, 1, 1]),
        call("replication_pad1d.default", x, [1, 2]),
        call("replication_pad2d.default", IMAGE, [1, 2, 0, 1]),
        call("replication_pad3d.default", floats(1, 2, 3, 4, 3), [1, 2, 0, 1, 1, 1]),
        call("copy.default", x, floats(2, 3, 4)),
        call("copy.default", x, floats(3, 1)),
        call("copy.default", x, positive(4).to(torch.int32)),
        call("slice_scatter.default", x, floats(2, 2, 4), 1, 1, 3),
        call("slice_scatter.default", x, floats(2, 3, 2), 2, -2),
        call("slice_scatter.default", x, floats(2, 3, 2), -1, 1, None, 2),
        call("tile.default", x, [2, 1]),
        call("tile.default", x, [2, 1, 3, 1]),
        call("zero.default", x),
        call("zero.default", x[0, 0, 0]),
        call("fill.Scalar", x, 2.5),
        call("fill.Tensor", x, floats()),
        call("fill.Tensor", J, floats() * 9),
        call("select_scatter.default", x, floats(2, 4), 1, -1),
        call("select_scatter.default", x, floats(3, 4), 0, -1),
        call("einsum.default", "bij,bkj->bik", [x, floats(2, 5, 4)]),
        call("mm.default", X, floats(3, 4)),
        call("bmm.default", x, floats(2, 4, 5)),
        call("matmul.default", x, floats(4)),
        call("mv.default", X, floats(3)),
        call("dot.default", floats(3), floats(3, seed=1)),
        call("addmm.default", floats(4), X, floats(3, 4), beta=0.5, alpha=2),
        call("baddbmm.default", floats(2, 3, 5), x, floats(2, 4, 5), beta=0),
        call("baddbmm.default", floats(2, 3, 5), x, floats(2, 4, 5), alpha=0.25),
    ]


def _indexing() -> list[Call]:
    x = floats(4, 5, 6)
    i, j = integers(2, 3, below=4), integers(3, below=5) - 5
    return [
        call("gather.default", x, 1, integers(4, 2, 6)),
        call("index.Tensor", x, [i, j]),
        call("index.Tensor", x, [None, i, j]),
        call("index.Tensor", x, [i, None, j]),
        call("index.Tensor", x, [i, j, integers(1, below=6)]),
        call("index_add.default", x, 1, torch.tensor([4, 0, 4]), floats(4, 3, 6, seed=1)),
        call("index_copy.default", x, 1, torch.tensor([4, 0]), floats(4, 2, 6, seed=1)),
        call("index_copy.default", x, -1, torch.tensor([3]), floats(4, 5, 1, seed=1)),
        call("index_copy.default", x, 0, torch.tensor(2), floats(1, 5, 6, seed=1)),
        call("index_put.default", x, [torch.tensor([3, 1])], floats(2, 5, 6, seed=1)),
        call("index_put.default", x, [None, torch.tensor([3, 1])], floats(2, 1, seed=1)),
        call("index_put.default", x, [None, None, torch.tensor(-1)], floats(5, seed=1)),
        call("index_put.default", x, [None, torch.tensor([0, -2])], floats(6, seed=1), True),
        call("index_put.default", x, [torch.tensor([[3, 1]])], floats(5, 6, seed=1)),
        call("index_put.default", x, [torch.tensor([3, -1]), torch.tensor([[0], [4]])], floats(6, seed=1)),
        call(
            "index_put.default",
            x,
            [torch.tensor([3, 1]), torch.tensor([0, 4]), torch.tensor([5, 0])],
            floats(2, seed=1),
            True,
        ),
        call("scatter.src", x, 1, integers(4, 1, 6), floats(4, 5, 6, seed=1)),
        call("scatter.value", x, 1, integers(4, 1, 6), 2.5),
        call("scatter_add.default", x, 1, integers(4, 3, 6), floats(4, 3, 6, seed=1)),
    ]


def _pools() -> list[Call]:
    line, volume = floats(2, 3, 11), floats(1, 2, 5, 6, 7)
    found: list[Call] = []
    for ceil in (False, True):
        found += [
            call("max_pool1d.default", line, [3], [2], [1], [1], ceil),
            call("max_pool2d.default", IMAGE, [3, 2], [2, 3], [1, 1], [1, 2], ceil),
            call("max_pool3d.default", volume, [2], [2], [0], [1], ceil),
            call("avg_pool1d.default", line, [3], [2], [1], ceil),
            *(call("avg_pool2d.default", IMAGE, [3], [2], [1], ceil, include) for include in (False, True)),
            call("avg_pool2d.default", IMAGE, [2, 3], [], [0], ceil, True, 5),
            call("avg_pool3d.default", volume, [2], [2], [0], ceil),
            call("avg_pool2d.default", floats(1, 1, 8, 8), [3], [4], [1], ceil, True),
        ]
    return [
        *found,
        call("max_pool2d.default", floats(3, 7, 7), [3], [2]),
        first(call("max_pool2d_with_indices.default", IMAGE, [3], [2], [1])),
        first(call("max_pool3d_with_indices.default", volume, [3], [2], [1])),
        first(call("adaptive_max_pool1d.default", line, [1])),
        first(call("adaptive_max_pool2d.default", IMAGE, [7, 2])),
        first(call("adaptive_max_pool3d.default", volume, [1, 2, 7])),
        call("adaptive_avg_pool1d.default", line, [1]),
        call("adaptive_avg_pool1d.default", line, [4]),
        call("adaptive_avg_pool2d.default", IMAGE, [3, 4]),
        call("_adaptive_avg_pool2d.default", IMAGE, [7, 3]),
        call("adaptive_avg_pool3d.default", volume, [2, 3, 1]),
        call("_adaptive_avg_pool3d.default", volume, [1, 1, 1]),
    ]


def _images() -> list[Call]:
    line, volume = floats(2, 4, 11), floats(1, 2, 5, 6, 7)
    found: list[Call] = []
    for name, x, size in (("1d", line, [22]), ("2d", IMAGE, [14, 9]), ("3d", volume, [10, 8, 7])):
        found += [call(f"upsample_nearest{name}.default", x, size), call(f"upsample_nearest{name}.vec", x, size, None)]
        found.append(call(f"upsample_nearest{name}.vec", x, None, [2.0] * len(size)))
    for name, x, size in (
        ("linear1d", line, [17]),
        ("bilinear2d", IMAGE, [14, 9]),
        ("trilinear3d", volume, [10, 8, 7]),
        ("bicubic2d", IMAGE, [5, 9]),
    ):
        for corners in (False, True):
            found.append(call(f"upsample_{name}.default", x, size, corners))
            found.append(call(f"upsample_{name}.vec", x, None, corners, [2.0] * len(size)))
        found.append(call(f"upsample_{name}.vec", x, size, False, None))
    return [
        *found,
        call("upsample_nearest2d.vec", IMAGE, None, [1.7, 2.3]),
        call("upsample_bilinear2d.vec", IMAGE, None, False, [1.7, 2.3]),
        call("conv1d.default", line, floats(6, 2, 3), floats(6), [2], [1], [1], 2),
        call("conv2d.default", floats(4, 7, 6), floats(6, 4, 3, 3)),
        call("conv3d.default", volume, floats(3, 2, 2, 2, 2), None, [1], [1]),
        call("convolution.default", line, floats(4, 3, 3), None, [2], [1], [1], True, [1], 2),
        call(
            "convolution.default",
            volume,
            floats(3, 2, 2, 2, 2),
            floats(3),
            [1, 2, 1],
            [0, 1, 1],
            [1, 1, 1],
            False,
            [0],
            1,
        ),
        call("conv_transpose1d.default", line, floats(4, 3, 3), floats(3), [2], [1], [1]),
        call("conv_transpose2d.input", IMAGE, floats(4, 3, 3, 2), floats(6), [2], [1], [1], 2, [2, 1]),
        call("conv_transpose3d.input", volume, floats(2, 3, 2, 2, 2), None, [2]),
        call("group_norm.default", IMAGE, 2, floats(4), floats(4)),
        call("group_norm.default", IMAGE, 4),
        first(call("native_group_norm.default", IMAGE, floats(4), floats(4), 2, 4, 42, 2, 0.001)),
        call("instance_norm.default", IMAGE, floats(4), floats(4), None, None, True, 0.1, 1e-05, False),
        call("instance_norm.default", line, None, None, None, None, True, 0.1, 1e-05, False),
        call("pixel_shuffle.default", IMAGE, 2),
        call("pixel_unshuffle.default", floats(2, 3, 4, 6), 2),
        *(
            call("grid_sampler.default", IMAGE, floats(2, 5, 4, 2), mode, padding, corners)
            for mode, padding, corners in ((0, 0, False), (1, 1, True), (0, 2, True))
        ),
        call("grid_sampler_2d.default", IMAGE, floats(2, 5, 4, 2), 0, 0, True),
    ]


_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""The kinds of recurrent layers, and how many gates each has."""


def _recurrent(name: str, *, layers: int = 1, both: bool = False, first: bool = False, biases: bool = True) -> Call:
    gates, directions, batch, hidden, features = _GATES[name], 2 if both else 1, 3, 5, 4
    parameters: list[Tensor] = []
    for layer in range(layers):
        given = features if layer == 0 else hidden * directions
        for direction in range(directions):
            shapes = [(gates * hidden, given), (gates * hidden, hidden), *[(gates * hidden,)] * (2 if biases else 0)]
            parameters += [floats(*shape, seed=len(parameters) + i + direction) for i, shape in enumerate(shapes)]
    state = floats(layers * directions, batch, hidden)
    hx: Any = [state, state.flip(0)] if name == "lstm" else state
    x = floats(batch, 6, features) if first else floats(6, batch, features)
    return call(f"{name}.input", x, hx, parameters, biases, layers, 0.0, False, both, first)


RECURRENT = [
    _recurrent(name, layers=layers, both=both, first=first, biases=biases)
    for name in _GATES
    for layers, both, first, biases in ((1, False, False, True), (2, True, True, True), (1, True, False, False))
]


CASES = [
    *onnx_cases_functions.CASES,
    *onnx_cases_images.CASES,
    *onnx_cases_linear.CASES,
    *onnx_cases_losses.CASES,
    *onnx_cases_moves.CASES,
    *onnx_cases_order.CASES,
    *_functions(),
    *_arithmetic(),
    *_comparisons(),
    *_reductions(),
    *_attention(),
    *_movement(),
    *_indexing(),
    *_pools(),
    *_images(),
    *RECURRENT,
]
