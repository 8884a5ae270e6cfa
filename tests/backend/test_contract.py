"""Outputs keep little more memory than their own, however what was rewritten lays them out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from taso_py.backend import ContractError, build, build_around
from taso_py.backend.contract import SLACK_BYTES
from taso_py.frontend import import_module
from taso_py.ops.table import parse_graph
from tests.round_trips import Model, round_trip

X = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))


def kept(tensor: Tensor) -> int:
    """How many bytes a tensor keeps alive beside its own."""
    return tensor.untyped_storage().nbytes() - tensor.numel() * tensor.element_size()


def test_a_part_of_a_merged_value_is_copied() -> None:
    program = import_module(Model(lambda s, x: x[:8] * 2), (X,))
    merged = replace(
        program,
        graph=parse_graph("""
            graph(args_0: f32[64,64]) {
              double = add(args_0, args_0)
              return slice(double){axis=-2, start=0, stop=8}
            }"""),
    )
    found = build(merged)(X)
    assert torch.equal(found, X[:8] * 2)
    assert kept(found) == 0


def test_parts_that_together_are_most_of_a_value_stay_where_they_are() -> None:
    """As in the original."""
    module = build(import_module(Model(lambda s, x: (x * 2).chunk(4)), (X,)))
    assert len({part.untyped_storage().data_ptr() for part in module(X)}) == 1
    first, second = build(import_module(Model(lambda s, x: (x * 2).chunk(8)[:2]), (X,)))(X)
    assert kept(first) == kept(second) == 0
    torch.testing.assert_close((first, second), (X * 2).chunk(8)[:2])


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_a_copy_has_the_strides_of_the_original(order: torch.memory_format) -> None:
    def taken(s: object, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(part.contiguous(memory_format=order) for part in x.view(1, 8, 8, 64).mul(2).split(16, 3))

    program = import_module(Model(taken), (X,))
    merged = replace(
        program,
        graph=parse_graph("""graph(args_0: f32[64,64]) {
          double = reshape(add(args_0, args_0)){shape=[1,8,8,64]}
          return slice(double){axis=-1, start=0, stop=16}, slice(double){axis=-1, start=16, stop=32},
            slice(double){axis=-1, start=32, stop=48}, slice(double){axis=-1, start=48, stop=64}
        }"""),
    )
    for found, expected in zip(build(merged)(X), taken(None, X), strict=True):
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()
        assert kept(found) == 0


def test_what_is_returned_twice_is_copied_once() -> None:
    first, second = build(import_module(Model(lambda s, x: ((y := (x * 2)[:4]), y)), (X,)))(X)
    assert first.data_ptr() == second.data_ptr()
    assert kept(first) == 0


def test_little_memory_and_that_of_others_is_not_counted() -> None:
    weight = torch.randn(64, 64)
    part, of_argument, of_weight = build(
        import_module(Model(lambda s, x: ((x[:1] * 2)[:, :2], x[:1], s.w[:1]), w=weight), (X,))
    )(X)
    assert 0 < kept(part) < SLACK_BYTES
    assert of_argument.data_ptr() == X.data_ptr()
    assert of_weight.data_ptr() == weight.data_ptr()


def test_strides_are_kept_in_copies() -> None:
    round_trip(Model(lambda s, x: ((x * 2).t()[:4], (x + 1)[::8, ::8], (x * 3)[0].expand(2, 64))), X)


def test_an_argument_that_is_expanded_in_the_example_only_keeps_its_elements() -> None:
    """Where what is returned has to be copied, since another value takes the place of the view."""
    program = import_module(Model(lambda s, x: x), (X[:1].expand(4, 64),))
    rewritten = replace(
        program, graph=parse_graph("graph(args_0: f32[4,64]) { return mul(args_0, constant{value=1.0, dtype=f32}) }")
    )
    assert torch.equal(build(rewritten)(X[:4]), X[:4])
    with pytest.raises(ContractError, match="a view of an argument whose elements share memory"):
        build_around(program, torch.nn.Identity())
    ours = import_module(Model(lambda s, x: x.expand(4, 64)), (X[:1],))
    assert build(ours)(X[1:2]).stride() == (0, 1)
