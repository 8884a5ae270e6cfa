"""Concrete sizes and values at which a rule can be tried.

Symbols are drawn by what they stand for (a dimension, a stride, a padding, a number) and kept if the preconditions and
the shapes allow them. Sizes are small, mostly prime and unequal, so that a rule that mixes up two axes is seen.

Invariant: a sample depends on the rule and the random generator's state only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from taso_py.ir.operator import Input
from taso_py.ir.size import Poly, evaluate
from taso_py.ir.types import Group, TensorType
from taso_py.ops.contraction import Conv2d
from taso_py.rules.substitution import Substitution, attribute_symbols
from verify.hypotheses import fits, legal, number_symbols

DIMENSIONS = (1, 2, 3, 5, 7)
IMAGES = (1, 2, 5, 6, 7, 8, 9, 11)
_CHOICES: Mapping[str, tuple[int, ...]] = {
    "stride": (1, 1, 2, 3),
    "dilation": (1, 1, 2),
    "padding": (0, 0, 1, 2),
    "kernel": (1, 2, 3, 4),
    "groups": (1, 2, 3),
    "widths": (-1, 0, 0, 1, 2, 3),
    "bound": (0, 1, 2, 3, 4, 6),
}
_NUMBERS = (1e-5, 0.1, 0.5, 1.25, 2.0)
_GROUPS: tuple[tuple[int, ...], ...] = ((), (1,), (2,), (3,), (2, 3), (3, 1))


@dataclass(frozen=True)
class Sample:
    """One choice for every symbol of a rule."""

    sizes: Mapping[str, int]
    """Dimensions and integer attributes."""
    groups: Mapping[str, tuple[int, ...]]
    """The axes that each axis group stands for."""
    numbers: Mapping[str, float]
    """Attributes that are real numbers."""

    def shape(self, type_: TensorType) -> tuple[int, ...]:
        """The shape at these sizes."""
        axes: list[int] = []
        for axis in type_.shape:
            axes += self.groups[axis.name] if isinstance(axis, Group) else (evaluate(axis, self.sizes),)
        return tuple(axes)


class Sampler:
    """Draws samples for one rule."""

    def __init__(self, rule: Substitution) -> None:
        self._rule = rule
        self._roles = _roles(rule)
        self._types = [type_ for node in rule.source.nodes for type_ in node.types]
        self._groups = sorted({a.name for type_ in self._types for a in type_.shape if isinstance(a, Group)})
        nodes = (*rule.source.nodes, *rule.target.nodes)
        self._bounds = [bound for node in nodes for bound in (*legal(node), *fits(node))]

    def draw(self, random: Random, attempts: int) -> Sample | None:
        """A sample that the rule's preconditions and types allow; None if none is found."""
        for _ in range(attempts):
            sizes = {name: random.choice(choices) for name, choices in self._roles.items() if choices is not None}
            numbers = {name: random.choice(_NUMBERS) for name, choices in self._roles.items() if choices is None}
            sample = Sample(sizes, {name: random.choice(_GROUPS) for name in self._groups}, numbers)
            if self._is_allowed(sample):
                return sample
        return None

    def _is_allowed(self, sample: Sample) -> bool:
        try:
            values = [(evaluate(c.value, sample.sizes), c.is_equality) for c in self._rule.preconditions]
            if any(value != 0 if is_equality else value < 0 for value, is_equality in values):
                return False
            if any(evaluate(bound, sample.sizes) < 0 for bound in self._bounds):
                return False
            return all(min(sample.shape(type_), default=1) >= 1 for type_ in self._types)
        except ZeroDivisionError:
            return False


def _roles(rule: Substitution) -> dict[str, tuple[int, ...] | None]:
    """What each symbol is drawn from; None for a real number. Where it has two roles the dimension counts."""
    roles: dict[str, tuple[int, ...] | None] = {}
    nodes = [n for side in (rule.source, rule.target) for n in side.nodes if not isinstance(n.op, Input)]
    for node in nodes:
        roles.update((name, None) for name in number_symbols(node.op))
    for node in nodes:
        for attribute, value in node.op.attributes:
            choices = _CHOICES.get(attribute, _CHOICES["bound"])
            names = attribute_symbols(value) - number_symbols(node.op)
            roles.update(dict.fromkeys(sorted(names), choices))
    for variable in rule.variables:
        shape = variable.types[0].shape
        for place, axis in enumerate(shape):
            if isinstance(axis, Poly):
                is_image = len(shape) == 4 and place >= 2
                for name in sorted(axis.symbols):
                    known = roles.get(name)
                    roles[name] = IMAGES if is_image and known is None else known or DIMENSIONS
    for node in rule.source.nodes:
        if isinstance(node.op, Conv2d):
            kernel = [axis for axis in node.inputs[1].type.shape[2:] if isinstance(axis, Poly)]
            roles.update(dict.fromkeys(sorted(set().union(*(axis.symbols for axis in kernel))), _CHOICES["kernel"]))
    return roles
