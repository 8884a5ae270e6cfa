"""Normalization: from an output element of a graph to a sum of guarded products.

The element is composed from the operators' own definitions (:mod:`taso_py.ops`), read at symbolic indices, and
normalized from the outside in, so that every part is simplified under the guards around it.

Invariant: the result has the value of the element wherever the facts of the context and the known guards hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Constant, Input
from taso_py.ir.size import Dim, Lookup, Poly, substitute, symbol
from taso_py.ir.traits import Rounding
from taso_py.ir.types import DType
from taso_py.ops.base import TensorOperator
from taso_py.ops.elementwise import define_constant
from taso_py.ops.scalar import (
    Apply,
    At,
    Choose,
    Compare,
    Condition,
    Guard,
    Irrational,
    Number,
    Operand,
    Plus,
    Read,
    Reduce,
    Scalar,
    SizeOf,
    Times,
)
from taso_py.rules.substitution import Substitution
from verify.cells import Cells, mentions_index, size_terms, with_guards
from verify.context import Context
from verify.laws import POLES, Laws, ProofLevel
from verify.limits import Budget, Refused
from verify.maximum import Maxima
from verify.poles import Poles
from verify.shares import without_shares
from verify.signs import Signs
from verify.solver import Solver
from verify.terms import (
    Call,
    Sum,
    Term,
    close,
    constant,
    has_like_terms,
    product_key,
    product_of,
    rename_bound,
    term_key,
)
from verify.truth import Truths, negation

_Env = Mapping[str, Dim]


@dataclass(frozen=True)
class Element(Scalar):
    """The element of a graph's value at an index."""

    value: Value
    index: tuple[Dim, ...]


class Normalizer:
    """Normalizes scalars in one context at one level."""

    def __init__(
        self, context: Context, budget: Budget, solver: Solver, level: ProofLevel, signs: Signs | None = None
    ) -> None:
        self.cells = Cells(context, budget)
        self._context = context
        self._budget = budget
        self._level = level
        self._is_algebra = level is ProofLevel.ALGEBRA
        self._fresh = (f"~{number:04d}" for number in itertools.count())
        signs = signs or Signs()
        self.laws = Laws(context, level, signs)
        self.truths = Truths(self.laws, signs)
        self.adds_coefficients = False
        """True if like terms were added up, which is more than a sum in another order."""
        self._solver = solver
        self._maxima = Maxima(self.cells, self.laws, solver, fresh=self._fresh, closing=self.close)
        self._poles = Poles(self.laws, self._maxima)

    def take_poles(self) -> Poles:
        """Return the poles of the values normalized since the last call."""
        taken, self._poles = self._poles, Poles(self.laws, self._maxima)
        return taken

    def element(self, value: Value, index: Sequence[Dim], known: Sequence[Dim] = ()) -> list[Term]:
        """Return the element of ``value`` at ``index``.

        Raises:
            Refused: an operator has no definition, or a limit is reached.
        """
        self._budget.take_steps(1)
        node = value.node
        match node.op:
            case Input(key, type_, sign=sign):
                places = (0 if axis == 1 else i for axis, i in zip(type_.shape, index, strict=True))
                read = Read(key, tuple(places))
                return list(self.truths.of(read) if type_.dtype is DType.BOOL else self.laws.declared(read, sign))
            case Constant():
                return self.sum(define_constant(node.op), {}, known)
            case TensorOperator():
                return self._from_definition(node, node.op, tuple(index), known)
            case _:
                raise Refused(f"{node.op.name} has no definition")

    def _from_definition(
        self, node: Node, op: TensorOperator, index: tuple[Dim, ...], known: Sequence[Dim]
    ) -> list[Term]:
        reads: dict[tuple[int, Element], None] = {}  # by operand: one may be given twice

        def operand(place: int, value: Value) -> Operand:
            def read(at: tuple[Dim, ...]) -> Scalar:
                element = Element(value, at)
                reads[place, element] = None
                return element

            return Operand(value.type, read)

        definition = op.define([operand(place, value) for place, value in enumerate(node.inputs)], index)
        # The definitions of data movement and maxima only choose among elements, which occur on both sides.
        if self._level is not ProofLevel.MOVEMENT or op.rounding is Rounding.NEVER:
            return self.sum(definition, {}, known)
        if op.is_elementwise:
            return self._uninterpreted(op, [element for _, element in reads], known)
        return list(product_of(Read(f"#{node.digest}", index)))

    def _uninterpreted(self, op: TensorOperator, reads: Sequence[Element], known: Sequence[Dim]) -> list[Term]:
        result: list[Term] = []
        sums = [self.sum(element, {}, known) for element in reads]
        for guards, parts in self.cells.split(sums, known):
            arguments = [close(part) for part in parts]
            if op.commutative:
                arguments = sorted(arguments, key=str)
            result.append(Term(Fraction(1), (), guards, (Call(op.text, tuple(arguments)),)))
        return result

    def sum(self, scalar: Scalar, env: _Env, known: Sequence[Dim]) -> list[Term]:
        """Return a scalar as a sum; ``env`` renames the bound indices around it."""
        match scalar:
            case Element(value, index):
                return self.element(value, tuple(self._dim(i, env, known) for i in index), known)
            case Plus(left, right):
                return self.sum(left, env, known) + self.sum(right, env, known)
            case Times(left, right):
                return self._product(self.sum(left, env, known), self.sum(right, env, known), known)
            case Guard(conditions, body):
                return self._normalize_guard(conditions, body, env, known)
            case Reduce():
                return self._normalize_reduction(scalar, env, known)
            case Apply(function, argument):
                return self._normalize_call(function, self.sum(argument, env, known), known)
            case Compare():
                return self._normalize_comparison(scalar, env, known)
            case Choose():
                return self._normalize_choice(scalar, env, known)
            case At():
                return self._normalize_lookup(scalar, env, known)
            case Number(value):
                return list(constant(value))
            case SizeOf(value):
                return self._size(self._dim(value, env, known))
            case Irrational():
                return list(product_of(scalar))
            case _:
                raise Refused(f"the definition language has no {type(scalar).__name__}")

    def close(self, terms_: Sequence[Term], known: Sequence[Dim] = ()) -> Sum:
        """Return the closed sum; record whether coefficients are, or may be, added up under the known guards."""
        closed = close(terms_)
        if self._level is ProofLevel.TERMS and len(terms_) > 1:
            self.adds_coefficients |= has_like_terms(terms_) or self._overlap(closed, known)
        return closed

    def _overlap(self, closed: Sum, known: Sequence[Dim]) -> bool:
        """Return whether two terms with equal factors may be present at one index."""
        for _, group in itertools.groupby(sorted(closed, key=product_key), key=product_key):
            for one, other in itertools.combinations(group, 2):
                guards = self.cells.necessary([*one.guards, *other.guards], known)
                if guards is not None and not self._solver.impossible([*known, *guards]):
                    return True
        return False

    def _size(self, value: Dim) -> list[Term]:
        if mentions_index(value):
            raise Refused(f"the index {value} as a number")  # substitution of indices does not reach into sizes
        return size_terms(value)

    def _dim(self, value: Dim, env: _Env, known: Sequence[Dim]) -> Dim:
        return self._context.divide_out(substitute(value, env), known)

    def _guards(self, conditions: Iterable[Condition], env: _Env, known: Sequence[Dim]) -> tuple[Dim, ...]:
        guards: list[Dim] = []
        for condition in conditions:
            value = self._dim(condition.value, env, known)
            guards += [value, -1 * value] if condition.is_equality else [value]
        return tuple(guards)

    def _normalize_guard(
        self, conditions: Sequence[Condition], body: Scalar, env: _Env, known: Sequence[Dim]
    ) -> list[Term]:
        guards = self.cells.necessary(self._guards(conditions, env, known), known)
        if guards is None:
            return []
        return with_guards(self.sum(body, env, [*known, *guards]), guards)

    def _normalize_reduction(self, scalar: Reduce, env: _Env, known: Sequence[Dim]) -> list[Term]:
        names = [next(self._fresh) for _ in scalar.binders]
        inside = {**env, **{binder.name: symbol(name) for binder, name in zip(scalar.binders, names, strict=True)}}
        ranges: list[Dim] = []
        for binder, name in zip(scalar.binders, names, strict=True):
            ranges += [symbol(name), self._dim(binder.extent, env, known) - 1 - symbol(name)]
        guards = self.cells.necessary([*ranges, *self._guards(scalar.conditions, inside, [*known, *ranges])], known)
        if guards is None:
            return self._empty(scalar, known)
        body = self.sum(scalar.body, inside, [*known, *guards])
        if scalar.is_max:
            greatest = self._maxima.over(names, guards, body, known)
            for term in greatest:
                self._poles.note([term], [*known, *term.guards])
            return greatest
        total = [term._replace(bound=(*names, *term.bound), guards=(*guards, *term.guards)) for term in body]
        simple = self.cells.simplify_all(total, known)
        if not self._is_algebra:
            return simple
        counted = [part for term in simple for part in self.cells.count_unused(term, known)]
        return [without_shares(term, self.laws, known) for term in counted]

    def _empty(self, scalar: Reduce, known: Sequence[Dim]) -> list[Term]:
        """Return a reduction of no values: no terms, or the maximum of none, which is minus infinity and a pole."""
        empty = list(product_of(Call("max", ((),)))) if scalar.is_max else []
        self._poles.note(empty, known)
        return empty

    def _product(self, left: Sequence[Term], right: Sequence[Term], known: Sequence[Dim]) -> list[Term]:
        if not self._is_algebra and not (_is_sign(left) or _is_sign(right)):
            left, right = self._as_single_products(left, known), self._as_single_products(right, known)
        self._budget.take_steps(len(left) * len(right))
        products = self.cells.simplify_all((self.laws.multiply(a, b) for a in left for b in right), known)
        return [without_shares(term, self.laws, known) for term in products] if self._is_algebra else products

    def _as_single_products(self, sum_: Sequence[Term], known: Sequence[Dim]) -> list[Term]:
        """Return the sum as a choice between single products, so that multiplying needs no distributivity."""
        result: list[Term] = []
        for guards, (part,) in self.cells.split([sum_], known):
            closed = self.close(part, [*known, *guards])
            single = len(closed) <= 1 and not any(term.bound for term in closed)
            result += with_guards(closed if single else product_of(Call("sum", (closed,))), guards)
        return result

    def _normalize_call(self, function: str, argument: Sequence[Term], known: Sequence[Dim]) -> list[Term]:
        result: list[Term] = []
        for guards, (part,) in self.cells.split([argument], known):
            closed = self.close(part, [*known, *guards])
            moved = self._maxima.relu(closed, [*known, *guards]) if function == "relu" else None
            value = moved if moved is not None else self.laws.apply(function, closed)
            if function in POLES:
                self._poles.note(value, [*known, *guards])
            result += with_guards((rename_bound(term, self._fresh) for term in value), guards)
        return result

    def _normalize_comparison(self, scalar: Compare, env: _Env, known: Sequence[Dim]) -> list[Term]:
        result: list[Term] = []
        sides = [self.sum(side, env, known) for side in (scalar.left, scalar.right)]
        for guards, parts in self.cells.split(sides, known):
            left, right = (self.close(part, [*known, *guards]) for part in parts)
            result += with_guards(self.truths.compared(scalar.relation, left, right), guards)
        return result

    def _normalize_choice(self, scalar: Choose, env: _Env, known: Sequence[Dim]) -> list[Term]:
        """Return a choice as its two values under opposite guards, where the condition is about no bound index."""
        result: list[Term] = []
        for guards, (part,) in self.cells.split([self.sum(scalar.condition, env, known)], known):
            truth, here = close(part), [*known, *guards]
            if truth in ((), constant(1)):
                chosen = self.sum(scalar.chosen if truth else scalar.other, env, here)
            else:
                chosen = self._open_choice(truth, scalar, env, here)
            result += with_guards(chosen, guards)
        return result

    def _open_choice(self, truth: Sum, scalar: Choose, env: _Env, known: Sequence[Dim]) -> list[Term]:
        """Return a choice by a statement about a bound index, as a function of three arguments.

        Each value is needed under a guard of its own, which no other choice has: so its poles are not taken for
        granted.
        """
        values, opposite = (scalar.chosen, scalar.other), negation(truth)
        if len(opposite) < len(truth):
            truth, values = opposite, values[::-1]
        guard = self.truths.guard(" + ".join(map(term_key, truth)))
        cases = zip(values, (guard, -1 * guard - 1), strict=True)
        sides = [self.sum(value, env, [*known, case]) for value, case in cases]
        result: list[Term] = []
        for guards, parts in self.cells.split(sides, known):
            chosen, other = (self.close(part, [*known, *guards]) for part in parts)
            value = self.truths.choice(truth, chosen, other)
            result += with_guards((rename_bound(term, self._fresh) for term in value), guards)
        return result

    def _normalize_lookup(self, scalar: At, env: _Env, known: Sequence[Dim]) -> list[Term]:
        """Return what is read at a place that an integer stands for, which is an index of which nothing is known."""
        result: list[Term] = []
        extent, wraps = (self._dim(size, env, known) for size in (scalar.extent, scalar.wraps))
        for guards, (part,) in self.cells.split([self.sum(scalar.integer, env, known)], known):
            place = _place(close(part), extent, wraps)
            inside = self.sum(scalar.body, {**env, scalar.name: place}, [*known, *guards])
            result += with_guards(inside, guards)
        return result


def _place(integer: Sum, extent: Dim, wraps: Dim) -> Dim:
    """Return the place that an integer stands for, which has to be an element of a variable."""
    match integer:
        case (Term(Fraction(numerator=1, denominator=1), (), (), (Read(tensor, index),)),):
            return 0 if extent == 1 else Poly((((Lookup(tensor, index, extent, wraps),), 1),))
        case _:
            raise Refused("an index that is computed")


def _is_sign(sum_: Sequence[Term]) -> bool:
    """Return whether a sum is 1 or -1."""
    return len(sum_) == 1 and abs(sum_[0].coefficient) == 1 and not (sum_[0].bound or sum_[0].guards or sum_[0].factors)


def may_be_movement(rule: Substitution) -> bool:
    """Return whether a proof at the movement level is worth trying: one side's computations include the other's."""
    source, target = ({_opaque(node) for node in side.nodes} - {""} for side in (rule.source, rule.target))
    return source <= target or target <= source


def _opaque(node: Node) -> str:
    """Return the closed part at the movement level: the operator of an elementwise node, else the whole node."""
    if not isinstance(node.op, TensorOperator) or node.op.rounding is Rounding.NEVER:
        return ""
    return node.op.text if node.op.is_elementwise else node.digest
