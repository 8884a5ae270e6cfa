"""Programs are taken apart as PyTorch itself does it, whichever operators were expected in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn import functional

from taso_py.backend.tracing import quiet
from taso_py.frontend import decompose as taking_apart
from taso_py.frontend.decompose import decompose

EINSUM = torch.ops.aten.einsum.default
USUAL = frozenset(taking_apart._called_composites)
TABLE: dict[Any, Any] = {EINSUM: torch.export.default_decompositions()[EINSUM]}


class Composite(nn.Module):
    """Composite operators: some that stay whole, some that others are made of, some that alias and some that write."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = torch.einsum("ij,kj->ik", x, x)
        written = y.clone().square_().cumsum_(0)
        chosen = torch.cond(x.sum() > 0, lambda t: functional.gelu(t), lambda t: functional.selu(t), (x,))
        return functional.linear(x, y), written, x.flatten(), functional.pad(x, (1, 1)).chunk(2)[0], chosen


@pytest.fixture(autouse=True)
def nothing_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking_apart, "_called_composites", set())


@pytest.fixture(scope="module")
def exported() -> ExportedProgram:
    return torch.export.export(Composite().eval(), (torch.ones(3, 3),))


@pytest.fixture(scope="module")
def there(exported: ExportedProgram) -> str:
    """The program as PyTorch takes it apart."""
    with quiet():
        return str(exported.run_decompositions(dict(TABLE)))


def _here(exported: ExportedProgram) -> str:
    with quiet():
        return str(decompose(exported, TABLE))


def test_programs_are_taken_apart_as_pytorch_does_it(exported: ExportedProgram, there: str) -> None:
    before = vars(torch.export.exported_program).copy()
    here = _here(exported)
    assert here == there
    assert "aten.linear" in here
    assert "aten.einsum" not in here
    assert vars(torch.export.exported_program) == before, "nobody else is to miss operators"


def test_operators_that_nobody_expected_are_seen_as_they_are_called(
    exported: ExportedProgram, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_: nn.Module) -> Iterator[Any]:
        return iter(())

    monkeypatch.setattr(taking_apart, "_called_operators", none)
    assert _here(exported) == there
    assert torch.ops.aten.linear.default in taking_apart._called_composites
    # The control: were they not seen, they would be taken apart.
    monkeypatch.setattr(taking_apart, "_called_composites", set())
    monkeypatch.setattr(taking_apart, "_record_called", lambda _: False)
    assert "aten.linear" not in _here(exported)


def test_programs_of_common_models_are_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[ExportedProgram] = []
    run = ExportedProgram.run_decompositions

    def counted(program: ExportedProgram, table: Any) -> ExportedProgram:
        runs.append(program)
        return run(program, table)

    monkeypatch.setattr(ExportedProgram, "run_decompositions", counted)
    program = torch.export.export(nn.Sequential(nn.Linear(3, 4), nn.Hardswish(inplace=True)), (torch.ones(1, 3),))
    monkeypatch.setattr(taking_apart, "_called_composites", set(USUAL))
    _here(program)
    assert len(runs) == 1
    # The control: where none is expected, another run finds those that are called.
    monkeypatch.setattr(taking_apart, "_called_composites", set())
    _here(program)
    assert len(runs) == 3


def test_another_pytorch_takes_programs_apart_by_itself(
    exported: ExportedProgram, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking_apart, "_IS_KNOWN", False)
    monkeypatch.setattr(taking_apart, "_known_composites", lambda _: pytest.fail("it is not known"))
    assert _here(exported) == there
