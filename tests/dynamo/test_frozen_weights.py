"""Frozen weights of captured graphs: what is noticed, at what price, and that races pay it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from taso_py.dynamo.captured import AutocastState, CapturedSource, FrozenWeights


def add_all(x: Tensor, weight: Tensor, y: Tensor) -> Tensor:
    return x + weight + y


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


def write_silently(tensor: Tensor) -> None:
    """Writes as batch normalisation does to its statistics: without counting that as a new version."""
    tensor.data.mul_(2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_silent_writes_to_vectors_are_noticed_whatever_their_types(dtype: torch.dtype) -> None:
    tensors = [torch.ones(2, 2), torch.ones(3, dtype=dtype), torch.ones(3), torch.ones(3, dtype=torch.float16)]
    for written in tensors[1:]:
        frozen = FrozenWeights(dict(enumerate(tensors)))
        assert frozen.are_current(tensors)
        write_silently(written)
        assert not frozen.are_current(tensors)


def test_what_is_not_a_number_is_no_change() -> None:
    tensors = [torch.tensor([float("nan"), 1.0])]
    frozen = FrozenWeights(dict(enumerate(tensors)))
    assert frozen.are_current(tensors)
    write_silently(tensors[0])
    assert not frozen.are_current(tensors)


def test_other_tensors_versions_and_places_in_memory_are_changes() -> None:
    weight, x = nn.Parameter(torch.ones(2, 2)), torch.ones(2, 2)
    assert not FrozenWeights({1: weight}).are_current([x, nn.Parameter(torch.ones(2, 2))])
    frozen = FrozenWeights({1: weight})
    assert frozen.are_current([x, weight])
    with torch.no_grad():
        weight.mul_(1)
    assert not frozen.are_current([x, weight])
    frozen = FrozenWeights({1: weight})
    weight.data = torch.ones(2, 2)
    assert not frozen.are_current([x, weight])


def test_a_race_pays_for_the_check_where_calls_will(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[list[Any]] = []
    are_current = FrozenWeights.are_current

    def noted(self: FrozenWeights, args: Any) -> bool:
        if self.tensors:
            checked.append(list(args))
        return are_current(self, args)

    monkeypatch.setattr(FrozenWeights, "are_current", noted)
    x, weight, y = torch.ones(2), nn.Parameter(torch.ones(2)), torch.full((2,), 3.0)
    frozen, graph = FrozenWeights({1: weight}), fx.symbolic_trace(add_all)
    source = CapturedSource.of("sums", graph, (x, weight, y), frozen, AutocastState("cpu"))
    assert len(source.args) == 2
    assert torch.equal(source.call_of(source.callable())(), torch.full((2,), 5.0))
    assert checked == []
    assert torch.equal(source.call_of(lambda x, y: x - y)(), torch.full((2,), -2.0))
    ((*seen,),) = checked
    assert [a is b for a, b in zip(seen, (x, weight, y), strict=True)] == [True] * 3


def test_in_a_race_the_captured_graph_has_its_autocast_and_a_result_has_none() -> None:
    x, weight = torch.ones(2, 2), nn.Parameter(torch.ones(2, 2))
    with torch.autocast("cpu", torch.bfloat16):
        autocast = AutocastState("cpu")
    frozen, graph = FrozenWeights({1: weight}), fx.symbolic_trace(multiply)
    source = CapturedSource.of("layer", graph, (x, weight), frozen, autocast)
    assert source.call_of(source.callable())().dtype is torch.bfloat16
    assert source.call_of(lambda x: x @ x)().dtype is torch.float32
