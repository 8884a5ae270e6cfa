"""What must hold of every model: it is imported or refused, and whatever is done to it computes the same.

A model is imported and built as it is: the same bits, strides, sharing of memory and random numbers. Then random rules
are applied at random places; in double precision the result must agree but for rounding, and where all rules are exact,
in the model's own precision to the bit. Weights are folded, kernels and memory formats chosen at random, dead storage
is destroyed; the result must be as near to the truth as plain calls are. Of some models all sizes are left open that
torch.export can leave open; all of this must then hold at other sizes too.

If asked to, engines that take whole graphs compute the model and what it was rewritten to; they may refuse them.

Invariant: an exception that is no refusal is a failure, as is a difference.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Barrier
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from fuzz.draft import Case
from fuzz.kinds import THREADS
from fuzz.prices import InventedCost
from fuzz.writing import NAMESPACE
from taso_py.backend import NO_PLAN, Program, build, fold, poison, retype
from taso_py.backend.bits import PLAIN, all_resolved, bits_of
from taso_py.backend.contract import random_state_kept
from taso_py.backend.tensors import TensorError
from taso_py.backend.tracing import quiet
from taso_py.checking.compare import compare_output, perturb, to_float64
from taso_py.checking.resize import resized_cases
from taso_py.checking.roundtrip import difference, equal_outputs
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
from taso_py.rules.match import Matcher
from taso_py.rules.substitution import Substitution
from taso_py.rules.verdict import Numerics
from taso_py.search.space import Space
from taso_py.search.state import Option, SearchState

MOST_STEPS = 8
"""How many rules are applied to a model at most."""
NUDGE = 1e-12
"""By which share inputs are changed to see how much that changes results in double precision."""
EXACTLY = 1e-9
"""How far a rewritten model may be from the original in double precision, relative to its largest result."""
SENSITIVE = 100.0
"""How many times what nudged inputs change a result may be from the original."""
OPEN_ONE_IN = 3
"""Of how many models one has its sizes left open."""
GROWTH = 4.0
"""How many times its weights a folded model may store."""
_WRITES = re.compile(rf"[a-z]_\(|ops\.{NAMESPACE}\.")
"""A call that writes to its operand, in the text of a model."""
_DRAWS = re.compile(r"rand_like|bernoulli|, True\)")
"""A call that draws random numbers, of which threads have one generator together."""
CALLERS = 4
"""How many threads call a model at once."""
CALLED_ONE_IN = 3
"""Of how many models one is called by several threads at once."""


class DiscrepancyError(Exception):
    """Something that must not be: where, and what, in one line."""


@dataclass(frozen=True)
class Outcome:
    """What was done to a model that has passed."""

    refused: str = ""
    """Why it was not imported, if it was not."""
    rules: tuple[str, ...] = ()
    """The rules that were applied."""
    kernels: tuple[str, ...] = ()
    """The kernels beside plain calls that computed it."""
    open: tuple[str, ...] = ()
    """The sizes that were left open."""
    resized: int = 0
    """At how many other sizes it was computed."""
    engines: tuple[str, ...] = ()
    """The engines that computed it, by name."""
    refusals: tuple[str, ...] = ()
    """What other engines said."""
    kinds: frozenset[str] = frozenset()
    """What was in it beyond ordinary operators, or was done to it beyond calls."""


_Place: TypeAlias = tuple[str, frozenset[Node]]
_Effects: TypeAlias = dict[frozenset[tuple[Value, Value]], set[_Place]]
"""What becomes what, with the rules that do it and the nodes that they match."""


class Checker:
    """Puts models to the test, with some rules."""

    def __init__(self, rules: Iterable[Substitution], engines: Sequence[str] = ()) -> None:
        """Takes the rules that may be applied, and the names of engines that are to compute what comes of it.

        Rules that are safe for all values are also applied on their own.
        """
        known = list(rules)
        self._engines = tuple(ENGINES[name] for name in engines)
        self._all = Matcher([rule for rule in known if rule.numerics <= Numerics.RANGE])
        self._exact = Matcher([rule for rule in known if rule.numerics is Numerics.EXACT])

    def check(self, case: Case, seed: int) -> Outcome:
        """Drives a model through everything.

        Args:
            case: the model.
            seed: of what is random about what is done to it.

        Raises:
            DiscrepancyError: something is not as it must be.
        """
        module, args = case.make()
        with torch.no_grad(), random_state_kept():
            try:
                opened = _opened(module, args) if seed % OPEN_ONE_IN == 0 else None
                program = import_module(module, args) if opened is None else import_program(opened, args)
                original = module if opened is None else opened.module()
                return _Check(case, program, args, seed, self._engines).run(
                    original, self._all if case.is_smooth else self._exact
                )
            except DiscrepancyError:
                raise
            except TasoError as error:
                return Outcome(refused=first_line(error))
            except Exception as error:  # whatever it is: only refusals are allowed
                raise DiscrepancyError(f"{type(error).__name__}: {first_line(error)}") from error


@dataclass
class _Check:
    """The check of one model."""

    case: Case
    program: Program
    args: tuple[Any, ...]
    seed: int
    engines: tuple[Engine, ...] = ()
    sizes: str = ""
    """Which sizes the arguments have, if they are not the example inputs."""

    def __post_init__(self) -> None:
        self._cost = InventedCost(self.seed, fused=0.2 if self.seed % 2 else 1.0)

    def run(self, module: nn.Module, matcher: Matcher) -> Outcome:
        """All stages."""
        state = self._rewritten(matcher)
        rules = tuple(path.match.rule.id for path in state.steps)
        program = replace(self.program, graph=state.graph)
        numerics = max((path.match.rule.numerics for path in state.steps), default=Numerics.EXACT)
        cases, _ = resized_cases(self.program, {"the model": module}, self.seed)
        kernels: tuple[str, ...] = ()
        is_open = bool(self.program.open)
        sessions, refusals = self._sessions(program)
        for check in (self, *(replace(self, args=args, sizes=f" at {name}") for name, (args, _) in cases)):
            built = build(self.program)
            plain = all_resolved(check.args)
            check._expect("as imported", difference(module, built, plain, is_open=is_open))
            check._given_views(module, built)
            check._laid_out_otherwise(module, built)
            if rules:
                check._same_function(program, is_exact=numerics is Numerics.EXACT, rules=rules)
            kernels = check._planned(program)
            for name, computed, session in sessions:
                check._in_engine(name, computed, session)
        kinds = self.case.kinds | ({THREADS} if self._called_at_once(program) else set())
        return Outcome(
            rules=rules,
            kernels=kernels,
            open=tuple(size.name for size in program.open),
            resized=len(cases),
            engines=tuple(dict.fromkeys(name for name, _, _ in sessions)),
            refusals=tuple(refusals),
            kinds=kinds,
        )

    def _sessions(self, rewritten: Program) -> tuple[Sequence[tuple[str, Program, nn.Module]], Sequence[str]]:
        """The imported program and the rewritten one, folded, as engines compute them; and what others say."""
        sessions: list[tuple[str, Program, nn.Module]] = []
        refusals: dict[str, None] = {}
        for engine in self.engines:
            for program in (self.program, rewritten)[: 1 + (rewritten.graph is not self.program.graph)]:
                folded = fold(program, GROWTH)
                try:
                    sessions.append((engine.name, folded, engine.build(folded)))
                except EngineUnavailableError as error:
                    refusals[first_line(error)] = None
        return sessions, list(refusals)

    def _in_engine(self, name: str, program: Program, session: nn.Module) -> None:
        """A program as an engine computes it against plain calls."""
        plain = build(program)
        expected, results = map(self._outputs, (plain, session))
        alike = [(a.shape, a.dtype) == (b.shape, b.dtype) for a, b in zip(expected, results, strict=True)]
        self._expect(f"in {name}", "" if all(alike) else "results have other shapes or types")
        if self.case.is_smooth:
            self._near_the_truth(program, plain, results, f"in {name}")

    def _given_views(self, module: nn.Module, built: nn.Module) -> None:
        """The built program on arguments that are conjugate or negative views: bits of results may be others."""
        if all(bits_of(leaf) == PLAIN for leaf in self.args):
            return
        expected, found = (all_resolved(self._outputs(called)) for called in (module, built))
        self._expect("given views", "" if all(map(_nearly, expected, found)) else "results differ")

    def _called_at_once(self, program: Program) -> bool:
        """A built program that overwrites what is dead, called by several threads at once; whether it was."""
        if self.seed % CALLED_ONE_IN or _DRAWS.search(self.case.text):
            return False
        built = build(program, NO_PLAN.eager())
        expected, together = self._outputs(built), Barrier(CALLERS)
        count = torch.get_num_threads()

        def call(_: int) -> list[Tensor]:
            # Each thread has a mode of its own, and a number of threads, by which libraries round.
            torch.set_num_threads(count)
            together.wait()
            with torch.no_grad():
                return pytree.tree_leaves(built(*self.args))

        with ThreadPoolExecutor(CALLERS) as pool:
            for found in pool.map(call, range(CALLERS)):
                self._expect("called at once", "" if equal_outputs(expected, found) else "results differ")
        return True

    def _laid_out_otherwise(self, module: nn.Module, built: nn.Module) -> None:
        """The built program on arguments whose elements lie in another order than those of the example inputs."""
        if _WRITES.search(self.case.text):  # what it writes to may be a view or a copy, which depends on the layout
            return
        args = [leaf.mT.contiguous().mT if isinstance(leaf, Tensor) and leaf.dim() > 1 else leaf for leaf in self.args]
        try:
            expected = self._outputs(module, args)
        except RuntimeError:  # a view that there is none of then
            return
        found = self._outputs(built, args)
        self._expect("laid out otherwise", "" if all(map(_nearly, expected, found)) else "results differ")

    def _rewritten(self, matcher: Matcher) -> SearchState:
        """The model after random steps, each rule as likely as any other."""
        chance = random.Random(self.seed)
        space = Space(matcher, self._cost, lambda match: True, lambda: None)
        state = space.with_options(space.start(self.program.graph))
        for _ in range(chance.randrange(MOST_STEPS + 1)):
            options: dict[str, list[Option]] = {}
            for option in state.options:
                options.setdefault(option.match(state.node_ids).rule.id, []).append(option)
            if not options:
                break
            step = space.step(state, chance.choice(options[chance.choice(sorted(options))]))
            if step is not None:
                state = space.finish(space.estimate(step), ends_detour=chance.random() < 0.5)
        fresh = space.with_options(space.start(state.graph))
        carried, found = (_effects(s) for s in (state, fresh))
        is_alike = _are_alike(carried, found) and _are_alike(found, carried)
        self._expect("options", "" if is_alike else "those carried over are not those found from scratch")
        return state

    def _same_function(self, program: Program, is_exact: bool, rules: Sequence[str]) -> None:
        """The rewritten program against the imported one."""
        where = f"rewritten by {' '.join(rules)}"
        if is_exact:
            before, after = (self._outputs(build(p)) for p in (self.program, program))
            is_alike = equal_outputs(before, after) or (
                _rounds_by_place(program.graph) and all(map(_nearly, before, after))
            )
            self._expect(where, "" if is_alike else "exact rules change the results")
        if self.case.is_smooth:
            try:
                before, after = (build(retype(p)) for p in (self.program, program))
            except TensorError:  # an operator that reads the bits of its operand: there is no double precision of it
                return
            inputs = [to_float64(leaf) for leaf in self.args]
            truth, found = self._outputs(before, inputs), self._outputs(after, inputs)
            nudged = self._outputs(before, [_nudged(leaf, NUDGE) for leaf in inputs])
            for place, results in enumerate(zip(truth, found, nudged, strict=True)):
                self._expect(f"{where}, result {place}", _too_far(*results))

    def _planned(self, program: Program) -> tuple[str, ...]:
        """The program with random kernels and memory formats against plain calls; the names of the kernels."""
        plain, overwriting = build(program), build(program, NO_PLAN.eager())
        before, after = map(self._outputs, (plain, poison(overwriting)))
        self._expect("overwritten", "" if equal_outputs(before, after) else "results differ")
        folded = fold(program, GROWTH)
        plan = choose(folded.graph, self._cost).plan.eager()
        results = self._outputs(poison(build(folded, plan)))
        if self.case.is_smooth:
            self._near_the_truth(program, plain, results, "planned")
        return tuple(step.kernel.name for step in plan.steps.values() if step.kernel is not None)

    def _near_the_truth(
        self, program: Program, plain: Callable[..., Any], results: Sequence[Tensor], where: str
    ) -> None:
        try:
            truths = self._outputs(build(retype(program)), [to_float64(leaf) for leaf in self.args])
        except TensorError:
            return
        expected = self._outputs(plain)
        nudged = self._outputs(plain, [_nudged(leaf, 2 * _eps(leaf)) for leaf in self.args])
        for place, (before, after, truth, moved) in enumerate(zip(expected, results, truths, nudged, strict=True)):
            compared = compare_output(place, "example", before, after, truth)
            beside = compare_output(place, "nudged", before, moved, truth)
            if not compared.passed and (compared.problem or compared.error > SENSITIVE * beside.error):
                raise DiscrepancyError(
                    f"{where}{self.sizes}, result {place}: {compared.problem or f'error {compared.error:.1e}'}"
                    f" (plain calls {compared.original_error:.1e}, nudged {beside.error:.1e})"
                )

    def _outputs(self, module: Callable[..., Any], args: Sequence[Any] | None = None) -> list[Tensor]:
        torch.manual_seed(self.seed)
        return pytree.tree_leaves(module(*(self.args if args is None else args)))

    def _expect(self, where: str, problem: str) -> None:
        if problem:
            raise DiscrepancyError(f"{where}{self.sizes}: {problem}")


def _opened(module: nn.Module, args: Sequence[Tensor]) -> ExportedProgram | None:
    """An export with all sizes open that can be; None where torch cannot make or run one."""
    shapes = [{axis: torch.export.Dim.AUTO for axis, size in enumerate(x.shape) if size > 1} for x in args]
    try:
        with quiet():
            exported = torch.export.export(module, tuple(args), dynamic_shapes=shapes)
            exported.module()(*pytree.tree_map(Tensor.clone, tuple(args)))
            return exported
    except Exception:  # torch raises errors of many kinds; the model is tried with the sizes that it has
        return None


def _rounds_by_place(graph: Graph) -> bool:
    """Whether how a number is rounded may depend on where in its tensor it lies, which a slice or reshape changes.

    Of transcendental functions PyTorch has one form for whole vectors and another for what is left at the end.
    """
    return any(isinstance(n.op, Opaque) or not TRANSCENDENTAL.isdisjoint(n.op.applies) for n in graph.nodes)


def _nearly(before: Tensor, after: Tensor) -> bool:
    """Whether two results are equal but for some roundings."""
    if before.is_complex() and after.is_complex():
        before, after = (torch.view_as_real(x.resolve_conj()) for x in (before, after))
    if before.shape != after.shape or before.dtype is not after.dtype or not before.is_floating_point():
        return before.shape == after.shape and before.dtype is after.dtype and bool(torch.equal(before, after))
    return torch.allclose(before, after, rtol=64 * _eps(before), atol=64 * _eps(before), equal_nan=True)


def _effects(state: SearchState) -> _Effects:
    """What becomes what by the options of a state; by which rules, and where."""
    effects: _Effects = {}
    for option in state.options:
        match = option.match(state.node_ids)
        replaced = replacements(match, state.index)
        if replaced is not None:
            place = match.rule.id, frozenset(match.nodes)
            effects.setdefault(frozenset(replaced.items()), set()).add(place)
    return effects


def _are_alike(some: _Effects, others: _Effects) -> bool:
    """Whether other options do all that some do, at least by the same rule in the same place.

    Of matches that a symmetry of a rule carries into each other a state has one, but it may be any of them; and of
    rules that do the same it may have one, or each with another of its matches.
    """
    places = set[_Place]().union(*others.values())
    return all(effect in others or not where.isdisjoint(places) for effect, where in some.items())


def _too_far(truth: Tensor, found: Tensor, nudged: Tensor) -> str:
    """Why a result in double precision is not that of the original; empty if it is."""
    if found.shape != truth.shape or found.dtype != truth.dtype:
        return f"{found.dtype} {list(found.shape)}, was {truth.dtype} {list(truth.shape)}"
    if truth.is_complex():
        truth, found, nudged = (torch.view_as_real(x.resolve_conj()) for x in (truth, found, nudged))
    truth, found, nudged = truth.double(), found.double(), nudged.double()
    finite = truth.isfinite()
    if not bool(finite.any()):
        return ""
    scale, error, moved = (float(x[finite].abs().max()) for x in (truth, found - truth, nudged - truth))
    allowed = EXACTLY * max(scale, 1e-30) + SENSITIVE * moved
    return "" if error <= allowed else f"off by {error:.1e}, allowed {allowed:.1e}, largest {scale:.1e}"


def _eps(leaf: Any) -> float:
    has_eps = isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())
    return torch.finfo(leaf.dtype).eps if has_eps else 0.0


def _nudged(leaf: Any, share: float) -> Any:
    """Numbers changed by a share of themselves, up or down."""

    def shares(tensor: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return share * torch.randn(tensor.shape, generator=generator, dtype=torch.float64).sign()

    return perturb(leaf, shares)
