"""The backend ``taso`` of ``torch.compile``: each captured graph is optimized on its own, at its first call.

    torch.compile(model, backend="taso", options={"freeze": True})

Weights are inputs of a captured graph. Unless the user asks for freezing, they stay inputs and may change between
calls; expressions of weights that rules introduce are then computed at every call, which seldom pays. Frozen weights
are folded and packed; every call first checks that they are unchanged, and if not, folds and packs them again.

What a graph writes to, as a decoder does to its cache, is never frozen: it is an input, and written to in place.
Sizes are read from tensors, and numbers that tensors do not depend on, such as the length of a cache that Python
counts, are computed beside the graph.

A graph whose sizes vary between calls is optimized once, at those of its first call, with sizes left open. Graphs that
need gradients, that compute tensors with other numbers that vary, or that cannot be imported exactly (data-dependent
sizes) run as they were captured; one line in the log says so.

Invariant: a result computes the same as the captured graph on the current weights, was faster when both were timed, and
leaves the random state as the captured graph does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from threading import Lock
from time import monotonic
from typing import Any

import torch
from torch import Tensor, fx

from taso_py.backend import Program
from taso_py.backend.generators import undo_random_draws
from taso_py.backend.schema import storage_of
from taso_py.backend.writes import Writes
from taso_py.collector import release_memory
from taso_py.driver.decisions import UNUSABLE, Decision, Decisions, decision_key
from taso_py.driver.optimize import optimize_source
from taso_py.driver.searches import rules_for
from taso_py.dynamo.captured import (
    AutocastState,
    BoundRunner,
    CapturedSource,
    FrozenWeights,
    varying_axes,
    weight_key,
    weight_positions,
    why_untouched,
    with_weights,
)
from taso_py.dynamo.numbers import NumbersApart
from taso_py.dynamo.prospects import Prospects, family_of
from taso_py.engines.engine import Runner
from taso_py.ir.errors import TasoError, first_line
from taso_py.ir.node import Node
from taso_py.ir.operator import Constant, Input, Weight
from taso_py.lock import try_optimization_lock
from taso_py.models.source import Source, clone_inference_tensors
from taso_py.ops.opaque import Opaque
from taso_py.options import Options
from taso_py.rules.substitution import Substitution
from taso_py.unexpected import report_unexpected, unexpected_error

RUNTIMES = ("eager", "inductor", "onnxruntime", "openvino")
"""Runtimes for captured graphs."""
REFREEZES = 8
"""How often weights may change before the graph runs as captured, since folding at every call would not pay."""

_log = logging.getLogger(__name__)
_numbers = count(1)
_decisions = Decisions()
_prospects = Prospects()


class BackendError(TasoError):
    """Raised for an option of ``torch.compile(backend="taso")`` that does not exist or is invalid."""


@dataclass(frozen=True, kw_only=True)
class BackendOptions(Options):
    """The fields of :class:`Options` with less effort, since a model may have many graphs, and two more."""

    effort: str = "quick"
    patience: float = 120.0
    """Seconds to spend on graphs that gain nothing, since the last gain; then further graphs are left alone."""
    freeze: bool = False
    """True if weights may be folded and packed; by default as ``torch._inductor.config.freezing``."""

    def __post_init__(self) -> None:
        if self.runtime not in RUNTIMES:
            raise BackendError(f"the backend taso has the runtimes {', '.join(RUNTIMES)}, not {self.runtime}")
        super().__post_init__()


def taso(
    graph: fx.GraphModule,
    examples: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a captured graph; this is the function that ``torch.compile`` calls.

    Args:
        graph: the captured graph; weights are among its inputs.
        examples: its inputs at this call.
        options: the fields of :class:`BackendOptions`.
        mode: must be None or ``default``; use ``options``.

    Raises:
        BackendError: an option does not exist or is invalid.
    """
    chosen = _options(options, mode)
    name = f"graph {next(_numbers)} of torch.compile"
    try:
        apart = NumbersApart.of(graph)
        given = [] if apart is None else [examples[place] for place in apart.given[0]]
        if apart is not None and not why_untouched(apart.tensors, given):
            return apart.joined(taso(apart.tensors, given, options=options, mode=mode))
        reason = why_untouched(graph, examples) or _prospects.why_not(family_of(graph, chosen), chosen.patience)
        if not reason:
            return _Compiled(name, graph, chosen, AutocastState(_device_type(examples)))
    except Exception as error:  # the caller's model must run nevertheless
        reason = str(unexpected_error(error, f"reading {name}"))
    _log.warning("%s runs as it is: %s", name, reason)
    return _inductor(graph, examples) if chosen.runtime == "inductor" else graph.forward


def _options(options: Mapping[str, Any] | None, mode: str | None) -> BackendOptions:
    import torch._inductor.config as inductor

    if mode not in (None, "default"):
        raise BackendError(f"the backend taso has no mode {mode}; use options, e.g. options={{'freeze': True}}")
    return BackendOptions.from_mapping({"freeze": inductor.freezing, **(options or {})})


def _device_type(examples: Sequence[Any]) -> str:
    types = [x.device.type for x in examples if isinstance(x, Tensor)]
    return next((type_ for type_ in types if type_ != "cpu"), "cpu")


def _inductor(graph: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    from torch._inductor.compile_fx import compile_fx

    compiled: Any = compile_fx(graph, list(examples))
    return compiled


@cache
def _rules(search: str) -> Sequence[Substitution]:
    return rules_for(Options(search=search))


class _Compiled:
    """A captured graph that is optimized at its first call, and again when frozen weights have changed.

    Only one thread optimizes, and only one graph at a time; calls from other threads run the captured graph meanwhile.
    """

    def __init__(self, name: str, graph: fx.GraphModule, options: BackendOptions, autocast: AutocastState) -> None:
        self._name, self._graph, self._options, self._autocast = name, graph, options, autocast
        self._places = frozenset(weight_positions(graph)) if options.freeze else frozenset[int]()
        self._known: tuple[Program, Decision] | None = None
        self._captured = self._running = BoundRunner(graph.forward)
        self._is_prepared = False
        self._preparing = Lock()
        self._left, self._family = REFREEZES, family_of(graph, options)

    @property
    def runs_result(self) -> bool:
        """True if an optimized result runs in place of the captured graph."""
        return self._running is not self._captured

    def __call__(self, *args: Any) -> Any:
        running = self._running
        if not (self._is_prepared and running.frozen.are_current(args)):
            running = self._refresh(args)
        if running is self._captured:
            return self._graph.forward(*args)
        try:
            return running(args)
        except Exception as error:
            result = self._captured(args)  # raises too if the caller or the model is at fault
            self._give_up(str(unexpected_error(error, f"running {self._name}")))
            return result

    def _refresh(self, args: Sequence[Any]) -> BoundRunner:
        """Return the callable for the current weights; the captured graph if another thread is optimizing anything."""
        if not self._preparing.acquire(blocking=False):
            return self._captured
        try:
            if self._is_prepared and self._running.frozen.are_current(args):
                return self._running  # another thread was quicker
            with try_optimization_lock() as is_free:
                if not is_free:
                    return self._captured
                # Assigned together: if this is interrupted, or called meanwhile, the runner matches its weights.
                self._running = self._prepare(args)
                self._is_prepared = True
                release_memory()
                return self._running
        finally:
            self._preparing.release()

    def _give_up(self, reason: str) -> BoundRunner:
        """Log the reason and run the graph as it was captured from now on."""
        _log.warning("%s runs as it is: %s", self._name, reason)
        self._running = self._captured
        return self._running

    def _prepare(self, args: Sequence[Any]) -> BoundRunner:
        """Return the callable to use as long as the frozen weights are unchanged."""
        self._left -= 1
        reason = f"its weights changed {REFREEZES} times" if self._left < 0 else ""
        if self._known is None:
            reason = reason or _prospects.why_not(self._family, self._options.patience)
        if reason:
            return self._as_captured(reason)
        started = monotonic()
        try:
            self._freeze(p for p in self._places if not args[p].is_inference())  # their versions are not counted
            # Not in inference mode: tensors that are made there cannot be exported.
            with (
                torch.inference_mode(False),
                torch.no_grad(),
                self._autocast.off(),
                report_unexpected(f"preparing {self._name}"),
            ):
                return self._make(clone_inference_tensors(args))
        except TasoError as error:
            _prospects.refuse(self._family, monotonic() - started, str(error))
            return self._as_captured(str(error))

    def _as_captured(self, reason: str) -> BoundRunner:
        """Return the graph as it was captured, compiled by Inductor if that is the runtime."""
        captured = self._give_up(reason)
        if self._options.runtime == "inductor":
            dynamic = None if any(varying_axes(self._graph)) else False
            return BoundRunner(torch.compile(self._graph, backend="inductor", dynamic=dynamic))
        return captured

    def _freeze(self, places: Iterable[int]) -> None:
        """Freeze these inputs; a program in which others were frozen does no longer."""
        chosen = frozenset(places)
        if chosen != self._places:
            self._places, self._known = chosen, None

    def _make(self, args: Sequence[Any]) -> BoundRunner:
        """Return the result for the current weights, by a decision from before or by optimizing now."""
        inputs = {storage_of(x) for place, x in enumerate(args) if isinstance(x, Tensor) and place not in self._places}
        # What is written to might be in the same memory.
        self._freeze(place for place in self._places if storage_of(args[place]) not in inputs)
        frozen = FrozenWeights({place: args[place] for place in sorted(self._places)})
        source = CapturedSource.of(self._name, self._graph, args, frozen, self._autocast)
        made: Runner | None = None
        if self._known is None:
            program = source.program()
            written = Writes.of(program.graph).buffers
            places = {place for place in self._places if weight_key(place) in written}
            if len(places) < len(written):
                raise BackendError("it writes to constants of its own")
            if places:  # inputs, then: what is frozen stays as it is
                self._freeze(self._places - places)
                return self._make(args)
            decision, made = self._decide(source, program)
        else:
            program, decision = self._known
            program = with_weights(program, frozen.tensors)
        # Tied inputs are one weight of the program, but may differ at the next call.
        self._known = None if frozen.are_tied else (program, decision)
        if decision.keeps_original:
            return self._captured
        if made is None:
            made = _apply(decision, program, source.args)
        return BoundRunner(self._autocast.without(made), frozen)

    def _decide(self, source: Source, program: Program) -> tuple[Decision, Runner | None]:
        """Return the decision for a graph, from the cache or by optimizing now, and its module if one was built."""
        rules = _rules(self._options.search)
        key = decision_key(program, self._options, rules)
        known = _decisions.get(key) if self._options.cache else None
        if known is not None:
            try:
                if known.keeps_original:
                    return known, None
                made = _apply(known, program, source.args)
                _prospects.note(self._family, 0.0, gained=True)
                return known, made
            except UNUSABLE as error:
                _log.warning(
                    "%s is optimized again: its cached decision does not apply: %s", self._name, first_line(error)
                )
        if not any(map(_is_known, program.graph.nodes)):
            raise BackendError("rules and kernels know none of its operators")
        started = monotonic()
        optimized = optimize_source(source, self._options, rules, program=program)
        _prospects.note(self._family, monotonic() - started, gained=not optimized.keeps_original)
        if optimized.keeps_original:
            _log.info("%s runs as it is: nothing was surely faster", self._name)
        decision = Decision.of(optimized)
        if self._options.cache and (optimized.report.is_final or not decision.keeps_original):
            _decisions.put(key, decision)
        return decision, optimized.module


def _is_known(node: Node) -> bool:
    """Return whether rules or kernels may apply to a node."""
    return not isinstance(node.op, Opaque | Input | Weight | Constant)


def _apply(decision: Decision, program: Program, args: Sequence[Any]) -> Runner:
    """Return the module for a decision; its first call does not change the caller's random state."""
    with undo_random_draws(program):
        return decision.apply(program, args)
