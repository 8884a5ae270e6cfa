"""In-place calls are imported as calls that return new values, unless something else can tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from taso_py.backend import build
from taso_py.frontend import export as exporting
from taso_py.frontend import import_module
from taso_py.frontend.export import export
from taso_py.frontend.in_place import out_of_place
from taso_py.models import zoo
from tests.round_trips import Model, randn, round_trip

X, W = randn(3, 4), randn(4, 4)


def model(run: Callable[[Tensor, Tensor], object]) -> Model:
    return Model(lambda s, x: run(x, s.w), w=W.clone())


def in_place(run: Callable[[Tensor, Tensor], object]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the names of in-place calls of a program before and after."""
    exported = export(model(run), (X.clone(),), {})
    text, made = str(exported.graph), out_of_place(exported)
    assert str(exported.graph) == text
    assert (made is exported) == (str(made.graph) == text)

    def calls(graph: torch.fx.Graph) -> list[str]:
        names = [str(node.target).removeprefix("aten.").split(".")[0] for node in graph.nodes]
        return [name for name in names if name.endswith("_")]

    return calls(exported.graph), calls(made.graph)


@pytest.mark.parametrize(
    "run",
    [
        lambda x, w: F.relu_(F.linear(x, w)),
        lambda x, w: F.linear(x, w).mul_(2.0).add_(x),
        lambda x, w: F.hardswish(F.hardswish(x @ w, inplace=True), inplace=True),
        lambda x, w: F.dropout(x @ w, 0.5, training=False, inplace=True) + 1,
        lambda x, w: F.dropout((x @ w).flatten(), 0.5, training=False, inplace=True),
    ],
    ids=["one", "several", "not tagged", "dropout", "dropout of a view"],
)
def test_calls_that_write_to_what_nothing_else_reads_are_replaced(run: Callable[[Tensor, Tensor], Tensor]) -> None:
    before, after = in_place(run)
    assert before
    assert not after
    round_trip(model(run), X)


def test_names_stay() -> None:
    """A copied node would not be called like one of Python's functions."""
    exported = export(Model(lambda s, input: F.linear(input, s.w).relu_(), w=W.clone()), (X.clone(),), {})
    made = out_of_place(exported)
    assert made is not exported
    assert [node.name for node in made.graph.nodes] == [node.name for node in exported.graph.nodes]
    assert torch.equal(made.module()(X), F.linear(X, W).relu())


def _read_before(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = x @ w
    return y.sum(0), y.relu_()


def _seen_through_a_view(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = x @ w
    row = y[0]
    row.relu_()
    return y, row


def _argument(x: Tensor, w: Tensor) -> Tensor:
    return x.relu_()


def _other_type(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).add_(torch.ones(4, dtype=torch.float64))


def _by_parts(x: Tensor, w: Tensor) -> Tensor:
    return F.selu(F.relu6(x @ w, inplace=True), inplace=True)


@pytest.mark.parametrize("run", [_read_before, _seen_through_a_view, _argument, _other_type, _by_parts])
def test_other_calls_are_left_to_pytorch(run: Callable[[Tensor, Tensor], object]) -> None:
    before, after = in_place(run)
    assert before
    assert set(after) & {"relu_", "add_", "selu_"}
    if run is not _argument:  # models that write to their arguments are refused
        round_trip(model(run), X)


@pytest.mark.parametrize("name", ["mobilenet_v3_large", "squeezenet1_1"])
def test_vision_models_are_traced_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, args = zoo.get(name).make(0, small=True)
    decompose, traced = exporting.decompose, list[str]()

    def counted(*given: Any) -> Any:
        traced.append(name)
        return decompose(*given)

    monkeypatch.setattr(exporting, "decompose", counted)
    once = import_module(module, args).graph
    assert not traced
    monkeypatch.setattr(exporting, "out_of_place", lambda exported: exported)
    assert import_module(module, args).graph.digest == once.digest, "both ways lead to one graph"
    assert traced


@pytest.mark.parametrize("name", ["gt_", "le_", "eq_", "ne_", "logical_and_"])
def test_comparisons_in_place_stay_numbers(name: str) -> None:
    """Out of place they are truth values, whose sum is at most one."""

    def run(x: Tensor, w: Tensor) -> Tensor:
        one, other = (getattr(x + shift, name)(torch.ones(())) for shift in (0.0, 1.0))
        return (one + other) * x

    before, after = in_place(run)
    assert len(before) == len(after) == 2
    operands = torch.tensor([[0.0, 1.0, 2.0, -1.0]] * 3)
    module = model(run)
    assert torch.equal(build(import_module(module, (operands,)))(operands), module(operands))


def test_logic_in_place_on_truth_values_is_replaced() -> None:
    before, after = in_place(lambda x, w: (x > 0).logical_and_(x < 1))
    assert before
    assert not after
