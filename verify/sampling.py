"""Samples: concrete sizes and values at which a rule can be tried.

Symbols are drawn by their role (a dimension, a stride, a padding, a number) and kept if the preconditions and the
shapes allow them. Sizes are small, mostly prime and unequal, so that a rule that mixes up two axes is detected.

Invariant: a sample depends on the rule and the random generator's state only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random

from taso_py.ir.node import Value
from taso_py.ir.operator import Input
from taso_py.ir.size import Poly, evaluate
from taso_py.ir.types import DType, Group, TensorType
from taso_py.ops.contraction import Conv2d, Conv3d, ConvTranspose2d
from taso_py.rules.match import Match
from taso_py.rules.substitution import Substitution, attribute_symbols, key, retyped
from verify.hypotheses import fits, legal, lookups, number_symbols

DIMENSIONS = (1, 2, 3, 5, 7)
IMAGES = (1, 2, 5, 6, 7, 8, 9, 11)
GREATEST = max(IMAGES)
_CHOICES: Mapping[str, tuple[int, ...]] = {
    "stride": (1, 1, 2, 3),
    "dilation": (1, 1, 2),
    "padding": (0, 0, 1, 2),
    "kernel": (1, 2, 3, 4),
    "factors": (1, 2, 3),
    "groups": (1, 2, 3),
    "widths": (-1, 0, 0, 1, 2, 3),
    "bound": (0, 1, 2, 3, 4, 6),
    "wraps": (0, 1),
}
_POSITIVE_NUMBERS = (1e-5, 0.1, 0.5, 1.25, 2.0)
_NUMBERS = (*_POSITIVE_NUMBERS, -0.5, -2.0)
"""Values of a constant or a scale; a number that is added to a variance is positive."""
_SHARE_OF_EMPTY = 0.3
"""Share of empty dimensions where dimensions may be empty."""
_GROUPS: tuple[tuple[int, ...], ...] = ((), (1,), (2,), (3,), (2, 3), (3, 1))


@dataclass(frozen=True)
class Sample:
    """One choice for every symbol of a rule."""

    sizes: Mapping[str, int]
    """Dimensions and integer attributes."""
    groups: Mapping[str, tuple[int, ...]]
    """The axes of each axis group."""
    numbers: Mapping[str, float]
    """Attributes that are real numbers."""
    ranges: Mapping[str, range] = field(default_factory=dict[str, range])
    """The integers that may be in each variable that is looked up, by name: the source has a place for them."""

    def shape(self, type_: TensorType) -> tuple[int, ...]:
        """Return the shape at these sizes."""
        axes: list[int] = []
        for axis in type_.shape:
            axes += self.groups[axis.name] if isinstance(axis, Group) else (evaluate(axis, self.sizes),)
        return tuple(axes)


def match_at(rule: Substitution, sample: Sample, dtype: DType) -> Match:
    """Return a match of a rule at a sample's sizes, with inputs for its variables; ``dtype`` stands for ``FLOAT``."""
    concrete = {DType.FLOAT: dtype, DType.INT: DType.I64}
    values: dict[str, Value] = {}
    for node in rule.variables:
        (type_,) = node.types
        values[key(node)] = retyped(node, TensorType(concrete.get(type_.dtype, type_.dtype), sample.shape(type_)))
    return Match(rule, nodes=(), values=values, sizes={**sample.sizes, **sample.numbers}, dtype=dtype, outputs=())


class Sampler:
    """Draws samples for one rule."""

    def __init__(self, rule: Substitution, least: int = 1, greatest: int = GREATEST) -> None:
        """Prepare a rule; with ``least`` zero dimensions may be empty, and none is drawn above ``greatest``."""
        self._rule = rule
        self._least = least
        self._sizes = {
            name: tuple(choice for choice in choices if choice <= greatest)
            for name, choices in _size_choices(rule).items()
        }
        self._numbers = {name: c for name, c in _number_choices(rule).items() if name not in self._sizes}
        self._types = [*dict.fromkeys(type_ for node in rule.source.nodes for type_ in node.types)]
        dimensions = set().union(*(type_.symbols for variable in rule.variables for type_ in variable.types))
        self._dimensions = sorted(dimensions.difference(_kernel_sizes(rule)))
        self._groups = sorted({a.name for type_ in self._types for a in type_.shape if isinstance(a, Group)})
        nodes = (*rule.source.nodes, *rule.target.nodes)
        bounds = (bound for node in nodes for bound in (*legal(node), *fits(node)))
        self._bounds = [*dict.fromkeys(bound for bound in bounds if isinstance(bound, Poly) or bound < 0)]
        self._lookups = [found for found in lookups(rule.source) if isinstance(found[0].node.op, Input)]

    def draw(self, random: Random, attempts: int) -> Sample | None:
        """Return a sample that the rule's preconditions and types allow; None if none is found."""
        for _ in range(attempts):
            sizes = {name: random.choice(choices) for name, choices in self._sizes.items()}
            if self._least == 0:
                sizes |= {name: 0 for name in self._dimensions if random.random() < _SHARE_OF_EMPTY}
            numbers = {name: random.choice(choices) for name, choices in self._numbers.items()}
            sample = Sample(sizes, {name: random.choice(_GROUPS) for name in self._groups}, numbers)
            if self._is_allowed(sample):
                return replace(sample, ranges=self._index_ranges(sizes))
        return None

    def _index_ranges(self, sizes: Mapping[str, int]) -> dict[str, range]:
        found: dict[str, range] = {}
        for origin, extent, wraps in self._lookups:
            most = evaluate(extent, sizes)
            least = -most * evaluate(wraps, sizes)
            known = found.get(key(origin.node), range(least, most))
            found[key(origin.node)] = range(max(least, known.start), min(most, known.stop))
        return found

    def _is_allowed(self, sample: Sample) -> bool:
        try:
            values = [(evaluate(c.value, sample.sizes), c.is_equality) for c in self._rule.preconditions]
            if any(value != 0 if is_equality else value < 0 for value, is_equality in values):
                return False
            if any(evaluate(bound, sample.sizes) < 0 for bound in self._bounds):
                return False
            return all(min(sample.shape(type_), default=1) >= self._least for type_ in self._types)
        except ZeroDivisionError:
            return False


def _number_choices(rule: Substitution) -> dict[str, tuple[float, ...]]:
    """Return the choices for each symbol that is a real number."""
    found: dict[str, tuple[float, ...]] = {}
    for node in (*rule.source.nodes, *rule.target.nodes):
        for attribute, value in node.op.attributes:
            names = attribute_symbols(value) & number_symbols(node.op)
            found |= {
                name: _POSITIVE_NUMBERS if attribute == "eps" else found.get(name, _NUMBERS) for name in sorted(names)
            }
    return found


def _size_choices(rule: Substitution) -> dict[str, tuple[int, ...]]:
    """Return the choices for each symbol that is an integer; where it has two roles the dimension counts."""
    roles: dict[str, tuple[int, ...]] = {}
    for node in (*rule.source.nodes, *rule.target.nodes):
        if isinstance(node.op, Input):
            continue
        for attribute, value in node.op.attributes:
            choices = _CHOICES.get(attribute, _CHOICES["bound"])
            names = attribute_symbols(value) - number_symbols(node.op)
            roles.update(dict.fromkeys(sorted(names), choices))
    for variable in rule.variables:
        shape = variable.types[0].shape
        for place, axis in enumerate(shape):
            if isinstance(axis, Poly):
                is_image = len(shape) in (4, 5) and place >= 2
                for name in sorted(axis.symbols):
                    known = roles.get(name)
                    roles[name] = IMAGES if is_image and known is None else known or DIMENSIONS
    roles.update(dict.fromkeys(_kernel_sizes(rule), _CHOICES["kernel"]))
    return roles


def _kernel_sizes(rule: Substitution) -> list[str]:
    """Return the symbols in the sizes of windows of convolutions."""
    convolutions = [node for node in rule.source.nodes if isinstance(node.op, Conv2d | Conv3d | ConvTranspose2d)]
    axes = [axis for node in convolutions for axis in node.inputs[1].type.shape[2:] if isinstance(axis, Poly)]
    return sorted(set().union(*(axis.symbols for axis in axes)))
