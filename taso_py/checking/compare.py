"""Comparison of a rewritten module with the original, against a float64 reference.

Outputs are compared on the example inputs and on random ones of several magnitudes. The measure is the greatest
deviation from the reference relative to the reference's greatest magnitude, for the original and for the candidate:
a candidate may be slightly worse than the original, by ``SLACK`` roundings of the output's element type (fewer in half
precision, whose roundings are large), or by ``FACTOR``. If a model amplifies roundings, its error varies; so before a
candidate is refused for its error, the original's error is measured on nearby inputs too, and the greatest counts. It
may also be what sums in another order may make of the outputs (:mod:`taso_py.checking.sums`).

A tolerance on whole outputs misses a dropped residual branch of tiny weight, so every rewritten region is also compared
on its own (:mod:`taso_py.checking.regions`).

What a model writes to is compared like an output, after each call.

Invariant: integer and boolean outputs must be equal exactly; where the original is finite, the candidate must be, and
where original and reference are infinite, the candidate must be too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from taso_py.backend import Program, build
from taso_py.backend.bits import bits_of
from taso_py.backend.convert import retype
from taso_py.backend.generators import may_draw_random, random_state_seeded
from taso_py.backend.input_cases import EXAMPLE, Arguments, map_leaves, rounded_inputs
from taso_py.backend.writes import NO_WRITES, Writes
from taso_py.checking.sums import ReorderedSums
from taso_py.ir.errors import first_line

SLACK = 64
"""Tolerance in roundings of the output's element type."""
MOST_SLACK = 1 / 32
"""Upper limit of this tolerance, relative to the greatest magnitude: 4 roundings of bf16, 32 of fp16."""
FACTOR = 4.0
"""Tolerance relative to the original's own error, if that is more than the slack."""
NEARBY = 8
"""Number of nearby inputs on which the original's error is measured."""


@dataclass(frozen=True)
class OutputComparison:
    """Comparison of one output on one set of inputs."""

    output: int
    """Position among the flattened outputs; what the model writes to comes behind them."""
    inputs: str
    """Name of the inputs: ``example`` or ``random x0.01``."""
    error: float
    """The candidate's greatest deviation from the reference, relative to the reference's greatest magnitude."""
    original_error: float
    """The original's deviation from the reference, measured alike."""
    allowed: float
    """The largest error that the candidate may have."""
    problem: str = ""
    """Failure other than the error: another shape, element type or strides, or a value that is not finite."""
    as_timed: bool = False
    """True if the candidate is the module that was timed and is returned, False if it is the saved form, loaded
    again."""

    @classmethod
    def failed(cls, output: int, inputs: str, problem: str) -> Self:
        """Return the comparison of an output without a meaningful error, which fails because of a problem."""
        return cls(output=output, inputs=inputs, error=math.inf, original_error=0.0, allowed=0.0, problem=problem)

    @property
    def passed(self) -> bool:
        """True if this output is acceptable."""
        return not self.problem and self.error <= self.allowed


@dataclass(frozen=True)
class Comparison:
    """Comparisons of all outputs on all inputs."""

    outputs: tuple[OutputComparison, ...]

    @property
    def passed(self) -> bool:
        """True if every output is acceptable."""
        return all(output.passed for output in self.outputs)

    @property
    def worst(self) -> OutputComparison | None:
        """The output that uses the most of its tolerance, or that has a problem."""
        return max(self.outputs, key=lambda o: (bool(o.problem), o.error / max(o.allowed, 1e-300)), default=None)

    @property
    def reason(self) -> str:
        """A description of the worst output's failure, in a few words."""
        worst = self.worst
        if worst is None:
            return "it has no outputs"
        where = f"output {worst.output} on {worst.inputs} inputs"
        if worst.problem:
            return f"{where}: {worst.problem}"
        return f"{where} is off by {worst.error:.1e}, the limit is {worst.allowed:.1e}"

    @property
    def error(self) -> float:
        """The greatest relative error of the candidate on the example inputs."""
        return max((o.error for o in self.outputs if o.inputs == EXAMPLE), default=0.0)

    @property
    def original_error(self) -> float:
        """The greatest relative error of the original on the example inputs."""
        return max((o.original_error for o in self.outputs if o.inputs == EXAMPLE), default=0.0)


@dataclass(frozen=True)
class _Expectation:
    """Outputs of original and reference for one set of inputs."""

    name: str
    arguments: Arguments
    outputs: Sequence[Any]
    truths: Sequence[Any]


class Oracle:
    """Expected outputs of a model for some inputs, computed once for any number of candidates."""

    def __init__(
        self,
        original: Callable[..., Any],
        reference: Callable[..., Any] | None,
        cases: Iterable[tuple[str, Arguments]],
        keeping: Callable[[], AbstractContextManager[None]] = nullcontext,
        *,
        draws: bool = True,
        writes: Writes = NO_WRITES,
        sums: ReorderedSums | None = None,
    ) -> None:
        """Prepare an oracle; nothing is run before the first comparison.

        Args:
            original: the model.
            reference: the model in float64, which is given the floating-point arguments in float64. If there is none,
                or it fails, the original's outputs take its place.
            cases: names of inputs, with the inputs.
            keeping: returns a context manager that restores the state of original and reference after their calls.
            draws: whether they may draw random numbers; if not, the generators of the process are left alone.
            writes: what they write to, which is compared too.
            sums: the reference with sums as they are rounded in some order; without it nothing is allowed for that.
        """
        self._original, self._reference, self._cases, self._keeping = original, reference, tuple(cases), keeping
        self._sums = sums
        self._run_of = partial(outputs_of, draws=draws, writes=writes)
        self.notes: list[str] = []
        """Notes on comparisons that were not possible as intended."""

    @classmethod
    def of(
        cls,
        program: Program,
        original: Callable[..., Any],
        reference: Callable[..., Any] | None,
        cases: Iterable[tuple[str, Arguments]],
        keeping: Callable[[], AbstractContextManager[None]] = nullcontext,
        sums: ReorderedSums | None = None,
    ) -> Self:
        """Return an oracle for the original of a program, which draws random numbers and writes where that does."""
        draws, writes = may_draw_random(program), Writes.of(program.graph)
        return cls(original, reference, cases, keeping, draws=draws, writes=writes, sums=sums)

    def compare(self, candidate: Callable[..., Any], state: nn.Module | None = None) -> Comparison:
        """Run a candidate on each case and compare its outputs and what it writes to.

        All modules must be deterministic; the random generators are in the same state at the start of each run.

        Args:
            candidate: called with the arguments of each case.
            state: the module with the buffers that the candidate writes to, if it is no module itself.
        """
        compared = (self._compared(known, candidate, state) for known in self._expected)
        return Comparison(tuple([output for outputs in compared for output in outputs]))

    @cached_property
    def _expected(self) -> Sequence[_Expectation]:
        with self._keeping():
            return self._run()

    def _run(self) -> Sequence[_Expectation]:
        """Return the outputs of both for each case."""
        found: list[_Expectation] = []
        for name, arguments in self._cases:
            try:
                outputs = self._run_of(self._original, *arguments)
            except Exception as error:  # a model may raise anything, and may refuse random inputs
                if name == EXAMPLE:
                    raise
                self.notes.append(f"the model refuses {name} inputs ({first_line(error)}); compared without them")
                continue
            truths = self._reference_or(outputs, arguments)
            if _is_nowhere_finite(outputs):
                self.notes.append(f"the model returns no finite number for {name} inputs; they show no difference")
            found.append(_Expectation(name, arguments, [*map(snapshot, outputs)], [*map(snapshot, truths)]))
        return found

    def _compared(
        self, known: _Expectation, candidate: Callable[..., Any], state: nn.Module | None
    ) -> Sequence[OutputComparison]:
        try:
            results = self._run_of(candidate, *known.arguments, state=state)
        except Exception as error:  # the others did not raise
            return [OutputComparison.failed(0, known.name, f"raises {first_line(error)}")]
        if len(known.outputs) != len(results):
            raise ValueError(f"the candidate has {len(results)} outputs, the original {len(known.outputs)}")
        compared = [
            compare_output(position, known.name, before=before, after=after, truth=truth)
            for position, (before, after, truth) in enumerate(zip(known.outputs, results, known.truths, strict=True))
            if isinstance(before, Tensor)
        ]
        if self._reference is not None and _some_are_off(compared):
            with self._keeping():
                errors = self._errors_nearby(self._reference, known.arguments)
            compared = [replace(o, allowed=max(o.allowed, FACTOR * errors[o.output])) for o in compared]
        if self._reference is not None and self._sums is not None and _some_are_off(compared):
            errors = self._errors_of_sums(self._sums, known)
            compared = [replace(o, allowed=max(o.allowed, errors.get(o.output, 0.0))) for o in compared]
        return compared

    def _errors_nearby(self, reference: Callable[..., Any], arguments: Arguments) -> list[float]:
        """Return the greatest error of each output of the original on slightly perturbed inputs; 0 if it is no tensor.

        Inputs are perturbed by their rounding; integers stay as they are.
        """
        generator = torch.Generator().manual_seed(0)

        def errors() -> list[float]:
            near = rounded_inputs(arguments, generator)
            return list(map(_own_error, self._run_of(self._original, *near), self._truths(reference, near)))

        return [max(each) for each in zip(*(errors() for _ in range(NEARBY)), strict=True)]

    def _errors_of_sums(self, sums: ReorderedSums, known: _Expectation) -> Mapping[int, float]:
        """Return the greatest error of each output of the reference with sums as they are rounded in some order."""
        greatest: dict[int, float] = {}
        for outputs in sums.runs(lambda module: self._truths(module, known.arguments), NEARBY):
            for place, error in enumerate(map(_own_error, outputs, known.truths)):
                greatest[place] = max(error, greatest.get(place, 0.0))
        return greatest

    def _truths(self, reference: Callable[..., Any], arguments: Arguments) -> list[Any]:
        """Return the reference's outputs for floating-point arguments in float64."""
        return self._run_of(reference, *map_leaves(to_float64, arguments))

    def _reference_or(self, outputs: list[Any], arguments: Arguments) -> list[Any]:
        """Return the reference's outputs, or the original's if there is no reference."""
        if self._reference is not None:
            try:
                return self._truths(self._reference, arguments)
            except Exception as error:  # an operator need not exist in float64
                self.notes.append(reference_note(error))
                self._reference = None
        return outputs


def _some_are_off(compared: Iterable[OutputComparison]) -> bool:
    """Return whether some outputs are refused for their error alone."""
    return any(o.error > o.allowed and not o.problem for o in compared)


def _own_error(result: Any, truth: Any) -> float:
    """Return the error of an output of the original, relative to the greatest magnitude; 0 if it is no tensor."""
    if not isinstance(result, Tensor):
        return 0.0
    return compare_output(0, "nearby", before=result, after=result, truth=truth).original_error


def _is_nowhere_finite(outputs: Sequence[Any]) -> bool:
    """Return whether there are floating-point outputs, and no element is finite."""
    numbers = [x for x in outputs if isinstance(x, Tensor) and x.is_floating_point() and x.numel()]
    return bool(numbers) and not any(bool(torch.isfinite(x).any()) for x in numbers)


def float64_reference(program: Program) -> tuple[nn.Module | None, ReorderedSums | None, str]:
    """Return a program built in float64, its reordered sums, and an empty note; or None twice and why there is none."""
    try:
        exact = retype(program)
        return build(exact), ReorderedSums(program, exact), ""
    except Exception as error:  # an operator may raise anything in an element type that is not its own
        return None, None, reference_note(error)


def reference_note(error: Exception) -> str:
    """Return the note for a reference that cannot be made, or that fails."""
    return f"the model cannot be computed in float64 ({first_line(error)}); compared with the original instead"


def outputs_of(
    module: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    draws: bool = True,
    writes: Writes = NO_WRITES,
    state: nn.Module | None = None,
) -> list[Any]:
    """Return the leaves of a module's result on copies of arguments, with random generators in a fixed state.

    Behind them come the arguments, if it writes to any, and the buffers that it writes to, which are those of ``state``
    if it is no module.
    """
    args, kwargs = map_leaves(_copy, (tuple(args), kwargs))
    with torch.no_grad(), random_state_seeded() if draws else nullcontext():
        outputs = pytree.tree_leaves(module(*args, **kwargs))
    arguments = pytree.tree_leaves((args, kwargs)) if writes.inputs else []
    owner = cast(nn.Module, module if state is None else state)
    return [*outputs, *arguments, *(owner.get_buffer(key) for key in writes.buffers)]


def _copy(leaf: Any) -> Any:
    """Return a copy with the same strides, so that a module that writes to its inputs does not affect others."""
    return leaf.detach().clone(memory_format=torch.preserve_format) if isinstance(leaf, Tensor) else leaf


def snapshot(leaf: Any) -> Any:
    """Return a copy with the same memory layout, overlaps included; the leaf may be state that changes later."""
    if not isinstance(leaf, Tensor) or leaf.layout is not torch.strided:
        return leaf
    storage = leaf.untyped_storage().clone()
    kept = leaf.detach().new_empty(0).set_(storage, leaf.storage_offset(), leaf.shape, leaf.stride())
    # The storage does not show that a tensor is a conjugate or negative view of it.
    kept = kept.conj() if leaf.is_conj() else kept
    return torch.ops.aten._neg_view.default(kept) if leaf.is_neg() else kept


def to_float64(leaf: Any) -> Any:
    """Return a leaf of arguments, in double precision if it is a floating-point or complex tensor."""
    if isinstance(leaf, Tensor) and leaf.is_complex():
        return leaf.to(torch.complex128)
    return leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def compare_output(position: int, inputs: str, before: Tensor, after: Tensor, truth: Tensor) -> OutputComparison:
    """Compare one output of original and candidate with the reference's; complex ones by their two parts."""
    problem = _difference_in_kind(before, after)
    if not problem and before.is_complex() and truth.is_complex():
        before, after, truth = (torch.view_as_real(tensor.resolve_conj()) for tensor in (before, after, truth))
    if problem or not before.is_floating_point():
        unequal = problem or ("" if torch.equal(before, after) else "an exact output differs")
        return OutputComparison(
            output=position, inputs=inputs, error=0.0, original_error=0.0, allowed=0.0, problem=unequal
        )
    finite = torch.isfinite(before) & torch.isfinite(truth)
    if not bool(torch.isfinite(after)[finite].all()):
        return OutputComparison.failed(position, inputs, "not finite where the original is")
    infinite = torch.isinf(before) & (before == truth)
    if not torch.equal(after[infinite], before[infinite]):
        return OutputComparison.failed(position, inputs, "not infinite where the original is")
    scale = float(truth[finite].abs().max()) if bool(finite.any()) else 0.0
    error, original_error = (_deviation(result, truth, finite, scale) for result in (after, before))
    allowed = max(FACTOR * original_error, roundings(before.dtype, SLACK))
    return OutputComparison(output=position, inputs=inputs, error=error, original_error=original_error, allowed=allowed)


def roundings(dtype: torch.dtype, count: int) -> float:
    """Return a number of roundings of a floating-point type as a relative error; at most ``MOST_SLACK``."""
    return min(count * torch.finfo(dtype).eps, MOST_SLACK)


def _difference_in_kind(before: Tensor, after: Any) -> str:
    if not isinstance(after, Tensor):
        return "not a tensor"
    for what in ("dtype", "shape", "device", "layout"):
        if getattr(before, what) != getattr(after, what):
            return f"{what} is {getattr(after, what)}, was {getattr(before, what)}"
    if bits_of(before) != bits_of(after):
        return f"conjugate and negative view are {bits_of(after)}, were {bits_of(before)}"
    # Strides of axes of size one, and of empty tensors, place no element.
    moved = [b != a for b, a, size in zip(before.stride(), after.stride(), before.shape, strict=True) if size != 1]
    if any(moved) and before.numel() > 0:
        return f"strides are {after.stride()}, were {before.stride()}"
    return ""


def _deviation(result: Tensor, truth: Tensor, finite: Tensor, scale: float) -> float:
    if not bool(finite.any()):
        return 0.0
    deviation = float((result.double() - truth.double())[finite].abs().max())
    return deviation / scale if scale > 0 else deviation
