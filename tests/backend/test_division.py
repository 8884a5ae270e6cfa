"""Graphs divided for engines that write to nothing: what is left to PyTorch puts rows into place, and nothing else.

An engine is played by PyTorch here, so that bits can be compared with the original's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from taso_py.backend import Program, fold
from taso_py.backend.build import build_around
from taso_py.backend.division import divided
from taso_py.backend.run import run_graph
from taso_py.backend.schema import storage_of
from taso_py.frontend import import_module
from taso_py.ir.graph import Graph
from taso_py.ir.text import print_graph
from taso_py.ops.table import parse_graph
from tests.frontend.test_writes import CACHE, COPIED, COPIED_PARTS, IN_PLACE, LAYERS, PARTS, RESHAPED, ROW, X
from tests.round_trips import Model

aten = torch.ops.aten
Function = Callable[..., Any]


class Played(nn.Module):
    """An engine: computes a graph, with results of its own."""

    def __init__(self, graph: Graph, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.of, self.weights = graph, weights

    def forward(self, *tensors: Tensor) -> Sequence[Tensor]:
        return [found.contiguous().clone() for found in run_graph(self.of, tensors, self.weights)]


VIEWS = ("argument, an older version returned",)
"""What returns a view of the cache for one layout of it and a copy for another, as PyTorch has it."""


def built(program: Program, *, whole: bool = False) -> Any:
    division = divided(program.graph, whole=whole)
    played = Played(division.pure, program.weights)
    return build_around(program, played, None if whole else parse_graph(print_graph(division.late)))


def with_two(function: Function) -> tuple[Model, tuple[Tensor, ...]]:
    """A function that writes to two arguments, one of which is read between the writes to the other."""
    return Model(function), (X, CACHE.clone(), CACHE * 2)


ROWS = torch.tensor([4, 1])
CASES: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {
    **{f"argument, {name}": (Model(f), (X, CACHE.clone(), ROW)) for name, f in {**IN_PLACE, **COPIED}.items()},
    **{
        f"buffer, {name}": (Model(lambda s, x, i, f=f: f(s, x, s.c, i), c=CACHE.clone()), (X, ROW))
        for name, f in {**IN_PLACE, **COPIED}.items()
        if name != "given back beside a copy"
    },
    **{f"layers, {name}": (Model(f), (X, LAYERS.clone(), ROW)) for name, f in {**PARTS, **COPIED_PARTS}.items()},
    **{f"reshaped, {name}": (Model(f), (X, CACHE.clone())) for name, f in RESHAPED.items()},
    "exchanged rows of two": with_two(
        lambda s, x, a, b: (t := a[:, 0].clone(), a[:, 0].copy_(b[:, 1]), b[:, 1].copy_(t), (a + b).sum())[-1]
    ),
    "exchanged": with_two(lambda s, x, a, b: (t := a.clone(), a.copy_(b), b.copy_(t), (a + b).sum())[-1]),
    "in turns": with_two(
        lambda s, x, a, b: (a[:, 0].copy_(x), b[:, 1].copy_(a[:, 0] * 2), a[:, 2].copy_(b[:, 1]), (a * b).sum())[-1]
    ),
    "a row that is written twice": (
        Model(
            lambda s, x, c, i: (c.index_copy_(1, i, x[None]), c[:, 2].mul_(3), c.index_copy_(1, i, c[:, 2:3] + 1))[0]
        ),
        (X, CACHE.repeat(1, 3, 1), ROW),
    ),
    "places of two axes": (
        Model(lambda s, x, c, i: (c.index_put_((torch.zeros_like(i), i), x.expand(2, 8)), c.sum(1))[1]),
        (X, CACHE.clone(), ROWS),
    ),
    "added": (
        Model(lambda s, x, c, i: (c.index_put_((torch.zeros_like(i), i), x, accumulate=True), c.sum(1))[1]),
        (X, CACHE.clone(), ROW),
    ),
    "indexed by itself": (
        Model(lambda s, x, c, i: (c.scatter_(0, c.clone(), 2), x * c.sum())[-1]),
        (X, torch.tensor([1, 0, 3, 3, 5, 4]), ROW),
    ),
    "rows that are state": (
        Model(lambda s, x, a, b, i: (a.index_copy_(1, i, b), b.copy_(b + x), a.sum(1))[-1]),
        (X, CACHE.clone(), CACHE[:, :1] + 1, ROW),
    ),
    "integers": (
        Model(lambda s, x, c, i: (c.index_copy_(0, c[1:2] % 6, i), x * c[0])[1]),
        (X, torch.arange(6), ROW),
    ),
}


@pytest.mark.parametrize("whole", [False, True], ids=["rows", "whole"])
@pytest.mark.parametrize("name", CASES)
def test_the_original_is_computed_bit_for_bit(name: str, whole: bool) -> None:
    """Twice in a row; in caches of another layout than the example's, PyTorch adds up in another order."""
    original, given = copy.deepcopy(CASES[name])
    module = built(fold(import_module(copy.deepcopy(original), given)), whole=whole)
    for tolerance in (0.0, 1e-5) if name not in VIEWS else (0.0,):
        ours, theirs = ([spread(t) if tolerance and t.is_floating_point() else t.clone() for t in given] for _ in "ab")
        for _ in range(2):
            with torch.no_grad():
                found, wanted = (
                    pytree.tree_leaves(called(*args)) for called, args in ((module, ours), (original, theirs))
                )
            pairs = zip([*found, *ours, *module.buffers()], [*wanted, *theirs, *original.buffers()], strict=True)
            for one, other in pairs:
                torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, check_stride=not tolerance)
            for one, other in zip(found, wanted, strict=True):
                shared = [place for place, t in enumerate(ours) if storage_of(one) == storage_of(t)]
                assert set(shared) <= {place for place, t in enumerate(theirs) if storage_of(other) == storage_of(t)}


def spread(tensor: Tensor) -> Tensor:
    """A tensor whose elements do not lie side by side."""
    return torch.stack([tensor, tensor], -1)[..., 0]


FEW = [
    *("argument, row by index", "argument, row by indices", "argument, slice", "argument, one element of an axis"),
    *("argument, slice of a slice", "argument, scatter", "argument, read before", "argument, read before, by a view"),
    *("argument, given back", "argument, row that depends on the cache", "buffer, row by index", "buffer, slice"),
    *("layers, row of a layer", "layers, row of each layer", "layers, row of a slice", "layers, slice of a layer"),
    *("layers, layer counted from the end", "layers, row that depends on another layer"),
    *("layers, row of the same layer", "layers, another layer", "exchanged rows of two", "in turns"),
    *("a row that is written twice", "places of two axes", "integers"),
]
MANY = [
    *("argument, sum", "argument, twice", "argument, turned", "argument, exchanged", "argument, new"),
    *("exchanged", "added", "rows that are state", "layers, exchanged", "reshaped, an axis dropped"),
]


@pytest.mark.parametrize("name", [*FEW, *MANY])
def test_an_engine_returns_rows_where_rows_are_written(name: str) -> None:
    original, args = CASES[name]
    program = fold(import_module(copy.deepcopy(original), args))
    writes, division = program.graph.effects, divided(program.graph)
    leaves = [write.inputs[0].type for write in writes]
    given = [node.types[0] for node in division.late.inputs[len(writes) :]]
    assert (set(division.late.nodes) > set(division.late.inputs)) == (name in FEW)
    assert all(type_.elements < leaf.elements for type_ in given for leaf in leaves) == (name in FEW)
    targets = [node.target for node in built(program).graph.nodes]
    if name in FEW:
        functional = {aten.index_copy.default, aten.index_put.default, aten.select_scatter.default, aten.scatter.src}
        assert not {*functional, aten.slice_scatter.default} & {*targets}
    else:
        assert targets.count(aten.copy_.default) == len(writes)


def test_a_cache_that_nothing_reads_is_no_input_of_what_is_computed() -> None:
    program = import_module(Model(lambda s, x, c, i: (c.index_copy_(1, i, x[None] * 2), x + 1)[1]), (X, CACHE, ROW))
    pure = divided(program.graph).pure
    assert not pure.users[pure.inputs[1]]
    assert len(pure.outputs) == 3


def read_through(reads: str) -> str:
    """The text of what an engine computes for a read of two layers of three, the second one being replaced."""
    text = f"""graph(c: mutable f32[3,4], r: f32[4], p: f32[3,2]) {{
      a = opaque(c, r){{target="aten.select_scatter.default", arguments=[$0,$1,0,1], types=[f32[3,4]]}}
      b = opaque(c, p){{target="aten.slice_scatter.default", arguments=[$0,$1,1,1,3], types=[f32[3,4]]}}
      {reads}
    }}"""
    graph = parse_graph(text)
    given = [torch.randn(node.types[0].sizes) for node in graph.inputs]
    pure = divided(graph).pure
    assert all(map(torch.equal, run_graph(pure, given), run_graph(graph, given)))
    return " ".join(node.op.name for node in pure.nodes if node.inputs)


@pytest.mark.parametrize(
    ("reads", "computed"),
    [
        ("s = slice(a){axis=-2, start=0, stop=1} return s", "slice"),
        ("s = slice(a){axis=-2, start=2, stop=3} return s", "slice"),
        ("s = slice(a){axis=-2, start=1, stop=2} return s", "reshape slice"),
        ("s = slice(b){axis=-1, start=1, stop=3} return s", "reshape slice"),
        ("s = slice(b){axis=-1, start=2, stop=3} return s", "reshape slice"),
        ("s = slice(b){axis=-1, start=3, stop=4} return s", "slice"),
        ("s = slice(a){axis=-2, start=0, stop=3, step=2} return s", "opaque slice"),
        ("s = slice(a){axis=-2, start=1, stop=3} return s", "opaque slice"),
        ("s = slice(b){axis=-1, start=0, stop=2} return s", "opaque slice"),
        ("s = slice(a){axis=-1, start=0, stop=2} return s", "opaque slice"),
    ],
)
def test_a_slice_reads_what_it_needs_of_what_was_replaced(reads: str, computed: str) -> None:
    assert read_through(reads) == computed
