"""The backend ``taso`` of ``torch.compile``: every graph that is captured is optimized on its own, at its first call.

    torch.compile(model, backend="taso", options={"freeze": True})

Weights are inputs of a captured graph. Unless the user asks for freezing, they stay inputs and may change between
calls; what rules combine of them is then combined at every call, which seldom pays. Frozen, they are folded and packed;
before every call it is checked that they are still what they were when that was done, and if not, it is done again.

Graphs that need gradients, whose sizes vary between calls, or that cannot be imported faithfully (writes to inputs or
buffers, data-dependent sizes) run as they were captured; one line in the log says so.

Invariant: a result computes what the captured graph computes on the weights as they are at the call, was faster than
it when both were timed, and leaves the random state as the captured graph does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from threading import Lock
from time import monotonic
from typing import Any

import torch
from torch import Tensor, fx

from taso_py.backend import Program
from taso_py.backend.contract import draws_undone
from taso_py.backend.writes import is_write
from taso_py.driver.decisions import UNUSABLE, Decision, Decisions, decision_key
from taso_py.driver.optimize import optimize_source
from taso_py.driver.result import Options
from taso_py.driver.searches import rules_for
from taso_py.dynamo.captured import (
    AutocastState,
    CapturedSource,
    FrozenWeights,
    Running,
    reweighted,
    weight_places,
    why_untouched,
)
from taso_py.dynamo.prospects import Prospects, family_of
from taso_py.engines.engine import Runner
from taso_py.ir.errors import TasoError, first_line
from taso_py.ir.node import Node
from taso_py.ir.operator import Constant, Input, Weight
from taso_py.models.importing import import_source
from taso_py.models.source import Source, usable
from taso_py.ops.opaque import Opaque
from taso_py.rules.substitution import Substitution
from taso_py.turn import turn_if_free
from taso_py.unexpected import reported, unexpected

RUNTIMES = ("eager", "inductor", "onnxruntime", "openvino")
"""What captured graphs may be handed to."""
REFREEZES = 8
"""How often weights may change before a graph is given up: folding them again at every call would not pay."""

_log = logging.getLogger(__name__)
_numbers = count(1)
_decisions = Decisions()
_prospects = Prospects()


class BackendError(TasoError):
    """An option of ``torch.compile(backend="taso")`` that does not exist or makes no sense."""


@dataclass(frozen=True, kw_only=True)
class BackendOptions(Options):
    """The fields of :class:`Options`, with less effort, since a model may have many graphs, and two more."""

    effort: str = "quick"
    reload: bool = False
    patience: float = 120.0
    """Seconds that may be spent, since something was gained, on graphs that gain nothing; others are left then."""
    freeze: bool = False
    """Whether weights may be folded and packed; by default as ``torch._inductor.config.freezing``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.runtime not in RUNTIMES:
            raise BackendError(f"torch.compile hands graphs to {' or '.join(RUNTIMES)}, not to {self.runtime}")


def taso(
    graph: fx.GraphModule,
    examples: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compiles a captured graph, as ``torch.compile`` asks its backends to.

    Args:
        graph: what was captured; weights are among its inputs.
        examples: its inputs at this call.
        options: the fields of :class:`BackendOptions`.
        mode: there are no modes; ``options`` say all.

    Raises:
        BackendError: an option does not exist or makes no sense.
    """
    chosen = _options(options, mode)
    name = f"graph {next(_numbers)} of torch.compile"
    try:
        reason = why_untouched(graph, examples) or _prospects.why_not(family_of(graph), chosen.patience)
        if not reason:
            return _Compiled(name, graph, chosen, AutocastState(_device_type(examples)))
    except Exception as error:  # the caller's model runs all the same
        reason = str(unexpected(error, f"reading {name}"))
    _log.warning("%s runs as it is: %s", name, reason)
    return _inductor(graph, examples) if chosen.runtime == "inductor" else graph.forward


def _options(options: Mapping[str, Any] | None, mode: str | None) -> BackendOptions:
    import torch._inductor.config as inductor

    if mode not in (None, "default"):
        raise BackendError(f"the backend taso has no mode {mode}; use options, e.g. options={{'freeze': True}}")
    return BackendOptions.named({"freeze": inductor.freezing, **(options or {})})


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
    """A captured graph with what it was made into, once it was called.

    One thread prepares it, and no two graphs are prepared at once; whoever calls meanwhile runs the captured graph.
    """

    def __init__(self, name: str, graph: fx.GraphModule, options: BackendOptions, autocast: AutocastState) -> None:
        self._name, self._graph, self._options, self._autocast = name, graph, options, autocast
        self._places = frozenset(weight_places(graph)) if options.freeze else frozenset[int]()
        self._known: tuple[Program, Decision] | None = None
        self._captured = self._running = Running(graph.forward)
        self._is_prepared = False
        self._preparing = Lock()
        self._left, self._family = REFREEZES, family_of(graph)

    @property
    def runs_result(self) -> bool:
        """Whether it was made into something faster, which runs in its place."""
        return self._running is not self._captured

    def __call__(self, *args: Any) -> Any:
        running = self._running
        if not (self._is_prepared and running.frozen.are_current(args)):
            running = self._renewed(args)
        if running is self._captured:
            return self._graph.forward(*args)
        try:
            return running(args)
        except Exception as error:
            result = self._captured(args)  # raises too where it is the caller's mistake, or that of the model
            self._give_up(str(unexpected(error, f"running {self._name}")))
            return result

    def _renewed(self, args: Sequence[Any]) -> Running:
        """What runs on the weights as they are now: prepared, unless another thread prepares this or anything else."""
        if not self._preparing.acquire(blocking=False):
            return self._captured
        try:
            if self._is_prepared and self._running.frozen.are_current(args):
                return self._running  # another thread was quicker
            with turn_if_free() as is_free:
                if not is_free:
                    return self._captured
                # Set at once: whatever ends this early, or calls meanwhile, finds a runner with the weights it was
                # made of.
                self._running = self._prepare(args)
                self._is_prepared = True
                return self._running
        finally:
            self._preparing.release()

    def _give_up(self, reason: str) -> Running:
        """Runs the graph as it was captured from now on; says so."""
        _log.warning("%s runs as it is: %s", self._name, reason)
        self._running = self._captured
        return self._running

    def _prepare(self, args: Sequence[Any]) -> Running:
        """What runs from now on, as long as the frozen weights stay."""
        self._left -= 1
        reason = f"its weights changed {REFREEZES} times" if self._left < 0 else ""
        if self._known is None:
            reason = reason or _prospects.why_not(self._family, self._options.patience)
        if reason:
            return self._as_captured(reason)
        started = monotonic()
        try:
            self._places = frozenset(
                p for p in self._places if not args[p].is_inference()
            )  # their versions are not counted
            # Not in inference mode: what is made there cannot be exported.
            with (
                torch.inference_mode(False),
                torch.no_grad(),
                self._autocast.off(),
                reported(f"preparing {self._name}"),
            ):
                return self._made(usable(args))
        except TasoError as error:
            _prospects.refuse(self._family, monotonic() - started, str(error))
            return self._as_captured(str(error))

    def _as_captured(self, reason: str) -> Running:
        """The graph as it was captured, handed to the compiler that was chosen."""
        captured = self._give_up(reason)
        if self._options.runtime == "inductor":
            return Running(torch.compile(self._graph, backend="inductor", dynamic=False))
        return captured

    def _made(self, args: Sequence[Any]) -> Running:
        """The graph, optimized or as decided before, with its weights as they are now, or as it was captured."""
        frozen = FrozenWeights({place: args[place] for place in sorted(self._places)})
        source = CapturedSource.of(self._name, self._graph, args, frozen, self._autocast)
        made: Runner | None = None
        if self._known is None:
            program = import_source(source)
            if any(is_write(node) for node in program.graph.effects):
                raise BackendError("it writes to its buffers")
            decision, made = self._decided(source, program)
        else:
            program, decision = self._known
            program = reweighted(program, frozen.tensors)
        # What is tied is one weight of the program, and may be untied at the next call.
        self._known = None if frozen.are_tied else (program, decision)
        if decision.keeps_original:
            return self._captured
        if made is None:
            made = _carried_out(decision, program, source.args)
        return Running(self._autocast.without(made), frozen)

    def _decided(self, source: Source, program: Program) -> tuple[Decision, Runner | None]:
        """What is to be done with such a graph, decided before or now, with its module where one was made."""
        rules = _rules(self._options.search)
        key = decision_key(program, self._options, rules)
        known = _decisions.get(key) if self._options.cache else None
        if known is not None:
            try:
                if known.keeps_original:
                    return known, None
                made = _carried_out(known, program, source.args)
                _prospects.note(self._family, 0.0, gained=True)
                return known, made
            except UNUSABLE as error:
                _log.warning("%s is decided anew: what was decided cannot be done: %s", self._name, first_line(error))
        if not any(map(_is_known, program.graph.nodes)):
            raise BackendError("rules and kernels know none of its operators")
        started = monotonic()
        optimized = optimize_source(source, self._options, rules, program=program)
        _prospects.note(self._family, monotonic() - started, gained=not optimized.keeps_original)
        if optimized.keeps_original:
            _log.info("%s runs as it is: nothing was surely faster", self._name)
        decision = Decision.of(optimized)
        if self._options.cache:
            _decisions.put(key, decision)
        return decision, optimized.module


def _is_known(node: Node) -> bool:
    """Whether a node computes something that rules or kernels know."""
    return not isinstance(node.op, Opaque | Input | Weight | Constant)


def _carried_out(decision: Decision, program: Program, args: Sequence[Any]) -> Runner:
    """The module that a decision leads to; its first call draws no random numbers of the caller's."""
    with draws_undone(program):
        return decision.apply(program, args)
