"""Deciding equalities between sizes: strictly, or by solving for unknown sizes.

Shape inference asks its unifier to make two sizes equal. In a model (and when a rule is checked) the strict unifier
refuses what is not already equal; when the most general types of a rule are sought, the solver finds the size
equalities under which it type-checks.

Invariant: a solver's bindings are idempotent: no bound symbol occurs in a bound value.
"""

from __future__ import annotations

from collections.abc import Callable

from taso_py.ir.errors import ShapeError
from taso_py.ir.size import Dim, Poly, solve, substitute
from taso_py.ir.types import Axis, Group, TensorType


class Unifier:
    """The strict unifier: sizes are equal or the operands do not fit."""

    def equal(self, left: Axis, right: Axis, why: str) -> None:
        """Require two axes to have the same size.

        Raises:
            ShapeError: they do not; ``why`` is part of the message.
        """
        if left != right:
            raise ShapeError(f"{why}: {left} is not {right}")

    def resolve(self, axis: Dim) -> Dim:
        """Return the size with everything known so far applied."""
        return axis


class SizeSolver(Unifier):
    """Unifier that makes sizes equal by binding symbols."""

    def __init__(self, may_bind: Callable[[str], bool] = lambda _name: True) -> None:
        self.bindings: dict[str, Dim] = {}
        self._may_bind = may_bind

    def resolve(self, axis: Dim) -> Dim:
        """Return the size with all bindings so far applied."""
        return substitute(axis, self.bindings)

    def resolve_type(self, type_: TensorType) -> TensorType:
        """Return the type with all bindings so far applied."""
        return type_.substitute(self.bindings)

    def equal(self, left: Axis, right: Axis, why: str) -> None:
        """Make two sizes equal by binding a symbol where needed.

        Raises:
            ShapeError: no symbol can be solved for.
        """
        if isinstance(left, Group) or isinstance(right, Group):
            super().equal(left, right, why)
            return
        difference = self.resolve(left) - self.resolve(right)
        if difference == 0:
            return
        solution = solve(difference, self._may_bind) if isinstance(difference, Poly) else None
        if solution is None:
            raise ShapeError(f"{why}: {left} is not {right}")
        self.bind(*solution)

    def bind(self, name: str, value: Dim) -> None:
        """Record ``name == value`` and apply it to earlier bindings."""
        value = self.resolve(value)
        self.bindings = {known: substitute(old, {name: value}) for known, old in self.bindings.items()}
        self.bindings[name] = value


STRICT = Unifier()
