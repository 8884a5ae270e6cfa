"""The number of terms at each level is that of brute force, exactly."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from taso_py.generate.enumerate import enumerate_terms
from taso_py.generate.fingerprint import samples
from taso_py.generate.vocabulary import DATA, Family, Production, Variables
from taso_py.ir.errors import ShapeError
from taso_py.ir.graph import Graph
from taso_py.ir.node import Value, make
from taso_py.ir.operator import Input
from taso_py.ir.types import DType, TensorType
from taso_py.ops.elementwise import Add, Relu, Sub
from taso_py.ops.evaluate import Domain, evaluate_graph
from taso_py.ops.movement import Concat

REDUCED = Family(
    "reduced",
    (Variables("x", (2,), DATA, 2),),
    (Production(Relu(), "d"), Production(Add(), ".."), Production(Sub(), ".."), Production(Concat(-1), "..")),
    operators=3,
    every=True,
)
VARIABLES = [make(Input(name, TensorType(DType.FLOAT, (2,)))).value for name in ("x1", "x2")]


def _brute_force(
    operators: int, *, is_large: bool = False, every_name: bool = False
) -> list[dict[Value, frozenset[Value]]]:
    """All terms with their operator instances, by number of instances; nothing is built upon what is always zero.

    Of the last level, of a large family of the last two, those that read the second variable alone are renamings, and
    are left out.
    """
    levels: list[dict[Value, frozenset[Value]]] = [{value: frozenset() for value in VARIABLES}]
    for level in range(1, operators + 1):
        below = {value: own for known in levels for value, own in known.items() if not _is_zero(value)}
        found: dict[Value, frozenset[Value]] = {}
        for production in REDUCED.productions:
            for operands in itertools.product(below, repeat=production.arity):
                instances = frozenset[Value]().union(*(below[operand] for operand in operands))
                if len(instances) != level - 1:
                    continue
                try:
                    term = make(production.at([value.type for value in operands]), operands).value
                except ShapeError:
                    continue
                if every_name or level < operators - is_large or _reads_first(term):
                    found[term] = instances | {term}
        levels.append(found)
    return levels


def _is_zero(value: Value) -> bool:
    inputs = tuple(node for node in Graph((), (value,)).nodes if isinstance(node.op, Input))
    arrays: Mapping[str, np.ndarray] = {f"x{n}": samples(5, f"x{n}", (2,), count=8) for n in (1, 2)}
    return not evaluate_graph(Graph(inputs, (value,)), arrays, Domain.EXACT)[0].any()


def _reads_first(value: Value) -> bool:
    """Whether it reads the first variable; a term that does not is a renaming of one that does."""
    inputs = {node for node in Graph((), (value,)).nodes if isinstance(node.op, Input)}
    return inputs != {VARIABLES[1].node}


@pytest.mark.parametrize("operators", [1, 2, 3])
@pytest.mark.parametrize("is_large", [False, True])
def test_counts_agree_with_brute_force(operators: int, is_large: bool) -> None:
    wanted = [len(terms) for terms in _brute_force(operators, is_large=is_large)[1:]]
    family = replace(REDUCED, operators=operators, equal=0 if is_large else None)
    assert enumerate_terms(family, 0).counts == wanted
    assert wanted[-1] > 5


@pytest.mark.parametrize("operators", [1, 2, 3])
def test_what_is_not_built_is_a_renaming(operators: int) -> None:
    every, some = (_brute_force(operators, is_large=True, every_name=every)[-1] for every in (True, False))
    assert len(every) > len(some)
    assert {min(_named(term), _named(term, swap=True)) for term in every} == {
        min(_named(term), _named(term, swap=True)) for term in some
    }


def _named(value: Value, *, swap: bool = False) -> str:
    """A term as text in which the operands of commutative operators are in order; the variables may be swapped."""
    node = value.node
    if isinstance(node.op, Input):
        return {"x1": "x2", "x2": "x1"}[node.op.key] if swap else node.op.key
    operands = [_named(operand, swap=swap) for operand in node.inputs]
    return f"{node.op.text}({','.join(sorted(operands) if node.op.commutative else operands)})"


def test_representatives_lose_no_function() -> None:
    """What is built upon one term of each class computes all that is built upon every term."""
    every, one = (enumerate_terms(replace(REDUCED, every=every, operators=3), 0) for every in (True, False))
    below = [{key for key, members in found.classes.items() if found.terms.rows[members[0]].size < 3}
             for found in (every, one)]  # fmt: skip
    assert below[0] == below[1]
    assert every.counts[1] > one.counts[1] * 0.9
    assert every.counts[2] > one.counts[2]
