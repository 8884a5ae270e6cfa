"""The space: what is remembered across steps is what a search from scratch would find."""

import random
from collections.abc import Iterable
from math import comb

import pytest

from taso_py.ir.graph import Graph
from taso_py.ops.table import parse_graph
from taso_py.rules.index import MOST_SIBLINGS
from taso_py.rules.match import Identity, Matcher
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules
from taso_py.search.cost import static_bytes
from taso_py.search.space import Space
from taso_py.search.state import CachedMatch, Option, SearchState
from tests.search.examples import RULES, THREE, FakeCost, products, read, recurrent

COST = FakeCost()


def space(*names: str) -> Space:
    return Space(Matcher(read(*names)), COST, lambda match: True, lambda: None)


def possible(space: Space, state: SearchState) -> list[Option]:
    """The options of a state but those that became circular."""
    return [option for option in state.options if space.step(state, option) is not None]


def walk(space: Space, graph: Graph, seed: int, length: int) -> list[SearchState]:
    """The states of a walk at random, the first one included."""
    chance = random.Random(seed)
    states = [space.with_options(space.start(graph))]
    while len(states) <= length and (options := possible(space, states[-1])):
        step = space.step(states[-1], chance.choice(options))
        assert step is not None
        assert step.graph == states[-1].graph.replace(dict(step.replaced))
        states.append(space.finish(space.estimate(step), ends_detour=chance.random() < 0.5))
    return states


def identities(matcher: Matcher, state: SearchState, cached: Iterable[CachedMatch]) -> list[Identity]:
    """Tells matches apart; of equal matches in graphs that are equal it gives the same."""
    return sorted(matcher.as_found(one.match(state.node_ids), state.index)[0] for one in cached)


def expect_as_from_scratch(rules: Space, matcher: Matcher, state: SearchState) -> None:
    """Checks what a state has; options that became circular and were not followed since count as dormant."""
    fresh = rules.with_options(rules.start(state.graph))
    options = possible(rules, state)
    carried, found = (
        {matcher.as_found(option.match(s.node_ids), state.index)[0]: option.cost_delta for option in options}
        for s, options in ((state, options), (fresh, fresh.options))
    )
    assert carried.keys() == found.keys()
    for identity, change in carried.items():
        assert change.seconds == pytest.approx(found[identity].seconds)
        assert change.static_bytes == found[identity].static_bytes
    assert len(carried) == len(options)
    blocked = identities(matcher, state, [*state.blocked, *set(state.options).difference(options)])
    assert blocked == identities(matcher, fresh, fresh.blocked)
    assert [state.form(node) for node in state.graph.nodes] == [fresh.form(node) for node in state.graph.nodes]


@pytest.mark.parametrize("seed", range(8))
def test_options_are_the_matches_of_a_search_from_scratch(seed: int) -> None:
    matcher, whole = Matcher(read(*RULES)), space(*RULES)
    for state in walk(whole, recurrent(2), seed, 12):
        expect_as_from_scratch(whole, matcher, state)


UNSTACK = """rule x: float[M,K], y: float[N,K], a: float[K,P]
  source slice(matmul(concat(x, y){axis=-2}, a)){axis=-2, start=0, stop=M}
  target matmul(x, a)
rule x: float[M,K], y: float[N,K], a: float[K,P]
  source slice(matmul(concat(x, y){axis=-2}, a)){axis=-2, start=M, stop=M+N}
  target matmul(y, a)"""
"""What rule "stack" does to two products, undone for one of them."""


def following(*rules: Substitution) -> tuple[Space, Matcher]:
    return Space(Matcher(rules), COST, lambda match: True, lambda: None), Matcher(rules)


def follow(rules: Space, state: SearchState, option: Option) -> SearchState:
    """The state after an option."""
    step = rules.step(state, option)
    assert step is not None
    return rules.finish(rules.estimate(step))


def test_a_circular_match_is_an_option_as_soon_as_a_step_far_from_it_makes_it_possible() -> None:
    stack, idempotent, *unstack = rules = [*read("stack", "idempotent"), *read_rules(UNSTACK)]
    whole, matcher = following(*rules)
    graph = parse_graph(
        """graph(x: f32[1,8], y: f32[1,8]) {
          w = weight{key="w", type=f32[8,8]}
          u = weight{key="u", type=f32[8,8]}
          first = matmul(x, w)
          both = matmul(concat(relu(relu(first)), y){axis=-2}, u)
          return first, matmul(tanh(tanh(slice(both){axis=-2, start=1, stop=2})), w)
        }"""
    )
    state = whole.with_options(whole.start(graph))
    for rule in (idempotent, unstack[1]):
        assert [blocked.rule for blocked in state.blocked] == [stack]
        (option,) = [option for option in state.options if option.rule is rule]
        state = follow(whole, state, option)
        expect_as_from_scratch(whole, matcher, state)
    assert [option.rule for option in state.options] == [stack]
    assert not state.blocked


def test_an_option_that_becomes_circular_is_possible_again_when_that_is_undone() -> None:
    whole, matcher = following(*read("stack"), *read_rules(UNSTACK))
    graph = parse_graph(
        """graph(x: f32[1,8], y: f32[1,4]) {
          w = weight{key="w", type=f32[8,4]}
          u = weight{key="u", type=f32[4,8]}
          first = matmul(x, w)
          second = matmul(tanh(tanh(matmul(y, u))), w)
          return matmul(tanh(tanh(first)), u), second
        }"""
    )
    state = whole.with_options(whole.start(graph))
    later, other = sorted(state.options, key=lambda option: option.match(state.node_ids).sizes["K"] == 8)
    state = follow(whole, state, later)
    assert whole.step(state, other) is None
    expect_as_from_scratch(whole, matcher, state)
    apart = [follow(whole, state, option) for option in state.options if option is not other]
    for after in apart:
        expect_as_from_scratch(whole, matcher, after)
    # It is enough to take apart the product that the other one reads.
    assert sorted(whole.step(after, other) is not None for after in apart) == [False, True]


@pytest.mark.parametrize("seed", range(8))
def test_what_is_circular_is_known_wherever_products_are_merged_and_taken_apart(seed: int) -> None:
    whole, matcher = following(*read("stack"), *read_rules(UNSTACK))
    lines = ['w = weight{key="w", type=f32[8,8]} u = weight{key="u", type=f32[8,8]}']
    lines += ["x = matmul(tanh(tanh(x)), w) y = matmul(tanh(tanh(y)), u)"]
    lines += ["x = matmul(tanh(tanh(x)), u) y = matmul(tanh(tanh(y)), w)"]
    graph = parse_graph(f"graph(x: f32[1,8], y: f32[1,8]) {{ {' '.join([*lines, *lines[1:]])} return x, y }}")
    for state in walk(whole, graph, seed, 8):
        expect_as_from_scratch(whole, matcher, state)


@pytest.mark.parametrize("seed", range(3))
def test_three_of_many_products_are_options_as_soon_as_they_are_few(seed: int) -> None:
    whole, matcher = following(*read("merge"), *read_rules(THREE))
    counts = list[int]()
    for state in walk(whole, products(MOST_SIBLINGS + 3), seed, 8):
        expect_as_from_scratch(whole, matcher, state)
        counts.append(sum(len(option.rule.source.outputs) == 3 for option in state.options))
    assert not counts[0]
    assert max(counts) >= 56


TAKE_APART = """rule x: float[..G,M,K], a: float[K,N], b: float[K,P]
  source slice(matmul(x, concat(a, b){axis=-1})){axis=-1, start=0, stop=N} target matmul(x, a)"""
"""A rule that adds a product of a value."""


@pytest.mark.parametrize(
    ("rule", "last"),
    [
        (RULES["idempotent"], "z = matmul(relu(y), a)"),  # the readers of two values become those of one
        (TAKE_APART, "z = slice(matmul(y, concat(a, b){axis=-1})){axis=-1, start=0, stop=8}"),
    ],
)
def test_three_of_some_products_are_no_options_any_more_once_they_are_many(rule: str, last: str) -> None:
    more = "z = concat(z, matmul(y, concat(a, b){axis=-1})){axis=-1}"  # else the product goes when it is taken apart
    given = MOST_SIBLINGS - ("slice" in last)
    lines = [f'w{i} = weight{{key="w{i}", type=f32[16,8]}} v{i} = tanh(matmul(y, w{i}))' for i in range(given)]
    lines += ['a = weight{key="a", type=f32[16,8]} b = weight{key="b", type=f32[16,4]}', last, more * ("slice" in last)]
    results = ", ".join([*(f"v{i}" for i in range(given)), "z"])
    graph = parse_graph(f"graph(x: f32[1,16]) {{ y = relu(x) {' '.join(lines)} return {results} }}")
    whole, matcher = following(*read_rules(THREE), *read_rules(rule))
    state = whole.with_options(whole.start(graph))
    (adding,) = [option for option in state.options if len(option.rule.source.outputs) == 1]
    assert len(state.options) == 1 + comb(MOST_SIBLINGS, 3)
    state = follow(whole, state, adding)
    expect_as_from_scratch(whole, matcher, state)
    assert not state.options


BATCHES = """rule x: float[..G,M,K], y: float[..G,N,K], a: float[..G,K,P]
  source matmul(x, a), matmul(y, a)
  target t = matmul(concat(x, y){axis=-2}, a);
    slice(t){axis=-2, start=0, stop=M}, slice(t){axis=-2, start=M, stop=M+N}
rule x: float[M,K], y: float[N,K]
  source slice(concat(x, y){axis=-2}){axis=-2, start=M, stop=M+N}
  target y"""
"""A rule that does what "stack" does, also to batches, and one that makes a product depend on weights only."""


@pytest.mark.parametrize("returned", ["of_w, of_x", "of_x, of_w"])
def test_rules_that_do_the_same_are_one_option_also_where_a_step_turns_their_order(returned: str) -> None:
    """The order of two products is that of the graph, or if one depends on weights only, that of their names."""
    batches, cut = read_rules(BATCHES)
    whole, matcher = following(*read("stack"), batches, cut)
    graph = parse_graph(
        f"""graph(x: f32[3,2]) {{
          w = weight{{key="w", type=f32[4,2]}}
          u = weight{{key="u", type=f32[2,8]}}
          both = concat(x, w){{axis=-2}}
          of_w = matmul(slice(both){{axis=-2, start=3, stop=7}}, u)
          of_x = matmul(slice(both){{axis=-2, start=0, stop=3}}, u)
          return {returned}
        }}"""
    )
    state = whole.with_options(whole.start(graph))
    assert len(state.options) == 2
    after = follow(whole, state, next(option for option in state.options if option.rule is cut))
    expect_as_from_scratch(whole, matcher, after)
    assert len(after.options) == 1


def test_a_value_may_be_replaced_by_what_is_computed_from_it_already() -> None:
    rules = read_rules("""rule a: float[..A,B,C], b: float[..A,D,C]
      source matmul(a, permute(b){order=[-1,-2]})
      target permute(matmul(b, permute(a){order=[-1,-2]})){order=[-1,-2]}
    rule x: float[..A,B,C]
      source permute(x){order=[-1,-2]}
      target add(permute(x){order=[-1,-2]}, constant{value=0.0, dtype=float})""")
    matcher = Matcher(rules)
    both = Space(matcher, COST, lambda match: True, lambda: None)
    graph = parse_graph("graph(x: f32[3,3]) { return relu(matmul(x, permute(x){order=[-1,-2]})) }")
    state = both.with_options(both.start(graph))
    # The product of a matrix and its transpose is its own transpose: each step puts one more transpose behind it.
    for _ in range(4):
        option = next(option for option in state.options if option.rule is rules[0])
        step = both.step(state, option)
        assert step is not None
        state = both.finish(both.estimate(step))
        expect_as_from_scratch(both, matcher, state)


@pytest.mark.parametrize("seed", range(4))
def test_an_estimate_is_the_difference_of_the_costs(seed: int) -> None:
    rules = space("merge", "slices", "factor", "idempotent")
    states = walk(rules, recurrent(2), seed, 10)
    for state in states:
        for option in state.options:
            step = rules.step(state, option)
            assert step is not None
            assert COST.graph_cost(step.graph) == pytest.approx(state.seconds + option.cost_delta.seconds)
            stored = static_bytes(COST, step.graph)
            assert stored == state.static_bytes + option.cost_delta.static_bytes


def test_what_is_computed_at_build_time_is_not_rewritten() -> None:
    graph = parse_graph(
        """graph(x: f32[1,16]) {
          w = weight{key="w", type=f32[16,16]}
          return matmul(x, relu(relu(w))), relu(relu(x))
        }"""
    )
    state = space("idempotent").with_options(space("idempotent").start(graph))
    (option,) = state.options
    assert option.match(state.node_ids).values["a"].node is graph.inputs[0]


@pytest.mark.parametrize(
    ("rule", "body"),
    [
        (
            """rule a: float[A,C], b: float[B,C], c: float[C,D]
              source matmul(a, c), matmul(b, c)
              target t = matmul(concat(a, b){axis=-2}, c);
                slice(t){axis=-2, start=0, stop=A}, slice(t){axis=-2, start=A, stop=A+B}""",
            "return matmul(x, w), sigmoid(relu(relu(matmul(w, w))))",
        ),
        (
            """rule a: float[A,C], b: float[B,C]
              source slice(concat(a, b){axis=-2}){axis=-2, start=0, stop=A}
              target a""",
            "return sigmoid(relu(relu(slice(concat(w, x){axis=-2}){axis=-2, start=0, stop=16})))",
        ),
    ],
)
def test_what_a_step_makes_depend_on_inputs_is_rewritten_from_then_on_and_the_other_way_round(
    rule: str, body: str
) -> None:
    rules = [*read_rules(rule), *read("idempotent")]
    both = Space(Matcher(rules), COST, lambda match: True, lambda: None)
    head = 'graph(x: f32[1,16]) { w = weight{key="w", type=f32[16,16]}'
    state = both.with_options(both.start(parse_graph(f"{head} {body} }}")))
    step = both.step(state, next(option for option in state.options if option.rule is rules[0]))
    assert step is not None
    after = both.finish(both.estimate(step))
    was, is_now = ({option.rule for option in s.options} >= {rules[1]} for s in (state, after))
    assert was != is_now
    assert after.seconds == pytest.approx(COST.graph_cost(after.graph))
    expect_as_from_scratch(both, Matcher(rules), after)


def test_weights_count_once_as_what_is_read_at_run_time() -> None:
    graph = parse_graph(
        """graph(x: f32[1,16]) {
          w = weight{key="w", type=f32[16,8]}
          u = weight{key="u", type=f32[16,8]}
          b = weight{key="b", type=f32[8]}
          both = concat(w, u){axis=-1}
          return matmul(x, both), matmul(relu(x), both), add(matmul(x, w), b), b
        }"""
    )
    assert static_bytes(COST, graph) == 4 * (16 * 16 + 16 * 8 + 8)


def test_the_cost_of_a_step_does_not_depend_on_how_many_graphs_were_seen() -> None:
    rules = space("merge", "slices")
    first = rules.with_options(rules.start(products(5)))
    for count in range(2, 5):
        rules.with_options(rules.start(products(count)))
    assert [option.cost_delta for option in first.options] == [
        option.cost_delta for option in rules.with_options(rules.start(products(5))).options
    ]
