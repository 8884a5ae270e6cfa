"""A second opinion: whether a rule follows from other proved rules by first-order logic alone.

Operators are uninterpreted functions of tensors and integers, and other rules that the index prover proved are
quantified axioms about them; Z3 is asked for the goal (Jia et al., TASO, SOSP 2019, section 3). The operators'
definitions are not used, so that this shares no reasoning with the proof by indices. Only axioms are given whose
operators all occur in the goal: with others, Z3 does not terminate in time.

An axiom holds for tensors of its shapes, under the assumptions of its proof. Shapes are uninterpreted too: ``size(t,
axis)``, and ``lead(t, n)`` for the axes before the last ``n``. Every axiom states the shapes of its values, so that
others can follow.

Invariant: an opinion is never a proof. AGREES means that the goal follows from the axioms; SILENT means nothing, since
quantified formulas are never shown to be satisfiable, only given up.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, TypeAlias

import z3

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import AttributeValue, Input
from taso_py.ir.size import Dim, FloorDiv, Poly, symbol, terms
from taso_py.ir.types import Group
from taso_py.rules.database import read_database
from taso_py.rules.substitution import Substitution, attribute_symbols, canonical, key
from verify.hypotheses import assumptions, reachable_nodes, without_equalities
from verify.laws import ProofLevel
from verify.prover import equal_at

STEPS = 2_000_000
"""Z3's own step limit for one goal; about a second."""
_MOST_OPERATORS = 4
"""Most operators of a side of an axiom."""

_Expression: TypeAlias = Any
_Sizes: TypeAlias = Mapping[str, _Expression]
_CONTEXT = z3.Context()
_TENSOR = z3.DeclareSort("Tensor", _CONTEXT)
_LEAD = z3.DeclareSort("Lead", _CONTEXT)
_INT = z3.IntSort(_CONTEXT)
_size = z3.Function("size", _TENSOR, _INT, _INT)
_lead = z3.Function("lead", _TENSOR, _INT, _LEAD)
_one_more = z3.Function("one_more", _LEAD, _INT, _LEAD)
_none = z3.Const("none", _LEAD)
_quotient = z3.Function("quotient", _INT, _INT, _INT)


class Opinion(enum.Enum):
    """Result of asking whether a rule follows from the axioms."""

    AGREES = "agrees"
    SILENT = "silent"


@dataclass(frozen=True)
class SecondOpinion:
    """The opinion on one rule."""

    opinion: Opinion
    axioms: int
    """Number of axioms about its operators."""


def second_opinion(rule: Substitution, axioms: Sequence[Substitution], steps: int = STEPS) -> SecondOpinion:
    """Return whether a rule follows from axioms; it is not itself used as one, in either direction.

    Raises:
        Refused: its preconditions contradict its shapes.
    """
    own = {canonical(rule).statement, *(canonical(other).statement for other in _reverse_direction(rule))}
    rule = without_equalities(rule)
    names = _operators(rule)
    others = (axiom for axiom in axioms if not axiom.signs)  # which the terms do not show
    usable = [axiom for axiom in others if _operators(axiom) <= names and canonical(axiom).statement not in own]
    solver = z3.SimpleSolver(ctx=_CONTEXT)
    solver.set("auto_config", False)
    solver.set("mbqi", False)
    solver.set("rlimit", steps)
    solver.add(*_commutative(rule), *(formula for axiom in usable for formula in _axiom(axiom)))
    solver.add(*_negated_goal(rule))
    is_consequence = solver.check() == z3.unsat
    return SecondOpinion(Opinion.AGREES if is_consequence else Opinion.SILENT, len(usable))


def shipped_axioms(rule: Substitution) -> Sequence[Substitution]:
    """Return the small rules of the shipped database with operators of a rule only, each proved again by indices."""
    names = _operators(rule)
    return [axiom for axiom in _small_rules() if _operators(axiom) <= names and _is_proved(axiom)]


@lru_cache(maxsize=1)
def _small_rules() -> Sequence[Substitution]:
    return [without_equalities(rule) for rule in read_database() if max(rule.size) <= _MOST_OPERATORS]


@cache
def _is_proved(rule: Substitution) -> bool:
    return isinstance(equal_at(rule), ProofLevel)


def _reverse_direction(rule: Substitution) -> list[Substitution]:
    is_bound = _symbols(rule.target) >= _symbols(rule.source)
    computes = not any(isinstance(value.node.op, Input) for value in rule.target.outputs)
    return [rule.reversed] if is_bound and computes else []


def _operators(rule: Substitution) -> frozenset[str]:
    nodes = (*reachable_nodes(rule.source), *reachable_nodes(rule.target))
    return frozenset(_function_name(node) for node in nodes if not isinstance(node.op, Input))


def _function_name(node: Node) -> str:
    """Return a name for the operator with those of its attributes that are not integers."""
    fixed = [f"{name}={value}" for name, value in node.op.attributes if not _integers(value)]
    return " ".join([node.op.name, node.op.__class__.__name__, str(len(node.inputs)), *fixed])


def _integers(value: AttributeValue) -> list[Dim]:
    """Return the integers of an attribute that consists of integers; empty for any other."""
    if isinstance(value, Poly) or (isinstance(value, int) and not isinstance(value, bool)):
        return [value]
    if isinstance(value, tuple):
        parts = [_integers(item) for item in value]
        return [i for part in parts for i in part] if all(parts) else []
    return []


# -- terms

_Attribute: TypeAlias = Callable[[Dim], _Expression]
"""Converts an integer of an attribute to an expression."""


def _integer(value: Dim, sizes: _Sizes) -> _Expression:
    total: _Expression = z3.IntVal(0, _CONTEXT)
    for monomial, coefficient in terms(value):
        product: _Expression = z3.IntVal(coefficient, _CONTEXT)
        for atom in monomial:
            product = product * (_division(atom, sizes) if isinstance(atom, FloorDiv) else sizes[str(atom)])
        total = total + product
    return z3.simplify(total)


def _division(atom: FloorDiv, sizes: _Sizes) -> _Expression:
    return _quotient(_integer(atom.numerator, sizes), _integer(atom.denominator, sizes))


def _side_terms(graph: Graph, variables: Mapping[str, _Expression], write: _Attribute) -> dict[Value, _Expression]:
    """Return every value of a side as a term."""
    written: dict[Value, _Expression] = {}
    for node in reachable_nodes(graph):
        if isinstance(node.op, Input):
            written[node.value] = variables[key(node)]
            continue
        integers = [write(i) for _, value in node.op.attributes for i in _integers(value)]
        sorts = [*[_TENSOR] * len(node.inputs), *[_INT] * len(integers), _TENSOR]
        function = z3.Function(f"{_function_name(node)} {len(integers)}", *sorts)
        written[node.value] = function(*(written[value] for value in node.inputs), *integers)
    return written


def _shapes(written: Mapping[Value, _Expression], sizes: _Sizes) -> Iterator[_Expression]:
    """Yield the statements of the types about the sizes of terms."""
    for value, term in written.items():
        shape = value.type.shape
        has_group = bool(shape) and isinstance(shape[0], Group)
        lead = sizes[f"..{shape[0].name}"] if has_group and isinstance(shape[0], Group) else _none
        plain = [axis for axis in shape if not isinstance(axis, Group)]
        if len(plain) + has_group != len(shape):
            continue  # a group in the middle: no statement
        yield _lead(term, len(plain)) == lead
        for place, axis in enumerate(plain):
            extent = _integer(axis, sizes)
            lead = _one_more(lead, extent)
            yield _lead(term, len(plain) - place - 1) == lead
            yield _size(term, len(plain) - place) == extent


# -- axioms and goal


def _axiom(rule: Substitution) -> Iterator[_Expression]:
    for side, other in ((rule.source, rule.target), (rule.target, rule.source)):
        if _symbols(side) >= _symbols(other) and not any(isinstance(v.node.op, Input) for v in side.outputs):
            yield from _implication(rule, side, other)


def _symbols(side: Graph) -> set[str]:
    """Return the variables, sizes and groups of a side."""
    found: set[str] = set()
    for node in reachable_nodes(side):
        if isinstance(node.op, Input):
            groups = {f"..{axis.name}" for axis in node.op.type.shape if isinstance(axis, Group)}
            found |= {f"variable {node.op.key}"} | groups | node.op.type.symbols
        else:
            found |= set().union(*(attribute_symbols(value) for _, value in node.op.attributes))
    return found


def _implication(rule: Substitution, side: Graph, other: Graph) -> Iterator[_Expression]:
    """Yield the axiom that a match of one side is equal to the other, if sizes and preconditions fit."""
    nodes = [node for node in reachable_nodes(side) if isinstance(node.op, Input)]
    variables = {key(node): z3.Const(f"v {key(node)}", _TENSOR) for node in nodes}
    sizes = _sizes_read(nodes, variables)
    bound: list[_Expression] = list(variables.values())
    places: list[tuple[_Expression, Dim]] = []

    def found(value: Dim) -> _Expression:
        if isinstance(value, int):
            return z3.IntVal(value, _CONTEXT)
        place = z3.Int(f"a {len(places)}", _CONTEXT)
        places.append((place, value))
        return place

    left = _side_terms(side, variables, found)
    for place, value in places:
        bound.append(place)
        if len(value.symbols if isinstance(value, Poly) else ()) == 1 and value == symbol(str(value)):
            sizes.setdefault(str(value), place)
    if not _symbols(side) <= {*sizes, *(f"variable {name}" for name in variables)}:
        return  # a size that occurs in sums and products only
    right = _side_terms(other, variables, lambda value: _integer(value, sizes))
    fits = [place == _integer(value, sizes) for place, value in places]
    fits += _shapes({node.value: variables[key(node)] for node in nodes}, sizes)
    fits += _assumptions(rule, sizes)
    equal = [left[a] == right[b] for a, b in zip(side.outputs, other.outputs, strict=True)]
    body = z3.Implies(z3.And(*fits), z3.And(*equal, *_shapes(right, sizes), *_shapes(left, sizes)))
    outputs = [left[value] for value in dict.fromkeys(side.outputs)]
    yield z3.ForAll(bound, body, patterns=[z3.MultiPattern(*outputs)])


def _assumptions(rule: Substitution, sizes: _Sizes) -> Iterator[_Expression]:
    """Yield the assumptions on sizes under which the index prover proves the rule."""
    context = assumptions(rule)
    yield from (sizes[name] >= least for name, least in context.lower.items() if not name.startswith(".."))
    yield from (_integer(fact, sizes) >= 0 for fact in context.facts)


def _sizes_read(nodes: Iterable[Node], variables: Mapping[str, _Expression]) -> dict[str, _Expression]:
    """Return an expression for each size that is an axis of a variable, and for each group."""
    sizes: dict[str, _Expression] = {}
    for node in nodes:
        shape = node.types[0].shape
        for place, axis in enumerate(shape):
            if isinstance(axis, Group):
                sizes.setdefault(f"..{axis.name}", _lead(variables[key(node)], len(shape) - 1))
            elif isinstance(axis, Poly) and axis == symbol(str(axis)):
                sizes.setdefault(str(axis), _size(variables[key(node)], len(shape) - place))
    return sizes


def _commutative(rule: Substitution) -> Iterator[_Expression]:
    a, b = z3.Consts("a b", _TENSOR)
    nodes = {
        _function_name(n): n for side in (rule.source, rule.target) for n in reachable_nodes(side) if n.op.commutative
    }
    for name in nodes:
        function = z3.Function(f"{name} 0", _TENSOR, _TENSOR, _TENSOR)
        yield z3.ForAll([a, b], function(a, b) == function(b, a), patterns=[z3.MultiPattern(function(a, b))])


def _negated_goal(rule: Substitution) -> Iterator[_Expression]:
    """Yield the goal's shapes and assumptions, and that its sides differ."""
    names = _symbols(rule.source)
    sizes: dict[str, _Expression] = {}
    for name in sorted(name for name in names if not name.startswith("variable ")):
        sizes[name] = z3.Const(f"g {name}", _LEAD) if name.startswith("..") else z3.Int(f"g {name}", _CONTEXT)
    variables = {key(node): z3.Const(f"x {key(node)}", _TENSOR) for node in rule.variables}
    sides = [_side_terms(side, variables, lambda value: _integer(value, sizes)) for side in (rule.source, rule.target)]
    for written in sides:
        yield from _shapes(written, sizes)
    yield from _assumptions(rule, sizes)
    pairs = zip(rule.source.outputs, rule.target.outputs, strict=True)
    yield z3.Not(z3.And(*(sides[0][a] == sides[1][b] for a, b in pairs)))
