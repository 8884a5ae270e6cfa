"""Where matches may start: every rule that fits is tried, and no other kind of rule is looked at."""

from __future__ import annotations

from collections import Counter

import pytest

from taso_py.frontend import import_module
from taso_py.ir.node import Node
from taso_py.models import zoo
from taso_py.ops.table import parse_graph
from taso_py.rules import anchors
from taso_py.rules.anchors import Anchors
from taso_py.rules.database import read_database
from taso_py.rules.embed import may_begin
from taso_py.rules.index import GraphIndex
from taso_py.rules.pattern import Pattern, application, compile_pattern
from taso_py.rules.text import read_rules

OTHERS = """rule a: float[..B] source mul(relu(a), a) target mul(a, relu(a))
rule a: float[..B] source add(tanh(a), a) target add(a, tanh(a))
rule a: float[M], b: float[N], c: float[P]
  source concat(a, b, c){axis=-1} target concat(a, concat(b, c){axis=-1}){axis=-1}
rule a: float[..B], b: float[..B] source add(a, tanh(b)) target add(tanh(b), a)
rule a: float[..B], b: float[..B] source add(a, b) target add(b, a)
"""


def index_of(text: str) -> tuple[GraphIndex, Node]:
    graph = parse_graph(text)
    return GraphIndex(graph), graph.outputs[0].node


def anchors_of(patterns: list[Pattern]) -> Anchors[str]:
    found = Anchors[str]()
    for number, pattern in enumerate(patterns):
        for place in range(len(pattern.operators)):
            found.add(pattern.rule.id, pattern, place, number)
    return found


def readers_are_there(pattern: Pattern, place: int, node: Node, index: GraphIndex) -> bool:
    for wanted, n in zip(pattern.readers[place], (*[n for n, _ in node.inputs], node), strict=True):
        kinds = Counter(type(user.op) for user in index.users[n])
        if any(kinds[kind] < count for kind, count in wanted.counts.items()):
            return False
        if not all(any(outline.fits(application(user)) for user in index.users[n]) for outline in wanted.outlines):
            return False
    return True


@pytest.mark.parametrize("name", ["nasrnn", "gpt2"])
def test_rules_are_those_that_one_finds_by_trying_all_in_their_order(name: str) -> None:
    module, args = zoo.get(name).make(0, small=True)
    index = GraphIndex(import_module(module, args).graph)
    patterns = [compile_pattern(rule) for rule in read_database()[::5]]
    filed = anchors_of(patterns)
    running = [node for node in index.graph.nodes if node.inputs and not node.is_static][:40]
    for node in running:
        tried = [
            (pattern.rule.id, place)
            for pattern in patterns
            for place in range(len(pattern.operators))
            if may_begin(pattern, node, place) and readers_are_there(pattern, place, node, index)
        ]
        assert list(filed.at(node, index)) == tried
    assert any(filed.at(node, index) for node in running)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The operators of rules that are compared with nodes from now on."""
    found = list[int]()

    def counted(pattern: Pattern, node: Node, place: int) -> bool:
        found.append(place)
        return may_begin(pattern, node, place)

    monkeypatch.setattr(anchors, "may_begin", counted)
    return found


def test_what_is_known_of_a_kind_of_nodes_is_forgotten_for_rules_of_that_kind_only(calls: list[int]) -> None:
    *_, join, swapped, plain = [compile_pattern(rule) for rule in read_rules(OTHERS)]
    index, node = index_of("graph(x: f32[4], y: f32[4]) { return add(x, tanh(y)) }")
    filed = anchors_of([plain])
    for pattern, count, known in ((join, 1, 1), (swapped, 3, 2)):
        assert len(filed.at(node, index)) == 1
        root = pattern.outputs[0].number
        filed.add(pattern.rule.id, pattern, root, 1)
        assert len(filed.at(node, index)) == known
        assert len(calls) == count


@pytest.mark.parametrize(
    ("value", "compared"),
    [("mul(x, y)", 0), ("add(x, y)", 1), ("add(x, tanh(y))", 3), ("add(tanh(x), y)", 3), ("concat(x, y){axis=-1}", 0)],
)
def test_only_rules_with_such_operands_are_compared(value: str, compared: int, calls: list[int]) -> None:
    filed = anchors_of([compile_pattern(rule) for rule in read_rules(OTHERS)])
    index, node = index_of(f"graph(x: f32[4], y: f32[4]) {{ return {value} }}")
    for _ in range(2):
        filed.at(node, index)
    assert len(calls) == compared
