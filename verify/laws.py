"""The laws of arithmetic that the prover uses: products, reciprocals, relu, exp.

Invariant: every law is an identity of the reals wherever the source is defined. A reciprocal of zero may be taken to be
zero: with this convention ``1/(a*b) = 1/a * 1/b`` holds always, and a quotient ``a/a`` is 1 only where ``a`` is known
not to be zero.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import isqrt

from taso_py.ir.sign import Sign
from taso_py.ops.functions import CAST, IRRATIONALS, cast_function, types_of_cast
from taso_py.ops.scalar import Irrational, SizeOf
from verify.context import Context
from verify.signs import Signs, scaled
from verify.terms import Call, Factor, Sum, Term, close, constant, factor_key, factor_symbols, product_key, product_of


class ProofLevel(enum.IntEnum):
    """Laws that a proof may use; sides that are equal at a low level are closer in floating point."""

    MOVEMENT = 0
    """Data movement. Elementwise functions are uninterpreted; operators that add up several elements stay closed."""
    TERMS = 1
    """Sums are opened: they are equal when their terms are. A product with a sum stays closed."""
    ALGEBRA = 2
    """All laws: distributivity, factoring, the laws of exp."""


_AT_ZERO = {
    **dict.fromkeys(("relu", "tanh", "erf", "sin", "sqrt"), Fraction(0)),
    **dict.fromkeys(("exp", "cos"), Fraction(1)),
    "sigmoid": Fraction(1, 2),
}
POLES = frozenset({"reciprocal", "rsqrt", "sqrt", "log"})
"""Functions that are not defined everywhere."""
INVERSES = frozenset({"reciprocal", "rsqrt"})
"""Functions that are infinite at zero; at minus zero, which is negative in floating point, minus infinity."""
_SYMMETRIC = {**dict.fromkeys(("tanh", "erf", "sin"), Fraction(-1)), "cos": Fraction(1)}
"""By function, the sign ``s`` in ``f(-a) = s * f(a)``."""
DECLARED = {sign: f"some {sign.label}" for sign in Sign if sign}
"""By sign, the name of a function of an unknown, for elements with that sign; nothing else has such a name."""
_POSITIVE = frozenset({"exp", "sigmoid", DECLARED[Sign.POSITIVE]})
_NONNEGATIVE = _POSITIVE | {"relu", "rsqrt", "sqrt", DECLARED[Sign.NONNEGATIVE]}
MOST_POWER = 8
"""The greatest whole factor of an exponent that makes a power of the exponential: ``exp(2*a) = exp(a) * exp(a)``."""


class Laws:
    """Applies the laws of one level in one context."""

    def __init__(self, context: Context, level: ProofLevel, signs: Signs) -> None:
        self.context = context
        self.level = level
        self._signs = signs

    # -- signs

    def declared(self, element: Factor, sign: Sign) -> Sum:
        """Return an element that has a sign, as a function of an unknown that takes all its values.

        Every positive number is the square of an exponential, every other that is not negative the square of such a
        number, so that the laws of exponentials and of roots of squares are those of such elements.
        """
        if not sign:
            return product_of(element)
        if self.level < ProofLevel.ALGEBRA:
            return product_of(Call(DECLARED[sign], (product_of(element),)))
        root = Call("exp" if sign is Sign.POSITIVE else DECLARED[sign], (product_of(element),))
        return product_of(root, root)

    def is_positive(self, factor: Factor) -> bool:
        """Return whether a factor is greater than zero for all values of the variables."""
        match factor:
            case SizeOf(value):
                return self.context.nonnegative(value - 1)
            case Call("reciprocal", ((Term(coefficient, (), (), (inner,)),),)):
                return coefficient > 0 and self.is_positive(inner)
            case Call(function, _):
                return function in _POSITIVE
            case Irrational(name):
                return IRRATIONALS[name] > 0
            case _:
                return False

    def is_nonnegative(self, factor: Factor) -> bool:
        """Return whether a factor is at least zero wherever it is defined."""
        match factor:
            case SizeOf(value):
                return self.context.nonnegative(value)
            case Call("reciprocal", (argument,)):
                return self.is_nonnegative_sum(argument)
            case Call(function, _):
                return function in _NONNEGATIVE
            case _:
                return self.is_positive(factor)

    def leaves_relu(self, factor: Factor) -> bool:
        """Return whether ``relu(f * x) = f * relu(x)``, even where ``f`` may be infinite and ``inf * 0`` is NaN."""
        is_defined = not isinstance(factor, Call) or factor.function not in POLES or self.is_positive(factor)
        return is_defined and self.is_nonnegative(factor)

    def is_nonnegative_sum(self, sum_: Sequence[Term]) -> bool:
        """Return whether every term is at least zero: a positive multiple of nonnegative factors and squares."""
        return all(
            term.coefficient > 0
            and all(count % 2 == 0 or self.is_nonnegative(factor) for factor, count in Counter(term.factors).items())
            for term in sum_
        )

    def is_positive_sum(self, sum_: Sequence[Term]) -> bool:
        """Return whether a sum is evidently greater than zero: every term is at least zero, and one is greater."""
        return self.is_nonnegative_sum(sum_) and any(
            not (term.bound or term.guards) and all(map(self.is_positive, term.factors)) for term in sum_
        )

    def _may_be_minus_infinity(self, term: Term) -> bool:
        """Return whether a term that is nonnegative in the reals may divide by minus zero in floating point."""
        return any(
            isinstance(factor, Call)
            and factor.function in INVERSES
            and (count % 2 or any(_is_declared(inner) for part in factor.arguments[0] for inner in part.factors))
            and self._may_be_minus_zero(factor)
            for factor, count in Counter(term.factors).items()
        )

    def _may_be_minus_zero(self, inverse: Call) -> bool:
        """Return whether the argument may be minus zero: it is not evidently made of positive factors and squares.

        The squares that stand for elements that are not negative do not count: these may be minus zero.
        """
        (argument,) = inverse.arguments
        return not all(
            term.coefficient > 0
            and all(
                self.is_positive(factor) or (count % 2 == 0 and not _is_declared(factor))
                for factor, count in Counter(term.factors).items()
            )
            for term in argument
        )

    # -- products

    def multiply(self, left: Term, right: Term) -> Term:
        """Return the product of two terms over different bound indices, with reciprocals cancelled."""
        factors = list(left.factors)
        for factor in right.factors:
            inverse = self._inverse(factor)
            if (
                self.level is ProofLevel.ALGEBRA
                and inverse in factors
                and (self.is_positive(factor) or self.is_positive(inverse))
            ):
                factors.remove(inverse)
            else:
                factors.append(factor)
        guards = tuple(dict.fromkeys((*left.guards, *right.guards)))
        product = Term(left.coefficient * right.coefficient, left.bound + right.bound, guards, tuple(factors))
        return self._square_relu(product) if self.level is ProofLevel.ALGEBRA else product

    def _square_relu(self, term: Term) -> Term:
        """Apply ``x * relu(x) = relu(x) * relu(x)``, and ``x * relu(-x) = -relu(-x) * relu(-x)``."""
        for factor in term.factors:
            match factor:
                case Call("relu", ((Term(sign, (), (), inner),),)) if inner and abs(sign) == 1:
                    left = list(term.factors)
                    left.remove(factor)
                    if Counter(inner) <= Counter(left):
                        for part in inner:
                            left.remove(part)
                        return term._replace(coefficient=term.coefficient * sign, factors=(*left, factor, factor))
                case _:
                    pass
        return term

    def _inverse(self, factor: Factor) -> Factor:
        match factor:
            case Call("reciprocal", ((Term(Fraction(numerator=1, denominator=1), (), (), (inner,)),),)):
                return inner
            case Call(("sqrt" | "rsqrt") as root, arguments) if self.level is ProofLevel.ALGEBRA:
                return Call("rsqrt" if root == "sqrt" else "sqrt", arguments)
            case _:
                return Call("reciprocal", (product_of(factor),))

    # -- functions of one argument

    def apply(self, function: str, argument: Sum) -> list[Term]:
        """Return a function of a closed sum without outer guards."""
        if not argument and function in _AT_ZERO:
            return list(constant(_AT_ZERO[function]))
        if function == "relu":
            return self._relu(argument)
        if function == "reciprocal":
            return self._reciprocal(argument)
        if function == "exp" and self.level is ProofLevel.ALGEBRA:
            return self._exp(argument)
        if function == "log" and self.level is ProofLevel.ALGEBRA:
            return self._log(argument)
        if function == "sqrt" and self.level is ProofLevel.ALGEBRA and (base := _squared(argument)) is not None:
            return [*self._relu(base), *self._relu(scaled(base, Fraction(-1)))]
        if function == "rsqrt" and self.level is ProofLevel.ALGEBRA and (base := self._positive_root(argument)):
            return self._reciprocal(base)
        if function in ("sqrt", "rsqrt") and (root := _root(argument)) is not None:
            return list(constant(root if function == "sqrt" else 1 / root))
        if function in _SYMMETRIC and self.level is ProofLevel.ALGEBRA:
            return _symmetric(function, argument)
        return _cast(function, argument) if function.startswith(CAST) else [_call(function, argument)]

    def _positive_root(self, argument: Sum) -> Sum:
        """Return the positive product whose square a sum is; empty if there is none."""
        base = _squared(argument) or ()
        return base if self.is_positive_sum(base) else ()

    def _relu(self, argument: Sum) -> list[Term]:
        if self.is_nonnegative_sum(argument) and not any(map(self._may_be_minus_infinity, argument)):
            return list(argument)
        if self.level < ProofLevel.ALGEBRA:
            return [_call("relu", argument)]
        scale, outside, rest = content(argument, self.leaves_relu)
        if rest == constant(1) and scale < 0:
            return []
        inner = close(rest if scale > 0 else scaled(rest, Fraction(-1)))
        around = Term(abs(scale), (), (), outside)
        sign = 0 if has_pole(inner) else self._signs.of(inner, self.is_nonnegative_sum)
        if sign:
            return [self.multiply(around, term) for term in inner] if sign > 0 else []
        return [around._replace(factors=(*outside, Call("relu", (inner,))))]

    def _reciprocal(self, argument: Sum) -> list[Term]:
        if not argument:
            return [_call("reciprocal", argument)]
        is_factor = len(argument) == 1 and all(not term.bound and len(term.factors) <= 1 for term in argument)
        if self.level < ProofLevel.ALGEBRA and not is_factor:
            return [_call("reciprocal", argument)]
        scale, outside, rest = content(argument, lambda _: True)
        factors = [self._inverse(factor) for factor in outside]
        if (exponent := _logistic(rest)) is not None:
            factors.append(Call("sigmoid", (exponent,)))
        elif rest != constant(1):
            factors.append(Call("reciprocal", (rest,)))
        return [Term(1 / scale, (), (), tuple(factors))]

    def _exp(self, argument: Sum) -> list[Term]:
        """Apply ``exp(a + b) = exp(a) * exp(b)``, also where both are equal, and ``exp(-a) = 1 / exp(a)``."""
        product = Term(Fraction(1))
        for term in argument:
            size = abs(term.coefficient)
            times = size.numerator if size.numerator <= MOST_POWER else 1
            magnitude = Call("exp", (close([term._replace(coefficient=size / times)]),))
            factor = magnitude if term.coefficient > 0 else self._inverse(magnitude)
            for _ in range(times):
                product = self.multiply(product, Term(Fraction(1), (), (), (factor,)))
        return [product]

    def _log(self, argument: Sum) -> list[Term]:
        """Apply ``log(a + b / exp(c)) = log(a * exp(c) + b) - c`` and ``log(exp(c) * a) = c + log(a)``.

        Not where ``c`` is summed over.
        """
        for term in argument:
            for factor in _free_factors(term):
                power = self._inverse(factor)
                if isinstance(power, Call) and power.function == "exp":
                    around = Term(Fraction(1), (), (), (power,))
                    inner = close(self.multiply(around, other) for other in argument)
                    return [*scaled(power.arguments[0], Fraction(-1)), *self._log(inner)]
        scale, outside, rest = content(argument, _is_exponential) if argument else (Fraction(1), (), argument)
        if outside:
            exponents = [term for power in outside if isinstance(power, Call) for term in power.arguments[0]]
            return [*exponents, *self._log(scaled(rest, scale))]
        return [] if argument == constant(1) else [_call("log", argument)]


def _symmetric(function: str, argument: Sum) -> list[Term]:
    """Apply ``f(-a) = f(a)`` or ``f(-a) = -f(a)``: the term that comes first, whatever its sign, is left positive."""
    if min(argument, key=lambda term: (product_key(term), term.guards)).coefficient > 0:
        return [_call(function, argument)]
    negated = close(scaled(argument, Fraction(-1)))
    return [_call(function, negated)._replace(coefficient=_SYMMETRIC[function])]


def _cast(function: str, argument: Sum) -> list[Term]:
    """Apply ``cast(cast(a)) = cast(a)`` where the type in between holds every value of the first."""
    dtype, last = types_of_cast(function)
    if dtype is last:
        return list(argument)
    match argument:
        case (Term(Fraction(numerator=1, denominator=1), (), (), (Call(name, (inner,)),)),) if name.startswith(CAST):
            first, _ = types_of_cast(name)
            if dtype.holds(first):
                return list(inner) if last is first else [_call(cast_function(first, last), inner)]
        case _:
            pass
    return [_call(function, argument)]


def _is_declared(factor: Factor) -> bool:
    return isinstance(factor, Call) and factor.function in DECLARED.values()


def _is_exponential(factor: Factor) -> bool:
    return isinstance(factor, Call) and factor.function == "exp"


def has_pole(sum_: Sequence[Term]) -> bool:
    """Return whether a factor is a function that is not defined everywhere."""
    return any(isinstance(factor, Call) and factor.function in POLES for term in sum_ for factor in term.factors)


def _logistic(sum_: Sum) -> Sum | None:
    """Return the sum ``a`` where the given one is ``1 + exp(-a)``, whose reciprocal is ``sigmoid(a)``."""
    powers = [term for term in sum_ if term.factors]
    others = tuple(term for term in sum_ if not term.factors)
    if others != constant(1) or len(powers) != 1 or powers[0] != product_of(*powers[0].factors)[0]:
        return None
    exponent: list[Term] = []
    for factor in powers[0].factors:
        match factor:
            case Call("exp", (argument,)):
                exponent += [term._replace(coefficient=-term.coefficient) for term in argument]
            case Call("reciprocal", ((Term(_, (), (), (Call("exp", (argument,)) as power,)) as one,),)) if (
                one == product_of(power)[0]
            ):
                exponent += argument
            case _:
                return None
    return close(exponent)


def _root(sum_: Sum) -> Fraction | None:
    """Return the square root of a sum that is the square of a positive rational number."""
    match sum_:
        case (Term(value, (), (), ()),) if value > 0:
            root = Fraction(isqrt(value.numerator), isqrt(value.denominator))
            return root if root * root == value else None
        case _:
            return None


def _squared(sum_: Sum) -> Sum | None:
    """Return the product whose square a sum is, if it is one term, free of bound indices, and no number."""
    match sum_:
        case (Term(coefficient, (), (), factors),) if factors and (root := _root(constant(coefficient))) is not None:
            counts = Counter(factors)
            if all(count % 2 == 0 for count in counts.values()):
                halves = [factor for factor in sorted(counts, key=factor_key) for _ in range(counts[factor] // 2)]
                return close([Term(root, (), (), tuple(halves))])
        case _:
            pass
    return None


def _call(function: str, *arguments: Sum) -> Term:
    return Term(Fraction(1), (), (), (Call(function, arguments),))


def content(sum_: Sum, may_leave: Callable[[Factor], bool]) -> tuple[Fraction, tuple[Factor, ...], Sum]:
    """Return a nonempty sum as ``scale * factors * rest``: factors that all terms share, free of bound indices.

    The first term of ``rest`` has the coefficient 1.
    """
    shared = Counter(_free_factors(sum_[0]))
    for term in sum_[1:]:
        shared &= Counter(_free_factors(term))
    leaving = [f for f in sorted(shared.elements(), key=factor_key) if may_leave(f)]
    scale = sum_[0].coefficient
    rest: list[Term] = []
    for term in sum_:
        factors = list(term.factors)
        for factor in leaving:
            factors.remove(factor)
        rest.append(term._replace(coefficient=term.coefficient / scale, factors=tuple(factors)))
    closed = close(rest)
    first = closed[0].coefficient if closed else Fraction(1)
    normal = tuple(term._replace(coefficient=term.coefficient / first) for term in closed)
    return scale * first, tuple(leaving), normal


def _free_factors(term: Term) -> list[Factor]:
    bound = frozenset(term.bound)
    return [factor for factor in term.factors if factor_symbols(factor).isdisjoint(bound)]
