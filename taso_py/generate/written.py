"""The written-out forms of an elementwise operator: its definition in terms of simpler operators.

A definition is an expression of sums, products, numbers and functions. A sum or product of several operands can be
written with two at a time in many orders; all of them are candidates, up to the order of the two. A factor that is one
over a constant may be written as a division by the constant instead.

Invariant: forms follow from the definition alone; whether they are true is tested and proved like any other.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce

from taso_py.generate.candidates import RuleCandidate
from taso_py.generate.vocabulary import Written
from taso_py.ir.errors import InvariantError
from taso_py.ir.node import Value, make
from taso_py.ir.operator import Constant, Input
from taso_py.ir.size import symbol
from taso_py.ir.types import DType, TensorType
from taso_py.ops.elementwise import Add, Div, Mul
from taso_py.ops.functions import IRRATIONALS, RECIPROCALS
from taso_py.ops.scalar import Apply, Irrational, Number, Operand, Plus, Read, Scalar, Times, number
from taso_py.ops.table import DEFINED

_VARIABLE = make(Input("x", TensorType(DType.FLOAT, (4,)))).value


def written_forms(entry: Written) -> Iterator[RuleCandidate]:
    """Yield the candidates of a unary operator: each written-out form with the operator."""
    operand = Operand(_VARIABLE.type, lambda index: Read("x", index))
    target = make(entry.op, [_VARIABLE]).value
    definition = entry.op.define([operand], (symbol("i"),))
    for place, form in enumerate(_forms(_factored(definition) if entry.is_factored else definition)):
        yield RuleCandidate(
            (form,), (target,), key=f"{entry.name} written out, {place:03}", data=frozenset({"x"}), one_way=True
        )


def _factored(scalar: Scalar) -> Scalar:
    """Return a definition with a factor that all summands of a sum have taken out of it."""
    match scalar:
        case Apply(function, argument):
            return Apply(function, _factored(argument))
        case Times(left, right):
            return _factored(left) * _factored(right)
        case Plus():
            summands = [_operands(_factored(summand), Times) for summand in _operands(scalar, Plus)]
            common = next((factor for factor in summands[0] if all(factor in factors for factors in summands)), None)
            if common is not None:
                for factors in summands:
                    factors.remove(common)
            rest = reduce(operator.add, [reduce(operator.mul, factors or [number(1)]) for factors in summands])
            return rest if common is None else common * rest
        case _:
            return scalar


def _forms(scalar: Scalar) -> list[Value]:
    match scalar:
        case Read():
            return [_VARIABLE]
        case Number(value):
            return [_constant(float(value))]
        case Irrational(name):
            return [_constant(IRRATIONALS[name])]
        case Apply("reciprocal", Irrational(name)):
            return [_constant(value) for value in dict.fromkeys(RECIPROCALS[name])]
        case Apply(function, argument) if function in DEFINED:
            return [make(DEFINED[function](), [form]).value for form in _forms(argument)]
        case Plus():
            return _orders([_forms(operand) for operand in _operands(scalar, Plus)], Add())
        case Times():
            return _products(_operands(scalar, Times))
        case _:
            raise InvariantError(f"no operator computes {scalar}")


def _constant(value: float) -> Value:
    return make(Constant(value, DType.FLOAT)).value


def _products(factors: Sequence[Scalar]) -> list[Value]:
    """Return every way to multiply all factors, or to divide the others' product, or one of them, by a constant."""
    forms = [_forms(factor) for factor in factors]
    found = _orders(forms, Mul())
    for place, factor in enumerate(factors):
        divisors, rest = _divisors(factor), [*forms[:place], *forms[place + 1 :]]
        if not rest:
            continue
        found += _quotients(_orders(rest, Mul()), divisors)
        for one, other in enumerate(rest if len(rest) > 1 else ()):
            found += _orders([*rest[:one], _quotients(other, divisors), *rest[one + 1 :]], Mul())
    return list(dict.fromkeys(found))


def _divisors(factor: Scalar) -> list[Value]:
    """Return the constants that may be divided by instead of multiplying by a factor, which is one over them."""
    match factor:
        case Apply("reciprocal", Irrational() as divisor):
            return _forms(divisor)
        case Number(value) if abs(value.numerator) == 1 < value.denominator:
            return [_constant(float(1 / value))]
        case _:
            return []


def _quotients(forms: Sequence[Value], divisors: Sequence[Value]) -> list[Value]:
    return [make(Div(), [form, divisor]).value for form in forms for divisor in divisors]


def _operands(scalar: Scalar, kind: type[Plus | Times]) -> list[Scalar]:
    """Return the operands of nested sums, or products."""
    if isinstance(scalar, Plus | Times) and isinstance(scalar, kind):
        return _operands(scalar.left, kind) + _operands(scalar.right, kind)
    return [scalar]


def _orders(forms: Sequence[Sequence[Value]], op: Add | Mul) -> list[Value]:
    """Return every way to combine all operands two at a time, each in one of its forms."""
    found = itertools.chain.from_iterable(
        _trees(choice, lambda a, b: make(op, [a, b]).value) for choice in itertools.product(*forms)
    )
    return list(dict.fromkeys(found))


def _trees(leaves: Sequence[Value], combine: Callable[[Value, Value], Value]) -> Iterable[Value]:
    """Yield the binary trees over leaves; the first leaf is always left, since the two operands commute."""
    if len(leaves) == 1:
        yield leaves[0]
    first, rest = leaves[0], leaves[1:]
    for count in range(len(rest)):
        for chosen in itertools.combinations(range(len(rest)), count):
            left = [first, *(rest[place] for place in chosen)]
            right = [leaf for place, leaf in enumerate(rest) if place not in chosen]
            for a, b in itertools.product(_trees(left, combine), _trees(right, combine)):
                yield combine(a, b)
