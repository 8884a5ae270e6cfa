"""Numbers that graphs take and return beside their tensors do not keep these from being optimized."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from taso_py.dynamo import backend as dynamo
from taso_py.dynamo.numbers import NumbersApart


class Counter:
    """Counts calls in Python."""

    def __init__(self) -> None:
        self.calls, self.sum = 0, 0


def counted(x: Tensor, counter: Counter) -> Tensor:
    counter.calls += 1
    counter.sum += 3 * counter.calls
    return torch.relu(x) * 2


def read(x: Tensor, counter: Counter) -> Tensor:
    counter.calls += 1
    return torch.relu(x) * counter.calls


pytestmark = pytest.mark.usefixtures("fresh_compilations")


def sized(x: Tensor, counter: Counter) -> tuple[Tensor, int]:
    """Computes with sizes, one of which it returns, and counts."""
    counter.calls += 1
    return torch.arange(x.shape[0]) + torch.relu(x).sum(1) / x.numel(), x.shape[0] + 1


def captured(function: Callable[..., Any], *, grows: bool = False) -> fx.GraphModule:
    """The graph that is captured of a function once its numbers, and the rows that it is given, vary."""
    graphs: list[fx.GraphModule] = []

    def keep(graph: fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    compiled, counter = torch.compile(function, backend=keep), Counter()
    for rows in range(2, 5):
        compiled(torch.ones(rows, 3) if grows else torch.ones(3), counter)
    return graphs[-1]


def test_the_parts_return_what_the_whole_does() -> None:
    graph = captured(counted)
    apart = NumbersApart.of(graph)
    assert apart is not None
    assert not any(isinstance(node.meta.get("example_value"), torch.SymInt) for node in apart.tensors.graph.nodes)
    kinds = [node.meta["example_value"] for node in graph.graph.nodes if node.op == "placeholder"]
    given = [
        torch.tensor([-1.0, 0.0, 2.0]) if isinstance(kind, Tensor) else 7 + place for place, kind in enumerate(kinds)
    ]
    found, expected = apart.joined(apart.tensors.forward)(*given), graph.forward(*given)
    assert [type(value) for value in found] == [type(value) for value in expected]
    assert len([value for value in found if isinstance(value, int)]) == 2
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(found, expected, strict=True))


def test_sizes_are_read_from_tensors() -> None:
    graph = captured(sized, grows=True)
    apart = NumbersApart.of(graph)
    assert apart is not None
    kinds = {node.name: node.meta["example_value"] for node in graph.graph.nodes if node.op == "placeholder"}
    sizes: list[Any] = [kind.shape[0] for kind in kinds.values() if isinstance(kind, Tensor)]
    (rows,) = {size.node.expr for size in sizes}
    assert apart.given[0] == tuple(place for place, kind in enumerate(kinds.values()) if isinstance(kind, Tensor))
    for count in (2, 7):
        x = torch.randn(count, 3)
        given = [
            x if isinstance(kind, Tensor) else count if kind.node.expr == rows else 20 + place
            for place, kind in enumerate(kinds.values())
        ]
        found, expected = apart.joined(apart.tensors.forward)(*given), graph.forward(*given)
        assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(found, expected, strict=True))
        assert count + 1 in [value for value in found if isinstance(value, int)]


def test_numbers_that_tensors_depend_on_stay() -> None:
    assert NumbersApart.of(captured(read)) is None
    assert NumbersApart.of(captured(lambda x, _: x + 1)) is None


@pytest.mark.usefixtures("any_gain")
@pytest.mark.parametrize("function", [counted, read])
def test_what_is_counted_varies(function: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    options: Any = {"race_seconds": 0.1, "time_limit": 1.0, "kernels": False}
    compiled = torch.compile(function, backend=dynamo.taso, options=options)
    mine, yours, x = Counter(), Counter(), torch.tensor([-1.0, 0.0, 2.0])
    with torch.no_grad():
        for _ in range(5):
            assert torch.equal(compiled(x, mine), function(x, yours))
    assert vars(mine) == vars(yours)
    assert mine.calls == 5
    assert ("it computes with numbers that vary between calls" in caplog.text) is (function is read)
