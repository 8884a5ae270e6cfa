"""The integers that are looked up, whatever order and shape they are in."""

from __future__ import annotations

import pytest

from taso_py.ops.selection import origins
from taso_py.ops.table import parse_graph

HEADER = "graph(i: i64[2,3], j: i64[4,3], x: f32[6])"


def _origins(expression: str) -> list[str]:
    graph = parse_graph(f"{HEADER} {{ return {expression} }}")
    return sorted(value.node.op.text.partition("{")[0] for value in origins(graph.outputs[0]))


@pytest.mark.parametrize(
    ("expression", "count"),
    [
        ("permute(reshape(i){shape=[3,2]}){order=[-1,-2]}", 1),
        ("concat(contiguous(i), j, i){axis=-2}", 2),
        ("expand(i){shape=[7,2,3]}", 1),
        ("flip(i){axes=[-1]}", 1),
    ],
)
def test_what_is_only_rearranged_are_the_integers_themselves(expression: str, count: int) -> None:
    assert _origins(expression) == ["input"] * count


@pytest.mark.parametrize(
    "expression",
    [
        "slice(i){axis=-1, start=0, stop=2}",
        "pad(i){widths=[[1,0]]}",
        "diagonal(concat(i, slice(j){axis=-2, start=0, stop=1}){axis=-2})",
        "take(i, j){axis=-2}",
        "cast(x){dtype=i64}",
    ],
)
def test_integers_that_are_left_out_or_made_are_others(expression: str) -> None:
    assert _origins(f"reshape({expression}){{shape=[{_count(expression)}]}}") == [expression.partition("(")[0]]


def _count(expression: str) -> int:
    return parse_graph(f"{HEADER} {{ return {expression} }}").outputs[0].type.elements
