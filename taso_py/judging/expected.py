"""Expected outputs of a model, with which everything that one optimization builds is compared.

Invariant: original and reference are run once for each set of inputs, however many candidates are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from torch import nn

from taso_py.backend import Program
from taso_py.backend.generators import may_draw_random
from taso_py.backend.input_cases import Arguments
from taso_py.checking.cases import program_cases
from taso_py.checking.compare import Comparison, Oracle
from taso_py.checking.oracles import float64_oracles
from taso_py.checking.preserve import preserve_state
from taso_py.checking.resize import resized_cases
from taso_py.engines.engine import Built, Engine
from taso_py.engines.table import ENGINES
from taso_py.models.source import Source
from taso_py.saving.artifact import deserialize
from taso_py.saving.savable import UNSAVABLE, pt2_bytes


@dataclass
class ExpectedOutputs:
    """Expected outputs of a source."""

    source: Source
    program: Program
    """The source as a program."""
    seed: int
    """Seed of the random inputs."""
    _notes: list[str] = field(default_factory=list[str], init=False)

    @property
    def notes(self) -> Sequence[str]:
        """Notes for the user on comparisons that were not possible as intended, so far."""
        oracles = self.oracles  # made first, which may add notes
        return [*self._notes, *(note for oracle in oracles for note in oracle.notes)]

    @cached_property
    def oracles(self) -> Sequence[Oracle]:
        """Oracles for inputs of the example's sizes and, if the model has open sizes, for inputs of others."""
        arguments = self.source.args, self.source.kwargs
        batches = program_cases(self.program, *arguments, self.seed), self._resized_cases()
        oracles, note = float64_oracles(self.program, self.source.callable(), arguments, *batches)
        self._notes += filter(None, [note])
        return oracles

    def of_unchanged(self, built: Built, engine: Engine) -> Comparison:
        """Compare the unchanged graph in an engine, on inputs of the example's sizes."""
        if not self.is_comparable(engine):
            return Comparison(())
        with preserve_state(self.program, [built.module], (self.source.args, self.source.kwargs)):
            return self.oracles[0].compare(built.runner, state=built.module)

    def is_comparable(self, engine: Engine) -> bool:
        """Return whether an engine draws the random numbers that the model draws, if any."""
        return engine is ENGINES["eager"] or not may_draw_random(self.program)

    def _resized_cases(self) -> Sequence[tuple[str, Arguments]]:
        """Return input cases of other sizes; none if the model has no open sizes."""
        if not self.program.open:
            return []
        modules: dict[str, nn.Module] = {"the model": self.source.callable()}
        with suppress(*UNSAVABLE):  # noted elsewhere if it matters
            modules["its exported program"] = deserialize(pt2_bytes(self.source, self.program, self.program))
        with preserve_state(self.program, list(modules.values()), (self.source.args, self.source.kwargs)):
            cases, notes = resized_cases(self.program, modules, self.seed)
        self._notes += notes
        return cases
