"""Lines of models that a rule applies to: the rule's own source, written in PyTorch at sizes that it allows.

Random templates hardly ever produce the source of a rule of several operators. Here a rule is drawn, then sizes and
numbers for its symbols; its variables become values that the model has, weights, or one more argument.

Invariant: the lines compute the source of the rule, unless PyTorch refuses a line; then the rest is left out.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

from fuzz.draft import Draft
from taso_py.backend.lowering import lower
from taso_py.ir.errors import TasoError
from taso_py.ir.graph import topological
from taso_py.ir.node import Value
from taso_py.ir.operator import Constant, Input
from taso_py.ir.types import DType, TensorType
from taso_py.ops.normalization import BatchNorm
from taso_py.rules.apply import concrete_side
from taso_py.rules.database import read_database
from taso_py.rules.substitution import Substitution
from taso_py.rules.verdict import Numerics
from verify.sampling import Sampler, match_at

ATTEMPTS = 40
"""Draws of sizes for a rule."""
_CPU = torch.device("cpu")


class _Name(str):
    """A name in the text of a model; its representation is the name itself, inside lists too."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class _LeftOutError(Exception):
    """PyTorch refused a line."""


@cache
def known_rules() -> tuple[Substitution, ...]:
    """Return the rules whose sources are written: those of the database that are safe for all values."""
    return tuple(rule for rule in read_database() if rule.numerics <= Numerics.RANGE)


@cache
def _sampler(rule: Substitution) -> Sampler:
    return Sampler(rule)


def add_excerpt(draft: Draft) -> None:
    """Add the lines of a rule's source to a draft, unless it is about special values, which few sources fit."""
    if draft.is_special:
        return
    rule = draft.choice(known_rules())
    sample = _sampler(rule).draw(random.Random(draft.integer(0, 1 << 16)), ATTEMPTS)
    if sample is None:
        return
    match = match_at(rule, sample, DType.F32)
    types = {name: value.type for name, value in match.values.items()}
    try:
        outputs = concrete_side(match, rule.source)
    except (TasoError, ValueError, ZeroDivisionError):
        return
    names = {name: _add_integers(draft, types.pop(name), within) for name, within in sample.ranges.items()}
    _write(draft, outputs, names | _bind_variables(draft, types, _variances(outputs)))


def _variances(outputs: Sequence[Value]) -> set[str]:
    """Return the variables that must be positive."""
    norms = [node for node in topological(value.node for value in outputs) if isinstance(node.op, BatchNorm)]
    return {node.inputs[4].node.op.key for node in norms if isinstance(node.inputs[4].node.op, Input)}


def _add_integers(draft: Draft, type_: TensorType, within: range) -> str:
    """Return the name of a further argument, of integers of a range."""
    draft.add_input(f"torch.randint({within.start}, {within.stop}, {type_.sizes}, generator=g)")
    return [*draft.values][-1]


def _bind_variables(draft: Draft, types: Mapping[str, TensorType], positive: set[str]) -> dict[str, str]:
    """Return a name for each variable; the first that may be is computed by the model, or an argument of it."""
    names: dict[str, str] = {}
    for variable, type_ in types.items():
        shape = type_.sizes
        suitable = [n for n, v in draft.values.items() if v.dtype is torch.float32 and tuple(v.shape) == shape]
        if variable not in positive and suitable and draft.chance(2):
            names[variable] = draft.choice(suitable)
        elif variable not in positive and not any(name in draft.values for name in names.values()):
            draft.add_input(f"torch.randn({shape}, generator=g)")
            names[variable] = [*draft.values][-1]
        else:
            names[variable] = draft.weight(shape, positive=variable in positive)
    return names


def _write(draft: Draft, outputs: Sequence[Value], names: Mapping[str, str]) -> None:
    """Write the calls that compute values."""

    def call(overload: OpOverload, *arguments: Any, **keywords: Any) -> _Name:
        given = [*map(repr, arguments), *(f"{name}={_text(value)}" for name, value in keywords.items())]
        if not draft.assign(f"torch.ops.{overload}({', '.join(given)})"):
            raise _LeftOutError
        return _Name([*draft.values][-1])

    known: dict[Value, _Name] = {}
    for node in topological(value.node for value in outputs):
        if isinstance(node.op, Input):
            known[node.value] = _Name(names[node.op.key])
        elif not isinstance(node.op, Constant):
            try:
                results = lower(call, node, [known.get(value) for value in node.inputs], _CPU)
            except _LeftOutError:
                return
            known.update(zip(node.outputs, results, strict=True))


def _text(value: object) -> str:
    return f"torch.device({str(value)!r})" if isinstance(value, torch.device) else repr(value)
