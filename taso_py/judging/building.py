"""Building of finalists: the original, and the graphs of searches in the engines whose prices they used.

Invariant: a finalist's runner has been called once with the example inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from taso_py.backend import NO_PLAN, UNLIMITED, Plan, Program, build, fold
from taso_py.checking.preserve import preserve_state
from taso_py.engines.engine import Built, Engine, EngineUnavailableError
from taso_py.engines.table import ENGINES
from taso_py.ir.errors import first_line
from taso_py.ir.graph import Graph
from taso_py.judging.finalists import ORIGINAL, EngineSearch, Finalist, describe, result_for, unique
from taso_py.models.source import Source
from taso_py.search.result import Candidate

COMPILED_FINALISTS = 1
"""The number of rewritten graphs that are built for compilers, which take up to a minute for each."""


def built_in(
    engine: Engine,
    program: Program,
    plan: Plan,
    arguments: tuple[Sequence[Any], Mapping[str, Any]],
    original: Program,
) -> Built:
    """Return a program built for an engine, after a first call that leaves the state of the model as it was.

    Args:
        engine: the engine.
        program: the program; parts that depend on weights only have been folded.
        plan: the kernels that compute it.
        arguments: the arguments of the call, positional and by keyword.
        original: the model as a program.

    Raises:
        EngineUnavailableError: the engine cannot run the program here.
    """
    module = engine.build(program, plan)
    with preserve_state(original, [module], arguments):
        return Built(module, engine.prepare(module, *arguments, resizable=bool(original.open)))


@dataclass(frozen=True)
class FinalistBuilder:
    """Builds the finalists of one model."""

    source: Source
    program: Program
    planner: Callable[[Graph, Engine], Plan]
    """Chooses kernels and memory formats for an engine."""
    built: Mapping[str, Built]
    """The unchanged graph in engines, by name, as far as it was built before."""
    note: Callable[[str], None]
    """Takes the reasons of engines that cannot run a graph."""
    _taken: set[str] = field(default_factory=lambda: {ORIGINAL})
    """The names of finalists so far."""

    def all(self, searches: Sequence[EngineSearch], others: Sequence[Engine]) -> Iterator[Finalist]:
        """Yield the original, the unchanged graph in other engines, and what searches found in theirs."""
        original, name = self._original()
        yield Finalist(
            ORIGINAL,
            candidate=result_for(ENGINES[name], searches).original,
            program=self.program,
            plan=NO_PLAN,
            engine=ENGINES[name],
            runner=original,
            module=original,
        )
        yield from self._of(searches[0].result.original, others)
        yield from self.of_searches(searches)

    def of_searches(self, searches: Sequence[EngineSearch]) -> Iterator[Finalist]:
        """Yield the unchanged graph and what searches found, in the searches' engines."""
        for found in searches:
            rewritten = [candidate for candidate in found.result.candidates if candidate.applied]
            for candidate in [found.result.original, *rewritten]:
                is_for_compilers = candidate in (found.result.original, *rewritten[:COMPILED_FINALISTS])
                usable = [engine for engine in found.engines if is_for_compilers or not engine.is_compiler]
                yield from self.of_graph(candidate, usable)

    def of_graph(self, candidate: Candidate, engines: Sequence[Engine]) -> Iterator[Finalist]:
        """Yield a graph in those of the engines that can run it."""
        try:
            yield from self._of(candidate, engines)
        except torch.OutOfMemoryError as error:
            self.note(f"{describe(candidate)}: not built, out of memory ({first_line(error)})")

    def _original(self) -> tuple[nn.Module, str]:
        """Return the module that results are compared with and that is returned if nothing is faster, and its engine.

        It is the user's module, an ONNX file in ONNX Runtime, or an exported program as plain calls of its operators:
        the module that PyTorch makes of a program first runs checks that take tens of microseconds.
        """
        module = self.source.module
        if self.source.onnx is not None:
            return self.source.onnx.module, self.source.onnx.engine
        return module if isinstance(module, nn.Module) else build(self.program, Plan(direct=True)), "eager"

    def _of(self, candidate: Candidate, engines: Sequence[Engine]) -> Iterator[Finalist]:
        """Yield a candidate built for each of the engines that can run it."""
        program = fold(replace(self.program, graph=candidate.graph), UNLIMITED)
        arguments = self.source.args, self.source.kwargs
        for engine in engines:
            plan = self.planner(program.graph, engine)
            built = None if candidate.applied else self.built.get(engine.name)
            try:
                built = built or built_in(engine, program, plan, arguments, self.program)
            except EngineUnavailableError as error:
                self.note(str(error))
                continue
            yield Finalist(
                unique(f"{describe(candidate)}, {engine.name}", self._taken),
                candidate=candidate,
                program=program,
                plan=plan,
                engine=engine,
                runner=built.runner,
                module=built.module,
            )
