"""Programs in functional form are imported as they are, and are the programs that another trace of them gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn import functional

from taso_py.backend import build
from taso_py.frontend import export as exporting
from taso_py.frontend import import_module
from taso_py.frontend.decompose import EXPANDED
from taso_py.frontend.dialect import DIALECT
from taso_py.frontend.export import functionalize
from taso_py.ir.text import print_graph
from taso_py.saving.artifact import reimport, serialize

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Called(nn.Module):
    """A function of a tensor and a layer as a module with a buffer."""

    mean: Tensor

    def __init__(self, function: Callable[[Called, Tensor], object]) -> None:
        super().__init__()
        self.function = function
        self.linear = nn.Linear(8, 8)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> object:
        return self.function(self, x)


def _attention(model: Called, x: Tensor) -> Tensor:
    q = model.linear(x)
    mixed = functional.scaled_dot_product_attention(q, x, x).transpose(1, 2).contiguous()
    copied = mixed.transpose(2, 3).reshape(2, 8, 24)
    return functional.dropout(copied, 0.1, training=False).flatten(1).unflatten(1, (8, 24))


def _layers(model: Called, x: Tensor) -> Tensor:
    y = functional.batch_norm(functional.conv2d(x, torch.ones(3, 3, 1, 1)), model.mean, model.mean + 1)
    return functional.max_pool2d(y.permute(0, 1, 3, 2).contiguous(), 2)


def _unread(model: Called, x: Tensor) -> Tensor:
    model.linear(x).unsqueeze(0)
    return x.split(1, 1)[1].relu()


def _sizes(model: Called, x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], -1).to(torch.float64).to(torch.float32) + x.shape[0]


def _written(model: Called, x: Tensor) -> Tensor:
    y = x + 1
    y[0] = 0
    return y


def _statistics(model: Called, x: Tensor) -> Tensor:
    return functional.batch_norm(x, model.mean, model.mean + 1, training=True)


def _counted(model: Called, x: Tensor) -> Tensor:
    model.mean += 1
    return x + model.mean[0]


def _chosen(model: Called, x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t - 1, (x,))


def _mapped(model: Called, x: Tensor) -> Tensor:
    return torch.vmap(lambda row, mean: row * row.sum() + mean, in_dims=(1, None))(x, model.mean[0])


FUNCTIONAL: tuple[Callable[[Called, Tensor], Tensor], ...] = (
    _attention,
    _layers,
    _unread,
    lambda model, x: (x + 1).relu_(),
)
OTHERS: tuple[Callable[[Called, Tensor], Tensor], ...] = (
    _sizes,
    _written,
    _statistics,
    _counted,
    _chosen,
    _mapped,
    lambda model, x: (x + 1).contiguous(memory_format=torch.channels_last),
    lambda model, x: torch.einsum("bchw,bciw->bhi", x, x),
    lambda model, x: x + torch.rand(8),
    lambda model, x: functional.dropout(x, 0.5, training=True),
)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[ExportedProgram]:
    """The programs that are traced again from now on."""
    programs: list[ExportedProgram] = []
    decompose = exporting.decompose

    def noted(program: ExportedProgram, table: object) -> ExportedProgram:
        programs.append(program)
        return decompose(program, table)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(exporting, "decompose", noted)
    return programs


@pytest.mark.parametrize("function", FUNCTIONAL)
def test_functional_programs_are_imported_as_they_are(
    function: Callable[[Called, Tensor], Tensor], traced: list[ExportedProgram], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Called(function).eval()
    here = import_module(model, (X,))
    assert not traced
    with monkeypatch.context() as patch:
        patch.setattr(exporting, "is_functional", lambda *_: False)
        there = import_module(model, (X,))
    assert traced, "the control"
    assert print_graph(here.graph) == print_graph(there.graph)
    assert (here.contract, here.variants, here.weights.keys()) == (there.contract, there.variants, there.weights.keys())


@pytest.mark.parametrize("function", OTHERS)
def test_other_programs_are_traced_again(
    function: Callable[[Called, Tensor], Tensor], traced: list[ExportedProgram]
) -> None:
    exported = torch.export.export(Called(function).eval(), (X,))
    assert functionalize(exported) is not exported
    assert traced


def test_what_is_mapped_over_rows_is_computed_of_all() -> None:
    model = Called(_mapped).eval()
    program = import_module(model, (X,))
    assert {"sum", "mul", "add"} <= {node.op.name for node in program.graph.nodes}
    torch.testing.assert_close(build(program)(X), model(X))


def test_open_sizes_are_traced_again(traced: list[ExportedProgram]) -> None:
    exported = torch.export.export(Called(_attention).eval(), (X,), dynamic_shapes=({3: torch.export.Dim.STATIC},))
    assert functionalize(exported) is exported
    batch = torch.export.Dim("batch", min=2)
    exported = torch.export.export(nn.ReLU(), (X,), dynamic_shapes=({0: batch},))
    assert functionalize(exported) is not exported
    assert len(traced) == 1


def test_what_is_saved_is_functional(traced: list[ExportedProgram]) -> None:
    content = serialize(Called(_attention).eval(), (X,), {})
    traced.clear()
    reimport(content)
    assert not traced


def test_all_that_pytorch_expands_has_a_row() -> None:
    assert DIALECT.keys() >= EXPANDED
