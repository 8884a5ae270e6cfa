"""What was decided for a graph, remembered: in the process, and on disk for the next one.

A decision is what led to the result, not the result: the trace, the kernels and the runtime. From them the module is
made again for a graph with the same operators and sizes, whatever its weights are, without search or timing.

Invariant: a decision is only carried out on the graph it was made for; the replay of its trace checks every step.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from taso_py.backend import NO_PLAN, UNLIMITED, Program, fold
from taso_py.driver.result import Optimized, Options
from taso_py.engines.engine import Runner
from taso_py.engines.names import AUTO
from taso_py.engines.session import SessionEngine
from taso_py.engines.table import ENGINES
from taso_py.ir.errors import TasoError
from taso_py.kernels.saved import dump, restore
from taso_py.latency.database import default_path
from taso_py.latency.environment import Environment
from taso_py.rules.substitution import Substitution
from taso_py.saving.folder import write_files
from taso_py.search.trace import Trace, read_trace, replay, write_trace

VERSION = 1
"""Of the form of the files."""
UNUSABLE = (TasoError, LookupError, ValueError, TypeError, AttributeError)
"""What carrying out a decision raises that is damaged, or of another version, or whose runtime is gone."""


@dataclass(frozen=True)
class Decision:
    """What to make of a graph."""

    keeps_original: bool
    runtime: str = "eager"
    trace: str = ""
    plan: Mapping[str, Any] | None = None
    """How it is computed if not plainly."""

    @classmethod
    def of(cls, optimized: Optimized) -> Decision:
        """What an optimization decided."""
        if optimized.keeps_original:
            return cls(keeps_original=True)
        plan = None if optimized.plan is NO_PLAN else dump(optimized.plan)
        return cls(False, optimized.report.runtime, write_trace(optimized.trace), plan)

    def carry_out(self, program: Program, args: Sequence[Any]) -> Runner:
        """The module for a program with the graph that the decision was made for; not for those kept as they are.

        Raises:
            TraceError: the program has another graph.
        """
        graph = replay(program.graph, read_trace(self.trace))
        folded = fold(replace(program, graph=graph), UNLIMITED)  # as what was timed
        plan = NO_PLAN if self.plan is None else restore(folded.graph, self.plan, program.device)
        engine = ENGINES[self.runtime]
        return engine.prepare(engine.build(folded, plan), args, {})


class Decisions:
    """Decisions by graph, inputs, environment, options and rules, in the folder ``decisions`` beside the latencies."""

    def __init__(self) -> None:
        """Nothing is read before it is asked for."""
        self._known: dict[str, Decision] = {}

    def get(self, key: str) -> Decision | None:
        """A decision that was made before."""
        if key not in self._known:
            try:
                self._known[key] = _parse(json.loads(self._path(key).read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError, RecursionError):  # absent, or damaged and to be made again
                return None
        return self._known[key]

    def put(self, key: str, decision: Decision) -> None:
        """Remembers a decision; what cannot be written is remembered for this process."""
        self._known[key] = decision
        with suppress(OSError, TasoError):
            path = self._path(key)
            write_files(path.parent, {path.name: json.dumps(asdict(decision)).encode()})

    @staticmethod
    def _path(key: str) -> Path:
        return default_path().parent / "decisions" / f"{key}.json"


def _parse(document: Any) -> Decision:
    """The decision that a file holds; raises ValueError or TypeError if it holds something else."""
    decision = Decision(**document)
    kinds: Mapping[str, Any] = {"keeps_original": bool, "runtime": str, "trace": str, "plan": (dict, type(None))}
    if not all(isinstance(getattr(decision, name), kind) for name, kind in kinds.items()):
        raise TypeError("a decision has fields of other types")
    return decision


def decision_key(program: Program, options: Options, rules: Sequence[Substitution]) -> str:
    """What a decision depends on, as a name of 32 hexadecimal digits."""
    parts = (
        VERSION,
        program.graph.digest,
        [tensor.stride() for tensor in program.example_inputs],
        [tensor.stride() for tensor in program.weights.values()],
        program.contract.strides,
        Environment.current(program.device).as_dict(),
        _engine_versions(options.runtime, program.device),
        options,
        [rule.id for rule in rules],
    )
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def _engine_versions(runtime: str, device: torch.device) -> Sequence[str]:
    """The versions of the engines besides PyTorch that a runtime stands for: what they compute was checked in these."""
    chosen = [engine for engine in ENGINES.values() if runtime in (engine.name, AUTO)]
    return [e.version for e in chosen if isinstance(e, SessionEngine) and e.absence(device) is None]


class Winners:
    """What won by rules before, which stays in the running however well a search does this time.

    Searches have limits and prices are measured: what one finds another may miss. A winner was measured.
    """

    def __init__(self, program: Program, options: Options, rules: Sequence[Substitution]) -> None:
        """Those of a program, for whatever effort finds them: for the same purpose, and by the same rules."""
        purpose = Options(
            runtime=options.runtime, search=options.search, numerics=options.numerics, kernels=options.kernels
        )
        self._key = decision_key(program, purpose, rules)
        self._decisions = Decisions()

    def last(self) -> Trace | None:
        """What led to the one that won last, if that can be read."""
        found = self._decisions.get(self._key)
        try:
            return None if found is None else read_trace(found.trace)
        except TasoError:
            return None

    def remember(self, optimized: Optimized) -> None:
        """Keeps the winner in mind if it won by rules; otherwise the one before has only lost this time."""
        if optimized.trace.steps:
            self._decisions.put(self._key, Decision.of(optimized))
