"""The random generators of the process: kept, seeded and restored while models run; and which programs draw from them.

Other threads draw from the same generators. What they draw while a body runs is undone with what the body draws,
except where the body is known to draw nothing.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from ctypes import string_at
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from taso_py.backend.program import Program
from taso_py.backend.schema import may_draw, overload_named
from taso_py.ir.node import Node
from taso_py.ops.opaque import Opaque

_generators = threading.RLock()
"""Lock held while the random generators of the process are set to a state of ours."""


@contextmanager
def random_state_kept() -> Generator[None]:
    """Restore the states of random generators, including those of accelerators in use, if the body has drawn from them.

    Other threads draw from the same generators: if the body draws nothing, they are left alone.
    """
    with _generators:
        before = _random_states()
        try:
            yield
        finally:
            for generator, state in before:
                _restore(generator, state)


@dataclass
class OwnDraws:
    """States of the random generators before a body, and whether the body may have drawn from them."""

    states: Sequence[tuple[torch.Generator, Tensor, int]]
    """Generators that are in use, their states and seeds."""
    possible: bool = True
    """Whether the body may have drawn; false once it knows that it has not."""

    def undo(self) -> None:
        """Restore the states, unless only other threads have drawn."""
        with _generators:
            for generator, state, seed in self.states:
                if self.possible or generator.initial_seed() != seed or _is_as_seeded(generator):
                    _restore(generator, state)


@contextmanager
def own_draws_undone() -> Generator[OwnDraws]:
    """Restore the states of random generators, unless the body finds out that it has drawn nothing.

    Other threads draw from the same generators, and their draws would be undone too. Nothing tells who has drawn:
    operators could be watched, but those with graphs inside compile themselves, which that would disturb.
    """
    with _generators:
        draws = OwnDraws(_seeded_states())
    try:
        yield draws
    finally:
        draws.undo()


def _is_as_seeded(generator: torch.Generator) -> bool:
    """Return whether nothing has been drawn from a generator since it was seeded."""
    seeded = torch.Generator(generator.device).manual_seed(generator.initial_seed())
    return _bytes(generator.get_state()) == _bytes(seeded.get_state())


def _restore(generator: torch.Generator, state: Tensor) -> None:
    """Restore a state if it has changed."""
    if _bytes(generator.get_state()) != _bytes(state):
        generator.set_state(state)


@contextmanager
def seed_kept() -> Generator[None]:
    """Restore the states of random generators whose seed the body sets; other threads' draws are not undone.

    It takes no lock, since the body may wait for one that another thread holds while it waits for ours.
    """
    before = _seeded_states()
    try:
        yield
    finally:
        for generator, state, seed in before:
            if generator.initial_seed() != seed:
                generator.set_state(state)


@contextmanager
def random_state_seeded(seed: int = 0) -> Generator[None]:
    """Seed the random generators for the body, and restore their states."""
    with random_state_kept():
        # Not torch.manual_seed: before a GPU is used, that seeds it for later on.
        for generator, _ in _random_states():
            generator.manual_seed(seed)
        yield


_SEEDING, _SETTING = ("manual_seed", "seed"), ("set_state", "graphsafe_set_state", "set_offset")
"""Methods that give a generator another state."""


@contextmanager
def reseeding_watched() -> Generator[list[traceback.StackSummary]]:
    """Yield a list that receives the stack of each call in the body that seeds a random generator of the process.

    So does a call that sets its state to another one. Calls are seen in this thread, and if no other profiler is set.
    """
    seen: list[traceback.StackSummary] = []
    before: list[bytes] = []

    def note(frame: FrameType, event: str, called: Any) -> None:
        own = getattr(called, "__self__", None) if event in ("c_call", "c_return") else None
        if type(own) is not torch.Generator or all(own is not generator for generator, _ in _random_states()):
            return
        if called.__name__ in _SETTING and event == "c_call":
            before.append(_bytes(own.get_state()))
        elif called.__name__ in _SEEDING or (called.__name__ in _SETTING and before.pop() != _bytes(own.get_state())):
            seen.append(traceback.extract_stack(frame))

    if sys.getprofile() is not None:
        yield seen
        return
    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(None)


def random_state_as_now() -> Callable[[], AbstractContextManager[None]]:
    """Return a function that makes contexts in which the random generators begin as they are now.

    Afterwards they are as they were before the context.
    """
    states = _random_states()

    @contextmanager
    def replayed() -> Generator[None]:
        with random_state_kept():
            for generator, state in states:
                generator.set_state(state)
            yield

    return replayed


def _random_states() -> list[tuple[torch.Generator, Tensor]]:
    """Return the random generators that are in use, with their states."""
    gpus = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return [(generator, generator.get_state()) for generator in (torch.default_generator, *gpus)]


def _seeded_states() -> list[tuple[torch.Generator, Tensor, int]]:
    """Return the random generators that are in use, with their states and seeds."""
    return [(generator, state, generator.initial_seed()) for generator, state in _random_states()]


def _bytes(state: Tensor) -> bytes:
    """Return the content of a random state, without an operator call that a mode of the caller might intercept."""
    return string_at(state.data_ptr(), state.nbytes)


def may_be_random(effect: Node) -> bool:
    """Return whether an effect may draw random numbers, rather than only write or check something."""
    return not isinstance(effect.op, Opaque) or may_draw(overload_named(effect.op.target))


def may_draw_random(program: Program) -> bool:
    """Return whether a program may draw random numbers."""
    return any(map(may_be_random, program.graph.effects))


def undo_random_draws(program: Program) -> AbstractContextManager[None]:
    """Return :func:`random_state_kept`, or a null context for a program that draws nothing."""
    return random_state_kept() if may_draw_random(program) else nullcontext()
