"""Open sizes of an export, converted between torch's symbols and ours.

torch.export writes sizes as sympy expressions over symbols of its own (``s77``), with a range for each. Here they
become :class:`~taso_py.ir.size.Open` sizes, named after the input and dimension that show them.

Invariant: the two forms are converted into each other exactly, or not at all. Nothing that happens on fake tensors
during an import fixes a size: whatever torch decides by the example sizes is compared for all sizes afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import sympy
from torch import SymInt, Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._sympy import functions

from taso_py.backend.lowering import Caller
from taso_py.backend.run import run_call
from taso_py.backend.sizes import resolving
from taso_py.ir.errors import TasoError
from taso_py.ir.size import Dim, FloorDiv, Open, at_example, floordiv, is_never_negative, open_size

UNLIMITED = 1 << 60
"""Upper bounds beyond this are torch's way to write that a size is unbounded."""


class OpenSizeError(TasoError):
    """A size that the graph cannot express."""


@dataclass
class Sizes:
    """The open sizes of one export."""

    mode: FakeTensorMode
    _ours: dict[sympy.Symbol, Open] = field(default_factory=dict[sympy.Symbol, Open])
    _theirs: dict[Open, sympy.Symbol] = field(default_factory=dict[Open, sympy.Symbol])

    @property
    def any(self) -> bool:
        """True if any size is open."""
        return bool(self._ours)

    def declare(self, name: str, shape: Sequence[Any], example: Sequence[int], ranges: Mapping[Any, Any]) -> None:
        """Record the symbols that appear first in this input.

        Args:
            name: of the input.
            shape: its sizes, some of them symbolic; a symbol that is not known yet may stand in a linear expression.
            example: its sizes in the example inputs.
            ranges: least and greatest value of each symbol.

        Raises:
            OpenSizeError: a symbol cannot be computed from the size.
        """
        for axis, (size, actual) in enumerate(zip(shape, example, strict=True)):
            if not isinstance(size, SymInt):
                continue
            expression = size.node.expr
            unknown = sorted(expression.free_symbols - self._ours.keys(), key=str)
            if unknown:
                factor, rest = self._split_linear(expression, unknown)
                value, left = divmod(actual - _example_size(rest), factor)
                if left:
                    raise OpenSizeError(f"dimension {axis} of input {name} is {actual}, which {expression} cannot be")
                told = _size_formula(f"{name}.{axis}", factor, rest)
                found = Open(told, value, *_bounds(ranges.get(unknown[0])))
                if value < found.least:
                    raise OpenSizeError(f"dimension {axis} of input {name} is open and {actual} in the example")
                self._ours[unknown[0]], self._theirs[found] = found, unknown[0]

    def _split_linear(self, expression: Any, unknown: Sequence[Any]) -> tuple[int, Dim]:
        """Return the coefficient of the only unknown symbol of a linear expression, and the constant rest."""
        if len(unknown) == 1:
            factor = expression.coeff(unknown[0], 1)
            rest = sympy.expand(expression - factor * unknown[0])
            if factor.is_Integer and unknown[0] not in rest.free_symbols:
                return int(factor), self._to_dim(rest)
        raise OpenSizeError(f"a size of an input is {expression}, from which its parts cannot be computed")

    def dim(self, size: Any) -> Dim:
        """Convert a size of torch's to ours.

        Raises:
            OpenSizeError: it is neither a polynomial of the inputs' sizes nor a division of such.
        """
        return size if type(size) is int else self._to_dim(size.node.expr)

    def dims(self, sizes: Sequence[Any]) -> tuple[Dim, ...]:
        """Convert sizes or strides of torch's to ours."""
        return tuple([self.dim(size) for size in sizes])

    def strides(self, tensor: Tensor) -> tuple[Dim, ...] | None:
        """Return a tensor's strides as ours; None if they cannot be expressed."""
        try:
            return self.dims(tensor.stride())
        except OpenSizeError:
            return None

    def agree(self, left: Sequence[Any], right: Sequence[Any]) -> bool:
        """Return whether sizes or strides are provably equal for all open sizes."""
        return len(left) == len(right) and all(map(self._agree, left, right))

    def _agree(self, left: Any, right: Any) -> bool:
        if type(left) is int and type(right) is int:
            return left == right
        # Strides may be beyond polynomials: torch writes Max(1, n) for an n that might be zero.
        if isinstance(left, SymInt) and isinstance(right, SymInt) and left.node.expr == right.node.expr:
            return True
        try:
            return self.dim(left) == self.dim(right)
        except OpenSizeError:
            return False

    def _to_dim(self, expression: Any) -> Dim:
        match expression:
            case sympy.Integer():
                return int(expression)
            case sympy.Symbol() if expression in self._ours:
                return open_size(self._ours[expression])
            case sympy.Add():
                return sum(map(self._to_dim, expression.args))
            case sympy.Mul():
                return math.prod(map(self._to_dim, expression.args))
            case sympy.Pow() if isinstance(expression.exp, sympy.Integer) and expression.exp > 0:
                return math.prod([self._to_dim(expression.base)] * int(expression.exp))
            case functions.FloorDiv():
                numerator, denominator = map(self._to_dim, expression.args)
                return floordiv(numerator, denominator)
            case functions.Mod() | functions.PythonMod():
                numerator, denominator = map(self._to_dim, expression.args)
                return numerator - denominator * floordiv(numerator, denominator)
            case functions.Max() if len(expression.args) == 2 and sympy.Integer(1) in expression.args:
                (size,) = (self._to_dim(part) for part in expression.args if part != 1)
                if is_never_negative(size - 1):
                    return size
                raise OpenSizeError(f"the size {size} may be zero")
            case _:
                raise OpenSizeError(f"the size {expression} is not a polynomial in the sizes of the inputs")

    def symbolic(self, size: Dim) -> Any:
        """Convert one of our sizes to torch's."""
        if isinstance(size, int):
            return size
        environment = self.mode.shape_env
        assert environment is not None
        example = at_example(size)
        assert isinstance(example, int)
        return environment.create_symintnode(_expression(size, self._theirs), hint=example)

    @cached_property
    def call(self) -> Caller:
        """The caller that runs a lowering on fake tensors of open sizes."""
        return resolving(run_call, self.symbolic)

    def in_python(self) -> AbstractContextManager[Any]:
        """Let operators run in Python, as in an export, where their C++ code takes no symbolic sizes."""
        return enable_python_dispatcher() if self.any else nullcontext()

    def without_guards(self) -> AbstractContextManager[Any]:
        """Let torch decide by the example sizes without recording guards on all others."""
        environment = self.mode.shape_env
        return nullcontext() if environment is None else environment.suppress_guards()


def _example_size(size: Dim) -> int:
    """Return a size in the example inputs."""
    number = at_example(size)
    assert isinstance(number, int)
    return number


def _size_formula(place: str, factor: int, rest: Dim) -> str:
    """Return the formula by which callers compute a size from the dimension ``factor * size + rest``."""
    if isinstance(rest, int):
        alone = f"{place} {'-' if rest > 0 else '+'} {abs(rest)}" if rest else place
    else:
        alone = f"{place} - ({rest})"
    if factor == 1:
        return alone
    return f"{alone} // {factor}" if rest == 0 else f"({alone}) // {factor}"


def _bounds(bounds: Any) -> tuple[int, int | None]:
    """Return least and greatest value of a symbol; at least one, since rules do not cover empty tensors."""
    if bounds is None:
        return 1, None
    limited = bounds.upper.is_Integer and bounds.upper < UNLIMITED
    return max(1, int(bounds.lower)), int(bounds.upper) if limited else None


def _expression(size: Dim, symbols: Mapping[Open, sympy.Symbol]) -> Any:
    """Convert a size to a sympy expression."""
    if isinstance(size, int):
        return sympy.Integer(size)
    total: Any = sympy.Integer(0)
    for monomial, coefficient in size.terms:
        product: Any = sympy.Integer(coefficient)
        for atom in monomial:
            if isinstance(atom, FloorDiv):
                sides = (_expression(side, symbols) for side in (atom.numerator, atom.denominator))
                product *= functions.FloorDiv(*sides)
            elif isinstance(atom, Open):
                product *= symbols[atom]
        total += product
    return total
