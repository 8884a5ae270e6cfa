"""Writes to tensors that are no buffers are refused and undone; so is what becomes of lists, sets and dicts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from operator import is_
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from taso_py.frontend import ImportRefusal, import_module
from taso_py.frontend.snapshot import Snapshot
from tests.round_trips import Model, round_trip

X = torch.arange(6.0).view(2, 3)


def holding(function: Callable[..., Any], value: Any) -> Model:
    """A model whose ``k`` is a value."""
    model = Model(function)
    model.k = value
    return model


def writing_in_place(s: Any, x: Tensor) -> Tensor:
    s.k.add_(1)
    return x * s.k


def writing_to_data(s: Any, x: Tensor) -> Tensor:
    s.k.data.mul_(2)
    return x * s.k


def replacing_data(s: Any, x: Tensor) -> Tensor:
    s.k.data = s.k.data[:2] + 1
    return x[:, :2] * s.k


def writing_to_element(s: Any, x: Tensor) -> Tensor:
    s.k[0].add_(1)
    return x * s.k[0]


def writing_at_first(s: Any, x: Tensor) -> Tensor:
    if not hasattr(s, "initialized"):
        s.initialized = True
        s.k.data.copy_(x[1])
    return x * s.k


WRITING: list[tuple[Callable[..., Any], Callable[[Tensor], Any], str]] = [
    (writing_in_place, nn.Parameter, "parameter k"),
    (writing_to_data, nn.Parameter, "parameter k"),
    (replacing_data, nn.Parameter, "parameter k"),
    (writing_at_first, nn.Parameter, "parameter k"),
    (writing_in_place, lambda ones: ones, "k"),
    (writing_to_element, lambda ones: [ones], r"k\[0\]"),
    (writing_to_element, lambda ones: (ones,), r"k\[0\]"),
]


@pytest.mark.parametrize(("function", "wrap", "name"), WRITING)
def test_writes_to_tensors_that_are_no_buffers_are_refused_and_undone(
    function: Callable[..., Any], wrap: Callable[[Tensor], Any], name: str
) -> None:
    ones = torch.ones(3)
    model = holding(function, wrap(ones))
    before = model.k
    with pytest.raises(ImportRefusal, match=f"the model writes to its {name}; make it a buffer"):
        import_module(model, (X,))
    assert model.k is before
    assert (before if isinstance(before, Tensor) else ones).tolist() == [1, 1, 1]
    assert not hasattr(model, "initialized")


def test_parameter_of_a_module_within_is_named() -> None:
    embedding = nn.Embedding(4, 3, max_norm=0.5)
    before = embedding.weight.detach().clone()
    with pytest.raises(ImportRefusal, match=r"writes to its parameter 0\.weight; make it a buffer"):
        import_module(nn.Sequential(embedding, nn.ReLU()), (torch.arange(4),))
    assert torch.equal(embedding.weight, before)


def test_writes_to_parameters_that_an_export_does_not_show_are_refused() -> None:
    library = torch.library.Library("taso_py_test_decay", "DEF")
    library.define("decay(Tensor w, Tensor x) -> Tensor")
    library.impl("decay", lambda w, x: x * w.mul_(0.5), "CompositeExplicitAutograd")
    torch.library.register_fake("taso_py_test_decay::decay", lambda w, x: x * w, lib=library)
    weight = nn.Parameter(torch.ones(3))
    model = Model(lambda s, x: torch.ops.taso_py_test_decay.decay(s.weight, x), weight=weight)
    with pytest.raises(ImportRefusal, match="writes to its parameter weight; make it a buffer"):
        import_module(model, (X,))
    assert weight.tolist() == [1, 1, 1]


def test_parameters_that_are_only_read_are_no_state() -> None:
    weight = nn.Parameter(torch.tensor([1.0, float("nan"), 3.0]))
    round_trip(Model(lambda s, x: x * s.weight, weight=weight), X)


def test_containers_that_are_only_read_are_no_state() -> None:
    weight, table = nn.Parameter(torch.ones(3)), torch.ones(3)
    kept = [weight, {"scale": 2, "table": table}, {1, 2}, (table, [nn.ReLU()])]
    first = list(kept)
    model = holding(lambda s, x: x * s.k[0] + s.k[1]["table"] * s.k[1]["scale"] + len(s.k[2]), kept)
    model.register_parameter("weight", weight)
    round_trip(model, X)
    assert model.k is kept
    assert len(kept) == len(first)
    assert all(map(is_, kept, first))
    assert kept[1] == {"scale": 2, "table": table}


def test_a_buffer_that_is_in_a_list_too_is_a_buffer() -> None:
    def counting(s: Any, x: Tensor) -> Tensor:
        s.n.add_(1)
        return x * s.n

    n = torch.zeros(3)
    model = holding(counting, [n])
    model.register_buffer("n", n)
    round_trip(model, X)
    assert n.tolist() == [0, 0, 0]


def test_what_tracing_leaves_in_a_list_is_removed() -> None:
    def tracing(s: Any, x: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            s.k.append(x + 1)
        return x * 2

    model = holding(tracing, [])
    import_module(model, (X,))
    assert model.k == []


def test_restored_containers_hold_the_same_objects() -> None:
    row, key = torch.zeros(3), object()
    inner, table, queue, numbers = [row], {key: row}, deque([1, 2], maxlen=2), {1, 2}
    outer: list[Any] = [inner, table, queue, numbers]
    outer.append(outer)  # nothing goes round in circles
    model = holding(torch.relu, outer)
    before = Snapshot(model)
    row.add_(1)
    inner[0] = row.clone()
    table.clear()
    queue.append(3)
    numbers.add(3)
    del outer[1:3]
    assert before.written() == ["k[0][0]", "k[1][#0]"]
    assert {"k[0][0]", "k[1]", "k[1][1]", "k[2]"} <= {*before.replaced()}
    before.restore()
    assert all(map(is_, outer, [inner, table, queue, numbers, outer]))
    assert inner[0] is row
    assert row.tolist() == [0, 0, 0]
    assert table == {key: row}
    assert list(queue) == [1, 2]
    assert numbers == {1, 2}
    assert before.written() == before.replaced() == []


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
def test_complex_numbers_in_half_precision_are_compared_by_their_parts() -> None:
    """PyTorch compares no tensors of that type."""
    numbers = torch.tensor([1 + 2j, complex(1, float("nan"))]).to(torch.complex32)
    round_trip(holding(lambda s, x: x + 1, numbers), X)
    with pytest.raises(ImportRefusal, match="the model writes to its k"):
        import_module(holding(lambda s, x: (s.k.zero_(), x + 1)[1], numbers), (X,))
    assert torch.view_as_real(numbers)[0].tolist() == [1, 2]
