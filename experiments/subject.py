"""A zoo model prepared for experiments on kernels and costs: imported, priced, built in several ways.

Invariant: everything about a subject is measured in this process, one thing after the other.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import torch

from experiments.harness import Settings
from taso_py.backend import UNLIMITED, Plan, Program, build, fold
from taso_py.backend.schema import stored_bytes
from taso_py.cost.model import CostModel
from taso_py.driver.calibrating import scale_to_runs
from taso_py.ir.graph import Graph
from taso_py.latency.database import LatencyDatabase
from taso_py.models.importing import import_source
from taso_py.models.source import Source, load_source

Cost = TypeVar("Cost", bound=CostModel)


@dataclass(frozen=True)
class Subject:
    """A model with its prices."""

    source: Source
    imported: Program
    """The unchanged program."""
    cost: CostModel
    """The cost model at the scale of a run; see :mod:`taso_py.driver.calibrating`."""
    database: LatencyDatabase

    @cached_property
    def program(self) -> Program:
        """The program with values that depend on weights only computed."""
        return fold(self.imported)

    def call(self, plan: Plan) -> Callable[[], Any]:
        """Return a call of the model computed by a plan."""
        return self.source.call_of(build(self.program, plan))

    def build_graph(self, graph: Graph, cost: CostModel) -> tuple[float, Callable[[], Any]]:
        """Build another graph of the model with the choices of a cost model: predicted seconds, and a call."""
        program = fold(replace(self.imported, graph=graph), UNLIMITED)
        choice = cost.choice(program.graph)
        return choice.seconds, self.source.call_of(build(program, choice.plan))

    def repriced(self, kind: type[Cost] = CostModel, **choices: Any) -> Cost:
        """Return equal prices with other choices of kernels or memory formats: arguments of the cost model."""
        weight_bytes = stored_bytes(self.imported.weights.values())
        cost = kind(self.imported.device, self.database, weight_bytes=weight_bytes, **choices)
        cost.rescale(self.cost.scale)
        return cost


@contextmanager
def priced(source: Source, *, captured: bool = False) -> Generator[Subject]:
    """Yield a model with its latencies, measured where they are unknown; ``captured`` as in `CostModel`."""
    with torch.no_grad(), LatencyDatabase() as database:
        program = import_source(source)
        weight_bytes = stored_bytes(program.weights.values())
        cost = CostModel(program.device, database, weight_bytes=weight_bytes, captured=captured)
        cost.warm(program.graph)
        scale_to_runs(cost)
        yield Subject(source, program, cost, database)


def subject(name: str, settings: Settings) -> AbstractContextManager[Subject]:
    """Yield a zoo model with its latencies, like :func:`priced`."""
    return priced(load_source(f"zoo:{name}", device=settings.device, seed=settings.seed))


def peak_mib() -> float:
    """Return the peak memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
