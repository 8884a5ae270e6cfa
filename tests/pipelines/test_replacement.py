"""Replaced forwards: which calls and changes of a module run its own one, and that copies and compilers see that."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from taso_py.backend.guard import ArgumentError
from taso_py.pipelines.replacement import Replacement

FORM = torch.tensor(42.0)
"""Result of the form, which is none of a module."""


class Gain(nn.Module):
    """A layer with attributes of several kinds, some of which its calls set."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(4, 4), nn.Dropout()
        self.gain, self.axes, self.table, self.seen = 2.0, (0, 1), torch.ones(4), ()

    def forward(self, x: Tensor) -> Tensor:
        self.seen = tuple(x.shape)
        return self.drop(self.layer(x)) * self.gain + self.table


def replaced(module: nn.Module) -> nn.Module:
    """Return a module in evaluation mode whose form takes two rows."""

    def form(x: Tensor) -> Tensor:
        if len(x) != 2:
            raise ArgumentError("two rows")
        return FORM

    Replacement(module.eval(), [form])
    return module


def is_served(module: Callable[..., Any], rows: int = 2) -> bool:
    """Return whether a call runs the form."""
    with torch.no_grad():
        return module(torch.ones(rows, 4)) is FORM


def _left_alone(module: Any) -> None:
    pass


def _equal_values(module: Any) -> None:
    module.gain, module.axes, module.table = 1.0 + 1.0, (0, len("a")), torch.ones(4)


def _other_rows(module: Any) -> None:
    assert not is_served(module, rows=3)
    assert module.seen == (3, 4)


def _and_back(module: Any) -> None:
    module.train()
    assert not is_served(module)
    module.eval()
    module.seen = ()


@pytest.mark.parametrize("change", [_left_alone, _equal_values, _other_rows, _and_back])
def test_a_module_that_computes_the_same_runs_its_form(change: Callable[[Any], None]) -> None:
    module = replaced(Gain())
    assert is_served(module)
    change(module)
    assert is_served(module)


@pytest.mark.parametrize(
    "change",
    [
        lambda module: module.drop.train(),
        lambda module: setattr(module, "gain", 3.0),
        lambda module: setattr(module, "gain", 2),
        lambda module: setattr(module, "axes", (0, 2)),
        lambda module: setattr(module, "table", torch.zeros(4)),
        lambda module: module.table.zero_(),
        lambda module: setattr(module, "shift", 1.0),
        lambda module: delattr(module, "gain"),
        lambda module: setattr(module.drop, "p", 0.1),
        lambda module: module.layer.register_parameter("extra", nn.Parameter(torch.ones(4))),
        lambda module: module.drop.register_buffer("extra", torch.ones(4)),
        lambda module: module.register_module("extra", nn.Identity()),
    ],
)
def test_a_changed_module_runs_as_it_is(change: Callable[[Any], object], caplog: pytest.LogCaptureFixture) -> None:
    module = replaced(Gain())
    change(module)
    if hasattr(module, "gain"):
        assert not is_served(module)
    else:
        with pytest.raises(AttributeError):
            is_served(module)
    assert caplog.text.count("have changed") == 1


def test_a_change_between_calls_that_no_form_was_made_for_is_not_overlooked() -> None:
    module: Any = replaced(Gain())
    module.gain = 3.0
    assert not is_served(module, rows=3)
    assert not is_served(module)


class Scaled(nn.Module):
    """A layer whose calls may name their argument."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * 2.0


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    "trace",
    [
        lambda module, x: torch.export.export(module, (x,)).module(),
        lambda module, x: torch.export.export(module, (x,), strict=True).module(),
        lambda module, x: torch.compile(module, backend="eager", fullgraph=True),
        lambda module, x: torch.jit.trace(module, (x,), check_trace=False),
        lambda module, x: torch.fx.symbolic_trace(module),
    ],
    ids=["exported", "exported strictly", "compiled", "traced by jit", "traced by fx"],
)
def test_what_traces_a_module_sees_its_own_forward(trace: Callable[[nn.Module, Tensor], Any]) -> None:
    module: Any = replaced(Scaled())
    x = torch.randn(2, 4)
    assert is_served(module)
    with torch.no_grad():
        assert torch.equal(trace(module, x)(x), Scaled.forward(module, x))


def test_an_export_takes_the_names_of_arguments() -> None:
    rows = torch.export.Dim("rows", min=2, max=64)
    exported = torch.export.export(replaced(Scaled()), (torch.ones(8, 4),), dynamic_shapes={"x": {0: rows}})
    assert exported.module()(torch.ones(5, 4)).shape == (5, 4)


def test_a_copy_keeps_a_forward_of_the_instance() -> None:
    module: Any = Scaled()
    module.forward = lambda x: x + 1.0
    copied = copy.deepcopy(replaced(module))
    assert is_served(module)
    assert torch.equal(copied(torch.ones(2, 4)), torch.full((2, 4), 2.0))
    bound: Any = Gain()
    bound.forward = bound.drop.forward
    assert vars(copy.deepcopy(replaced(bound)))["forward"].__self__ is not bound.drop
    plain = copy.deepcopy(replaced(Scaled()))
    assert vars(plain)["forward"].__self__ is plain
