"""What practitioners expect of models of images, each searched with the shipped rules at the default limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fuzz.prices import ModelledCost
from taso_py.backend import UNLIMITED, build, fold
from taso_py.frontend import import_module
from taso_py.ir.node import Value
from taso_py.ir.operator import Input
from taso_py.search.backtracking import search
from tests.driver.test_practice import Case, Model, matcher, normalization, randn

SMALL, LARGE = randn(2, 64, 12, 12), randn(2, 64, 24, 24)
JOINT = nn.Conv2d(128, 24, 1)


def _twice(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2.0)


def _copied(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    return x[:, :, :, None, :, None].expand(n, c, h, 2, w, 2).reshape(n, c, 2 * h, 2 * w)


def _joint(m: Any, x: Tensor, y: Tensor) -> Tensor:
    return m.a(torch.cat([_twice(x), y], 1))


def _pooled_beside(m: Any, x: Tensor) -> Tensor:
    pooled = F.interpolate(F.adaptive_avg_pool2d(x, 1), x.shape[-2:])
    return m.a(torch.cat([x, pooled], 1))


def _both(m: Any, x: Tensor) -> Tensor:
    return m.b(_twice(m.a(x)))


def _interpolated(m: Any, x: Tensor, y: Tensor) -> Tensor:
    """The joint of a pyramid whose levels are all brought to the size of the largest."""
    levels = [F.interpolate(z, size=y.shape[-2:], mode="bilinear") for z in (x[:, :, ::2, ::2], x, F.relu(x))]
    return m.b(m.a(torch.cat([*levels, y], 1)))


def _spread(m: Any, x: Tensor) -> Tensor:
    pooled = F.interpolate(F.adaptive_avg_pool2d(x, 1), size=x.shape[-2:], mode="bilinear")
    return m.a(torch.cat([x, F.relu(x), F.tanh(x), pooled], 1))


_ALL_BUT_ONE = (
    "add(add(conv2d(y), upsample_bilinear2d(conv2d(slice(slice(x))))), "
    "upsample_bilinear2d(add(conv2d(relu(x)), conv2d(x))))"
)

CASES = {
    "a pointwise convolution of an enlarged image": Case(
        lambda m, x: F.relu(m.a(_twice(x))),
        (SMALL,),
        "upsample_nearest2d(relu(conv2d(x)))",
        {"a": nn.Conv2d(64, 24, 1)},
    ),
    "a pointwise convolution of an interpolated image": Case(
        lambda m, x: F.relu(m.a(F.interpolate(x, scale_factor=4, mode="bilinear"))),
        (SMALL,),
        "relu(upsample_bilinear2d(conv2d(x)))",
        {"a": nn.Conv2d(64, 24, 1, bias=False)},
    ),
    "normalization of an enlarged image": Case(
        lambda m, x: F.silu(_both(m, x)),
        (SMALL,),
        "upsample_nearest2d(silu(conv2d(x)))",
        {"a": nn.Conv2d(64, 32, 3, padding=1), "b": normalization(32)},
    ),
    "the joint of a pyramid": Case(
        _joint, (SMALL, LARGE), "add(conv2d(y), upsample_nearest2d(conv2d(x)))", {"a": JOINT}
    ),
    "the joint of a pyramid the other way round": Case(
        lambda m, x, y: m.a(torch.cat([y, _twice(x)], 1)),
        (SMALL, LARGE),
        "add(conv2d(y), upsample_nearest2d(conv2d(x)))",
        {"a": JOINT},
    ),
    "the joint of a pyramid, normalized and activated": Case(
        lambda m, x, y: F.silu(m.b(_joint(m, x, y))),
        (SMALL, LARGE),
        "silu(add(conv2d(y), upsample_nearest2d(conv2d(x))))",
        {"a": nn.Conv2d(128, 24, 1, bias=False), "b": normalization(24)},
    ),
    "the joint of a pyramid with an image enlarged by copies": Case(
        lambda m, x, y: m.a(torch.cat([_copied(x), y], 1)),
        (SMALL, LARGE),
        "add(conv2d(y), upsample_nearest2d(conv2d(x)))",
        {"a": JOINT},
    ),
    "a global average beside the image": Case(
        _pooled_beside, (SMALL,), "add(conv2d(adaptive_avg_pool2d(x)), conv2d(x))", {"a": JOINT}
    ),
    "a pointwise convolution with a bias of an interpolated image": Case(
        lambda m, x: m.a(F.interpolate(x, scale_factor=2, mode="bilinear")),
        (SMALL,),
        "upsample_bilinear2d(conv2d(x))",
        {"a": nn.Conv2d(64, 24, 1)},
    ),
    "the joint of an interpolated pyramid": Case(
        lambda m, x, y: m.a(torch.cat([F.interpolate(x, scale_factor=2, mode="bilinear"), y], 1)),
        (SMALL, LARGE),
        "add(conv2d(y), upsample_bilinear2d(conv2d(x)))",
        {"a": JOINT},
    ),
    "three images joined, the first enlarged": Case(
        lambda m, x, y: m.a(torch.cat([_twice(x), y, F.relu(y)], 1)),
        (SMALL, LARGE),
        "add(conv2d(concat(y, relu(y))), upsample_nearest2d(conv2d(x)))",
        {"a": nn.Conv2d(192, 24, 1)},
    ),
    "four images joined and normalized, all but one interpolated": Case(
        _interpolated, (SMALL, LARGE), _ALL_BUT_ONE, {"a": nn.Conv2d(256, 24, 1, bias=False), "b": normalization(24)}
    ),
    "averages that are spread over three maps beside them": Case(
        _spread,
        (LARGE,),
        "add(conv2d(concat(x, relu(x), tanh(x))), upsample_bilinear2d(conv2d(adaptive_avg_pool2d(x))))",
        {"a": nn.Conv2d(256, 48, 1, bias=False)},
    ),
    "enlarged twice": Case(lambda m, x: _twice(_twice(x)), (SMALL,), "upsample_nearest2d(x)"),
    "a global average of an enlarged image": Case(
        lambda m, x: F.adaptive_avg_pool2d(_twice(x), 1), (SMALL,), "adaptive_avg_pool2d(x)"
    ),
    "a global average of a normalized image": Case(
        lambda m, x: F.adaptive_avg_pool2d(m.a(x), 1),
        (SMALL,),
        "batch_norm(adaptive_avg_pool2d(x))",
        {"a": normalization(64)},
    ),
    "a mean of a normalized image": Case(
        lambda m, x: m.a(x).mean((2, 3)), (SMALL,), "batch_norm(mean(x))", {"a": normalization(64)}
    ),
    "averages of an image with its channels scaled and shifted": Case(
        lambda m, x: F.avg_pool2d(x * m.v + m.u, 2),
        (SMALL,),
        "add(mul(avg_pool2d(x)))",
        {"v": randn(64, 1, 1), "u": randn(64, 1, 1)},
    ),
}
NORMALIZED = {
    "a group normalization scaled and shifted": Case(
        lambda m, x: m.a(x) * m.v + m.u,
        (SMALL,),
        "group_norm(x)",
        {"a": nn.GroupNorm(8, 64), "v": randn(64, 1, 1), "u": randn(64, 1, 1)},
    ),
    "a group normalization of an enlarged image": Case(
        lambda m, x: F.silu(m.a(_twice(x))),
        (SMALL,),
        "upsample_nearest2d(silu(group_norm(x)))",
        {"a": nn.GroupNorm(8, 64)},
    ),
    "a shift before an instance normalization": Case(
        lambda m, x: m.a(x + m.u),
        (SMALL,),
        "instance_norm(x)",
        {"a": nn.InstanceNorm2d(64, affine=True), "u": randn(64, 1, 1)},
    ),
}
NEAR_MISSES = {
    "a shift before a group normalization": Case(
        lambda m, x: m.a(x + m.u), (SMALL,), "group_norm(add(x))", {"a": nn.GroupNorm(8, 64), "u": randn(64, 1, 1)}
    ),
    "a wider convolution of an enlarged image": Case(
        lambda m, x: m.a(_twice(x)),
        (SMALL,),
        "conv2d(upsample_nearest2d(x))",
        {"a": nn.Conv2d(64, 24, 3, padding=1)},
    ),
    "a wider convolution of a joint": Case(
        _joint,
        (SMALL, LARGE),
        "conv2d(concat(upsample_nearest2d(x), y))",
        {"a": nn.Conv2d(128, 24, 3, padding=1)},
    ),
    "a wider convolution of an interpolated image": Case(
        lambda m, x: m.a(F.interpolate(x, scale_factor=2, mode="bilinear")),
        (SMALL,),
        "conv2d(upsample_bilinear2d(x))",
        {"a": nn.Conv2d(64, 24, 3, bias=False, padding=1)},
    ),
    "a wider convolution of three images joined": Case(
        lambda m, x, y: m.a(torch.cat([_twice(x), y, F.relu(y)], 1)),
        (SMALL, LARGE),
        "conv2d(concat(upsample_nearest2d(x), y, relu(y)))",
        {"a": nn.Conv2d(192, 24, 3, padding=1)},
    ),
    "three images joined, the one between enlarged": Case(
        lambda m, x, y: m.a(torch.cat([y, _twice(x), F.relu(y)], 1)),
        (SMALL, LARGE),
        "conv2d(concat(y, upsample_nearest2d(x), relu(y)))",
        {"a": nn.Conv2d(192, 24, 1)},
    ),
    "enlarged by a fraction": Case(
        lambda m, x: m.a(F.interpolate(x, scale_factor=1.5)), (SMALL,), "conv2d(opaque(x))", {"a": nn.Conv2d(64, 24, 1)}
    ),
    "averages that count padding, of a shifted image": Case(
        lambda m, x: F.avg_pool2d(x + m.u, 3, 2, 1), (SMALL,), "avg_pool2d(add(x))", {"u": randn(64, 1, 1)}
    ),
    "an image enlarged by copies one after the other": Case(
        lambda m, x: x[:, :, None, :, None].expand(2, 64, 2, 12, 2, 12).reshape(2, 64, 24, 24),
        (SMALL,),
        "reshape(contiguous(expand(reshape(reshape(x)))))",
    ),
}


def _form(value: Value) -> str:
    """Return what is computed at run time, as nested operators; operands of commutative ones in order."""
    node = value.node
    if isinstance(node.op, Input):
        return {"args_0": "x", "args_1": "y"}[node.op.key]
    operands = [_form(operand) for operand in node.inputs if not operand.node.is_static]
    return f"{node.op.name}({', '.join(sorted(operands) if node.op.commutative else operands)})"


@pytest.mark.parametrize("name", [*CASES, *NORMALIZED, *NEAR_MISSES])
def test_what_is_computed_after_a_search(name: str) -> None:
    case = {**CASES, **NORMALIZED, **NEAR_MISSES}[name]
    model = Model(case.function, case.parts)
    program = fold(import_module(model, case.args))
    found = search(program.graph, matcher(), ModelledCost(0)).best.graph
    assert _form(found.outputs[0]) == case.left
    with torch.no_grad():
        computed = build(fold(replace(program, graph=found), UNLIMITED))(*case.args)
        torch.testing.assert_close(computed, model(*case.args), rtol=1e-9, atol=1e-9)
