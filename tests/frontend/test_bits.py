"""Conjugate and negative views: resolved where the original resolves them, seen by callers where they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from taso_py.backend import build, fold
from taso_py.backend.bits import PLAIN, bits_of
from taso_py.checking.roundtrip import equal_outputs
from taso_py.frontend import import_module, importer
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make
from taso_py.ops.movement import Contiguous, Permute
from taso_py.saving.artifact import deserialize, serialize
from tests.round_trips import Model, opaque_targets, round_trip

Z = torch.complex(torch.arange(6.0).view(2, 3), torch.arange(6.0).view(2, 3) + 1)
CASES: dict[str, Callable[..., Any]] = {
    "resolved, then read as real numbers": lambda s, x: torch.view_as_real((x * 2).conj().resolve_conj()),
    "copied": lambda s, x: torch.view_as_real((x * 2).conj().clone()),
    "copied into another order": lambda s, x: torch.view_as_real((x * 2).conj().mT.contiguous()),
    "conjugated twice": lambda s, x: torch.view_as_real((x * 2).conj().mT.conj()),
    "returned": lambda s, x: (x.conj(), (x * 2).conj(), x.conj().imag, (x * 2).conj().mT, x.conj().contiguous()),
    "negative": lambda s, x: ((x * 2).conj().imag.resolve_neg(), (x * 2).conj().imag.clone(), x.conj().imag + 1),
    "joined": lambda s, x: torch.view_as_real(torch.cat([x.conj(), x], 0)),
}


@pytest.mark.parametrize("name", CASES)
def test_views_are_resolved_where_the_original_resolves_them(name: str) -> None:
    round_trip(Model(CASES[name]), Z)


def test_arguments_may_be_conjugate_views_whatever_the_example_was() -> None:
    model = Model(lambda s, x, y: (torch.view_as_real(x.resolve_conj()), x.conj().imag + y, x * y))
    plain, views = (Z.conj().resolve_conj(), Z.imag.clone()), (Z.conj(), (-Z).conj().imag)
    assert all(bits_of(view) != PLAIN for view in views)
    for example in (plain, views):
        program = import_module(model, example)
        built = build(program)
        loaded = deserialize(serialize(built, example, {}))
        for called in (built, loaded):
            assert all(map(torch.equal, called(*plain), model(*plain)))
        assert all(map(torch.equal, built(*views), model(*views)))


def test_state_may_be_conjugate_views() -> None:
    def forward(s: Any, x: Tensor) -> tuple[Tensor, ...]:
        return (
            x * s.w,
            torch.view_as_real(s.w.conj()) * 2,
            s.v + 1,
            s.p.conj() * x,
            torch.view_as_real(s.w.resolve_conj()),
        )

    model = Model(forward, w=Z.conj(), v=Z.conj().imag, p=nn.Parameter(Z.conj().mT.clone().mT.conj()))
    program = import_module(model, (Z,))
    assert all(bits_of(tensor) == PLAIN for tensor in program.weights.values())
    for built in (build(program), build(fold(program)), deserialize(serialize(build(program), (Z,), {}))):
        assert equal_outputs(model(Z), built(Z))


def test_a_rewrite_that_brings_a_view_to_a_reader_of_memory_changes_nothing() -> None:
    """A rule may leave out what resolved a view; what reads memory resolves it then itself."""
    program = import_module(Model(lambda s, x: torch.view_as_real((x * 2).conj().mT.contiguous())), (Z,))

    def without_copies(node: Node, inputs: tuple[Value, ...]) -> Node:
        return inputs[0].node if isinstance(node.op, Contiguous) else make(node.op, inputs, node.token)

    rewritten: Graph = program.graph.map(without_copies)
    assert not any(isinstance(node.op, Contiguous) for node in rewritten.nodes)
    assert any(isinstance(node.op, Permute) for node in rewritten.nodes)
    assert torch.equal(build(replace(program, graph=rewritten))(Z), build(program)(Z))


def test_a_product_of_complex_numbers_keeps_the_order_of_its_operands() -> None:
    """It is rounded by that order, for some layouts; products of real numbers are one whichever their order."""
    forward = Model(lambda s, x: (x * s.turn, s.turn * x), turn=torch.polar(torch.ones(3), torch.arange(3.0)))
    assert opaque_targets(round_trip(forward, Z)) == ["mul", "mul"]
    real = round_trip(Model(lambda s, x: (x * s.turn, s.turn * x), turn=torch.arange(3.0)), Z.real.clone())
    assert len([node for node in real.graph.nodes if node.op.name == "mul"]) == 1


def test_models_without_views_pay_nothing() -> None:
    program = round_trip(Model(lambda s, x: torch.view_as_real(x * 2)), Z)
    assert opaque_targets(program) == ["mul", "view_as_real"]


def test_two_outputs_that_differ_in_their_bits_are_not_the_same() -> None:
    assert not equal_outputs([Z.conj()], [Z.conj().resolve_conj()])
    assert equal_outputs([Z.conj()], [Z.conj()])


def test_a_copy_that_loses_a_bit_unseen_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(lambda s, x: (x * 2).conj().resolve_conj())
    monkeypatch.setattr("taso_py.frontend.dialect.movement.bits_of", lambda tensor: PLAIN)
    assert opaque_targets(import_module(model, (Z,)))[-1] == "clone"
    monkeypatch.setattr(importer, "bits_of", lambda tensor: PLAIN)
    assert opaque_targets(import_module(model, (Z,)))[-1] == "_conj"
