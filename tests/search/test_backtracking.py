"""Backtracking: what it finds, and where it stops."""

import gc
from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Any

import pytest

from taso_py.ir.errors import TasoError
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node
from taso_py.ops.table import parse_graph
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules
from taso_py.rules.verdict import Numerics
from taso_py.search import backtracking, greedy
from taso_py.search.backtracking import search
from taso_py.search.finalists import finalists
from taso_py.search.result import Limits, Progress, SearchStop
from taso_py.search.state import SearchState
from tests.search.examples import RULES, FakeCost, Latency, products, read, recurrent, shipped

COST = FakeCost()

DETOUR = read_rules(
    """rule a: float[N] source relu(a) target tanh(exp(a))
    rule a: float[N] source tanh(exp(a)) target sigmoid(a)"""
)
"""Not true, which is nothing to the search: a step that costs a little, and one after it that gains much."""


def operators(graph: Graph) -> Counter[str]:
    """How often each operator runs."""
    return Counter(node.op.name for node in graph.nodes if node.inputs and not node.is_static)


def test_products_on_one_input_become_one() -> None:
    result = search(products(6), read("merge", "slices"), COST, Limits(patience=2000))
    assert operators(result.best.graph) == {"matmul": 1, "slice": 6, "relu": 6}
    assert result.stop_reason is SearchStop.EXHAUSTED
    assert result.best.seconds == pytest.approx(COST.graph_cost(result.best.graph))
    assert result.original.trace.applied == ()


def test_slices_of_slices_do_not_remain() -> None:
    result = search(products(9), read("merge", "slices"), COST)
    slices = [node for node in result.best.graph.nodes if node.op.name == "slice"]
    assert len(slices) == 9
    assert all(node.inputs[0].node.op.name == "matmul" for node in slices)


def test_eighty_products_become_one_within_a_few_hundred_graphs() -> None:
    result = search(products(80), read("merge", "slices"), COST, Limits(budget=100))
    assert operators(result.best.graph)["matmul"] == 1


def test_weights_that_are_shared_are_stored_once_in_the_end() -> None:
    result = search(recurrent(3), read("merge", "slices"), COST)
    assert operators(result.best.graph)["matmul"] == 6
    assert result.best.static_bytes == result.original.static_bytes


def _side_by_side(count: int) -> str:
    """A rule that merges products of one operand, which leaves slices to sum."""
    names = "bcdef"[:count]
    weights = ", ".join(f"{name}: float[K,N]" for name in names)
    sources = ", ".join(f"matmul(a, {name})" for name in names)
    slices = ", ".join(
        f"slice(t){{axis=-1, start={place}*N, stop={place + 1}*N}}".replace("0*N", "0") for place in range(count)
    )
    merged = f"t = matmul(a, concat({', '.join(names)}){{axis=-1}})"
    return f"rule a: float[M,K], {weights} source {sources} target {merged}; {slices}"


def test_what_is_merged_side_by_side_does_not_keep_it_from_becoming_one() -> None:
    variables = "a: float[M,K], b: float[K,N], c: float[K,N]"
    into_one = f"rule {variables} source add(matmul(a, b), matmul(a, c)) target matmul(a, add(b, c))"
    rules = read_rules("\n".join([into_one, *map(_side_by_side, (3, 4))]))
    cost = FakeCost({"matmul": 10.0, "add": 1.0, "slice": 0.1, "concat": 1.0})
    weights = " ".join(f'w{i} = weight{{key="w{i}", type=f32[8,8]}}' for i in range(4))
    total = "add(add(add(matmul(x, w0), matmul(x, w1)), matmul(x, w2)), matmul(x, w3))"
    graph = parse_graph(f"graph(x: f32[8,8]) {{ {weights} return {total} }}")
    assert operators(greedy.search(graph, rules, cost).best.graph)["slice"] == 4
    assert operators(search(graph, rules, cost).best.graph) == {"matmul": 1}


def test_a_choice_that_pays_at_once_is_revised_when_another_pays_more() -> None:
    # Not true either: tanh gains most at first, exp less, but then silu gains much more, at each of twenty places.
    rules = read_rules(
        """rule a: float[N] source relu(a) target tanh(a)
        rule a: float[N] source relu(a) target exp(a)
        rule a: float[N] source sigmoid(exp(a)) target silu(a)"""
    )
    cost = FakeCost({"relu": 10.0, "tanh": 7.0, "exp": 8.0, "sigmoid": 5.0, "silu": 1.0})
    inputs = ", ".join(f"x{i}: f32[4]" for i in range(20))
    graph = parse_graph(f"graph({inputs}) {{ return {', '.join(f'sigmoid(relu(x{i}))' for i in range(20))} }}")
    assert operators(greedy.search(graph, rules, cost).best.graph) == {"sigmoid": 20, "tanh": 20}
    assert operators(search(graph, rules, cost, Limits(budget=100)).best.graph) == {"silu": 20}


class ElementCost(FakeCost):
    """A cost by hand: so much an element of the result, and little for what moves nothing."""

    def node_cost(self, node: Node) -> float:
        is_free = node.is_static or not node.inputs
        is_view = node.op.name in ("slice", "permute", "reshape")
        return 0.0 if is_free else 1.0 if is_view else 1.0 + prod(node.types[0].sizes)


def test_of_a_last_layer_only_the_row_that_is_read_is_computed() -> None:
    weights = "\n".join(
        f'{name} = weight{{key="{name}", type=f32[{shape}]}}'
        for name, shape in {"g": 8, "b": 8, "u": "32,8", "c": 32, "d": "8,32", "e": 8, "p": "8,8"}.items()
    )
    graph = parse_graph(f"""graph(x: f32[1,9,8], q: f32[1,2,9,4], k: f32[1,2,9,4], v: f32[1,2,9,4]) {{
      {weights}
      heads = reshape(permute(attention(q, k, v)){{order=[-2,-3,-1]}}){{shape=[1,9,8]}}
      a = add(x, linear(heads, p))
      y = add(a, linear(gelu(linear(layer_norm(a, g, b){{axes=1, eps=1e-06}}, u, c)), d, e))
      return slice(y){{axis=-2, start=0, stop=1}}
    }}""")
    best = search(graph, shipped("core-merge-fold", "rows"), ElementCost()).best.graph
    names = ("linear", "matmul", "attention", "layer_norm", "gelu")
    computed = [node for node in best.nodes if node.op.name in names]
    assert len(computed) == 6
    assert {node.types[0].shape[-2] for node in computed} == {1}


@pytest.mark.parametrize(
    ("alpha", "cheapest", "found"),
    [
        (1.0, 0.01, "relu"),
        (1.03, 0.01, "relu"),
        (1.05, 0.01, "sigmoid"),
        # What the slack cannot pay for may cost two small operators, but not in a search that takes no detours.
        (1.03, 0.19, "relu"),
        (1.03, 0.21, "sigmoid"),
        (1.0, 0.21, "relu"),
    ],
)
def test_a_step_that_costs_is_taken_within_the_slack(alpha: float, cheapest: float, found: str) -> None:
    graph = parse_graph("graph(a: f32[4]) { return silu(relu(a)) }")
    cost = FakeCost({"relu": 10.0, "tanh": 5.2, "exp": 5.2, "sigmoid": 1.0, "silu": cheapest})
    assert set(operators(search(graph, DETOUR, cost, Limits(alpha=alpha)).best.graph)) == {"silu", found}


@pytest.mark.parametrize(("each", "found"), [(6.4, "sigmoid"), (6.6, "relu")])
def test_a_detour_costs_no_more_than_a_share_of_the_graph(each: float, found: str) -> None:
    """Its cheapest operator is all of it."""
    cost = FakeCost({"relu": 10.0, "tanh": each, "exp": each, "sigmoid": 1.0})
    graph = parse_graph("graph(a: f32[4]) { return relu(a) }")
    assert set(operators(search(graph, DETOUR, cost).best.graph)) == {found}


def test_a_step_without_gain_may_lead_to_one_with_gain() -> None:
    graph = parse_graph(
        "graph(a: f32[4], b: f32[4], c: f32[4], d: f32[4]) { return add(add(mul(a, b), c), mul(a, d)) }"
    )
    best = search(graph, read("associate", "factor"), COST, Limits(alpha=1.0)).best
    assert operators(best.graph) == {"mul": 1, "add": 2}
    assert len(best.trace.steps) == 2


def test_results_differ_in_the_rules_that_they_use_and_are_sorted() -> None:
    result = search(recurrent(2), read(*RULES), COST, Limits(results=4))
    used = [frozenset(candidate.trace.applied) for candidate in result.candidates]
    assert len(set(used)) == len(used) == 5  # with the original, which does not count
    costs = [candidate.seconds for candidate in result.candidates]
    assert costs == sorted(costs)


def test_a_result_does_not_store_more_than_the_limit() -> None:
    # Of the products with w one has another operand, so that merging the others stores w twice.
    graph = parse_graph(
        """graph(x: f32[1,1024], y: f32[2,1024]) {
          w = weight{key="w", type=f32[1024,1024]}
          u = weight{key="u", type=f32[1024,1024]}
          return matmul(x, w), matmul(x, u), matmul(y, w)
        }"""
    )
    for growth, merged in ((1.25, False), (1.5, True)):
        best = search(graph, read("merge"), COST, Limits(growth=growth)).best
        assert (operators(best.graph)["matmul"] == 2) == merged
        assert best.static_bytes <= growth * 4 * 2 * 1024 * 1024


@pytest.mark.parametrize(
    ("dtype", "cap", "applies"),
    [
        ("f32", None, True),
        ("f16", None, False),
        ("bf16", Numerics.RANGE, True),
        ("f32", Numerics.REASSOCIATE, False),
    ],
)
def test_the_numerics_class_is_capped(dtype: str, cap: Numerics | None, applies: bool) -> None:
    rules = read_rules(RULES["idempotent"] + "\n numerics RANGE")
    graph = parse_graph(f"graph(a: {dtype}[4]) {{ return relu(relu(a)) }}")
    assert bool(search(graph, rules, COST, Limits(numerics=cap)).best.trace.steps) == applies


def outcome(rules: Sequence[Substitution], limits: Limits) -> tuple[object, ...]:
    """All that a search says but the time it took."""
    result = search(recurrent(2), rules, COST, limits)
    return result.candidates, result.stop_reason, result.expansions, result.built


def test_a_search_is_deterministic_under_a_seed() -> None:
    rules = read(*RULES)
    for seed in (0, 1, 7):
        limits = Limits(budget=150, seed=seed)
        assert outcome(rules, limits) == outcome(rules, limits)


def test_the_budget_is_kept() -> None:
    result = search(recurrent(3), read(*RULES), COST, Limits(budget=10))
    assert (result.built, result.stop_reason) == (10, SearchStop.BUDGET)
    assert result.best.seconds < result.original.seconds


def test_a_search_ends_when_nothing_better_comes_for_long() -> None:
    short, long = (search(recurrent(2), read(*RULES), COST, Limits(patience=n, alpha=1.5)) for n in (30, 300))
    assert short.stop_reason is SearchStop.STALLED
    assert short.built < long.built
    assert short.best.seconds == pytest.approx(long.best.seconds, rel=0.01)


def test_time_ends_a_search_with_what_is_known() -> None:
    times = iter(range(10_000))
    limits = Limits(seconds=200.0, now=lambda: float(next(times)))
    result = search(recurrent(3), read(*RULES), COST, limits)
    assert result.stop_reason is SearchStop.TIME
    assert 0 < result.built < 200
    assert result.best.seconds < result.original.seconds


def test_an_interrupt_ends_a_search_with_what_is_known() -> None:
    seen: list[Progress] = []

    def interrupt(progress: Progress) -> None:
        seen.append(progress)
        if progress.built == 5:
            raise KeyboardInterrupt

    result = search(products(8), read("merge", "slices"), COST, report=interrupt)
    assert result.stop_reason is SearchStop.INTERRUPTED
    assert [progress.built for progress in seen] == [1, 2, 3, 4, 5]
    assert operators(result.best.graph)["matmul"] == 4
    assert seen[-1].best_seconds == result.best.seconds


@pytest.mark.parametrize("whole", [60, 4], ids=["in one piece", "region by region"])
def test_a_search_leaves_no_cycles_behind(whole: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backtracking, "WHOLE", whole)

    def states() -> int:
        return sum(type(thing) is SearchState for thing in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = states()
        met = list[int]()

        def count(progress: Progress) -> None:
            if progress.built == 17:  # looking through all objects takes long
                met.append(states())

        search(recurrent(3), read("merge", "slices"), COST, report=count)
        assert max(met) > before, "the search makes states"
        assert states() == before
    finally:
        gc.enable()


def test_a_graph_without_matches_is_its_own_result() -> None:
    graph = parse_graph("graph(x: f32[4], y: i64[2]) { return tanh(x), y }")
    result = search(graph, read(*RULES), COST)
    assert (result.best.graph, result.candidates, result.built) == (graph, (result.original,), 0)


@pytest.mark.parametrize(
    "wrong", [{"alpha": 0.9}, {"budget": 0}, {"seconds": 0.0}, {"growth": 0.5}, {"results": 0}, {"patience": 0}]
)
def test_limits_without_meaning_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(TasoError):
        Limits(**wrong)  # pyright: ignore[reportArgumentType]


def test_an_interrupt_before_it_is_known_what_the_original_costs_leaves_the_search() -> None:
    class Interrupted(FakeCost):
        def estimate(self, graph: Graph) -> Latency:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(products(2), read("merge"), Interrupted())


def test_an_interrupt_while_results_are_chosen_leaves_the_cheapest(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(FakeCost):
        chosen = False

        def node_cost(self, node: Node) -> float:
            if self.chosen:
                raise KeyboardInterrupt
            return super().node_cost(node)

    cost = Interrupted()

    def choose(*arguments: Any) -> Any:
        cost.chosen = True
        return finalists(*arguments)

    monkeypatch.setattr("taso_py.search.finalists.finalists", choose)
    result = search(products(4), read("merge", "slices"), cost, Limits(results=1))
    assert result.stop_reason is SearchStop.INTERRUPTED
    assert [operators(found.graph)["matmul"] for found in result.candidates] == [1, 4]
    assert result.candidates[1] is result.original
