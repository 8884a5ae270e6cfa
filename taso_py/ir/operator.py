"""Operators as the intermediate representation sees them, and the three leaf operators.

The operators themselves live in :mod:`taso_py.ops`; a subclass is a frozen dataclass whose fields are its attributes.

Invariant: an operator instance is immutable and is determined by its text, which distinguishes ``1``, ``1.0`` and
``true``; nodes are interned by it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import cached_property
from typing import ClassVar, Self, TypeAlias

from taso_py.ir.sign import Sign
from taso_py.ir.size import Dim, Poly, at_example, substitute
from taso_py.ir.traits import Traits
from taso_py.ir.types import DType, TensorType
from taso_py.ir.unify import STRICT, Unifier


@dataclass(frozen=True, slots=True)
class Ref:
    """A placeholder for input number ``index`` of the node, in the argument template of an opaque operator."""

    index: int

    def __str__(self) -> str:
        return f"${self.index}"


AttributeValue: TypeAlias = int | float | str | Poly | DType | TensorType | Ref | tuple["AttributeValue", ...] | None


def attribute_text(value: AttributeValue) -> str:
    """Return an attribute value as the grammar writes it."""
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case float():
            return repr(value) if math.isfinite(value) else ("nan" if value != value else ("inf", "-inf")[value < 0])
        case str():
            return json.dumps(value)
        case tuple():
            return "[" + ",".join(map(attribute_text, value)) + "]"
        case _:
            return str(value)


@dataclass(frozen=True)
class Operator(Traits):
    """An operator with its attributes fixed: the meaning of a node, apart from its inputs."""

    name: ClassVar[str]
    """The operator's name in the grammar."""

    @property
    def pure(self) -> bool:
        """True if equal inputs always give equal outputs and there is no side effect; only pure nodes are merged."""
        return True

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        """Return the output types.

        Raises:
            ShapeError: the operator does not accept these operands.
        """
        raise NotImplementedError

    @cached_property
    def attributes(self) -> tuple[tuple[str, AttributeValue], ...]:
        """Names and values of the attributes that differ from their default, in the order of declaration."""
        found: list[tuple[str, AttributeValue]] = []
        for field in fields(self):
            value: AttributeValue = getattr(self, field.name)
            if field.default is MISSING or attribute_text(value) != attribute_text(field.default):
                found.append((field.name, value))
        return tuple(found)

    @cached_property
    def text(self) -> str:
        """Name and attributes, e.g. ``conv2d{stride=[2,2]}``."""
        return self.name + self.attributes_text

    @cached_property
    def attributes_text(self) -> str:
        """The attributes in braces; empty if all have their defaults."""
        inner = ", ".join(f"{name}={attribute_text(value)}" for name, value in self.attributes)
        return "{" + inner + "}" if inner else ""

    def substitute(self, bindings: Mapping[str, Dim | float]) -> Self:
        """Return this operator with variables in its attributes replaced."""
        changed = {name: substitute_attribute(value, bindings) for name, value in self.attributes}
        return replace(self, **changed) if changed else self

    @cached_property
    def is_open(self) -> bool:
        """True if an attribute depends on an open size, which the model's callers choose."""
        return any(_is_open(value) for _, value in self.attributes)

    @cached_property
    def at_example(self) -> Self:
        """The operator with every open size set to its value in the example inputs."""
        return replace(self, **{name: _at_example(value) for name, value in self.attributes}) if self.is_open else self


def substitute_attribute(value: AttributeValue, bindings: Mapping[str, Dim | float]) -> AttributeValue:
    """Return an attribute value with variables replaced; only a bare variable may be bound to a non-integer number."""
    if isinstance(value, Poly):
        bare = bindings.get(str(value))
        sizes = {name: bound for name, bound in bindings.items() if not isinstance(bound, float)}
        return bare if isinstance(bare, float) else substitute(value, sizes)
    if isinstance(value, TensorType):
        return value.substitute({name: bound for name, bound in bindings.items() if not isinstance(bound, float)})
    if isinstance(value, tuple):
        return tuple(substitute_attribute(item, bindings) for item in value)
    return value


def _is_open(value: AttributeValue) -> bool:
    if isinstance(value, tuple):
        return any(map(_is_open, value))
    return isinstance(value, Poly | TensorType) and bool(value.open)


def _at_example(value: AttributeValue) -> AttributeValue:
    if isinstance(value, tuple):
        return tuple(map(_at_example, value))
    if isinstance(value, TensorType):
        return value.at_example
    return at_example(value) if isinstance(value, Poly) else value


@dataclass(frozen=True)
class _Leaf(Operator):
    key: str
    """The name of an argument, or of a parameter or buffer in the module's state."""
    type: TensorType
    mutable: bool = False
    """True if the model writes to it; such a leaf is read at run time and never folded."""

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        return (self.type,)


@dataclass(frozen=True)
class Input(_Leaf):
    """An argument of the graph; in a rule, a variable."""

    name = "input"
    sign: Sign = Sign.ANY
    """A promise about the elements; in a rule, a condition on what the variable stands for."""


@dataclass(frozen=True)
class Weight(_Leaf):
    """A parameter, buffer or lifted constant of the model."""

    name = "weight"


@dataclass(frozen=True)
class Constant(Operator):
    """An exact number of rank 0. Python scalars in a model are imported as constants; in a rule it may be a symbol."""

    name = "constant"
    value: float | Poly
    dtype: DType

    def infer(self, inputs: Sequence[TensorType], unifier: Unifier = STRICT) -> tuple[TensorType, ...]:
        return (TensorType(self.dtype, ()),)


LEAVES: tuple[type[Operator], ...] = (Input, Weight, Constant)
