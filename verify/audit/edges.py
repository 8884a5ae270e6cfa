"""Values that break what a rule's numerics class promises: ``python -m verify.audit.edges substitutions``.

Each rule is computed by PyTorch in every floating-point type, at small sizes and at values that are chosen to break it:
at the edges of the type's range, of very unequal magnitudes, cancelling, infinite, signed zeros. A value is a *breach*
where the two sides differ by more than docs/numerics.md allows for the class:

- EXACT: the same elements, infinities and NaN included; zeros may differ in sign, functions in the last digits of
  their operands.
- up to ZERO_TERMS: whenever all that the source adds up stays in the normal range of the type, in absolute value, the
  target is finite, and as near to the true result as rounding those sums allows. Through functions and quotients a
  rounding goes as double precision shows, where every value of the source is off by one.
- RANGE, MASK: nothing is promised beyond equality over the reals.

PyTorch computes with kernels of its own here, without oneDNN: of that, version 2.13 gets convolutions in ``bf16`` wrong
that step over columns and give one, half precision ends the process where a dilated filter meets no column, and whether
``gelu`` is NaN at infinity depends on how its operand lies in memory.

Exit status 0 if there is no breach. Rules that are tried nowhere in some type are told.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from random import Random
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from tqdm import tqdm

from taso_py.arguments import CommandParser
from taso_py.ir.errors import TasoError
from taso_py.ir.graph import Graph
from taso_py.ir.node import Value
from taso_py.ir.operator import Constant, Input, Operator
from taso_py.ir.sign import with_sign
from taso_py.ir.traits import Rounding
from taso_py.ir.types import DType, TensorType
from taso_py.ops.base import TensorOperator
from taso_py.ops.signs import sign_of
from taso_py.rules.database import read_database
from taso_py.rules.substitution import Substitution, key
from taso_py.rules.verdict import Numerics
from verify.audit.inner_sums import inner_sums
from verify.audit.readings import read_twice
from verify.hypotheses import without_equalities
from verify.limits import Refused
from verify.sampling import Sample, Sampler
from verify.witness import Rejected, attribute_at, drawn_index, one_thread, run_node, run_side

TYPES: Mapping[str, torch.dtype] = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
}
TRIALS, SIZES, ATTEMPTS = 96, 6, 200
"""Values for each rule and type, choices of sizes that they are divided among, and draws for one such choice."""
_ROUNDINGS = 64.0
"""How many roundings of everything that is added up a result may be off."""
_ROOM = 2.0**20
"""How far below the greatest number sums must stay in types that kernels add up in as they are; those of ``f16`` are
added up in single precision."""
_NUDGES = 8
"""How often every value of a source is put off by a rounding."""
_LAST_DIGITS = 8.0
"""By how many roundings of itself a function's value may differ between two places of a tensor."""


@dataclass(frozen=True)
class Breach:
    """Values at which a rule differs by more than its class allows."""

    rule: Substitution
    dtype: str
    sizes: Mapping[str, int]
    values: Mapping[str, Tensor]
    source: Tensor
    target: Tensor

    def __str__(self) -> str:
        before, after = self.source.double().flatten(), self.target.double().flatten()
        place = int((~torch.isclose(before, after, rtol=0.0, atol=0.0, equal_nan=True)).int().argmax())
        values = "; ".join(f"{name} = {value.flatten().tolist()[:8]}" for name, value in self.values.items())
        stated = " ".join(self.rule.statement.split())
        change = f"{before[place]:.9g} becomes {after[place]:.9g}"
        return f"{self.rule.id} {self.rule.numerics.name} {self.dtype}: {change}: {stated} ({values})"


@contextmanager
def _without_onednn() -> Generator[None]:
    """Within this context, PyTorch calls none of oneDNN's kernels."""
    mkldnn: Any = torch.backends.mkldnn
    enabled = mkldnn.enabled
    mkldnn.enabled = False
    try:
        yield
    finally:
        mkldnn.enabled = enabled


@one_thread()
@_without_onednn()
def breach(rule: Substitution, dtype: str, seed: int = 0, trials: int = TRIALS) -> Breach | None:
    """Return values that break the class of a rule in one element type, if any are found.

    Raises:
        Refused: PyTorch has no operator to compare with, or computes the two sides at none of the sizes.
    """
    rule = without_equalities(rule)
    random, sampler = Random(seed), Sampler(rule)
    if rule.numerics > Numerics.ZERO_TERMS:
        return None
    done, reason = 0, "no sizes were found"
    for _ in range(SIZES):
        sample = sampler.draw(random, ATTEMPTS)
        for _ in range(trials // SIZES if sample is not None else 0):
            assert sample is not None
            try:
                found = _tried(rule, sample, dtype, random)
            except Rejected as error:
                reason = str(error)
                continue
            done += 1
            if found is not None:
                return found
    if not done:
        raise Refused(reason)
    return None


def _tried(rule: Substitution, sample: Sample, dtype: str, random: Random) -> Breach | None:
    """Return values drawn at random if they break the class of a rule.

    Raises:
        Rejected: PyTorch refuses one of the sides at these sizes.
    """
    exact = rule.numerics is Numerics.EXACT
    generator = torch.Generator().manual_seed(random.getrandbits(32))
    draw = random.choice(_ANY if exact else _FINITE)
    values: dict[str, Tensor] = {}
    for node in rule.variables:
        shape = sample.shape(node.types[0])
        if node.types[0].dtype.is_floating:
            limits = torch.finfo(TYPES[dtype])
            drawn = with_sign(draw(shape, limits, generator), sign_of(node.value), limits.tiny)
            values[key(node)] = drawn.to(TYPES[dtype])
        elif node.types[0].dtype is DType.BOOL:
            values[key(node)] = torch.rand(shape, generator=generator) < 0.5
        elif key(node) in sample.ranges:
            values[key(node)] = drawn_index(shape, sample.ranges[key(node)], generator)
    if len(values) < len(rule.variables):
        raise Refused("integers are not tried")
    source, target = (run_side(side, values, sample, TYPES[dtype]) for side in (rule.source, rule.target))
    pairs = list(zip(source, target, strict=True))
    if exact:
        functions = any(node.op.applies for node in (*rule.source.nodes, *rule.target.nodes))
        largest = max(value.double().nan_to_num(0.0, 0.0, 0.0).abs().max().item() for value in values.values())
        wrong = [not _is_equal(left, right, largest, functions=functions) for left, right in pairs]
    else:
        wrong = _off(rule, values, sample, pairs, generator)
    for is_wrong, (left, right) in zip(wrong, pairs, strict=True):
        if is_wrong:
            return Breach(rule, dtype, sample.sizes, values, left, right)
    return None


def _is_equal(left: Tensor, right: Tensor, largest: float, *, functions: bool) -> bool:
    """Return whether elements are equal; those of functions up to the last digits of the largest operand."""
    digits = _LAST_DIGITS * torch.finfo(left.dtype).eps if functions else 0.0
    return torch.allclose(left.double(), right.double(), rtol=digits, atol=digits * largest, equal_nan=True)


def _off(
    rule: Substitution,
    values: Mapping[str, Tensor],
    sample: Sample,
    pairs: Sequence[tuple[Tensor, Tensor]],
    generator: torch.Generator,
) -> list[bool]:
    """For each output, whether the target is off although the source is finite, and all that it adds up in range."""
    wide = {name: value.double() if value.is_floating_point() else value for name, value in values.items()}
    wrong: list[bool] = []
    for number, (expected, got) in enumerate(pairs):
        if not got.is_floating_point():  # a truth value jumps, where numbers are off by a rounding only
            wrong.append(False)
            continue
        side = Graph(rule.source.inputs, (rule.source.outputs[number],))
        limits = torch.finfo(got.dtype)
        greatest = _greatest(limits)
        reference = _Reference.of(side, wide, sample)
        parts = (((part == 0) | (part >= limits.tiny)) & (part <= greatest) for part in reference.all)
        if not all(bool(part.all()) for part in parts):
            wrong.append(False)
            continue
        true = reference.true[side.outputs[0]]
        allowed = _ROUNDINGS * (limits.eps * reference.sums[side.outputs[0]] + limits.tiny)
        if not _is_linear(side):
            allowed += _ROUNDINGS * reference.spread(side, wide, sample, limits.eps, generator)
            allowed += _LAST_DIGITS * (expected.double() - true).abs()  # as kernels have errors of their own
        distance = (got.double() - true).abs()
        is_near = got.isfinite() & ((distance <= allowed) | ~(distance + allowed).isfinite())
        wrong.append(bool((expected.isfinite() & ~is_near).any()))
    return wrong


def _greatest(limits: torch.finfo) -> float:
    """Return the greatest number that counts as in range."""
    return limits.max if limits.dtype == "float16" else limits.max / _ROOM


def _is_linear(side: Graph) -> bool:
    """Return whether a side only moves, adds and multiplies, so that errors of sums are those of the result."""
    return all(isinstance(node.op, Input) or not node.op.applies for node in side.nodes)


@dataclass(frozen=True)
class _Reference:
    """Values of a side in double precision."""

    true: Mapping[Value, Tensor]
    sums: Mapping[Value, Tensor]
    """Values with everything that is added up taken in absolute value."""
    within: Sequence[Tensor]
    """Sums inside operators, likewise."""

    @property
    def all(self) -> Sequence[Tensor]:
        """All numbers that are computed on the way."""
        return [*(total for total in self.sums.values() if total.is_floating_point()), *self.within]

    @classmethod
    def of(cls, side: Graph, values: Mapping[str, Tensor], sample: Sample) -> _Reference:
        """Compute a side."""
        true: dict[Value, Tensor] = {}
        sums: dict[Value, Tensor] = {}
        within: list[Tensor] = []
        for node in side.nodes:
            result = run_node(node, values, [true[value] for value in node.inputs], sample)
            operands = [sums[value] for value in node.inputs]
            if not result.is_floating_point():  # a truth value, or integers that choose
                total = result
            elif not operands or node.op.applies or _is_other(node.op):
                total = result.abs()
                within += _inside(node.op, operands, sample)
            elif node.op.name == "sub":
                total = operands[0] + operands[1]
            elif node.op.is_elementwise and node.op.rounding is Rounding.NEVER:
                numbers = [operand for operand in operands if operand.is_floating_point()]
                total = reduce(torch.maximum, numbers, result.abs())  # the lesser may be the greater in absolute value
            else:
                total = run_node(node, values, operands, sample).abs()
            true[node.value], sums[node.value] = result, total
        return cls(true, sums, within)

    def spread(
        self, side: Graph, values: Mapping[str, Tensor], sample: Sample, eps: float, generator: torch.Generator
    ) -> Tensor:
        """Return how far the output of a side was from the true one, at most, where every value is off by a rounding.

        (A stochastic arithmetic: Vignes 1993.)
        """
        (output,) = side.outputs
        greatest = torch.zeros_like(self.true[output])
        for _ in range(_NUDGES):
            computed: dict[Value, Tensor] = {}
            for node in side.nodes:
                operands = [computed[value] for value in node.inputs]
                if node.op.applies and not node.op.is_elementwise:
                    again = [self._nudged(value, computed[value], eps, generator) for value in node.inputs]
                    result = _read_twice(node.op, operands, again, sample)
                else:
                    result = run_node(node, values, operands, sample)
                computed[node.value] = self._nudged(node.value, result, eps, generator)
            greatest = torch.maximum(greatest, (computed[output] - self.true[output]).abs())
        return greatest

    def _nudged(self, value: Value, computed: Tensor, eps: float, generator: torch.Generator) -> Tensor:
        """Return a value put off by a rounding of its sums, up or down."""
        if isinstance(value.node.op, Constant) or not computed.is_floating_point():
            return computed
        signs = torch.rand(computed.shape, generator=generator, dtype=torch.float64).sub(0.5).sign()
        return computed + eps * signs * self.sums[value]


def _inside(op: Operator, operands: Sequence[Tensor], sample: Sample) -> list[Tensor]:
    """Return the sums within an operator that functions are applied to, of operands in absolute value."""
    if not op.applies or not isinstance(op, TensorOperator):
        return []
    sums = inner_sums(_at(op, sample), [operand.numpy() for operand in operands], _types(operands))
    return [torch.tensor(array) for array in sums]


def _read_twice(op: Operator, here: Sequence[Tensor], elsewhere: Sequence[Tensor], sample: Sample) -> Tensor:
    """Return the output of an operator whose operands are read in two ways."""
    assert isinstance(op, TensorOperator)
    first, second = ([operand.numpy() for operand in operands] for operands in (here, elsewhere))
    return torch.tensor(read_twice(_at(op, sample), first, second, _types(here)))


def _at(op: TensorOperator, sample: Sample) -> TensorOperator:
    """Return an operator without symbols in its attributes."""
    return replace(op, **{name: attribute_at(value, sample) for name, value in op.attributes})


def _types(operands: Sequence[Tensor]) -> list[TensorType]:
    return [
        TensorType(DType.F64 if operand.is_floating_point() else DType.BOOL, tuple(operand.shape))
        for operand in operands
    ]


def _is_other(op: Operator) -> bool:
    """Return whether an operator does more than to move, choose, add and multiply."""
    return op.rounding is Rounding.ANY and not (op.accumulates or op.multiplies)


_Draw = Callable[[tuple[int, ...], torch.finfo, torch.Generator], Tensor]


def _powers(shape: tuple[int, ...], limits: torch.finfo, generator: torch.Generator) -> Tensor:
    """Numbers of all magnitudes."""
    low, high = math.log2(limits.tiny), math.log2(limits.max)
    exponents = low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)
    return _signs(shape, generator) * torch.exp2(exponents)


def _alike(shape: tuple[int, ...], limits: torch.finfo, generator: torch.Generator) -> Tensor:
    """Numbers of one magnitude, which another variable does not have."""
    low, high = math.log2(limits.tiny), math.log2(limits.max)
    exponent = low + (high - low) * torch.rand((), generator=generator, dtype=torch.float64)
    near = 0.5 + 0.5 * torch.rand(shape, generator=generator, dtype=torch.float64)
    return _signs(shape, generator) * torch.exp2(exponent) * near


def _extremes(shape: tuple[int, ...], limits: torch.finfo, generator: torch.Generator) -> Tensor:
    """Numbers that are all nearly as great as can be, or as small, or one: where another variable makes up for them."""
    choices = [0.9 * _greatest(limits), 1.0, 16 * limits.tiny]
    size = choices[int(torch.randint(len(choices), (), generator=generator))]
    return _signs(shape, generator) * size * (0.5 + 0.5 * torch.rand(shape, generator=generator, dtype=torch.float64))


def _edges(shape: tuple[int, ...], limits: torch.finfo, generator: torch.Generator) -> Tensor:
    """Numbers at the edges of the range, roots of the greatest number, one and zero."""
    greatest, root = limits.max, math.sqrt(limits.max)
    choices = [greatest, greatest / 2, greatest * 0.6, root, root * 0.9, root / 2, 1.0, 1.0, 0.0, 1 / root, limits.tiny]
    picked = torch.randint(len(choices), shape, generator=generator)
    return _signs(shape, generator) * torch.tensor(choices, dtype=torch.float64)[picked]


def _one_large(shape: tuple[int, ...], limits: torch.finfo, generator: torch.Generator) -> Tensor:
    """Zeros, and few numbers that are as great as can be."""
    is_large = torch.rand(shape, generator=generator, dtype=torch.float64) < 0.3
    return torch.where(is_large, _signs(shape, generator) * limits.max * 0.9, 0.0)


def _cancelling(shape: tuple[int, ...], limits: torch.finfo, generator: torch.Generator) -> Tensor:
    """Numbers that are nearly opposite to each other."""
    small = torch.randn(shape, generator=generator, dtype=torch.float64)
    return _signs(shape, generator) * 100.0 + small


def _special(shape: tuple[int, ...], limits: torch.finfo, generator: torch.Generator) -> Tensor:
    """Infinities, NaN and zeros of both signs among small numbers."""
    choices = [math.inf, -math.inf, math.nan, 0.0, -0.0, 1.0, -1.0, 0.1, 3.0]
    picked = torch.randint(len(choices), shape, generator=generator)
    return torch.tensor(choices, dtype=torch.float64)[picked]


def _signs(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """All positive half of the time."""
    if torch.rand((), generator=generator) < 0.5:
        return torch.ones(shape, dtype=torch.float64)
    return torch.rand(shape, generator=generator, dtype=torch.float64).sub(0.5).sign()


_FINITE: Sequence[_Draw] = (_powers, _alike, _extremes, _edges, _one_large, _cancelling)
_ANY: Sequence[_Draw] = (*_FINITE, _special)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = CommandParser(
        prog="python -m verify.audit.edges",
        description="Look for values at which rules differ by more than their numerics class allows.",
    )
    parser.add_argument("path", metavar="PATH", type=Path, nargs="?", help="a rule file or folder (the database)")
    parser.add_argument("--dtype", choices=TYPES, action="append", help="element types (all)")
    parser.add_argument("--trials", type=int, default=TRIALS, help="values for each rule and type (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parsed = parser.parse_args(arguments)
    try:
        rules = read_database(parsed.path)
    except TasoError as error:
        sys.stderr.write(f"verify.audit.edges: error: {error}\n")
        return 2
    found: list[Breach] = []
    skipped: dict[str, str] = {}
    with tqdm(rules, unit="rule", disable=None, leave=False) as bar:
        for rule in bar:
            for dtype in parsed.dtype or TYPES:
                try:
                    one = breach(rule, dtype, parsed.seed, parsed.trials)
                    found += [] if one is None else [one]
                except Refused as error:
                    skipped[rule.id] = f"{rule.id} {rule.numerics.name} {dtype}: not tried: {error}"
    console = Console(soft_wrap=True)
    for one in (*skipped.values(), *found):
        console.print(str(one), markup=False, highlight=False)
    console.print(f"{len(rules)} rules, {len(skipped)} not tried, {len(found)} breaches")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
