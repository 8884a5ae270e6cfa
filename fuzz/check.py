"""The checks of a model: it is imported or refused, and every transformation of it computes the same function.

A model is imported and built unchanged: with the same bits, strides, writes, sharing of memory and random numbers.
Where it writes to memory with gaps, sums may be rounded otherwise. Then random rules are applied at random places; in
double precision the result must agree up to rounding, and where all rules are exact, in the model's own precision to
the bit. Weights are folded, kernels and memory formats chosen at random, dead storage is overwritten; the result must
be as accurate as plain calls are. Some models are exported with all sizes open that torch.export can leave open; all of
this must then hold at other sizes too.

On request, engines that take whole graphs compute the model and its rewritten form; they may refuse them.

Invariant: an exception other than a refusal is a failure, as is a difference.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from threading import Barrier
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from fuzz.bodies import random_steps, with_rewritten_bodies
from fuzz.draft import Case
from fuzz.kinds import CONTROL, THREADS
from fuzz.layouts import in_place_of, writes_with_gaps
from fuzz.nudging import nudged_graph, nudged_numbers
from fuzz.prices import InventedCost
from fuzz.writing import NAMESPACE
from taso_py.backend import NO_PLAN, Program, build, fold, poison, retype
from taso_py.backend.bits import PLAIN, all_resolved, bits_of
from taso_py.backend.generators import random_state_kept
from taso_py.backend.tensors import TensorError
from taso_py.backend.tracing import quiet
from taso_py.backend.writes import Writes
from taso_py.checking.compare import compare_output, snapshot, to_float64
from taso_py.checking.preserve import preserve_buffers, preserve_state
from taso_py.checking.resize import resized_cases
from taso_py.checking.roundtrip import CallRecord, copied_buffers, equal_outputs, record_call
from taso_py.cost.choice import choose
from taso_py.engines.engine import Engine, EngineUnavailableError
from taso_py.engines.table import ENGINES
from taso_py.frontend import import_module, import_program
from taso_py.ir.errors import TasoError, first_line
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.ops.functions import TRANSCENDENTAL
from taso_py.ops.opaque import Opaque
from taso_py.rules.apply import replacements
from taso_py.rules.lemma import WITH_FEW, Lemmas
from taso_py.rules.match import Matcher
from taso_py.rules.substitution import Substitution
from taso_py.rules.verdict import Numerics
from taso_py.search.rolling import applied_in_turn
from taso_py.search.space import Space
from taso_py.search.state import SearchState

MOST_STEPS, MOST_LEMMAS = 8, 6
"""Most rules that are applied to a model, and most lemmas before them."""
NUDGE = 1e-12
"""Relative change of inputs and operands with which the sensitivity of results in double precision is measured."""
EXACTLY = 1e-9
"""Greatest difference of a rewritten model in double precision, relative to its largest result."""
SENSITIVE = 100.0
"""Greatest difference from the original, relative to the change that nudging causes."""
OPEN_ONE_IN = 3
"""One in this many models has its sizes left open."""
GROWTH = 4.0
"""Most bytes of a folded model's weights, relative to the original's."""
WRITING_CALL = re.compile(rf"[a-z]_\(|ops\.{NAMESPACE}\.")
"""A call that writes to its operand, in the text of a model."""
_DRAWS = re.compile(r"rand_like|bernoulli|, True\)")
"""A call that draws random numbers, for which threads share one generator."""
CALLERS = 4
"""Number of threads that call a model concurrently."""
CALLED_ONE_IN = 3
"""One in this many models is called by several threads concurrently."""


class DiscrepancyError(Exception):
    """A failed check: place and difference, in one line."""


@dataclass(frozen=True)
class CheckOutcome:
    """Statistics of a model that has passed."""

    refused: str = ""
    """Reason why it was not imported; empty if it was."""
    rules: tuple[str, ...] = ()
    """Rules that were applied."""
    kernels: tuple[str, ...] = ()
    """Kernels other than plain calls that computed it."""
    open: tuple[str, ...] = ()
    """Sizes that were left open."""
    resized: int = 0
    """Number of other sizes at which it was computed."""
    engines: tuple[str, ...] = ()
    """Names of the engines that computed it."""
    refusals: tuple[str, ...] = ()
    """Reasons of engines that did not."""
    kinds: frozenset[str] = frozenset()
    """Its kinds beyond ordinary operators and calls."""


_Place: TypeAlias = tuple[str, frozenset[Node]]
_Effects: TypeAlias = dict[frozenset[tuple[Value, Value]], set[_Place]]
"""Rules and matched nodes by the replacement that they make."""


class Checker:
    """Checks models with a set of rules."""

    def __init__(self, rules: Iterable[Substitution], engines: Sequence[str] = ()) -> None:
        """Take the rules that may be applied, and the names of engines that also compute the results.

        Rules that are safe for all values are also applied on their own.
        """
        self._engines = tuple(ENGINES[name] for name in engines)
        self._all = _Rewrites(Matcher(rule for rule in rules if rule.numerics <= Numerics.RANGE))
        exact = (rule for rule in self._all.matcher.rules if rule.numerics is Numerics.EXACT)
        self._exact = _Rewrites(Matcher(exact))

    def check(self, case: Case, seed: int) -> CheckOutcome:
        """Run all checks on a model.

        Args:
            case: the model.
            seed: seed of the random transformations.

        Raises:
            DiscrepancyError: a check failed.
        """
        module, args = case.make()
        with torch.no_grad(), random_state_kept():
            try:
                opened = _export_with_open_sizes(module, args) if seed % OPEN_ONE_IN == 0 else None
                program = import_module(module, args) if opened is None else import_program(opened, args)
                original = module if opened is None else opened.module()
                return _Check(case, program, args, seed=seed, engines=self._engines).run(
                    original, self._all if case.is_smooth else self._exact
                )
            except DiscrepancyError:
                raise
            except TasoError as error:
                return CheckOutcome(refused=first_line(error))
            except Exception as error:  # whatever it is: only refusals are allowed
                raise DiscrepancyError(f"{type(error).__name__}: {first_line(error)}") from error


@dataclass(frozen=True)
class _Rewrites:
    """Rules that may be applied, and the lemmas that follow from them."""

    matcher: Matcher

    @cached_property
    def lemmas(self) -> Lemmas:
        """The lemmas."""
        return Lemmas(self.matcher.rules)


@dataclass
class _Check:
    """The check of one model."""

    case: Case
    program: Program
    args: tuple[Any, ...]
    seed: int
    engines: tuple[Engine, ...] = ()
    sizes: str = ""
    """Description of the arguments, if they are not the example inputs."""

    def __post_init__(self) -> None:
        self._cost = InventedCost(self.seed, fused=0.2 if self.seed % 2 else 1.0)

    def run(self, module: nn.Module, rewrites: _Rewrites) -> CheckOutcome:
        """Run all stages."""
        graph, applied = self._apply_random_rules(rewrites)
        rules = tuple(rule.id for rule in applied)
        program = replace(self.program, graph=graph)
        numerics = max((rule.numerics for rule in applied), default=Numerics.EXACT)
        with preserve_state(self.program, [module], self.args):
            cases, _ = resized_cases(self.program, {"the model": module}, self.seed)
        kernels: tuple[str, ...] = ()
        is_open = bool(self.program.open)
        sessions, refusals = self._sessions(program)
        checks = [self, *(replace(self, args=args, sizes=f" at {name}") for name, (args, _) in cases)]
        if CONTROL in self.case.kinds:  # another branch, another number of iterations
            checks.append(replace(self, args=tuple(map(_negated, self.args)), sizes=" negated"))
        for check in checks:
            built = build(self.program)
            check._check_import(module, built, is_open=is_open)
            with preserve_state(self.program, [module], check.args):
                check._check_views(module, built)
                check._check_other_layouts(module, built)
            if rules:
                check._check_rewrite(program, is_exact=numerics is Numerics.EXACT, rules=rules)
            kernels = check._check_random_plan(program)
            for name, computed, session in sessions:
                check._check_engine(name, computed, session)
        kinds = self.case.kinds | ({THREADS} if self._check_concurrent_calls(program) else set())
        return CheckOutcome(
            rules=rules,
            kernels=kernels,
            open=tuple(size.name for size in program.open),
            resized=len(cases),
            engines=tuple(dict.fromkeys(name for name, _, _ in sessions)),
            refusals=tuple(refusals),
            kinds=kinds,
        )

    def _sessions(self, rewritten: Program) -> tuple[Sequence[tuple[str, Program, nn.Module]], Sequence[str]]:
        """Return the imported and rewritten program, folded, in each engine, and the reasons of engines that refuse."""
        sessions: list[tuple[str, Program, nn.Module]] = []
        refusals: dict[str, None] = {}
        for engine in self.engines:
            for program in (self.program, rewritten)[: 1 + (rewritten.graph is not self.program.graph)]:
                folded = fold(program, GROWTH)
                try:
                    built = engine.build(folded)
                    with preserve_state(program, [built], self.args):
                        engine.prepare(built, self.args, {})
                    sessions.append((engine.name, folded, built))
                except EngineUnavailableError as error:
                    refusals[first_line(error)] = None
        return sessions, list(refusals)

    def _check_import(self, module: nn.Module, built: nn.Module, *, is_open: bool) -> None:
        """Compare the built program with the model: bit for bit, unless it writes to memory with gaps.

        Then values may differ by as much as they do where arguments change by their rounding. The model itself is the
        reference: the program in double precision would not show what the import has lost.
        """
        args, buffers = all_resolved(self.args), copied_buffers(module)

        def record(called: nn.Module, given: Sequence[Any]) -> CallRecord:
            torch.manual_seed(self.seed)
            with preserve_buffers([called]):  # whether or not the import has the writes
                return record_call(called, given, None, buffers)

        expected, found = record(module, args), record(built, args)
        problem = expected.difference(found, is_open=is_open)
        if not problem:
            return
        with preserve_buffers([module]):
            has_gaps = writes_with_gaps(module, copy.deepcopy(list(args)))
        if not self.case.is_smooth or not has_gaps:
            self._expect("as imported", problem)
            return
        self._expect("as imported", expected.difference_beside_values(found))
        moved = record(module, [_nudged_in_place(leaf) for leaf in args])
        self._expect_near("as imported", *(one.values for one in (expected, found, expected, moved)))

    def _check_engine(self, name: str, program: Program, session: nn.Module) -> None:
        """Compare a program in an engine with plain calls."""
        plain = build(program)
        expected, results = map(self._outputs, (plain, session))
        alike = [(a.shape, a.dtype) == (b.shape, b.dtype) for a, b in zip(expected, results, strict=True)]
        self._expect(f"in {name}", "" if all(alike) else "results have other shapes or types")
        if self.case.is_smooth:
            self._check_accuracy(program, plain, results, f"in {name}")

    def _check_views(self, module: nn.Module, built: nn.Module) -> None:
        """Compare the built program on conjugate or negative views; bits of results may differ."""
        if all(bits_of(leaf) == PLAIN for leaf in self.args):
            return
        expected, found = (all_resolved(self._outputs(called)) for called in (module, built))
        self._expect("given views", "" if all(map(_nearly_equal, expected, found)) else "results differ")

    def _check_concurrent_calls(self, program: Program) -> bool:
        """Call a built program that overwrites dead storage from several threads; return whether it was called.

        One that writes to its buffers gives what the order of the calls decides.
        """
        if self.seed % CALLED_ONE_IN or _DRAWS.search(self.case.text) or Writes.of(program.graph).buffers:
            return False
        built = build(program, NO_PLAN.eager())
        expected, together = self._outputs(built), Barrier(CALLERS)
        count = torch.get_num_threads()

        def call(_: int) -> list[Tensor]:
            # Each thread has a mode of its own, and a number of threads, by which libraries round.
            torch.set_num_threads(count)
            together.wait()
            with torch.no_grad():
                return self._called(built, self.args)

        with ThreadPoolExecutor(CALLERS) as pool:
            for found in pool.map(call, range(CALLERS)):
                self._expect("called at once", "" if equal_outputs(expected, found) else "results differ")
        return True

    def _check_other_layouts(self, module: nn.Module, built: nn.Module) -> None:
        """Compare the built program on arguments with other strides than the example inputs."""
        if WRITING_CALL.search(self.case.text):  # it may write to a view or a copy, depending on the layout
            return
        args = [leaf.mT.contiguous().mT if isinstance(leaf, Tensor) and leaf.dim() > 1 else leaf for leaf in self.args]
        try:
            expected = self._outputs(module, args)
        except RuntimeError:  # a view that does not exist in this layout
            return
        found = self._outputs(built, args)
        self._expect("laid out otherwise", "" if all(map(_nearly_equal, expected, found)) else "results differ")

    def _apply_random_rules(self, rewrites: _Rewrites) -> tuple[Graph, list[Substitution]]:
        """Return the graph after random steps, also in bodies of control flow, and the rules that were applied."""
        chance, graph = random.Random(self.seed), self.program.graph
        steps = applied_in_turn(graph, partial(rewrites.lemmas.matches, kinds=WITH_FEW), lambda match, after: True)
        lemmas = list(islice(steps, MOST_LEMMAS if self.seed % 2 else 0))
        graph = lemmas[-1][1] if lemmas else graph
        space = Space(rewrites.matcher, self._cost, lambda match: True, lambda: None)
        state = random_steps(space, graph, chance, MOST_STEPS)
        fresh = space.with_options(space.start(state.graph))
        carried, found = (_effects(s) for s in (state, fresh))
        is_alike = _covers_effects(carried, found) and _covers_effects(found, carried)
        self._expect("options", "" if is_alike else "those carried over are not those found from scratch")
        graph, inside = with_rewritten_bodies(state.graph, space, chance)
        return graph, [*(match.rule for match, _ in lemmas), *(path.match.rule for path in state.steps), *inside]

    def _check_rewrite(self, program: Program, is_exact: bool, rules: Sequence[str]) -> None:
        """Compare the rewritten program with the imported one."""
        where = f"rewritten by {' '.join(rules)}"
        if is_exact:
            before, after = (self._outputs(build(p)) for p in (self.program, program))
            is_alike = equal_outputs(before, after) or (
                _rounds_by_place(program.graph) and all(map(_nearly_equal, before, after))
            )
            self._expect(where, "" if is_alike else "exact rules change the results")
        if self.case.is_smooth:
            try:
                exact, rewritten = retype(self.program), retype(program)
            except TensorError:  # an operator that reads the bits of its operand has no form in double precision
                return
            moving = replace(exact, graph=nudged_graph(exact.graph, NUDGE, self.seed))
            before, after, beside = map(build, (exact, rewritten, moving))
            inputs = [to_float64(leaf) for leaf in self.args]
            truth, found = self._outputs(before, inputs), self._outputs(after, inputs)
            nudged = self._outputs(beside, [nudged_numbers(leaf, NUDGE) for leaf in inputs])
            for place, results in enumerate(zip(truth, found, nudged, strict=True)):
                self._expect(f"{where}, result {place}", _too_far(*results))

    def _check_random_plan(self, program: Program) -> tuple[str, ...]:
        """Compare the program with random kernels and formats with plain calls; return the kernels' names."""
        plain, overwriting = build(program), build(program, NO_PLAN.eager())
        before, after = map(self._outputs, (plain, poison(overwriting)))
        self._expect("overwritten", "" if equal_outputs(before, after) else "results differ")
        folded = fold(program, GROWTH)
        plan = choose(folded.graph, self._cost).plan.eager()
        results = self._outputs(poison(build(folded, plan)))
        if self.case.is_smooth:
            self._check_accuracy(program, plain, results, "planned")
        return tuple(step.kernel.name for step in plan.steps.values() if step.kernel is not None)

    def _check_accuracy(self, program: Program, plain: nn.Module, results: Sequence[Tensor], where: str) -> None:
        try:
            truths = self._outputs(build(retype(program)), [to_float64(leaf) for leaf in self.args])
        except TensorError:
            return
        expected = self._outputs(plain)
        nudged = self._outputs(plain, [nudged_numbers(leaf, 2 * _eps(leaf)) for leaf in self.args])
        self._expect_near(where, expected, results, truths, nudged)

    def _expect_near(
        self, where: str, expected: Sequence[Any], results: Sequence[Any], truths: Sequence[Any], nudged: Sequence[Any]
    ) -> None:
        """Compare results with those of plain calls, given more precise ones and those on nudged arguments."""
        for place, (before, after, truth, moved) in enumerate(zip(expected, results, truths, nudged, strict=True)):
            compared = compare_output(place, "example", before, after, truth)
            beside = compare_output(place, "nudged", before, moved, truth)
            if not compared.passed and (compared.problem or compared.error > SENSITIVE * beside.error):
                raise DiscrepancyError(
                    f"{where}{self.sizes}, result {place}: {compared.problem or f'error {compared.error:.1e}'}"
                    f" (plain calls {compared.original_error:.1e}, nudged {beside.error:.1e})"
                )

    def _outputs(self, module: nn.Module, args: Sequence[Any] | None = None) -> list[Tensor]:
        torch.manual_seed(self.seed)
        return self._called(module, self.args if args is None else args)

    def _called(self, module: nn.Module, args: Sequence[Any]) -> list[Tensor]:
        """Return results and, if it writes to any, arguments and buffers after the call; buffers are restored."""
        writes = Writes.of(self.program.graph)
        if not writes:
            return pytree.tree_leaves(module(*args))
        given = copy.deepcopy(list(args))
        with preserve_state(self.program, [module], ()):
            results = pytree.tree_leaves(module(*given))
            return [*map(snapshot, (*results, *given, *map(module.get_buffer, writes.buffers)))]

    def _expect(self, where: str, problem: str) -> None:
        if problem:
            raise DiscrepancyError(f"{where}{self.sizes}: {problem}")


def _export_with_open_sizes(module: nn.Module, args: Sequence[Tensor]) -> ExportedProgram | None:
    """Export with all sizes open that can be; None where torch cannot make or run such an export."""
    shapes = [{axis: torch.export.Dim.AUTO for axis, size in enumerate(x.shape) if size > 1} for x in args]
    try:
        with quiet():
            exported = torch.export.export(module, tuple(args), dynamic_shapes=shapes)
            exported.module()(*pytree.tree_map(Tensor.clone, tuple(args)))
            return exported
    except Exception:  # torch raises errors of many kinds; the model is tried with the sizes that it has
        return None


def _rounds_by_place(graph: Graph) -> bool:
    """Return whether the rounding of an element may depend on its position, which a slice or reshape changes.

    PyTorch computes transcendental functions by one form for whole vectors and by another for the remainder.
    """
    return any(isinstance(n.op, Opaque) or not TRANSCENDENTAL.isdisjoint(n.op.applies) for n in graph.nodes)


def _nearly_equal(before: Tensor, after: Tensor) -> bool:
    """Return whether two results are equal up to a few roundings."""
    if before.is_complex() and after.is_complex():
        before, after = (torch.view_as_real(x.resolve_conj()) for x in (before, after))
    if before.shape != after.shape or before.dtype is not after.dtype or not before.is_floating_point():
        return before.shape == after.shape and before.dtype is after.dtype and bool(torch.equal(before, after))
    return torch.allclose(before, after, rtol=64 * _eps(before), atol=64 * _eps(before), equal_nan=True)


def _effects(state: SearchState) -> _Effects:
    """Return the replacements that the options of a state make, with rules and matched nodes."""
    effects: _Effects = {}
    for option in state.options:
        match = option.match(state.node_ids)
        replaced = replacements(match, state.index)
        if replaced is not None:
            place = match.rule.id, frozenset(match.nodes)
            effects.setdefault(frozenset(replaced.items()), set()).add(place)
    return effects


def _covers_effects(some: _Effects, others: _Effects) -> bool:
    """Return whether other options make all replacements of some, at least by the same rule at the same place.

    Of matches that differ by a symmetry of a rule a state has one, but it may be any of them; and of rules that do the
    same it may have one, or each with another of its matches.
    """
    places = set[_Place]().union(*others.values())
    return all(effect in others or not where.isdisjoint(places) for effect, where in some.items())


def _too_far(truth: Tensor, found: Tensor, nudged: Tensor) -> str:
    """Return why a result in double precision differs from the original's; empty if it does not.

    Elements at which the nudged one has no number, as a root of what cancels, are not compared.
    """
    if found.shape != truth.shape or found.dtype != truth.dtype:
        return f"{found.dtype} {list(found.shape)}, was {truth.dtype} {list(truth.shape)}"
    if truth.is_complex():
        truth, found, nudged = (torch.view_as_real(x.resolve_conj()) for x in (truth, found, nudged))
    truth, found, nudged = truth.double(), found.double(), nudged.double()
    finite = truth.isfinite() & nudged.isfinite()
    if not bool(finite.any()):
        return ""
    scale, error, moved = (float(x[finite].abs().max()) for x in (truth, found - truth, nudged - truth))
    allowed = EXACTLY * max(scale, 1e-30) + SENSITIVE * moved
    return "" if error <= allowed else f"off by {error:.1e}, allowed {allowed:.1e}, largest {scale:.1e}"


def _eps(leaf: Any) -> float:
    has_eps = isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())
    return torch.finfo(leaf.dtype).eps if has_eps else 0.0


def _negated(leaf: Any) -> Any:
    """Return numbers with the other sign, or truth values with the other value, in the same memory layout."""
    if not isinstance(leaf, Tensor) or not (leaf.is_floating_point() or leaf.dtype is torch.bool):
        return leaf
    return in_place_of(leaf, Tensor.logical_not if leaf.dtype is torch.bool else Tensor.neg)


def _nudged_in_place(leaf: Any) -> Any:
    """Return numbers changed by their rounding, in the same memory layout."""
    return in_place_of(leaf, lambda held: nudged_numbers(held, 2 * _eps(leaf))) if isinstance(leaf, Tensor) else leaf
