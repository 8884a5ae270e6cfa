"""Programs on arrays, each with the best form of it that is known, for comparison with superoptimizers of programs.

Sizes are such that the kernels take the time, not the calls. Inputs that have to be positive for the two forms to be
equal are drawn so, and declared to the optimizer.

Invariant: a program and its best form compute the same function of such inputs, in exact arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

Function: TypeAlias = Callable[..., Tensor]
WIDE = (1024, 1024)
"""Shape of a matrix that elementwise programs read."""
SQUARE = (1024, 1024)
"""Shape of a matrix that programs multiply."""
STACK = (3, 1024, 1024)
"""Shape of a stack of matrices."""
ROW = (1024,)
PRODUCTS, SUMS, NUMBERS, FUNCTIONS, MOVEMENT = "products", "sums", "numbers", "functions", "movement"
GROUPS = (PRODUCTS, SUMS, NUMBERS, FUNCTIONS, MOVEMENT)


@dataclass(frozen=True)
class ArrayProgram:
    """A program, its best known form, and the shapes of what both take."""

    name: str
    group: str
    original: Function
    best: Function
    shapes: Sequence[tuple[int, ...]]
    is_positive: bool = False
    """True if the inputs are positive numbers."""

    def inputs(self, seed: int) -> tuple[Tensor, ...]:
        """Return random inputs."""
        generator = torch.Generator().manual_seed(seed)
        drawn = [torch.randn(shape, generator=generator) for shape in self.shapes]
        return tuple(x.abs() + 0.1 if self.is_positive else x for x in drawn)


class Computing(nn.Module):
    """A function as a module."""

    def __init__(self, function: Function) -> None:
        """Hold a function of tensors."""
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the function's value."""
        return self.function(*inputs)


def _program(
    group: str, name: str, original: Function, best: Function, *shapes: tuple[int, ...], is_positive: bool = False
) -> ArrayProgram:
    return ArrayProgram(name, group, original, best, shapes, is_positive)


def _cubic(x: Tensor) -> Tensor:
    return 2 + 3 * x + 4 * x * x + 5 * x * x * x


def _quartic(x: Tensor) -> Tensor:
    square = x * x
    return square * square


def _sums_of_powers(x: Tensor) -> Tensor:
    fourth = _quartic(x)
    return (fourth * x).sum() + fourth.sum()


def _rotated(x: Tensor) -> Tensor:
    return x.permute(1, 2, 0).contiguous()


def _rows_alike(x: Tensor, w: Tensor) -> Tensor:
    return torch.stack([row * w for row in x])


PROGRAMS = (
    _program(
        PRODUCTS,
        "diagonal of a product",
        lambda a, b: torch.diagonal(a @ b),
        lambda a, b: (a * b.T).sum(-1),
        *(SQUARE, SQUARE),
    ),
    _program(
        PRODUCTS,
        "trace of a product",
        lambda a, b: torch.diagonal(a @ b.T).sum(),
        lambda a, b: (a * b).sum(),
        *(SQUARE, SQUARE),
    ),
    _program(
        PRODUCTS,
        "sum of a product",
        lambda a, b: (a @ b).sum(),
        lambda a, b: (a.sum(0) * b.sum(1)).sum(),
        *(SQUARE, SQUARE),
    ),
    _program(
        PRODUCTS,
        "row sums of a product",
        lambda a, b: (a @ b).sum(-1),
        lambda a, b: (a @ b.sum(-1, keepdim=True)).squeeze(-1),
        *(SQUARE, SQUARE),
    ),
    _program(
        PRODUCTS,
        "mean row of a product",
        lambda a, b: (a @ b).mean(0),
        lambda a, b: (a.mean(0, keepdim=True) @ b).squeeze(0),
        *(SQUARE, SQUARE),
    ),
    _program(
        PRODUCTS,
        "product of transposes",
        lambda a, b: (a.T @ b.T).T.contiguous(),
        lambda a, b: b @ a,
        *(SQUARE, SQUARE),
    ),
    _program(
        PRODUCTS,
        "product with a column",
        lambda a, b, v: a @ b @ v,
        lambda a, b, v: a @ (b @ v),
        SQUARE,
        SQUARE,
        (1024, 1),
    ),
    _program(
        PRODUCTS,
        "common left factor",
        lambda a, b, c: a @ b + a @ c,
        lambda a, b, c: a @ (b + c),
        SQUARE,
        SQUARE,
        SQUARE,
    ),
    _program(
        PRODUCTS,
        "common right factor",
        lambda a, b, c: a @ c - b @ c,
        lambda a, b, c: (a - b) @ c,
        SQUARE,
        SQUARE,
        SQUARE,
    ),
    _program(
        PRODUCTS, "scaled factors", lambda a, b: (3 * a) @ (0.5 * b), lambda a, b: 1.5 * (a @ b), *(SQUARE, SQUARE)
    ),
    _program(
        PRODUCTS,
        "columns of a product",
        lambda a, b: (a @ b)[:, :64],
        lambda a, b: a @ b[:, :64],
        *(SQUARE, SQUARE),
    ),
    _program(
        SUMS,
        "sum of scaled products",
        lambda a, b: ((2 * a) * (3 * b)).sum(),
        lambda a, b: 6 * (a * b).sum(),
        *(WIDE, WIDE),
    ),
    _program(
        SUMS,
        "weighted rows",
        lambda a, v: (a * v).sum(-1),
        lambda a, v: (a @ v.reshape(-1, 1)).squeeze(-1),
        *(WIDE, ROW),
    ),
    _program(SUMS, "sum of a sum", lambda a, b: (a + b).sum(), lambda a, b: a.sum() + b.sum(), *(WIDE, WIDE)),
    _program(SUMS, "sum of sums", lambda a: a.sum(0).sum(0), lambda a: a.sum((0, 1)), STACK),
    _program(SUMS, "mean of means", lambda a: a.mean(0).mean(0), lambda a: a.mean((0, 1)), STACK),
    _program(SUMS, "mean of a line", lambda a: (2 * a + 1).mean(-1), lambda a: 2 * a.mean(-1) + 1, WIDE),
    _program(SUMS, "sum of a quotient", lambda a: (a / 3).sum(0), lambda a: a.sum(0) / 3, WIDE),
    _program(SUMS, "sum of a transpose", lambda a: a.T.contiguous().sum(0), lambda a: a.sum(1), WIDE),
    _program(
        SUMS, "stacked sum", lambda a, b, c: torch.stack([a, b, c]).sum(0), lambda a, b, c: a + b + c, WIDE, WIDE, WIDE
    ),
    _program(SUMS, "stacked maximum", lambda a, b: torch.stack([a, b]).amax(0), torch.maximum, WIDE, WIDE),
    _program(SUMS, "stacked mean", lambda a, b: torch.stack([a, b]).mean(0), lambda a, b: (a + b) * 0.5, *(WIDE, WIDE)),
    _program(NUMBERS, "multiples collected", lambda a: a + a + 3 * a, lambda a: 5 * a, WIDE),
    _program(NUMBERS, "common factor", lambda a, b, c: a * c + b * c, lambda a, b, c: (a + b) * c, WIDE, WIDE, WIDE),
    _program(NUMBERS, "binomial", lambda a, b: a * a + 2 * a * b + b * b, lambda a, b: (a + b).square(), WIDE, WIDE),
    _program(NUMBERS, "cubic polynomial", _cubic, lambda x: 2 + x * (3 + x * (4 + x * 5)), WIDE),
    _program(NUMBERS, "fourth power", lambda x: x**4, _quartic, WIDE),
    _program(NUMBERS, "sum of powers", lambda x: (x**5 + x**4).sum(), _sums_of_powers, WIDE),
    _program(
        NUMBERS, "interpolation", lambda a, b, t: a * (1 - t) + b * t, lambda a, b, t: a + t * (b - a), WIDE, WIDE, WIDE
    ),
    _program(NUMBERS, "sum less difference", lambda a, b: (a + b) - (a - b), lambda a, b: 2 * b, WIDE, WIDE),
    _program(
        FUNCTIONS,
        "product of exponentials",
        lambda a, b: torch.exp(a) * torch.exp(b),
        lambda a, b: torch.exp(a + b),
        WIDE,
        WIDE,
    ),
    _program(
        FUNCTIONS,
        "quotient of exponentials",
        lambda a, b: torch.exp(a) / torch.exp(b),
        lambda a, b: torch.exp(a - b),
        WIDE,
        WIDE,
    ),
    _program(
        FUNCTIONS,
        "logarithm of exponentials",
        lambda a, b: torch.log(torch.exp(a) * torch.exp(b)),
        torch.add,
        WIDE,
        WIDE,
    ),
    _program(
        FUNCTIONS,
        "exponential of logarithms",
        lambda a, b: torch.exp(torch.log(a) + torch.log(b)),
        torch.mul,
        *(WIDE, WIDE),
        is_positive=True,
    ),
    _program(FUNCTIONS, "magnitude by a root", lambda a: torch.sqrt(a * a), torch.abs, WIDE),
    _program(
        FUNCTIONS, "greater and lesser", lambda a, b: torch.maximum(a, b) + torch.minimum(a, b), torch.add, WIDE, WIDE
    ),
    _program(FUNCTIONS, "two rectifiers", lambda a, b: (torch.relu(a) - torch.relu(-a)) * b, torch.mul, WIDE, WIDE),
    _program(
        MOVEMENT,
        "sum of transposes",
        lambda a, b: (a.T.contiguous() + b.T.contiguous()).T.contiguous(),
        torch.add,
        *(WIDE, WIDE),
    ),
    _program(
        MOVEMENT,
        "rotated thrice",
        lambda a: torch.relu(_rotated(_rotated(_rotated(a)))),
        torch.relu,
        STACK,
    ),
    _program(MOVEMENT, "rows treated alike", _rows_alike, lambda x, w: x * w, STACK, STACK[1:]),
    _program(
        MOVEMENT,
        "slices joined",
        lambda a: torch.exp(torch.cat([a[:, :256], a[:, 256:]], 1)),
        torch.exp,
        WIDE,
    ),
    _program(MOVEMENT, "rows of a function", lambda a: torch.exp(a)[:64], lambda a: torch.exp(a[:64]), WIDE),
)
"""All programs, in the order of their groups."""
