"""Losses, and running products and extremes, as cases for the rows of the lowering to ONNX."""

from __future__ import annotations

import math

import torch

from tests.backend.onnx_calls import Call, J, M, P, X, Y, booleans, call, first, floats, integers, positive, signed


def _losses() -> list[Call]:
    found: list[Call] = []
    chances, given = X.sigmoid(), Y.sigmoid()
    for reduction in range(3):
        found += [
            call("mse_loss.default", X, Y, reduction),
            call("l1_loss.default", X, Y, reduction),
            call("huber_loss.default", 2 * X, Y, reduction, 0.7),
            call("smooth_l1_loss.default", 2 * X, Y, reduction, 0.3),
            call("binary_cross_entropy.default", chances, given, P, reduction),
            call("binary_cross_entropy_with_logits.default", X, given, P, P[0], reduction),
            call("kl_div.default", X, given, reduction),
            call("kl_div.default", X, Y, reduction, log_target=True),
        ]
    edges = torch.tensor([0.0, 1.0, 0.0, 1.0, 1e-6])
    return [
        *found,
        call("smooth_l1_loss.default", X, Y, 1, 0.0),
        call("binary_cross_entropy.default", edges, torch.tensor([0.0, 1.0, 1.0, 0.0, 0.5]), None, 0),
        call("binary_cross_entropy_with_logits.default", torch.tensor([200.0, -200.0]), torch.tensor([0.0, 1.0])),
        call("kl_div.default", X[0], torch.tensor([0.0, 1.0, 0.5]), 0),
    ]


def _of_classes() -> list[Call]:
    x, image = floats(4, 5), floats(2, 3, 2, 4)
    weights = positive(5)
    classes, shown = torch.tensor([1, 4, -100, 0]), integers(2, 2, 4, below=3)
    found: list[Call] = []
    for reduction in range(3):
        found += [
            call("nll_loss_nd.default", x, classes, None, reduction),
            call("nll_loss_nd.default", x, classes.abs() % 99, weights, reduction, 4),
            call("nll_loss_nd.default", image, shown, P[0], reduction, 1),
            call("cross_entropy_loss.default", x, classes, None, reduction),
            call("cross_entropy_loss.default", x, classes, weights, reduction, -100, 0.1),
            call("cross_entropy_loss.default", image, shown, None, reduction, 2, 0.3),
            call("cross_entropy_loss.default", image, shown, P[0], reduction, 2, 0.3),
            call("cross_entropy_loss.default", x, floats(4, 5, seed=1).softmax(-1), None, reduction),
            call(
                "cross_entropy_loss.default", image, floats(2, 3, 2, 4, seed=1).softmax(1), P[0], reduction, -100, 0.2
            ),
        ]
    return [
        *found,
        call("nll_loss_nd.default", x, torch.full((4,), -100)),
        call("nll_loss_nd.default", x[0], torch.tensor(3)),
        call("cross_entropy_loss.default", x[0], torch.tensor(3), weights),
        call("cross_entropy_loss.default", x[0], x[1].softmax(-1), weights),
    ]


def _running() -> list[Call]:
    x = torch.tensor(
        [[1.0, 3.0, 3.0, -1.0, math.inf], [2.0, math.nan, 5.0, -math.inf, 0.0], [0.0, -0.0, 0.0, 1.0, 0.5]]
    )
    of_products = (X, -1), (X, 0), (M, 1), (booleans(3, 2), 0), (x, 1)
    found = [call("cumprod.default", values, dim) for values, dim in of_products]
    for name in ("cummax.default", "cummin.default"):
        found += [
            call(name, x, 1),
            call(name, signed(2, 7), -1),
            call(name, J, 0),
            first(call(name, floats(2, 3, 4), 1)),
        ]
    return [*found, call("cumprod.default", floats(3, 1), 1), call("cumprod.default", 1 + 0.1 * floats(2, 100), 1)]


CASES = [*_losses(), *_of_classes(), *_running()]
