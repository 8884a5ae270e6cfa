"""How far generation agrees with the original's, judged by the original in float64.

Two forms of a model round differently. Where two tokens are nearly as likely, the likeliest may then differ, and all
that is generated from there on. So generation is steered: each token is followed by the one that the original chose,
and each step tells what it would have chosen itself. Where nothing differs, it generates the same without being
steered, since nothing else than these choices is replaced.

Invariant: a token may differ only where the original prefers its own by less than it is off itself, against float64;
logits and state may be off by what results of an optimization may.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from taso_py.checking.compare import OutputComparison, compare_output
from tests.huggingface.families import cache_of, state_of


def steering(expected: Any) -> dict[str, Callable[[int, Tensor], list[int]]]:
    """Return the argument of ``generate`` by which each token is followed by that of another result."""
    tokens = expected.sequences
    return {"prefix_allowed_tokens_fn": lambda row, before: [int(tokens[row, len(before)])]}


class _InFloat64(TorchFunctionMode):
    """Computes in float64 what a model casts to float32 whatever its own type is."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        def doubled(leaf: Any) -> Any:
            return torch.float64 if leaf is torch.float32 else leaf

        called = Tensor.double if func is Tensor.float else func
        return called(*pytree.tree_map(doubled, args), **pytree.tree_map(doubled, dict(kwargs or {})))


def truth_of(model: Any, given: Mapping[str, Tensor], expected: Any) -> Any:
    """Return what a model generates in float64, steered by what it generated in its own type."""
    exact = {name: value.double() if value.is_floating_point() else value for name, value in given.items()}
    twin = copy.deepcopy(model).double()
    with _InFloat64():
        return twin.generate(**exact, **steering(expected))


@dataclass(frozen=True)
class TokenDifference:
    """A step in which another token was the likeliest than in the original."""

    step: int
    row: int
    margin: float
    """By how much the original preferred its own token."""
    error: float
    """The greatest error of the original's logits in this step and row, against float64."""

    @property
    def is_tie(self) -> bool:
        """True if the original could not tell the two apart itself."""
        return self.margin <= self.error

    def __str__(self) -> str:
        return f"step {self.step}, row {self.row}: margin {self.margin:.1e}, the original's error {self.error:.1e}"


@dataclass(frozen=True)
class Agreement:
    """What generation that was steered by the original has in common with it."""

    tokens: int
    """Number of tokens that were chosen, in all rows."""
    differences: Sequence[TokenDifference]
    logits: OutputComparison
    """The comparison of all steps at once, since the error of one by itself varies."""
    state: Sequence[OutputComparison]
    """The comparison of each tensor and number of the cache."""

    @classmethod
    def of(cls, found: Any, expected: Any, truth: Any) -> Self:
        """Compare what was generated with the original's, and both with the original's in float64."""
        assert torch.equal(found.sequences, expected.sequences)  # steered
        assert torch.equal(truth.sequences, expected.sequences)
        steps = [*zip(expected.logits, found.logits, truth.logits, strict=True)]
        assert not torch.equal(steps[0][0], steps[-1][0])
        states = [state_of(cache_of(result)) for result in (expected, found, truth)]
        assert any(tensor.is_floating_point() for tensor in states[0])
        return cls(
            expected.logits[0].shape[0] * len(steps),
            [difference for step, of_step in enumerate(steps) for difference in _differences(step, *of_step)],
            compare_output(0, "logits", *(torch.stack(result.logits) for result in (expected, found, truth))),
            [compare_output(place, "state", *of_place) for place, of_place in enumerate(zip(*states, strict=True))],
        )

    @property
    def problems(self) -> Sequence[str]:
        """What no rounding explains."""
        faults = [str(difference) for difference in self.differences if not difference.is_tie]
        failed = [one for one in (self.logits, *self.state) if not one.passed]
        off = [one.problem or f"off by {one.error:.1e}, the limit is {one.allowed:.1e}" for one in failed]
        return [*faults, *(f"{one.inputs} {one.output}: {text}" for one, text in zip(failed, off, strict=True))]

    def __str__(self) -> str:
        equal, state = self.tokens - len(self.differences), sum(one.passed for one in self.state)
        return (
            f"{equal} of {self.tokens} tokens equal, logits off by {self.logits.error:.1e} (the original by "
            f"{self.logits.original_error:.1e}), {state} of {len(self.state)} parts of the state alike"
            + "".join(f"; first difference: {difference}" for difference in self.differences[:1])
        )


def _differences(step: int, expected: Tensor, found: Tensor, truth: Tensor) -> Sequence[TokenDifference]:
    """Return the rows of a step in which the likeliest tokens differ."""
    differences: list[TokenDifference] = []
    for row, (before, after, exact) in enumerate(zip(expected.double(), found.double(), truth.double(), strict=True)):
        own, other = int(before.argmax()), int(after.argmax())
        if own != other:
            margin, error = float(before[own] - before[other]), float((before - exact).abs().max())
            differences.append(TokenDifference(step, row, margin, error))
    return differences


def assert_agrees(found: Any, expected: Any, truth: Any) -> Agreement:
    """Assert that what differs is roundings, with all that was found in the message; return it."""
    agreement = Agreement.of(found, expected, truth)
    assert len(set(expected.sequences.flatten().tolist())) > 1
    assert not agreement.problems, f"{agreement}: {agreement.problems}"
    return agreement
