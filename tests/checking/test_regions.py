"""Regions: both sides of a rule where it matched; a wrong rule is seen even if its effect on the outputs is tiny."""

from unittest.mock import Mock

import pytest
import torch

from taso_py.checking import regions
from taso_py.checking.regions import check_regions
from taso_py.ops.table import parse_graph
from taso_py.rules.match import Matcher
from taso_py.rules.text import read_rules

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("rule", "graph", "holds"),
    [
        (
            "rule x: float[M,K], a: float[N,K], b: float[P,K] source linear(x, a), linear(x, b) "
            "target t = linear(x, concat(a, b){axis=-2}); "
            "slice(t){axis=-1, start=0, stop=N}, slice(t){axis=-1, start=N, stop=N+P}",
            "graph(x: f16[2,3], a: f16[4,3], b: f16[5,3]) { return linear(x, a), linear(x, b) }",
            True,
        ),
        (
            "rule x: float[..G,K], y: float[..G,K] source add(x, y) target x",
            "graph(x: f32[2,3,4], y: f32[2,3,4]) { return add(x, mul(y, constant{value=1e-6, dtype=f32})) }",
            False,
        ),
        (
            "rule x: float[N,C], g: float[C], b: float[C], m: float[C], v: float[C] "
            "source batch_norm(x, g, b, m, v){eps=E} "
            "target add(mul(sub(x, m), mul(g, rsqrt(add(v, constant{value=E, dtype=float})))), b)",
            "graph(x: f32[2,3], g: f32[3], b: f32[3], m: f32[3], v: f32[3]) "
            "{ return batch_norm(x, g, b, m, v){eps=0.001} }",
            True,
        ),
        (
            "rule x: float[N] source relu(x) target x",
            "graph(x: f32[9]) { return relu(x) }",
            False,
        ),
        (
            "rule x: float[N] source rsqrt(mul(x, x)) target mul(rsqrt(x), rsqrt(x))",
            "graph(x: f32[9]) { return rsqrt(mul(x, x)) }",
            False,
        ),
        (
            "rule c: bool[N], x: float[N], y: float[N] source where(c, x, y) target where(c, x, add(y, y))",
            "graph(c: bool[9], x: f32[9], y: f32[9]) { return where(c, x, y) }",
            False,
        ),
        *(
            (
                "rule t: float[N,M], i: int[K] source take(t, i){axis=-2, wraps=W} "
                f"target take(concat(slice(t){{axis=-2, start=0, stop=2}}, {rows}){{axis=-2}}, i){{axis=-2, wraps=W}}",
                "graph(t: f32[9,3], i: i64[40]) { return take(t, i){axis=-2, wraps=0} }",
                holds,
            )
            for rows, holds in (
                ("slice(t){axis=-2, start=2, stop=N}", True),
                ("abs(slice(t){axis=-2, start=2, stop=N})", False),
            )
        ),
        *(
            (
                "rule t: float[N,M], i: int[K] source relu(take(t, i){axis=-2, wraps=W}) "
                "target take(relu(t), i){axis=-2, wraps=W}",
                f"graph(t: f32[1,3], i: i64[4]) {{ return relu(take(t, i){{axis=-2, wraps={wraps}}}) }}",
                True,
            )
            for wraps in (0, 1)
        ),
        (
            "rule x: float[B,C,H,W], y: float[B,C,H,W], g: float[C], b: float[C] "
            "source instance_norm(add(x, y), g, b){eps=E} target instance_norm(add(y, x), g, b){eps=E}",
            "graph(x: f32[2,3,1,1], y: f32[2,3,1,1], g: f32[3], b: f32[3]) "
            "{ return instance_norm(add(x, y), g, b){eps=1e-05} }",
            True,
        ),
    ],
)
def test_the_two_sides_are_compared_where_a_rule_matched(rule: str, graph: str, holds: bool) -> None:
    matches = Matcher(read_rules(rule)).matches(parse_graph(graph))
    assert matches
    assert all(region.passed is holds for region in check_regions(matches, 0, CPU))


def test_a_side_that_cannot_be_computed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "run_graph", Mock(side_effect=RuntimeError("no memory\nat all")))
    matches = Matcher(read_rules("rule x: float[N] source relu(relu(x)) target relu(x)")).matches(
        parse_graph("graph(x: f32[2]) { return relu(relu(x)) }")
    )
    (region,) = check_regions(matches, 0, CPU)
    assert not region.passed
    assert str(region).endswith("cannot be compared where it was applied: no memory")


def test_equal_regions_are_run_once() -> None:
    rules = read_rules("rule x: float[N] source relu(relu(x)) target relu(x)")
    matches = Matcher(rules).matches(
        parse_graph("graph(x: f32[2], y: f32[2], z: f32[3]) { return relu(relu(x)), relu(relu(y)), relu(relu(z)) }")
    )
    assert (len(matches), len(check_regions(matches, 0, CPU))) == (3, 2)
