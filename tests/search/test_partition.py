"""Partitions: large graphs are searched region by region, and the whole says what was done."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from taso_py.ir.graph import Graph
from taso_py.ir.node import Value
from taso_py.ops.table import parse_graph
from taso_py.rules.match import Matcher
from taso_py.rules.text import read_rules
from taso_py.search import finalists, partition
from taso_py.search.backtracking import Backtracking, search
from taso_py.search.compose import Composition
from taso_py.search.cost import Cost, static_bytes
from taso_py.search.partition import Partition
from taso_py.search.region import cut
from taso_py.search.result import Candidate, Limits, Progress, ProgressCallback, SearchResult, SearchStop
from taso_py.search.space import Space
from taso_py.search.trace import replay
from tests.search.examples import FakeCost, Latency, blocks, read

COST = FakeCost()
RULES = read("merge", "slices", "factor", "idempotent")


def divided(graph: Graph, limits: Limits | None = None, seen: list[Progress] | None = None) -> SearchResult:
    report = seen.append if seen is not None else None
    return Partition(graph, Matcher(RULES), COST, limits or Limits(), report, Backtracking).run()


def operators(graph: Graph) -> Counter[str]:
    return Counter(node.op.name for node in graph.nodes if node.inputs and not node.is_static)


def test_regions_together_are_as_good_as_the_whole() -> None:
    graph = blocks(3)
    apart, whole = divided(graph), Backtracking(graph, RULES, COST, Limits()).run()
    assert apart.best.seconds == pytest.approx(whole.best.seconds)
    assert operators(apart.best.graph) == operators(whole.best.graph)
    assert apart.stop_reason is SearchStop.EXHAUSTED


def test_repeated_blocks_are_searched_once() -> None:
    few, many = divided(blocks(4)), divided(blocks(12))
    assert operators(many.best.graph)["matmul"] == 12
    assert many.built < 2 * few.built


def test_repeated_blocks_are_searched_one_by_one_where_nothing_is_reused() -> None:
    reused, apart = divided(blocks(12)), divided(blocks(12), Limits(reuse=False))
    assert apart.best.seconds == pytest.approx(reused.best.seconds)
    assert apart.built > 2 * reused.built


def test_traces_are_of_the_whole() -> None:
    graph = blocks(5)
    result = divided(graph)
    assert len(result.candidates) > 1
    for candidate in result.candidates:
        assert replay(graph, candidate.trace) == candidate.graph
        assert candidate.seconds == pytest.approx(COST.graph_cost(candidate.graph))
        assert candidate.static_bytes == static_bytes(COST, candidate.graph)


def test_weights_that_blocks_share_are_merged_in_the_same_way() -> None:
    result = divided(blocks(6, shared=True))
    assert operators(result.best.graph)["matmul"] == 6
    assert result.best.static_bytes == result.original.static_bytes


def test_results_without_one_rule_or_another_are_among_the_candidates() -> None:
    result = divided(blocks(4))
    used = [frozenset(candidate.trace.applied) for candidate in result.candidates]
    rules = [rule.id for rule in read("merge", "idempotent")]
    assert frozenset(rules) <= used[0]
    assert any(rules[0] not in some and rules[1] in some for some in used)
    assert any(rules[1] not in some and rules[0] in some for some in used)


def test_wholes_that_promise_nothing_new_are_not_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Composition] = []

    def composed(*arguments: Any) -> Composition:
        made.append(Composition(*arguments))
        return made[-1]

    def found(kind: partition._Kind, *_: object) -> list[Candidate]:
        """Each without one rule or another, of which wholes were put together before; other ones by rounding alone."""
        known = kind.found.candidates if kind.found else ()
        return [replace(one, seconds=one.seconds * (1 + 1e-12)) for one in known if one.applied]

    monkeypatch.setattr(partition, "Composition", composed)
    usual, needed = divided(blocks(4)), len(made)
    monkeypatch.setattr(partition._Kind, "others", found)
    again = divided(blocks(4))
    assert len(made) == 2 * needed
    assert [one.graph for one in again.candidates] == [one.graph for one in usual.candidates]


def test_what_crosses_a_cut_is_found_in_the_second_pass() -> None:
    rule = read_rules("rule a: float[..B] source tanh(exp(a)) target sigmoid(a)")
    chain = parse_graph(f"graph(x: f32[4]) {{ return {'tanh(exp(' * 60}x{'))' * 60} }}")
    result = Partition(chain, Matcher(rule), COST, Limits(), None, Backtracking).run()
    assert operators(result.best.graph) == {"sigmoid": 60}


def test_the_second_pass_cuts_elsewhere_though_the_first_found_nothing() -> None:
    def chain(operators: list[str]) -> Graph:
        text = "x"
        for operator in operators:
            text = f"{operator}({text})"
        return parse_graph(f"graph(x: f32[4]) {{ return {text} }}")

    names = ["relu"] * 120
    plain = chain(names)
    seam = cut(plain, frozenset())[0].outputs[0].node
    depth = plain.nodes.index(seam)
    names[depth - 1], names[depth] = "exp", "tanh"
    rule = read_rules("rule a: float[..B] source tanh(exp(a)) target sigmoid(a)")
    result = Partition(chain(names), Matcher(rule), COST, Limits(), None, Backtracking).run()
    assert operators(result.best.graph) == {"relu": 118, "sigmoid": 1}


def test_limits_hold_for_the_whole() -> None:
    result = divided(blocks(4), Limits(budget=12))
    assert result.built <= 12
    assert result.stop_reason is SearchStop.BUDGET
    assert result.best.seconds < result.original.seconds


def test_progress_is_of_the_whole() -> None:
    seen: list[Progress] = []
    result = divided(blocks(4), seen=seen)
    assert [progress.built for progress in seen] == list(range(1, result.built + 1))
    assert {progress.original_seconds for progress in seen} == {result.original.seconds}
    best = [progress.best_seconds for progress in seen]
    assert best == sorted(best, reverse=True)


def test_an_interrupt_ends_all_regions() -> None:
    def interrupt(progress: Progress) -> None:
        if progress.built == 4:
            raise KeyboardInterrupt

    graph = blocks(8)
    result = search(graph, RULES, COST, report=interrupt)
    assert (result.stop_reason, result.built) == (SearchStop.INTERRUPTED, 4)
    assert result.best.seconds < result.original.seconds
    assert replay(graph, result.best.trace) == result.best.graph


def test_no_further_wholes_are_put_together_once_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    times, compose = [0.0], Partition._compose

    def slow(*arguments: Any) -> Any:
        times.append(times[-1] + 100.0)
        return compose(*arguments)

    monkeypatch.setattr(Partition, "_compose", slow)
    for seconds, stop in ((50.0, SearchStop.TIME), (1e6, SearchStop.EXHAUSTED)):
        times[1:] = []
        limits = Limits(seconds=seconds, now=lambda: times[-1])
        result = Partition(blocks(4), Matcher(RULES), COST, limits, None, Backtracking).run()
        assert result.stop_reason is stop
        assert result.best.seconds < result.original.seconds
        assert (len(times) == 2) == (stop is SearchStop.TIME)


@pytest.mark.parametrize("wholes", [0, 1])
def test_an_interrupt_while_a_whole_is_put_together_leaves_those_before(
    wholes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, compose = [wholes], Partition._compose

    def interrupted(*arguments: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return compose(*arguments)

    monkeypatch.setattr(Partition, "_compose", interrupted)
    result = divided(blocks(4))
    assert result.stop_reason is SearchStop.INTERRUPTED
    assert (result.best.seconds < result.original.seconds) == bool(wholes)


def test_effects_stay_in_order_between_regions() -> None:
    block = "relu(relu(exp(tanh(relu(relu(exp(tanh({}))))))))"
    effect = '{} = opaque#{}({}){{target="aten.rand_like.default", arguments=[$0], types=[f32[2]], is_pure=false}}'
    graph = parse_graph(
        f"""graph(x: f32[2]) {{
          a = {block.format("x")}
          {effect.format("r", 0, "a")}
          b = {block.format("r")}
          {effect.format("s", 1, "b")}
          c = {block.format("s")}
          effects r, s
          return c
        }}"""
    )
    result = divided(graph)
    assert operators(result.best.graph)["relu"] == 6
    assert [node.token for node in result.best.graph.effects] == [0, 1]
    assert replay(graph, result.best.trace) == result.best.graph


def shared(share: Mapping[str, float], limits: Limits) -> SearchResult:
    """A search in which no region gets more than a share."""

    def strategy(
        graph: Graph, matcher: Matcher, cost: Cost, limits: Limits, report: ProgressCallback | None
    ) -> Backtracking:
        least = {name: min(getattr(limits, name), most) for name, most in share.items()}
        return Backtracking(graph, matcher, cost, replace(limits, **least), report)

    return Partition(blocks(12), Matcher(RULES), COST, limits, None, strategy).run()


@pytest.mark.parametrize(("budget", "stop"), [(10_000, SearchStop.STALLED), (20, SearchStop.BUDGET)])
def test_a_region_that_used_up_its_share_is_not_the_end_of_the_budget(budget: int, stop: SearchStop) -> None:
    result = shared({"budget": 5}, Limits(budget=budget, reuse=False))
    assert result.stop_reason is stop
    assert (result.built == budget) == (stop is SearchStop.BUDGET)


@pytest.mark.parametrize(("seconds", "stop"), [(10_000.0, SearchStop.STALLED), (100.0, SearchStop.TIME)])
def test_a_region_that_used_up_its_share_is_not_the_end_of_the_time(seconds: float, stop: SearchStop) -> None:
    ticks = count()  # each look at the clock takes a second
    result = shared({"seconds": 20.0}, Limits(seconds=seconds, now=lambda: float(next(ticks)), reuse=False))
    assert result.stop_reason is stop
    assert (next(ticks) > seconds) == (stop is SearchStop.TIME)


def test_regions_are_searched_with_patience_for_their_share_of_the_cost() -> None:
    """Of a chain the first nodes take most of the time."""
    given: list[tuple[bool, int]] = []

    def strategy(
        graph: Graph, matcher: Matcher, cost: Cost, limits: Limits, report: ProgressCallback | None
    ) -> Backtracking:
        given.append(("exp" in operators(graph), limits.patience))
        return Backtracking(graph, matcher, cost, limits, report)

    graph = parse_graph(
        "graph(x: f32[8]) {\n"
        + "".join(f"  a{i} = {'exp' if i < 9 else 'tanh'}({f'a{i - 1}' if i else 'x'})\n" for i in range(90))
        + "  return a89\n}"
    )
    cost = FakeCost({"exp": 100.0, "tanh": 1.0})
    Partition(graph, Matcher([]), cost, Limits(patience=50, reuse=False), None, strategy).run()
    assert {patience for is_dear, patience in given if is_dear} == {50}
    assert {patience for is_dear, patience in given if not is_dear} == {partition.LEAST_PATIENCE}
    assert len(given) > 4


class Slow(FakeCost):
    """Costs of which to ask for those of a part takes some seconds, by a clock that stands otherwise."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.time = seconds, 0.0

    def now(self) -> float:
        return self.time

    def for_part(self, whole: Latency, inputs: Mapping[Value, Value], outputs: Sequence[Value]) -> FakeCost:
        self.time += self.seconds
        return self


def test_a_search_whose_time_is_up_says_so_though_nothing_was_found() -> None:
    cost = Slow(30.0)
    limits = Limits(seconds=50.0, now=cost.now, reuse=False)
    result = Partition(blocks(4), Matcher([]), cost, limits, None, Backtracking).run()
    assert result.stop_reason is SearchStop.TIME


def test_a_clock_that_runs_out_while_a_region_is_prepared_ends_the_search() -> None:
    cost = Slow(100.0)
    limits = Limits(seconds=50.0, now=cost.now)
    result = Partition(blocks(4), Matcher(RULES), cost, limits, None, Backtracking).run()
    assert result.stop_reason is SearchStop.TIME


@pytest.mark.parametrize("where", ["taso_py.search.space.Space.start", "taso_py.search.finalists.finalists"])
def test_an_interrupt_between_regions_leaves_what_was_found_before(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that comes before a region is looked at, or after that."""
    left, path = [2], where.rsplit(".", 1)
    owner: Any = Space if path[0].endswith("Space") else finalists
    inner = getattr(owner, path[1])

    def interrupted(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return inner(*arguments)

    monkeypatch.setattr(owner, path[1], interrupted)
    graph = blocks(8)
    result = divided(graph, Limits(reuse=False))
    assert result.stop_reason is SearchStop.INTERRUPTED
    assert result.best.seconds < result.original.seconds
    assert replay(graph, result.best.trace) == result.best.graph


def test_a_whole_that_stores_too_much_is_not_reduced_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    times, compose = [0.0], Partition._compose

    def slow(self: Partition, *arguments: Any) -> Any:
        times.append(times[-1] + 30.0)
        whole, cut_values = compose(self, *arguments)
        return replace(whole, static_bytes=1 << 40), cut_values

    monkeypatch.setattr(Partition, "_compose", slow)
    limits = Limits(seconds=50.0, now=lambda: times[-1], reuse=False)
    result = Partition(blocks(12), Matcher(RULES), COST, limits, None, Backtracking).run()
    assert (result.stop_reason, result.best) == (SearchStop.TIME, result.original)
    assert len(times) < 5
