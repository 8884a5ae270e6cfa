"""A zoo model made ready for experiments on kernels and costs: imported, priced, built in several ways.

Invariant: everything about a subject is measured in this process, one thing after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from experiments.harness import Settings
from taso_py.backend import Plan, Program, build, fold
from taso_py.backend.schema import stored_bytes
from taso_py.cost.clock import Latency, measure
from taso_py.cost.database import LatencyDatabase
from taso_py.cost.model import CostModel
from taso_py.runtime.optimize import calibrate
from taso_py.runtime.replay import import_source
from taso_py.runtime.source import Source, load_source

SECONDS = 1.5
"""How long one module is timed."""


@dataclass(frozen=True)
class Subject:
    """A model with its prices."""

    source: Source
    imported: Program
    """As it is."""
    cost: CostModel
    """Calibrated by a run of the unchanged graph."""

    @cached_property
    def program(self) -> Program:
        """With what depends on weights only computed."""
        return fold(self.imported)

    def call(self, plan: Plan) -> Callable[[], Any]:
        """The model, computed as a plan says."""
        module = build(self.program, plan)
        return lambda: module(*self.source.args, **self.source.kwargs)


@contextmanager
def priced(source: Source) -> Generator[Subject]:
    """A model, its latencies measured as far as they are not known."""
    with torch.no_grad(), LatencyDatabase() as database:
        program = import_source(source)
        cost = CostModel(program.device, database, weight_bytes=stored_bytes(program.weights.values()))
        cost.warm(program.graph)
        calibrate(cost, program)
        yield Subject(source, program, cost)


def subject(name: str, settings: Settings) -> AbstractContextManager[Subject]:
    """A zoo model likewise."""
    return priced(load_source(f"zoo:{name}", device=settings.device, seed=settings.seed))


def timed(call: Callable[[], object], settings: Settings) -> Latency:
    """The latency of a module that runs alone, after a first run."""
    call()
    return measure(call, device=torch.device(settings.device), budget_s=SECONDS)
