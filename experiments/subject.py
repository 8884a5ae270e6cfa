"""A zoo model prepared for experiments on kernels and costs: imported, priced, built in several ways.

Invariant: everything about a subject is measured in this process, one thing after the other.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import torch

from experiments.deployed import SESSIONS, session_engine
from experiments.harness import Settings
from taso_py.backend import UNLIMITED, Plan, Program, build, fold
from taso_py.backend.schema import stored_bytes
from taso_py.cost.model import CostModel
from taso_py.driver.calibrating import scale_to_runs
from taso_py.engines.prices import session_cost
from taso_py.engines.session import SessionEngine
from taso_py.ir.graph import Graph
from taso_py.latency.database import LatencyDatabase
from taso_py.models.importing import import_source
from taso_py.models.source import Source, load_source

Cost = TypeVar("Cost", bound=CostModel)
IN = " in "
"""Separator of a model's name and that of an engine in the name of a part."""


@dataclass(frozen=True)
class Subject:
    """A model with its prices."""

    source: Source
    imported: Program
    """The unchanged program."""
    cost: CostModel
    """The cost model; that of PyTorch's kernels is at the scale of a run (:mod:`taso_py.driver.calibrating`)."""
    database: LatencyDatabase
    engine: SessionEngine | None = None
    """The engine that the prices are of; None for PyTorch's kernels."""

    @cached_property
    def program(self) -> Program:
        """The program with values that depend on weights only computed."""
        return fold(self.imported)

    def call(self, plan: Plan) -> Callable[[], Any]:
        """Return a call of the model computed by a plan, or by the engine."""
        return self._call(self.program, plan)

    def build_graph(self, graph: Graph, cost: CostModel) -> tuple[float, Callable[[], Any]]:
        """Build another graph of the model with the choices of a cost model: predicted seconds, and a call."""
        program = fold(replace(self.imported, graph=graph), UNLIMITED)
        choice = cost.choice(program.graph)
        return choice.seconds, self._call(program, choice.plan)

    def _call(self, program: Program, plan: Plan) -> Callable[[], Any]:
        return self.source.call_of(build(program, plan) if self.engine is None else self.engine.build(program))

    def repriced(self, kind: type[Cost] = CostModel, **choices: Any) -> Cost:
        """Return equal prices with other choices of kernels or memory formats: arguments of the cost model."""
        weight_bytes = stored_bytes(self.imported.weights.values())
        cost = kind(self.imported.device, self.database, weight_bytes=weight_bytes, **choices)
        cost.rescale(self.cost.scale)
        return cost


@contextmanager
def priced(source: Source, *, captured: bool = False, engine: SessionEngine | None = None) -> Generator[Subject]:
    """Yield a model with its latencies, measured where they are unknown.

    Args:
        source: the model.
        captured: as in `CostModel`.
        engine: the engine to measure in, in place of PyTorch's kernels.
    """
    with torch.no_grad(), LatencyDatabase() as database:
        program = import_source(source)
        if engine is None:
            weight_bytes = stored_bytes(program.weights.values())
            cost = CostModel(program.device, database, weight_bytes=weight_bytes, captured=captured)
        else:
            cost = session_cost(engine, program.graph, database, progress=False)
        cost.warm(program.graph)
        if engine is None:
            scale_to_runs(cost)
        yield Subject(source, program, cost, database, engine)


def subject(name: str, settings: Settings) -> AbstractContextManager[Subject]:
    """Yield a zoo model with its latencies, like :func:`priced`; in an engine if the name is ``MODEL in ENGINE``."""
    model, _, engine = name.partition(IN)
    source = load_source(f"zoo:{model}", device=settings.device, seed=settings.seed)
    return priced(source, engine=session_engine(engine) if engine else None)


def in_engines(models: Iterable[str], settings: Settings) -> Sequence[str]:
    """Return the names of parts for models in each engine that takes whole graphs; none for a GPU, which has none."""
    return [f"{name}{IN}{engine}" for engine in SESSIONS for name in models] if settings.device == "cpu" else []


def peak_mib() -> float:
    """Return the peak memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
