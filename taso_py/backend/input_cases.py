"""Inputs to compare a model's results on: the example inputs, and random ones like them.

Invariant: random inputs have the example's types, shapes and strides, and their integers stay valid as indices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from taso_py.backend.random_tensors import normal, permutation, uniform
from taso_py.backend.tensors import unsupported

MAGNITUDES = (1e-2, 1.0, 10.0)
"""Scales of the random inputs, relative to the example inputs' own scale."""

EXAMPLE = "example"
"""Name of the case with the example inputs, which the original must accept."""

Arguments: TypeAlias = tuple[tuple[Any, ...], Mapping[str, Any]]


def map_leaves(function: Callable[[Any], Any], arguments: Arguments) -> Arguments:
    """Return arguments with a function applied to each leaf."""
    args, kwargs = arguments
    return pytree.tree_map(function, (args, dict(kwargs)))


def input_cases(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    seed: int,
    *,
    kept: Collection[int] = (),
) -> list[tuple[str, Arguments]]:
    """Return the example inputs and random ones of several magnitudes, by name.

    Integers and booleans are shuffled, which keeps them valid as indices, tokens or lengths. Infinities, and numbers
    near the smallest one of their type, stay where they are: an attention mask of such numbers stays valid and cannot
    hide a whole row by chance.

    Args:
        args: positional example inputs.
        kwargs: keyword example inputs.
        seed: seed of the random ones.
        kept: identities of leaves that stay as in the example.
    """
    example = tuple(args), kwargs
    cases: list[tuple[str, Arguments]] = [(EXAMPLE, example)]
    generator = torch.Generator().manual_seed(seed)
    for magnitude in MAGNITUDES:
        varied = map_leaves(lambda leaf, m=magnitude: leaf if id(leaf) in kept else _vary(leaf, m, generator), example)
        cases.append((f"random x{magnitude:g}", varied))
    return cases


def inputs_near(args: Sequence[Any], kwargs: Mapping[str, Any], seed: int) -> Arguments:
    """Return the example inputs with each number at random between half and twice as great; integers are shuffled.

    Loops whose ends depend on the inputs mostly end for these too. Tensors of zeros alone become random;
    those without elements that can be read, or whose layout is not strided, stay.
    """
    generator = torch.Generator().manual_seed(seed)
    return map_leaves(lambda leaf: _scale(leaf, generator), (tuple(args), kwargs))


def rounded_inputs(arguments: Arguments, generator: torch.Generator) -> Arguments:
    """Return arguments whose floating-point numbers differ from the given ones at random by their rounding."""

    def rounding(leaf: Tensor) -> Tensor:
        return (2 * uniform(leaf.shape, generator) - 1) * torch.finfo(leaf.dtype).eps

    return map_leaves(lambda leaf: perturb(leaf, rounding), arguments)


def perturb(leaf: Any, shares: Callable[[Tensor], Tensor]) -> Any:
    """Return a leaf of arguments with floating-point numbers changed by relative amounts; strides are kept."""
    if isinstance(leaf, Tensor) and leaf.is_complex():
        return torch.view_as_complex(perturb(torch.view_as_real(leaf.resolve_conj()), shares).contiguous())
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
        return leaf
    return torch.empty_like(leaf).copy_(leaf.double() * (1 + shares(leaf).to(leaf.device)))


def _scale(leaf: Any, generator: torch.Generator) -> Any:
    if not isinstance(leaf, Tensor) or leaf.is_meta or isinstance(leaf, FakeTensor) or unsupported(leaf) is not None:
        return leaf
    if not leaf.is_floating_point() or (leaf.numel() > 1 and not bool(leaf.any())):
        return _vary(leaf, 1.0, generator)
    return perturb(leaf, lambda numbers: _shares(numbers, generator))


def _shares(numbers: Tensor, generator: torch.Generator) -> Tensor:
    """Return random changes of numbers as shares of each, from -0.5 to 1; 0 for those that might overflow."""
    shares = 1.5 * uniform(numbers.shape, generator).to(numbers.device) - 0.5
    return torch.where(numbers.double().abs() < torch.finfo(numbers.dtype).max / 2, shares, 0.0)


def _vary(leaf: Any, magnitude: float, generator: torch.Generator) -> Any:
    if not isinstance(leaf, Tensor) or leaf.numel() == 0:
        return leaf
    varied = torch.empty_like(leaf)  # keeps strides
    if leaf.is_floating_point():
        exact = leaf.double()
        varies = exact.abs() < torch.finfo(leaf.dtype).max / 2  # False for NaN
        scale = float(exact[varies].std(correction=0)) if bool(varies.any()) else 0.0
        values = normal(leaf.shape, generator).to(leaf.device) * ((scale or 1.0) * magnitude)
        return varied.copy_(torch.where(varies, values, exact))
    places = permutation(leaf.numel(), generator).to(leaf.device)
    return varied.copy_(leaf.reshape(-1)[places].reshape(leaf.shape))
