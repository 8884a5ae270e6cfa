"""The state of the process's random generators around a body that draws, seeds, or leaves that to other threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from taso_py.backend.generators import own_draws_undone, random_state_as_now, reseeding_watched, seed_kept
from taso_py.frontend import import_module
from taso_py.frontend.errors import ImportRefusal

ROW = torch.ones(1, 1, 2, 4)


class Meanwhile(nn.Module):
    """A model that does something when it runs, but not when it is traced."""

    def __init__(self, function: Callable[[], object], rate: float = 0.0) -> None:
        super().__init__()
        self.function, self.rate = function, rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            self.function()
        attended = functional.scaled_dot_product_attention(x, x, x)
        return functional.dropout(attended, self.rate, training=True) if self.rate else attended


def elsewhere() -> None:
    """Draw in another thread."""
    thread = threading.Thread(target=torch.rand, args=(3,))
    thread.start()
    thread.join()


def nothing() -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("model", "is_undone"),
    [
        (Meanwhile(nothing, rate=0.5), True),
        (Meanwhile(elsewhere, rate=0.5), True),
        (Meanwhile(elsewhere), False),
    ],
)
def test_an_import_undoes_what_the_model_draws_and_not_what_others_do(model: Meanwhile, is_undone: bool) -> None:
    torch.rand(1)
    before = torch.get_rng_state()
    import_module(model, (ROW,))
    assert torch.equal(torch.get_rng_state(), before) == is_undone


def test_a_model_that_is_refused_leaves_the_random_state_too() -> None:
    before = torch.get_rng_state()
    with pytest.raises(ImportRefusal):
        import_module(Meanwhile(lambda: torch.rand(3) @ torch.rand(4)), (ROW,))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_state_is_replayed() -> None:
    again = random_state_as_now()
    first = torch.rand(3)
    before = torch.get_rng_state()
    with again():
        assert torch.equal(torch.rand(3), first)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("is_possible", [True, False])
def test_draws_are_undone_where_they_are_possible(is_possible: bool) -> None:
    torch.rand(1)
    before = torch.get_rng_state()
    with own_draws_undone() as draws:
        torch.rand(3)
        draws.possible = is_possible
    assert torch.equal(torch.get_rng_state(), before) == is_possible


@pytest.mark.parametrize("ahead", [0, 1])
def test_seeds_that_are_set_are_undone_where_no_draws_are_possible(ahead: int) -> None:
    torch.rand(1)
    before = torch.get_rng_state()
    with own_draws_undone() as draws:
        torch.manual_seed(torch.initial_seed() + ahead)
        draws.possible = False
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("sets", [True, False])
def test_a_seed_that_is_set_meanwhile_is_put_back(sets: bool) -> None:
    before = torch.get_rng_state()
    with seed_kept():
        torch.manual_seed(torch.initial_seed() + 1) if sets else torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before) == sets


def test_seeding_is_seen_where_no_other_profiler_is_set() -> None:
    with seed_kept(), reseeding_watched() as seen:
        torch.rand(2)
        torch.Generator().manual_seed(1)  # not one of the process
        assert not seen
        torch.manual_seed(1)
        assert "test_seeding_is_seen_where_no_other_profiler_is_set" in [frame.name for frame in seen[0]]
    calls: list[str] = []
    sys.setprofile(lambda _frame, event, _called: calls.append(event))
    try:
        with seed_kept(), reseeding_watched() as seen:
            torch.manual_seed(1)
    finally:
        sys.setprofile(None)
    assert calls
    assert not seen
