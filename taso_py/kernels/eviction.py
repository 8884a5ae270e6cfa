"""Cache eviction between measured calls, as the other kernels of a model cause it.

A kernel that is called repeatedly finds its code, its operands and the memory of its results in the nearest caches,
and takes half to nine tenths of the time that it takes in a model. So kernels measured on the CPU are called once at a
time, with other kernels before each call.

Invariant: nothing outside depends on the results computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn import functional

from taso_py.backend.plan import Packs
from taso_py.kernels.table import covers
from taso_py.ops.table import parse_graph

NEAR_BYTES = 3 << 19
"""Bytes of one thread's private caches, code and data; the evicting sum moves as many for each thread."""
_CPU = torch.device("cpu")
_PRODUCTS = """graph(image: f32[1,32,7,7], rows: f32[16,128]) {
  kernel = weight{key="kernel", type=f32[32,32,3,3]} matrix = weight{key="matrix", type=f32[128,128]}
  return conv2d(image, kernel){padding=[1,1]}, linear(rows, matrix)
}"""


def evict_caches() -> None:
    """Call other kernels that evict code, data and branch predictions from the caches of the processor."""
    _evictor(torch.get_num_threads())()


@cache
def _evictor(threads: int) -> Callable[[], None]:
    """Return a function that calls a few kernels, plain and packed, and a sum as large as the threads' caches."""
    graph = parse_graph(_PRODUCTS)
    ones = partial(torch.ones, dtype=torch.float32, device=_CPU)
    image, rows = (ones(*node.types[0].sizes) for node in graph.inputs)
    kernel, matrix = ones(32, 32, 3, 3), ones(128, 128)
    calls = [partial(functional.conv2d, image, kernel, padding=1), partial(functional.linear, rows, matrix)]
    calls += [partial(torch.softmax, rows, -1), partial(functional.gelu, rows)]
    for output, x, weight in zip(graph.outputs, (image, rows), (kernel, matrix), strict=True):
        packed = [cover for cover in covers(output.node, _CPU) if cover.binder is not None]
        calls += [partial(cover.bind([weight], Packs()).function, x) for cover in packed]
    left, right, total = ones(3, threads * NEAR_BYTES // torch.float32.itemsize // 3)
    calls.append(partial(torch.add, left, right, out=total))

    def evict() -> None:
        with torch.no_grad():
            for call in calls:
                call()

    return evict


def operand_writer(operands: Sequence[Tensor]) -> Callable[[], None]:
    """Return a function that rewrites a call's operands as a model does: the first just before it, others earlier."""
    writes = [_storage_writer(operand) for operand in operands if operand.is_floating_point()]

    def prepare() -> None:
        for write in writes[1:]:
            write()
        evict_caches()
        for write in writes[:1]:
            write()

    return prepare


def _storage_writer(tensor: Tensor) -> Callable[[], object]:
    """Return a function that rewrites all of a tensor's storage with its present content."""
    storage = tensor.untyped_storage()
    whole = tensor.new_empty(0).set_(storage, 0, (storage.nbytes() // tensor.itemsize,), (1,))
    content = whole.clone()
    return lambda: whole.copy_(content)
