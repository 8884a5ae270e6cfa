"""Random numbers and assertions: they happen in order, once each; only what holds anyway disappears."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from taso_py.backend import build
from taso_py.frontend import ImportRefusal, export, import_module, import_program
from taso_py.ir.node import make
from taso_py.ops.movement import Contiguous, Permute
from taso_py.saving.artifact import deserialize, serialize
from tests.round_trips import Model, opaque_targets, operator_names, round_trip
from tests.versions import need


def test_draws_are_neither_merged_nor_reordered() -> None:
    def forward(s: Any, x: Tensor) -> tuple[Tensor, ...]:
        return x + torch.rand(3), x + torch.rand(3), torch.randn_like(x), torch.bernoulli(x.sigmoid())

    program = round_trip(Model(forward), torch.randn(3))
    assert opaque_targets(program) == ["rand", "rand", "randn_like", "bernoulli"]
    assert len(program.graph.effects) == 4
    assert len({node.token for node in program.graph.effects}) == 4


def test_dropout_draws_in_training_only() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout())
    assert len(round_trip(model.train(), torch.randn(2, 3)).graph.effects) == 1
    assert len(round_trip(model.eval(), torch.randn(2, 3)).graph.effects) == 0


@pytest.mark.parametrize(("rate", "train"), [(0.5, False), (0.0, True)])
def test_what_is_written_to_a_dropout_that_drops_nothing_is_written_to_its_operand(rate: float, train: bool) -> None:
    def forward(s: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = x * 2
        nn.functional.dropout(hidden, rate, train).add_(1)
        return hidden, hidden.sum()

    program = round_trip(Model(forward), torch.randn(2, 3))
    assert operator_names(program) == ["mul", "add", "sum"]
    exported = torch.export.export(Model(forward), (torch.randn(2, 3),))
    before = str(exported.graph)
    import_program(exported)
    assert str(exported.graph) == before


def test_attention_draws_with_dropout_only() -> None:
    attention = nn.functional.scaled_dot_product_attention
    q = torch.randn(1, 2, 3, 4)
    assert len(round_trip(Model(lambda s, q: attention(q, q, q, dropout_p=0.5)), q).graph.effects) == 1
    assert len(round_trip(Model(lambda s, q: attention(q, q, q)), q).graph.effects) == 0


UNREAD = Model(lambda s, x: (torch.rand(3), x + torch.rand(3))[1])


def test_a_draw_that_nothing_reads_is_kept() -> None:
    program = round_trip(UNREAD, torch.ones(3))
    assert len(program.graph.effects) == 2
    loaded, draws = deserialize(serialize(build(program), (torch.ones(3),), {})), list[Tensor]()
    for module in (UNREAD, loaded):
        torch.manual_seed(0)
        draws.append(module(torch.ones(3)))
    assert torch.equal(*draws)


def test_a_draw_that_an_export_drops_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would leave the generator in another state than the original does."""
    monkeypatch.setattr(export, "draws_kept", nullcontext)
    with pytest.raises(ImportRefusal, match=r"aten\.rand\.default draws random numbers that nothing reads"):
        import_module(UNREAD, (torch.ones(3),))


def checked(s: Any, x: Tensor) -> Tensor:
    torch._check(x.sum().item() > 1)
    return x * 2


def test_assertions_on_data_are_kept() -> None:
    need("2.13", "an export cannot compare a number that it reads")
    program = round_trip(Model(checked), torch.ones(3))
    assert set(opaque_targets(program)) == {"gt", "_assert_async"}
    built = build(program)
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        built(-torch.ones(3))


def test_assertions_compare_as_python_does() -> None:
    """A sum of float32 is compared with a number that float32 does not have, in double precision."""
    need("2.13", "an export cannot compare a number that it reads")

    def forward(s: Any, x: Tensor) -> Tensor:
        torch._check(x.sum().item() < 16777217)
        return x + 1

    built = build(round_trip(Model(forward), torch.tensor([16777216.0])))
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        built(torch.tensor([16777218.0]))


def test_numbers_of_integer_tensors_are_compared() -> None:
    def forward(s: Any, x: Tensor, n: Tensor) -> Tensor:
        torch._check(n.item() + 1 >= 3)
        return x + 1

    built = build(round_trip(Model(forward), torch.ones(2), torch.tensor(2)))
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        built(torch.ones(2), torch.tensor(1))


def test_assertions_on_types_disappear() -> None:
    program = round_trip(Model(lambda s, x: x.to(torch.float32) + x.half().to(torch.float32)), torch.ones(3))
    assert program.graph.effects == ()
    assert operator_names(program) == ["cast", "cast", "add"]


def test_unknown_operators_are_effects() -> None:
    """An operator of another library may do anything, whatever its schema says; it is called as often as it was."""
    calls: list[int] = []
    library = torch.library.Library("taso_py_test", "DEF")
    library.define("observe(Tensor x) -> Tensor")

    def observe(x: Tensor) -> Tensor:
        calls.append(1)
        return x + 1

    library.impl("observe", observe, "CompositeExplicitAutograd")
    torch.library.register_fake("taso_py_test::observe", lambda x: x + 1, lib=library)
    operator = torch.ops.taso_py_test.observe
    program = import_module(Model(lambda s, x: (operator(x), operator(x))), (torch.ones(3),))
    built = build(program)
    calls.clear()
    assert [tensor.tolist() for tensor in built(torch.ones(3))] == [[2, 2, 2], [2, 2, 2]]
    assert len(calls) == len(program.graph.effects) == 2


def test_unknown_operators_get_their_operands_as_the_original_lays_them_out() -> None:
    """They may read strides; a rewrite of what comes before does not change those."""
    library = torch.library.Library("taso_py_test_strides", "DEF")
    library.define("flat(Tensor x) -> Tensor")
    library.impl("flat", lambda x: torch.as_strided(x, (x.numel(),), (1,)).clone(), "CompositeExplicitAutograd")
    torch.library.register_fake("taso_py_test_strides::flat", lambda x: x.new_empty(x.numel()), lib=library)
    flat = torch.ops.taso_py_test_strides.flat
    x = torch.arange(6.0).view(2, 3)
    for function in (lambda s, x: flat(x + 1), lambda s, x: flat((x + 1).t())):
        program = import_module(Model(function), (x,))
        (add,) = (node for node in program.graph.nodes if node.op.name == "add")
        other = make(Permute((-1, -2)), [make(Contiguous(), [make(Permute((-1, -2)), [add.value]).value]).value])
        rewritten = replace(program, graph=program.graph.replace({add.value: other.value}))
        assert build(program)(x).tolist() == build(rewritten)(x).tolist() == [1, 2, 3, 4, 5, 6]
