"""Cache of optimization decisions by graph, kept in the process and on disk.

A decision records how a result was obtained, not the result itself: the trace, the kernels and the runtime. From these
the module is rebuilt, without search or timing, for any graph with the same operators and sizes, whatever its weights.

Invariant: a decision is only applied to the graph that it was made for; the replay of its trace checks every step.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from taso_py.backend import NO_PLAN, UNLIMITED, Program, fold
from taso_py.driver.result import Optimized
from taso_py.engines.engine import Runner
from taso_py.engines.names import AUTO
from taso_py.engines.session import SessionEngine
from taso_py.engines.table import ENGINES
from taso_py.ir.errors import TasoError
from taso_py.judging.building import built_in
from taso_py.kernels.saved import dump, restore
from taso_py.latency.database import default_path
from taso_py.latency.environment import Environment
from taso_py.options import Options
from taso_py.rules.ruleset import RuleSet
from taso_py.rules.substitution import Substitution
from taso_py.saving.folder import write_files
from taso_py.search.trace import Trace, read_trace, replay, write_trace

VERSION = 1
"""Version of the file format."""
KNOWN_SHARE = 0.25
"""Share of their seconds that search and races get where an earlier search, allowed as many, has found a winner."""
UNUSABLE = (TasoError, LookupError, ValueError, TypeError, AttributeError)
"""Errors raised on applying a decision that is damaged, of another version, or for a runtime that is missing."""


@dataclass(frozen=True)
class Decision:
    """How to compute a graph: unchanged, or by a trace, a runtime and a plan."""

    keeps_original: bool
    runtime: str = "eager"
    trace: str = ""
    plan: Mapping[str, Any] | None = None
    """The kernels as :func:`taso_py.kernels.saved.dump` gives them; None for plain ATen calls."""
    search_s: float = 0.0
    """The seconds that a search was allowed which found nothing better; 0 if that is not known."""

    @classmethod
    def of(cls, optimized: Optimized) -> Decision:
        """Return the decision that an optimization came to."""
        if optimized.keeps_original:
            return cls(keeps_original=True)
        plan = None if optimized.plan is NO_PLAN else dump(optimized.plan)
        return cls(False, optimized.report.runtime, write_trace(optimized.trace), plan)

    def apply(self, program: Program, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Runner:
        """Return a module for a program by this decision, which must not be to keep the original.

        Its first call, on the given arguments, leaves them as they were, and its buffers too.

        Raises:
            TraceError: the program's graph is not the one that the decision was made for.
        """
        graph = replay(program.graph, read_trace(self.trace))
        folded = fold(replace(program, graph=graph), UNLIMITED)  # as for the module that was timed
        plan = NO_PLAN if self.plan is None else restore(folded.graph, self.plan, program.device)
        return built_in(ENGINES[self.runtime], folded, plan, (args, kwargs or {}), program).runner


class Decisions:
    """Decisions by key (see :func:`decision_key`), in memory and in ``decisions`` beside the latency database."""

    def __init__(self) -> None:
        """Start empty; files are read when they are asked for."""
        self._known: dict[str, Decision] = {}

    def get(self, key: str) -> Decision | None:
        """Return the decision for a key, or None if there is none that can be read."""
        if key not in self._known:
            try:
                self._known[key] = _parse(json.loads(self._path(key).read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError, RecursionError):  # absent, or damaged and to be made again
                return None
        return self._known[key]

    def put(self, key: str, decision: Decision) -> None:
        """Store a decision; if the file cannot be written, it is kept for this process only."""
        self._known[key] = decision
        with suppress(OSError, TasoError):
            path = self._path(key)
            write_files(path.parent, {path.name: json.dumps(asdict(decision)).encode()})

    @staticmethod
    def _path(key: str) -> Path:
        return default_path().parent / "decisions" / f"{key}.json"


def _parse(document: Any) -> Decision:
    """Return the decision that a file holds; raises ValueError or TypeError if it holds something else."""
    decision = Decision(**document)
    kinds: Mapping[str, Any] = {
        "keeps_original": bool,
        "runtime": str,
        "trace": str,
        "plan": (dict, type(None)),
        "search_s": float,
    }
    if not all(isinstance(getattr(decision, name), kind) for name, kind in kinds.items()):
        raise TypeError("a decision has fields of other types")
    return decision


def decision_key(program: Program, options: Options, rules: Sequence[Substitution]) -> str:
    """Return a digest (32 hexadecimal digits) of everything that a decision depends on."""
    parts = (
        VERSION,
        version("taso-py"),
        program.graph.digest,
        [tensor.stride() for tensor in program.example_inputs],
        [tensor.stride() for tensor in program.weights.values()],
        program.contract.strides,
        Environment.current(program.device).as_dict(),
        _engine_versions(options.runtime, program.device),
        options,
        [*RuleSet.of(rules).ids],
    )
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def _engine_versions(runtime: str, device: torch.device) -> Sequence[str]:
    """Return the versions of the session engines that a runtime stands for, in which results were checked."""
    chosen = [engine for engine in ENGINES.values() if runtime in (engine.name, AUTO)]
    return [e.version for e in chosen if isinstance(e, SessionEngine) and e.absence(device) is None]


class Winners:
    """Traces that won earlier, by program and options; a new search always considers the last one.

    Searches have limits and prices are measurements, so one search may miss what another found. An earlier winner was
    timed end to end.
    """

    def __init__(self, program: Program, options: Options, rules: Sequence[Substitution]) -> None:
        """Look up by program, runtime, search, numerics, kernels and rules; effort makes no difference."""
        purpose = Options(
            runtime=options.runtime, search=options.search, numerics=options.numerics, kernels=options.kernels
        )
        self._key = decision_key(program, purpose, rules)
        self._decisions = Decisions()
        self._search_s = float(options.limits().seconds)

    def last(self) -> Trace | None:
        """Return the trace of the last winner, or None if there is none that can be read."""
        found = self._decisions.get(self._key)
        try:
            return None if found is None else read_trace(found.trace)
        except TasoError:
            return None

    def share(self, last: Trace | None) -> float:
        """Return the share of its seconds that a new search needs: all, unless as long a one found the last winner.

        Args:
            last: the trace of that winner, as :meth:`last` returns it.
        """
        return KNOWN_SHARE if last is not None and self._earlier_s() >= self._search_s else 1.0

    def remember(self, optimized: Optimized) -> None:
        """Store the trace of a winner, which is empty where kernels or an engine won alone.

        One that won by rules stays in that case, since it lost only once.
        """
        last = self.last()
        if optimized.trace.applied or not (optimized.keeps_original or (last is not None and last.applied)):
            longest = max(self._search_s, self._earlier_s())
            self._decisions.put(self._key, replace(Decision.of(optimized), search_s=longest))

    def _earlier_s(self) -> float:
        """Return the seconds that the longest search so far was allowed."""
        found = self._decisions.get(self._key)
        return 0.0 if found is None else found.search_s
