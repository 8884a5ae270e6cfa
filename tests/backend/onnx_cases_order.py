"""Calls that sort, look up, and list windows, as cases for the rows of the lowering to ONNX."""

from __future__ import annotations

import math

import torch

from tests.backend.onnx_calls import IMAGE, Call, call, first, floats, integers, signed

_APART = torch.randperm(24, generator=torch.Generator().manual_seed(0)).reshape(2, 3, 4)
"""Integers that differ: of equal ones, OpenVINO does not keep the order."""


def _sorts() -> list[Call]:
    x, many = floats(2, 3, 4), torch.tensor([3.0, -math.inf, 0.0, math.inf, -2.5])
    found: list[Call] = []
    for descending in (False, True):
        found += [
            call("sort.default", x, -1, descending),
            call("sort.default", _APART, 0, descending),
            call("sort.stable", x, stable=True, dim=1, descending=descending),
            call("argsort.default", x, -2, descending),
            call("argsort.stable", _APART, stable=True, descending=descending),
            first(call("sort.default", many, 0, descending)),
            call("sort.default", x.half(), -1, descending),
        ]
    return [
        *found,
        call("msort.default", x),
        call("msort.default", _APART.to(torch.uint8)),
        *(first(call("kthvalue.default", x, k, dim, keep)) for k, dim, keep in ((1, -1, False), (3, 1, True))),
        first(call("kthvalue.default", signed(2, 7), 4)),
        *(first(call("median.dim", x, dim, keep)) for dim, keep in ((-1, False), (1, True))),
        first(call("median.dim", torch.tensor([[1.0, math.nan, 2.0], [math.inf, 3.0, -math.inf]]), 1)),
        call("median.default", x),
        call("median.default", integers(3, 5)),
    ]


def _quantiles() -> list[Call]:
    x, several = floats(2, 3, 5), torch.tensor([0.0, 0.3, 0.55, 1.0])
    kinds = ("linear", "lower", "higher", "midpoint", "nearest")
    return [
        *(call("quantile.scalar", x, 0.3, -1, interpolation=kind) for kind in kinds),
        *(call("quantile.default", x, several, 1, True, interpolation=kind) for kind in kinds),
        call("quantile.default", x, several, 0),
        call("quantile.default", x, torch.tensor(0.7)),
        call("quantile.default", x, several, None, True),
        call("quantile.scalar", x, 0.95, None, True),
        call("quantile.scalar", torch.tensor([[1.0, math.nan, 2.0], [4.0, 3.0, 5.0]]), 0.5, 1),
    ]


def _lookups() -> list[Call]:
    edges, x = torch.tensor([-1.0, 0.0, 0.0, 0.5]), torch.tensor([[-1.0, 0.0, 0.2, 7.0], [0.5, -2.0, -math.inf, 0.1]])
    rows = torch.tensor([[-1.0, 0.0, 1.0], [0.0, 0.0, 0.2]])
    found: list[Call] = []
    for right in (False, True):
        found += [
            call("bucketize.Tensor", x, edges, right=right),
            call("bucketize.Tensor", signed(2, 3), torch.tensor([-3, 0, 3]), out_int32=True, right=right),
            call("searchsorted.Tensor", edges, x, right=right),
            call("searchsorted.Tensor", rows, x, out_int32=True, right=right),
            call("searchsorted.Tensor", edges, torch.tensor([math.nan, math.inf, -math.inf]), right=right),
        ]
    ids = integers(2, 3)
    return [
        *found,
        call("searchsorted.Tensor", edges, x, side="right"),
        call("isin.Tensor_Tensor", ids, torch.tensor([[1, 3]])),
        call("isin.Tensor_Tensor", ids, torch.tensor([1, 3]), invert=True),
        call("isin.Tensor_Tensor", torch.tensor(2.0), torch.tensor([1.0, 2.0, math.nan])),
        call("isin.Tensor_Scalar", ids, 3),
        call("isin.Tensor_Scalar", ids, 2.5, invert=True),
        call("one_hot.default", ids, 5),
        call("one_hot.default", torch.tensor([3, 0]), 4),
    ]


def _windows() -> list[Call]:
    x, line = floats(2, 3, 11), floats(13)
    columns = floats(2, 12, 12)
    return [
        call("unfold.default", x, -1, 4, 2),
        call("unfold.default", x, 1, 2, 1),
        call("unfold.default", line, 0, 5, 3),
        call("unfold.default", x, 2, 3, 3),
        call("unfold.default", IMAGE, 2, 2, 2),
        call("unfold.default", IMAGE, -1, 3, 3),
        call("unfold.default", signed(5, 2), 0, 5, 1),
        call("im2col.default", IMAGE, [3, 2], [1, 1], [0, 0], [1, 1]),
        call("im2col.default", IMAGE, [2, 3], [2, 1], [1, 2], [2, 3]),
        call("im2col.default", IMAGE[0], [2, 2], [1, 1], [0, 0], [2, 2]),
        call("col2im.default", columns, [4, 5], [2, 2], [1, 1], [0, 0], [1, 1]),
        call("col2im.default", columns, [5, 6], [2, 3], [2, 1], [1, 0], [2, 1]),
        call("col2im.default", columns[0], [8, 6], [2, 2], [1, 1], [0, 0], [2, 2]),
    ]


CASES = [*_sorts(), *_quantiles(), *_lookups(), *_windows()]
