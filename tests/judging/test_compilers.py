"""Which compilers are built: those that may still win after all else was raced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from taso_py.cost.model import CostModel
from taso_py.engines.engine import Engine
from taso_py.engines.table import ENGINES
from taso_py.ir.graph import Graph
from taso_py.judging import compilers
from taso_py.judging.compilers import leading, promising, without_waiting
from taso_py.judging.finalists import ORIGINAL, EngineSearch, Finalist
from taso_py.judging.plausible import library_seconds
from taso_py.judging.timing import Race, RaceStop
from taso_py.ops.table import parse_graph
from taso_py.search.result import Candidate, SearchResult, SearchStop

PRODUCTS = """graph(x: f32[1,4,64,64]) {
  y = relu(matmul(x, x))
  return attention(y, y, y){scale=0.125}
}"""
EAGER, OTHER, COMPILER = ENGINES["eager"], ENGINES["openvino"], ENGINES["inductor-kernels"]


def _library_seconds(graph: Graph) -> float:
    """Libraries take one second for each; the relu, which a compiler may fuse, takes eight."""
    cost = SimpleNamespace(node_cost=lambda node: 8.0 if node.op.name == "relu" else 1.0)
    return library_seconds(graph, cast(CostModel, cost))


def _found(estimate_s: float, *engines: Engine) -> EngineSearch:
    graph = parse_graph(PRODUCTS)
    original = Candidate(graph, graph, estimate_s, 0)
    return EngineSearch(SearchResult(original, (original,), SearchStop.EXHAUSTED, 1, 1, 0.0), engines)


def _promising(found: EngineSearch, seconds: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """Return the names of compilers that may still win after a race, and the notes on the others."""
    (now, other), waiting = without_waiting([found, _found(1.0, OTHER)])
    assert [*now.engines, *other.engines] == [EAGER, OTHER]
    assert [engine for one in waiting for engine in one.engines] == [COMPILER]
    engines = {ORIGINAL: EAGER, "eager": EAGER, "other": OTHER}
    candidate, unused = found.result.original, cast(Any, None)
    finalists = {name: Finalist(name, candidate, unused, unused, engines[name], unused, unused) for name in engines}
    race = Race({name: (each,) * 10 for name, each in seconds.items()}, RaceStop.ROUNDS)
    kept, notes = promising(waiting, finalists, race, _library_seconds)
    return [engine.name for one in kept for engine in one.engines], [*notes]


@pytest.mark.parametrize(
    ("eager_s", "other_s", "is_tried"),
    [
        (10.0, 1.9, False),  # libraries alone take two seconds
        (10.0, 2.1, True),
        (12.0, 2.1, False),  # all takes longer in the run than estimated, and so do they
        (100.0, 4.1, True),  # so far off that other work must have no price
        (5.0, 1.1, True),
        (10.0, 20.0, True),
    ],
)
def test_a_compiler_is_tried_unless_libraries_alone_take_longer_than_another_engine(
    eager_s: float, other_s: float, is_tried: bool
) -> None:
    seconds = {ORIGINAL: 30.0, "eager": eager_s, "other": other_s}
    names, notes = _promising(_found(10.0, EAGER, COMPILER), seconds)
    assert (names, bool(notes)) == (["inductor-kernels"] * is_tried, not is_tried)
    assert all("attention alone take longer there than the whole model in openvino" in note for note in notes)


def test_the_time_to_call_operators_from_python_is_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler does not call them one by one."""
    seconds = {ORIGINAL: 30.0, "eager": 10.0, "other": 1.9}
    assert not _promising(_found(10.0, EAGER, COMPILER), seconds)[0]
    monkeypatch.setattr(compilers, "PYTHON_S", 1.0)
    assert _promising(_found(10.0, EAGER, COMPILER), seconds)[0]


@pytest.mark.parametrize(("rewritten_s", "is_rewritten"), [(1.0, True), (3.0, False)])
def test_a_compiler_is_given_the_graph_that_is_the_fastest_without_it(rewritten_s: float, is_rewritten: bool) -> None:
    found, unused = _found(10.0, COMPILER), cast(Any, None)
    unchanged = found.result.original
    rewritten = replace(unchanged, applied=("a rule",))
    found = replace(found, result=replace(found.result, candidates=(rewritten, unchanged)))
    made = {ORIGINAL: (unchanged, EAGER), "unchanged": (unchanged, EAGER), "rules": (rewritten, EAGER)}
    made |= {"elsewhere": (replace(rewritten, applied=("another",)), OTHER)}
    finalists = {
        name: Finalist(name, one, unused, unused, engine, unused, unused) for name, (one, engine) in made.items()
    }
    seconds = {ORIGINAL: 4.0, "unchanged": 2.0, "rules": rewritten_s, "elsewhere": 0.5}
    race = Race({name: (each,) * 10 for name, each in seconds.items()}, RaceStop.ROUNDS)
    assert leading(found, finalists, race) == (rewritten if is_rewritten else unchanged)
    alone = Race({ORIGINAL: (4.0,), "elsewhere": (0.5,)}, RaceStop.TIME)
    assert leading(found, finalists, alone) == unchanged


def test_nothing_waits_where_its_graphs_are_not_raced_in_eager_mode() -> None:
    searches = [_found(1.0, COMPILER), _found(1.0, OTHER)]
    assert without_waiting(searches) == (searches, [])
