"""Imports of models that write to arguments and buffers: what is lost or reordered is found, whatever the layout.

Invariant: each import that is wrong is found in memory with gaps, where results are compared up to rounding.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import Phase, given, seed, settings
from torch import Tensor

from fuzz import check
from fuzz.campaign import SETTINGS
from fuzz.check import WRITING_CALL, Checker, CheckOutcome, DiscrepancyError
from fuzz.draft import Case
from fuzz.kinds import CACHES, WRITING
from fuzz.layouts import writes_with_gaps
from fuzz.models import models
from taso_py.backend import build
from taso_py.checking.roundtrip import copied_buffers, difference, record_call
from taso_py.frontend import import_module
from tests.round_trips import Model

TEXT = """
import torch

def model():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("kept", torch.ones(64, 33))

        def forward(self, x):
            {lines}
            return y
    g = torch.Generator().manual_seed(1)
    return Model().eval(), (torch.randn(64, 66, generator=g){part},)
"""
LINES = (
    *("z = x.mT", "z.clamp_(-1, 1)", "z.mul_(1.5)", "y = torch.hstack([z.sum(), z.sum(-1)])"),
    *("self.kept.mul_(x)", "self.kept.add_(0.5)"),
)
ENOUGH = 5
"""How many mutants are tried of those that compute something else."""
WRONG = {
    "reordered": (LINES[0], LINES[2], LINES[1], *LINES[3:]),
    "reordered between writes and reads": (LINES[0], LINES[1], LINES[3], LINES[2], *LINES[4:]),
    "lost": (*LINES[:2], *LINES[3:]),
    "read too late": (*LINES[:3], LINES[4], LINES[5], "z.mul_(1.0001)", LINES[3]),
    "lost in the argument": (LINES[0], LINES[1], "z = z * 1.5", LINES[3], "self.kept.mul_(z.mT)", LINES[5]),
    "reordered in a buffer": (*LINES[:4], LINES[5], LINES[4]),
    "lost in a buffer": LINES[:5],
    "lost in all buffers": LINES[:4],
}
"""Lines of models that do something else, by what is wrong with them as imports of the right one."""


GAPS, DENSE = "[:, ::2]", ".view(128, 33)[:64]"
"""Parts of the argument, in memory with gaps and without."""


def _case(lines: Sequence[str], part: str = GAPS) -> Case:
    return Case(TEXT.format(lines="\n            ".join(lines), part=part), is_smooth=True)


def _check(monkeypatch: pytest.MonkeyPatch, case: Case, imported: Case) -> CheckOutcome:
    """Check a model whose import is that of another one."""
    monkeypatch.setattr(check, "import_module", lambda module, args: import_module(*imported.make()))
    return Checker([]).check(case, 1)


def test_a_sum_over_memory_that_was_written_to_may_be_rounded_otherwise_where_it_has_gaps() -> None:
    module, args = _case(LINES).make()
    with torch.no_grad():
        assert difference(module, build(import_module(module, args)), args) == "the results differ"
    assert Checker([]).check(_case(LINES), 1).refused == ""
    assert Checker([]).check(_case(LINES, DENSE), 1).refused == ""


@pytest.mark.parametrize(("lines", "part"), [(LINES, DENSE), (("y = x.sum(-1)",), GAPS)])
def test_other_sums_are_equal_to_the_bit(monkeypatch: pytest.MonkeyPatch, lines: Sequence[str], part: str) -> None:
    other = [line.replace("sum(", "flip(-1).sum(") for line in lines]
    with pytest.raises(DiscrepancyError, match=r"^as imported: the results differ$"):
        _check(monkeypatch, _case(lines, part), _case(other, part))


@pytest.mark.parametrize("part", [GAPS, DENSE])
@pytest.mark.parametrize("lines", WRONG.values(), ids=WRONG.keys())
def test_a_write_that_is_lost_or_reordered_is_found(
    monkeypatch: pytest.MonkeyPatch, lines: Sequence[str], part: str
) -> None:
    assert _check(monkeypatch, _case(LINES, part), _case(LINES, part)).refused == ""
    with pytest.raises(DiscrepancyError, match=r"^as imported"):
        _check(monkeypatch, _case(LINES, part), _case(lines, part))


def _values(case: Case) -> Sequence[Tensor]:
    """Return results, arguments and buffers after a call."""
    (module, args), _ = case.make(), torch.manual_seed(1)
    with torch.no_grad():
        return record_call(module, args, None, copied_buffers(module)).values


def _is_far(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Return whether two calls differ by more than the check allows, which is most where written memory has gaps."""
    return len(one) != len(other) or any(map(_differ, one, other))


def _differ(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or not one.numel():
        return one.shape != other.shape
    roundings = 200 * torch.finfo(one.dtype).eps if one.is_floating_point() else 0.0
    tolerance = max(0.01, roundings) * (1 + float(one.double().nan_to_num(0.0, 0.0, 0.0).abs().max()))
    return not torch.allclose(one.double(), other.double(), rtol=0.01, atol=tolerance, equal_nan=True)


def _without_a_write(case: Case, chance: random.Random, *, is_moved: bool) -> Case | None:
    """Return a model without one of its writes, or with it behind the next line; None if it has none."""
    lines = case.text.splitlines(keepends=True)
    places = [place for place, line in enumerate(lines) if WRITING_CALL.search(line) and "register" not in line]
    if not places:
        return None
    place = chance.choice(places)
    lines[place : place + 2] = [lines[place + 1], lines[place]] if is_moved else [lines[place + 1]]
    return replace(case, text="".join(lines))


@pytest.mark.parametrize("kind", [CACHES, WRITING])
@pytest.mark.parametrize("is_moved", [False, True], ids=["lost", "reordered"])
def test_imports_of_random_models_that_lose_or_reorder_a_write_are_found(
    monkeypatch: pytest.MonkeyPatch, kind: str, is_moved: bool
) -> None:
    found: list[bool] = []

    @seed(0)
    @settings(SETTINGS, phases=(Phase.generate,), max_examples=90)
    @given(models(kind))
    def attempt(case: Case) -> None:
        if len(found) >= ENOUGH:
            return
        mutant = _without_a_write(case, random.Random(case.text), is_moved=is_moved)
        try:
            if mutant is None or not _is_far(_values(case), _values(mutant)):
                return
            if _check(monkeypatch, case, mutant).refused:
                return
        except DiscrepancyError as error:
            found.append(str(error).startswith("as imported"))
        except Exception:  # without the write, or with it elsewhere, the text is no model
            return
        else:
            found.append(False)

    attempt()
    assert all(found)
    assert len(found) >= 3


@pytest.mark.parametrize(
    ("write", "has_gaps"),
    [
        ("x.add_(1)", False),
        ("x[:, 1:].add_(1)", True),
        ("torch.add(x[:, ::2], 1, out=x[:, ::2])", True),
        ("(x * 2)[:, 1:].add_(1)", True),
        ("x[:, 1:] + 1", False),
    ],
)
def test_writes_to_memory_with_gaps_are_seen(write: str, has_gaps: bool) -> None:
    model, x = Model(lambda _, x: eval(write, {"torch": torch}, {"x": x})), torch.ones(3, 4)
    assert writes_with_gaps(model, (x,)) is has_gaps
