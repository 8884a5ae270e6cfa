"""Skeletons: which graphs count as the same."""

import random

import pytest

from taso_py.ops.table import parse_graph
from taso_py.rules.match import Matcher
from taso_py.search.canonical import CanonicalForms
from taso_py.search.space import Space
from tests.search.examples import RULES, FakeCost, read, recurrent

HEAD = """graph(x: f32[2,4], y: f32[2,4]) {
  w = weight{key="w", type=f32[4,4]} u = weight{key="u", type=f32[4,4]} v = weight{key="v", type=f32[4,8]}
"""


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("matmul(x, w)", "matmul(x, u)", True),
        ("matmul(x, w)", "matmul(y, w)", False),
        ("mul(x, constant{value=0.5, dtype=f32})", "mul(x, constant{value=0.25, dtype=f32})", False),
        ("matmul(x, v)", "matmul(x, concat(w, u){axis=-1})", True),
        ("slice(x){axis=-1, start=0, stop=2}", "slice(x){axis=-1, start=2, stop=4}", True),
        ("slice(x){axis=-1, start=0, stop=2}", "slice(x){axis=-1, start=0, stop=3}", False),
        ("concat(x, y){axis=-1}", "concat(y, x){axis=-1}", True),
        ("concat(x, y){axis=-1}", "concat(x, y){axis=-2}", False),
        ("sub(x, y)", "sub(y, x)", False),
        ("relu(x), y", "y, relu(x)", False),
        ("pad(x){widths=[[1,2]]}", "pad(x){widths=[[2,1]]}", False),
    ],
)
def test_graphs_with_the_same_skeleton(one: str, other: str, same: bool) -> None:
    canonical_forms = CanonicalForms()
    first, second = (
        canonical_forms.of(parse_graph(f"{HEAD} return {outputs} }}")).canonical for outputs in (one, other)
    )
    assert (first == second) == same


def test_a_skeleton_is_known_before_its_graph_is_built() -> None:
    canonical_forms = CanonicalForms()
    chance = random.Random(5)
    rules = Space(Matcher(read(*RULES)), FakeCost(), lambda match: True, lambda: None)
    state = rules.with_options(rules.start(recurrent(2)))
    for _ in range(15):
        step = rules.step(state, chance.choice(state.options))
        assert step is not None
        replaced = canonical_forms.after(state.graph, canonical_forms.of(state.graph).forms.get, step.replaced, 0)
        assert replaced.canonical == canonical_forms.of(step.graph).canonical
        for option in state.options:
            again = rules.step(state, option, seen={step.graph_form.canonical})
            assert again is None or again.graph_form.canonical != step.graph_form.canonical
        state = rules.finish(rules.estimate(step))
        fresh = rules.start(state.graph)
        assert [state.form(node) for node in state.graph.nodes] == [fresh.form(node) for node in state.graph.nodes]
