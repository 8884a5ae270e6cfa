"""Lemmas of loops over rows: what follows from given rules, and what does not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from taso_py.ir.graph import Graph
from taso_py.ops.table import parse_graph
from taso_py.rules.apply import apply
from taso_py.rules.lemma import Lemmas
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules, write_rules
from taso_py.rules.verdict import Numerics, Outcome
from verify import prove

RELU, LINEAR, JOINED, WHOLE, SUM = RULES = read_rules("""
rule a: float[..A,B,C] source slice(relu(a)){axis=-2, start=D, stop=E} target relu(slice(a){axis=-2, start=D, stop=E})
rule a: float[..A,B,C], b: float[D,C]
  source slice(linear(a, b)){axis=-2, start=E, stop=F} target linear(slice(a){axis=-2, start=E, stop=F}, b)
  numerics REORDER
rule a: float[..A,B,C]
  source concat(slice(a){axis=-2, start=D, stop=E}, slice(a){axis=-2, start=E, stop=F}){axis=-2}
  target slice(a){axis=-2, start=D, stop=F}
rule a: float[..A,B,C] source slice(a){axis=-2, start=0, stop=B} target a
rule a: float[..A,B,C], b: float[..A,B,C]
  source add(slice(a){axis=-2, start=D, stop=E}, slice(b){axis=-2, start=D, stop=E})
  target slice(add(a, b)){axis=-2, start=D, stop=E}
""")


def _rows(*bounds: tuple[int, int], done: str = "relu({})", axis: int = -2) -> Graph:
    """What is done to rows of ``x``, joined."""
    parts = [done.format(f"slice(x){{axis=-2, start={start}, stop={stop}}}") for start, stop in bounds]
    variables = "x: f32[8,8], y: f32[8,8], w: f32[8,8]"
    return parse_graph(f"graph({variables}) {{ return concat({', '.join(parts)}){{axis={axis}}} }}")


def _each(count: int) -> list[tuple[int, int]]:
    return [(row, row + 1) for row in range(count)]


def _lemmas(graph: Graph, rules: Iterable[Substitution] = RULES) -> list[Substitution]:
    return [match.rule for match in Lemmas(rules).matches(graph, set())]


def _target(lemma: Substitution) -> str:
    return lemma.statement.partition("target ")[2]


@pytest.mark.parametrize(
    ("graph", "target"),
    [
        (_rows(*_each(8)), "relu(v0)"),
        (_rows((0, 3), (3, 4), (4, 8)), "relu(v0)"),
        (_rows((1, 2), (2, 4)), "relu(slice(v0){axis=-2, start=1, stop=4})"),
        (_rows(*_each(8), done="linear(relu({}), w)"), "linear(relu(v0), v1)"),
        (_rows(*_each(8), done="add(relu({0}), {0})"), "add(relu(v0), v0)"),
        (_rows(*_each(8), done="{}"), "v0"),
        (_rows((0, 1), (2, 3), (3, 8)), "concat(v0, relu(slice(v1){axis=-2, start=2, stop=8})){axis=-2}"),
    ],
)
def test_slices_that_follow_each_other_are_one(graph: Graph, target: str) -> None:
    (lemma,) = _lemmas(graph)
    assert _target(lemma) == target
    assert prove(lemma).outcome is Outcome.PROVED


@pytest.mark.parametrize(
    "graph",
    [
        _rows((1, 2), (0, 1)),
        _rows((0, 1), (2, 3)),
        _rows((0, 1), (0, 1)),
        _rows((0, 2), (1, 3)),
        _rows((0, 1), (1, 2), axis=-1),
        _rows((0, 1), (1, 2), done="tanh({})"),
        _rows((0, 1), (1, 2), done="linear(w, {})"),
        parse_graph("""graph(x: f32[8,8], y: f32[8,8]) {
          return concat(slice(x){axis=-2, start=0, stop=1}, slice(y){axis=-2, start=1, stop=2}){axis=-2} }"""),
        parse_graph("""graph(x: f32[8,8]) {
          return concat(slice(x){axis=-2, start=0, stop=4, step=2},
            slice(x){axis=-2, start=4, stop=8, step=2}){axis=-2} }"""),
        parse_graph("""graph(x: f32[8,8], v: f32[8,8], w: f32[8,8]) {
          return concat(linear(slice(x){axis=-2, start=0, stop=4}, v),
            linear(slice(x){axis=-2, start=4, stop=8}, w)){axis=-2} }"""),
    ],
)
def test_other_slices_are_not(graph: Graph) -> None:
    assert not _lemmas(graph)


def _used(*bounds: tuple[int, int], done: str = "relu({})", read: str = "x", also: str = "") -> Graph:
    """What is done to rows of a value, each added to another value of its size."""
    parts = [done.format(f"slice({read}){{axis=-2, start={start}, stop={stop}}}") for start, stop in bounds]
    sums = [f"add({part}, y{place})" for place, part in enumerate(parts)]
    others = ", ".join(f"y{place}: f32[{stop - start},8]" for place, (start, stop) in enumerate(bounds))
    return parse_graph(f"graph(x: f32[8,8], w: f32[8,8], {others}) {{ return {', '.join(sums)}{also} }}")


@pytest.mark.parametrize(
    ("graph", "target"),
    [
        (_used(*_each(8)), "t0 = relu(v0); slice(t0){axis=-2, start=0, stop=1}, "),
        (_used(*_each(8)[::-1]), "t0 = relu(v0); slice(t0){axis=-2, start=7, stop=8}, "),
        (_used((0, 1), (1, 3), (2, 4), (4, 5), (7, 8)), "t0 = relu(v0); slice(t0){axis=-2, start=0, stop=1}, "),
        (_used(*_each(5), done="linear({}, w)", read="tanh(x)"), "t0 = linear(v0, v1); slice(t0){axis=-2, start=0"),
        (_used(*_each(5), done="tanh(linear({}, w))"), "t0 = linear(v0, v1); slice(t0){axis=-2, start=0"),
    ],
)
def test_what_is_done_to_many_slices_is_done_once(graph: Graph, target: str) -> None:
    (lemma,) = _lemmas(graph)
    assert _target(lemma).startswith(target)
    assert len(lemma.source.outputs) == len(lemma.target.outputs) >= 5
    assert prove(lemma).outcome is Outcome.PROVED


def test_what_is_done_one_after_the_other_is_a_lemma_each() -> None:
    (match, after) = Lemmas(RULES).matches(_used(*_each(5), done="relu(linear({}, w))"), set())
    assert [_target(one.rule).partition(";")[0] for one in (match, after)] == [
        "t0 = linear(v0, v1)",
        "t0 = relu(linear(v0, v1))",
    ]


@pytest.mark.parametrize(
    "graph",
    [
        _used(*_each(4)),
        _used(*_each(8), done="tanh({})"),
        _used(*_each(8), done="{}"),
        _used(*_each(8), done="relu(tanh({}))"),
        _used(*_each(4), also=", relu(slice(tanh(x)){axis=-2, start=4, stop=5})"),
        _used(*_each(4), also=", relu(slice(x){axis=-1, start=4, stop=5})"),
        _used(*_each(4), also=", linear(slice(x){axis=-2, start=4, stop=5}, w)"),
    ],
)
def test_what_is_done_to_few_or_differs_is_left_to_other_rules(graph: Graph) -> None:
    assert not _lemmas(graph)


def test_slices_that_stay_what_they_are_do_not_follow() -> None:
    graph = _used(*_each(8))
    (match,) = Lemmas(RULES).matches(graph, set())
    assert len(match.outputs) == 8
    assert Lemmas(match.bases).bases(match.rule) == list(match.bases)
    outputs = match.rule.target.outputs
    for wrong in (match.rule.source.outputs, outputs[::-1], (*outputs[:-1], outputs[0])):
        assert not Lemmas(RULES).bases(replace(match.rule, target=Graph(match.rule.source.inputs, wrong)))
    views = parse_graph("""graph(v0: f32[2,8]) {
      return slice(v0){axis=-2, start=0, stop=1}, slice(v0){axis=-2, start=1, stop=2} }""")
    assert not Lemmas(RULES).target(views)


def test_a_lemma_has_the_numerics_of_the_rules_that_it_follows_from() -> None:
    assert [_lemmas(_rows(*_each(2), done=done))[0].numerics for done in ("relu({})", "linear({}, w)")] == [
        Numerics.EXACT,
        Numerics.REORDER,
    ]


def test_rules_that_may_overflow_are_not_reversed() -> None:
    assert not _lemmas(_rows(*_each(8)), [replace(RELU, numerics=Numerics.RANGE), JOINED, WHOLE])


def test_a_lemma_follows_from_its_rules_in_any_order_and_no_others() -> None:
    graph = _rows(*_each(8), done="add(relu({0}), {0})")
    (match,) = Lemmas(RULES).matches(graph, set())
    assert {rule.id for rule in match.bases} == {rule.id for rule in (RELU, JOINED, WHOLE, SUM)}
    (lemma,) = read_rules(write_rules([match.rule]))
    assert lemma == match.rule
    assert Lemmas(match.bases).bases(lemma) == Lemmas(RULES[::-1]).bases(lemma) == list(match.bases)
    for rule in match.bases:
        assert not Lemmas([other for other in RULES if other is not rule]).bases(lemma)


def test_what_is_said_of_other_rows_does_not_follow() -> None:
    (lemma,) = _lemmas(_rows(*_each(8)))
    wrong = replace(lemma, target=lemma.source)
    assert Lemmas(RULES).bases(lemma)
    assert not Lemmas(RULES).bases(wrong)
    assert not Lemmas(RULES).bases(replace(lemma, numerics=Numerics.REORDER))


def test_a_lemma_applies_where_it_was_found() -> None:
    graph = parse_graph("""graph(x: f32[2,4,8], y: f32[2,4,8]) {
      t = tanh(x)
      return mul(y, concat(relu(slice(t){axis=-2, start=0, stop=3}), relu(slice(t){axis=-2, start=3, stop=4})){axis=-2})
    }""")
    (match,) = Lemmas(RULES).matches(graph, set())
    assert apply(graph, match) == parse_graph("graph(x: f32[2,4,8], y: f32[2,4,8]) { return mul(y, relu(tanh(x))) }")


@pytest.mark.parametrize("count", range(3, 7))
def test_concatenation_is_associative(count: int) -> None:
    """Lemmas take it for granted."""
    variables = ", ".join(f"x{place}: float[..A,X{place},C]" for place in range(count))
    names = [f"x{place}" for place in range(count)]
    for place in range(count - 1):
        parts = [*names[:place], f"concat({names[place]}, {names[place + 1]}){{axis=-2}}", *names[place + 2 :]]
        source, target = (f"concat({', '.join(each)}){{axis=-2}}" for each in (names, parts))
        (rule,) = read_rules(f"rule {variables} source {source} target {target}")
        assert prove(rule).outcome is Outcome.PROVED


def test_an_operand_that_is_read_twice_is_one() -> None:
    """Attention whose values are its keys reads these twice."""
    rules = read_rules("""
    rule a: float[..A,B,C], b: float[..A,D,C], c: float[..A,D,E]
      source slice(attention(a, b, c)){axis=-2, start=F, stop=G}
      target attention(slice(a){axis=-2, start=F, stop=G}, b, c)
      numerics REORDER
    """)
    text = "graph(q: f32[2,12,8], k: f32[2,12,8]) {{ return concat({}){{axis=-2}} }}"
    parts = [f"attention(slice(q){{axis=-2, start={i}, stop={i + 2}}}, k, k)" for i in range(0, 12, 2)]
    graph = parse_graph(text.format(", ".join(parts)))
    (match,) = Lemmas([*rules, JOINED, WHOLE]).matches(graph, set())
    assert apply(graph, match) == parse_graph(text.replace("concat({}){{axis=-2}}", "attention(q, k, k)").format())
