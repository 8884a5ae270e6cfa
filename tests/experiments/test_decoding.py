"""The decoder that is measured: both forms of a step compute the same, and the prompt begins the cache."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from experiments import decoder, decoding
from taso_py.models.source import load_source

SMALL = {"WIDTH": 32, "LAYERS": 2, "HEADS": 4, "GROUPS": 2, "GATED": 48, "VOCABULARY": 40, "CONTEXT": 9, "PROMPT": 8}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {**SMALL, "HEAD": 8}.items():
        monkeypatch.setattr(decoder, name, size)


def step(model: nn.Module, *arguments: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores and the cache afterwards."""
    copies = [argument.clone() for argument in arguments]
    found = model(*copies)
    return found if isinstance(found, tuple) else (found, copies[2], copies[3])


@pytest.mark.parametrize("factory", ["", "_4"])
@torch.no_grad()
def test_both_forms_of_a_step_follow_a_prompt(factory: str) -> None:
    torch.manual_seed(0)
    in_place, (token, position, *_) = getattr(decoder, f"in_place{factory}")()
    in_and_out, _ = getattr(decoder, f"in_and_out{factory}")()
    reading, _ = decoder.prompt()
    for other in (in_and_out, reading):
        other.load_state_dict(in_place.state_dict())
    tokens = torch.randint(SMALL["VOCABULARY"], (len(token), SMALL["CONTEXT"]))
    scores, keys, values = reading(tokens)
    held = keys[:, :, :, :-1], values[:, :, :, :-1]
    last = tokens[:, -1:], position
    longer = step(in_and_out, *last, *held)
    torch.testing.assert_close(longer, (scores, keys, values))
    room = [torch.cat([tensor, torch.full_like(tensor[:, :, :, :1], 7.0)], 3) for tensor in held]
    torch.testing.assert_close(step(in_place, *last, *room), longer)
    # A cache that is wrong in one place is seen.
    held[0][1, 0, 1, 3, 2] += 1
    assert not torch.allclose(step(in_and_out, *last, *held)[0], scores, atol=1e-4)


@torch.no_grad()
def test_jobs_name_models() -> None:
    for job in decoding.JOBS.values():
        for text in (job.in_place, job.in_and_out):
            source = load_source(text)
            assert source.callable()(*source.args) is not None
