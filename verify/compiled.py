"""Integers and conditions of operators' definitions as Python functions of the indices in scope.

Invariant: only texts of sizes and conditions are compiled, whose names are looked up among the indices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from taso_py.ir.size import Dim
from taso_py.ops.scalar import Condition, Reduce

Index: TypeAlias = tuple[int, ...]
Indices: TypeAlias = Mapping[str, int]
"""Values of the indices in scope, by name."""
_NAME = re.compile(r"[A-Za-z_]\w*")


@lru_cache(maxsize=4096)
def _function(text: str) -> Callable[[Indices], Any]:
    """Return a Python expression as a function of the indices in scope, ``at``; it is called millions of times."""
    return eval(f"lambda at: {text}")


def _expression(value: Dim | Condition) -> str:
    """Return an integer or a condition, whose text is in Python, with its names looked up in ``at``."""
    return _NAME.sub(r"at['\g<0>']", str(value))


def compiled_integer(value: Dim) -> Callable[[Indices], int]:
    """Return an integer expression as a function of the indices in scope."""
    return _function(_expression(value))


def compiled_index(values: Sequence[Dim]) -> Callable[[Indices], Index]:
    """Return a place in a tensor as a function of the indices in scope."""
    return _function("(" + "".join(f"{_expression(value)}, " for value in values) + ")")


def compiled_test(conditions: Sequence[Condition]) -> Callable[[Indices], bool]:
    """Return whether conditions hold, as a function of the indices in scope."""
    return _function(" and ".join(map(_expression, conditions)) or "True")


def compiled_points(reduce: Reduce) -> Callable[[Indices], Iterator[Indices]]:
    """Return the values of the indices within a reduction, as a function of those around it."""
    binders = [(binder.name, compiled_integer(binder.extent)) for binder in reduce.binders]
    holds = compiled_test(reduce.conditions)

    def points(at: Indices) -> Iterator[Indices]:
        environments = [dict(at)]
        for name, extent in binders:
            environments = [{**inner, name: k} for inner in environments for k in range(extent(inner))]
        return filter(holds, environments)

    return points
