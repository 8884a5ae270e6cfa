"""The tile of Winograd's convolution on the CPU: 3 by 3 filters with a quarter of the multiplications.

Polynomials can be multiplied by multiplying their values at some points, and interpolating. A convolution is the
transpose of such a product, so 4 by 4 of its results are ``A ((G w G') * (B d B')) A'`` for 6 by 6 pixels ``d`` and a
filter ``w``, summed over channels before ``A`` is applied: 36 multiplications where the definition has 144
(S. Winograd, *Arithmetic Complexity of Computations*, 1980; for networks A. Lavin and S. Gray,
https://arxiv.org/abs/1509.09308). The sums over channels are 36 matrix products, computed as one packed convolution in
36 groups.

How much rounding costs depends on the points (B. Barabasz and others, https://arxiv.org/abs/1803.10986): by those here
the error is a quarter of what 0, 1, -1, 2 and -2 give, and about twice that of oneDNN's own convolution.

Invariant: filters are transformed in double precision, once. A pixel that is not finite makes all results of its block
NaN, so the tile is not used where products with zero must be safe for infinities and NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache, partial
from statistics import harmonic_mean
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.polynomial.polynomial import polyfromroots, polyval
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from taso_py.backend.plan import BoundKernel, Packs
from taso_py.ir.node import Node
from taso_py.ir.types import DType
from taso_py.kernels.chain import Chain, chains
from taso_py.kernels.probe import agrees, example, works_on
from taso_py.kernels.tile import CHANNELS_LAST, Cover, Tile
from taso_py.ops.contraction import Conv2d
from taso_py.ops.elementwise import Relu

Matrix: TypeAlias = NDArray[np.floating[Any]]

POINTS = (0.0, 0.75, -0.75, 1.5, -1.5)
"""The points at which polynomials are evaluated, besides infinity."""
FILTER = 3
"""Rows and columns of a filter."""
BLOCK = len(POINTS) + 1
"""Rows and columns of a block of pixels, which are transformed together."""
STEP = BLOCK - FILTER + 1
"""Rows and columns of the results of a block, and the distance between blocks."""
LEAST_CHANNELS = 100
"""Least harmonic mean of channels in and out. The work of transforms grows with their sum, the saved work with their
product; with fewer, the tile is bound by memory, and in models it was slower as often as faster."""
LEAST_BLOCKS = 32
"""Least number of blocks. Transformed filters are four times as large: with fewer, reading them takes most time."""
CHUNK_BYTES = 1 << 22
"""Bytes of transformed pixels per product, so that they are still in the caches when they are multiplied."""
_CPU = torch.device("cpu")


def transforms() -> tuple[Matrix, Matrix, Matrix]:
    """Return the matrices ``B`` [6, 6] of pixels, ``G`` [6, 3] of filters and ``A`` [4, 6] of results.

    With ``M`` the product of ``x - q`` over all points ``q`` but one, ``p``: ``B`` has the coefficients of ``M`` in its
    row of ``p``, and ``G`` the powers of ``p`` over ``M(p)``; the last rows are those of infinity.
    """
    products = [polyfromroots([other for other in POINTS if other != point]) for point in POINTS]
    values = np.array([polyval(point, product) for point, product in zip(POINTS, products, strict=True)])
    pixels = np.vstack([np.pad(products, ((0, 0), (0, 1))), polyfromroots(POINTS)])
    filters = _and_at_infinity(np.vander(POINTS, FILTER, increasing=True) / values[:, np.newaxis])
    return pixels, filters, _and_at_infinity(np.vander(POINTS, STEP, increasing=True)).T


def _and_at_infinity(powers: Matrix) -> Matrix:
    """Return the powers of the points with a row for infinity, where only the highest power counts."""
    return np.vstack([powers, np.eye(powers.shape[1])[-1]])


@cache
def planes() -> tuple[Tensor, Tensor]:
    """Return the transforms of whole blocks of pixels, [36, 36], and of their results, [16, 36]."""
    pixels, _, results = transforms()
    return _single(np.kron(pixels, pixels)), _single(np.kron(results, results))


def _single(matrix: Matrix) -> Tensor:
    return torch.from_numpy(matrix).float().contiguous()


def _covers(node: Node, device: torch.device) -> Iterator[Cover]:
    if device.type != "cpu":
        return
    for chain in chains(node):
        if _fits(chain) and works_on(device, winograd_works):
            yield chain.cover("winograd", (CHANNELS_LAST,), _bind)


def _fits(chain: Chain) -> bool:
    op, values = chain.product.op, (*chain.operands, *chain.statics)
    return (
        isinstance(op, Conv2d)
        and (op.stride, op.dilation, op.groups) == ((1, 1), (1, 1), 1)
        and all(value.type.dtype is DType.F32 and value.type.is_concrete for value in values)
        and chain.weight.sizes[2:] == (FILTER, FILTER)
        and harmonic_mean(chain.weight.sizes[:2]) >= LEAST_CHANNELS
        and math.prod(_grid(chain)) >= LEAST_BLOCKS
        and (chain.activation is None or isinstance(chain.activation.op, Relu))
    )


def _grid(chain: Chain) -> tuple[int, int]:
    """Return the number of rows of blocks, and the number of blocks per row over all images."""
    images, _, height, width = chain.product.types[0].sizes
    return _steps(height), images * _steps(width)


def _steps(length: int) -> int:
    """Return the number of blocks that cover so many results in a row or column."""
    return math.ceil(length / STEP)


def _bind(chain: Chain, statics: Sequence[Tensor], packs: Packs) -> BoundKernel:
    op = chain.product.op
    assert isinstance(op, Conv2d)
    down, blocks = _grid(chain)
    row_bytes = blocks * BLOCK**2 * max(chain.weight.sizes[:2]) * torch.float32.itemsize
    rows = math.ceil(down / min(down, math.ceil(down * row_bytes / CHUNK_BYTES)))
    packed, bias = chain.packed(statics, packs, _packed, rows * blocks)
    rest = (chain.activation is not None, packed, _transformed(bias), chain.weight.sizes[0], op.padding, rows)
    if chain.other is None:
        return BoundKernel("winograd", _winograd, rest)
    return BoundKernel("winograd_add", _added, rest, overwriting=_added_into)


def _packed(weight: Tensor, blocks: int) -> Tensor:
    """Return transformed filters, packed for the product with so many blocks."""
    channels = weight.shape[1]
    filters = torch.from_numpy(transforms()[1])
    transformed = torch.einsum("ip,ocpq,jq->ijoc", filters, weight.double(), filters)
    matrices = transformed.reshape(-1, channels, 1, 1).to(weight.dtype).contiguous()
    shape = [1, BLOCK**2 * channels, blocks, 1]
    return torch.ops.mkldnn._reorder_convolution_weight(matrices, [0, 0], [1, 1], [1, 1], BLOCK**2, shape)


def _transformed(bias: Tensor | None) -> Tensor | None:
    """Return the bias before ``A`` is applied, so that each element is added to all results of a block."""
    if bias is None:
        return None
    ones = np.linalg.pinv(transforms()[2]).sum(axis=1)
    return torch.outer(torch.from_numpy(np.kron(ones, ones)), bias.double()).reshape(-1).to(bias.dtype)


def _winograd(x: Tensor, is_positive: bool, *rest: Any) -> Tensor:
    result = _convolved(x, *rest)
    return (result.relu_() if is_positive else result).contiguous(memory_format=torch.channels_last)


def _added(x: Tensor, other: Tensor, *rest: Any) -> Tensor:
    return _added_into(x, other.clone(memory_format=torch.channels_last), *rest)


def _added_into(x: Tensor, other: Tensor, is_positive: bool, *rest: Any) -> Tensor:
    """Add a convolution to ``other`` in place; return it."""
    result = other.add_(_convolved(x, *rest))
    return result.relu_() if is_positive else result


def _convolved(
    x: Tensor, packed: Tensor, bias: Tensor | None, outputs: int, padding: tuple[int, int], rows: int
) -> Tensor:
    """Convolve images [n, c, h, w], channels last and perhaps with gaps, ``rows`` rows of blocks at a time."""
    images, _, height, width = x.shape
    top, left = padding
    high, wide = height + 2 * top - FILTER + 1, width + 2 * left - FILTER + 1
    down, across = _steps(high), _steps(wide)
    rim = BLOCK - STEP
    right, bottom = across * STEP + rim - width - left, down * STEP + rim - height - top
    padded = functional.pad(x, (left, right, top, bottom))
    results = x.new_empty(images, down, STEP, across, STEP, outputs)
    with torch.autocast("cpu", enabled=False):  # transforms magnify the rounding of half precision
        for begin in range(0, down, rows):
            first = min(begin, down - rows)  # weights that are packed for more blocks are packed anew at every call
            found = _block_results(_blocks(padded, first, rows, across), packed, bias)
            part = found.view(images, rows, across, STEP, STEP, outputs).transpose(2, 3)
            results[:, first : first + rows].copy_(part)
    return results.view(images, down * STEP, across * STEP, outputs).permute(0, 3, 1, 2)[:, :, :high, :wide]


def _blocks(padded: Tensor, first: int, rows: int, across: int) -> Tensor:
    """Return the pixels of some rows of blocks, [blocks, 36, channels]; neighbouring blocks overlap."""
    images, channels, *_ = padded.shape
    image, channel, row, column = padded.stride()
    shape = (images, rows, across, BLOCK, BLOCK, channels)
    strides = (image, STEP * row, STEP * column, row, column, channel)
    return padded.as_strided(shape, strides, first * STEP * row).reshape(-1, BLOCK**2, channels)


def _block_results(blocks: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """Return the results of some blocks, [blocks, 16, outputs]."""
    pixels, results = planes()
    count = blocks.shape[0]
    # As an image of one column whose channels are those of all 36 places in turn, each a group.
    image = torch.matmul(pixels, blocks).view(count, -1).t().view(1, -1, count, 1)
    windows: tuple[Any, ...] = ([0, 0], [1, 1], [1, 1], BLOCK**2)
    product = torch.ops.mkldnn._convolution_pointwise.default(image, packed, bias, *windows, "none", [], "")
    return torch.matmul(results, product.permute(0, 2, 3, 1).reshape(count, BLOCK**2, -1))


@cache
def winograd_works() -> bool:
    """Return whether the kernel computes a small example correctly, by one row of blocks at a time."""
    x, weight, bias = (example(shape, torch.float32, _CPU) for shape in ((2, 4, 5, 7), (3, 4, 3, 3), (3,)))
    convolved = partial(_convolved, x, outputs=3, padding=(1, 2), rows=1)
    expected = functional.conv2d(x, weight, bias, padding=(1, 2))
    return agrees(lambda: [convolved(packed=_packed(weight, 6), bias=_transformed(bias))], [expected])


WINOGRAD = Tile("winograd", _covers, is_direct=False)
"""The tile of Winograd's convolution."""
