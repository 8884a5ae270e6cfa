"""Parameters, buffers and constants: what is tied stays tied, what is written to is written to, in copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from taso_py.backend import build
from taso_py.backend.guard import ArgumentError
from taso_py.backend.schema import stored_bytes
from taso_py.frontend import ImportRefusal, import_module
from taso_py.ir.operator import Weight
from tests.round_trips import Model, round_trip


class Tied(nn.Module):
    """An embedding whose matrix is the head too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens))


def test_tied_weights_are_one() -> None:
    model = Tied().eval()
    program = round_trip(model, torch.tensor([[1, 2, 6]]))
    assert list(program.weights) == ["embedding.weight"]
    built = build(program)
    assert built.get_parameter("embedding.weight").data_ptr() == model.head.weight.data_ptr()


def test_layer_used_twice() -> None:
    layer = nn.Linear(3, 3)
    program = round_trip(nn.Sequential(layer, nn.ReLU(), layer), torch.ones(2, 3))
    assert sorted(program.weights) == ["0.bias", "0.weight"]


def test_names_and_kinds_of_state_are_kept() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)).eval()
    built = build(round_trip(model, torch.ones(1, 1, 2, 2)))
    assert {name for name, _ in built.named_parameters()} == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert {name for name, _ in built.named_buffers()} == {"1.running_mean", "1.running_var"}
    assert not built.training


def test_gradient_flags_are_kept() -> None:
    """``linear`` on a transposed operand computes differently for weights that require gradients."""
    x = torch.randn(3, 4, 5).transpose(0, 1)
    for flag in (False, True):
        program = round_trip(nn.Linear(5, 6).requires_grad_(flag), x)
        assert program.parameters == {"weight": flag, "bias": flag}


def test_lifted_constants() -> None:
    round_trip(Model(lambda s, x: x + torch.tensor([1.0, 2.0, 3.0])), torch.ones(3))


def counting(s: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    old = s.n.clone()
    s.n.add_(1)
    return x * s.n, old, s.n


def swapping(s: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    kept = s.a.clone()
    s.a.copy_(s.b)
    s.b.copy_(kept)
    return x + s.a, kept.view(-1)


def caching(s: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    s.a[1:2] = x
    return s.a.sum(), s.a[0]


@pytest.mark.parametrize("function", [counting, swapping, caching])
def test_written_buffers(function: Callable[..., object]) -> None:
    state = {"n": torch.zeros(3), "a": torch.zeros(3), "b": torch.ones(3)}
    x = torch.ones(1) if function is caching else torch.ones(3)
    program = round_trip(Model(function, **state), x)
    assert {node.op.mutable for node in program.graph.nodes if isinstance(node.op, Weight)} == {True}


def test_training_batch_norm_develops_its_statistics() -> None:
    round_trip(nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)).train(), torch.randn(3, 1, 2, 2))


def test_nothing_writes_to_the_original_or_to_another_build() -> None:
    model = Model(counting, n=torch.zeros(3))
    program = import_module(model, (torch.ones(3),))
    first, second = build(program), build(program)
    first(torch.ones(3))
    assert first.get_buffer("n").tolist() == [1, 1, 1]
    assert second.get_buffer("n").tolist() == [0, 0, 0]
    assert program.weights["n"].tolist() == [0, 0, 0]
    assert model.get_buffer("n").tolist() == [0, 0, 0]


def test_written_buffer_that_shares_memory_is_refused() -> None:
    memory = torch.zeros(4)
    model = Model(lambda s, x: (s.a.add_(1), x + s.b)[1], a=memory[:3], b=memory[1:])
    with pytest.raises(ImportRefusal, match="overlaps in memory with another tensor; clone one"):
        import_module(model, (torch.ones(3),))


def test_an_argument_that_shows_a_written_buffer_is_refused() -> None:
    def shifted(s: Any, x: Tensor) -> Tensor:
        s.row[1:] = s.row[:-1].clone()
        return x * 2 + s.bias

    built = build(import_module(Model(shifted, row=torch.arange(4.0), bias=torch.ones(4)), (torch.ones(4),)))
    row = built.get_buffer("row")
    for shown in (row, row.view(2, 2).flatten()):
        with pytest.raises(ArgumentError, match="writes to its row, whose memory an argument shares"):
            built(shown)
    assert row.tolist() == [0, 1, 2, 3]
    for apart in (row.clone(), built.get_buffer("bias")):
        assert torch.equal(built(apart), apart * 2 + 1)
    assert row.tolist() == [0, 0, 0, 1]


def test_state_is_written_within_transforms() -> None:
    model = Model(lambda s, x: (s.n.add_(1), x * 2)[1], n=torch.zeros(3))
    built = build(import_module(model, (torch.ones(3),)))
    assert torch.equal(torch.vmap(built)(torch.ones(2, 3)), torch.full((2, 3), 2.0))
    assert built.get_buffer("n").tolist() == [1, 1, 1]


def test_overlapping_state_that_nobody_writes_to() -> None:
    memory = torch.randn(4)
    program = round_trip(Model(lambda s, x: x + s.a + s.b, a=memory[:3], b=memory[1:]), torch.ones(3))
    assert stored_bytes(program.weights.values()) == 16


def test_a_conjugate_of_a_weight_is_a_view_of_it() -> None:
    z = torch.randn(3, dtype=torch.complex64)
    program = round_trip(Model(lambda s, x: (x * s.a, x * s.b), a=z, b=z.conj()), torch.ones(3))
    assert list(program.weights) == ["a"]
    assert stored_bytes(program.weights.values()) == 3 * 8
    round_trip(Model(lambda s, x: (x * s.a, x * s.b), a=z.imag, b=z.conj().imag), torch.ones(3))


def test_sparse_state_is_refused() -> None:
    model = Model(lambda s, x: x @ s.w, w=torch.eye(3).to_sparse())
    with pytest.raises(ImportRefusal, match=r"model's w is a sparse tensor \(sparse_coo\), .* call \.to_dense"):
        import_module(model, (torch.ones(3, 3),))


def test_unused_state_is_left_out() -> None:
    program = round_trip(Model(lambda s, x: x + s.a, a=torch.ones(3), b=torch.ones(3)), torch.ones(3))
    assert list(program.weights) == ["a"]
