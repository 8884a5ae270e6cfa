"""What is timed is called once at a time, other kernels before it, on operands that were just written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from taso_py.backend.plan import BoundKernel, Format, Packs
from taso_py.kernels import eviction
from taso_py.kernels.eviction import evict_caches, operand_writer
from taso_py.kernels.prepared_call import PreparedCall
from taso_py.kernels.table import covers
from taso_py.kernels.timed import HELD, conversion, timed_call
from taso_py.ops.table import parse_graph

CPU, META = torch.device("cpu"), torch.device("meta")
GRAPH = parse_graph(
    """graph(x: f32[2,8,6,5], y: f32[2,8,6,5]) {
      return add(x, y), conv2d(x, weight{key="w", type=f32[8,8,3,3]}){padding=[1,1]}
    }"""
)


def test_the_first_operand_is_written_last_with_other_kernels_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, index = torch.ones(4), torch.full((4,), 2.0), torch.tensor([3])
    prepare = operand_writer([first, second, index])
    seen: list[list[float]] = []
    monkeypatch.setattr(eviction, "evict_caches", lambda: seen.append([float(first[0]), float(second[0])]))
    first.fill_(7.0)
    second.fill_(7.0)
    prepare()
    assert seen == [[7.0, 2.0]]
    assert (first[0], second[0], index[0]) == (1.0, 2.0, 3)


@pytest.mark.parametrize(
    "tensor", [torch.rand(3, 4).t(), torch.rand(3, 8)[:, 2:5], torch.rand(3, 1).expand(3, 4), torch.rand(0, 3)]
)
def test_operands_are_written_however_they_lie(tensor: Tensor) -> None:
    before = tensor.clone()
    prepare = operand_writer([tensor])
    torch.as_strided(tensor, (tensor.untyped_storage().nbytes() // 4,), (1,), 0).zero_()
    prepare()
    assert torch.equal(tensor, before)


def test_evicting_the_caches_needs_no_arguments() -> None:
    evict_caches()
    assert eviction._evictor(1) is eviction._evictor(1)
    assert eviction._evictor(1) is not eviction._evictor(2)


def test_every_call_is_prepared_anew() -> None:
    for output in GRAPH.outputs:
        for cover in covers(output.node, CPU):
            call = timed_call(cover, cover.formats[0][0], CPU, 2**20)
            assert isinstance(call, PreparedCall)
            first, second = ([result.clone() for result in pytree.tree_leaves(call())] for _ in range(2))
            assert all(map(torch.equal, first, second)), "operands that are overwritten are written again"


def test_results_are_held_so_that_the_next_is_written_elsewhere() -> None:
    plain, *_ = covers(GRAPH.outputs[0].node, CPU)
    call = timed_call(plain, Format.DENSE, CPU, 0)
    places = [pytree.tree_leaves(call())[0].data_ptr() for _ in range(HELD + 1)]
    assert len(set(places)) == HELD + 1


def test_a_kernel_reads_other_weights_at_each_call() -> None:
    seen: list[int] = []

    def bind(statics: Sequence[Tensor], _: Packs) -> BoundKernel:
        return BoundKernel("told", lambda x, weight: seen.append(weight.data_ptr()), tuple(statics))

    (cover,) = [one for one in covers(GRAPH.outputs[1].node, CPU) if one.name == "onednn.conv"]
    call = timed_call(replace(cover, binder=bind), Format.DENSE, CPU, 2 * 8 * 8 * 9 * 4)
    for _ in range(4):
        call()
    assert len(set(seen)) == 3
    assert seen[0] == seen[3]


def test_elsewhere_than_on_the_cpu_calls_are_plain() -> None:
    plain, *_ = covers(GRAPH.outputs[0].node, META)
    assert not isinstance(timed_call(plain, Format.DENSE, META, 0), PreparedCall)
    assert not isinstance(conversion(GRAPH.inputs[0].value, Format.DENSE, META), PreparedCall)
    assert isinstance(conversion(GRAPH.inputs[0].value, Format.DENSE, CPU), PreparedCall)
