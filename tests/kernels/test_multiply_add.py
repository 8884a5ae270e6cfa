"""Sums with a product that one call computes, and those that it does not."""

from __future__ import annotations

import pytest
import torch

from taso_py.kernels.multiply_add import MULTIPLY_ADD
from taso_py.ops.table import parse_graph

HEADER = """graph(x: {t}[2,3], y: {t}[2,3], z: {t}[3]) {{
  w = weight{{key="w", type={t}[3]}} k = constant{{value=0.3, dtype={t}}}
  return {result}
}}"""


def covers(result: str, dtype: str = "f32", device: str = "cpu") -> list[list[str]]:
    """The operands of each cover of a result."""
    graph = parse_graph(HEADER.format(t=dtype, result=result))
    found = MULTIPLY_ADD.covers(graph.outputs[0].node, torch.device(device))
    names = [[getattr(value.node.op, "key", value.node.op.name) for value in cover.operands] for cover in found]
    return [[*sorted(factors), summand] for *factors, summand in names]


@pytest.mark.parametrize(
    ("result", "operands"),
    [
        ("add(x, mul(y, z))", [["y", "z", "x"]]),
        ("add(mul(y, z), x)", [["y", "z", "x"]]),
        ("add(mul(y, k), x)", [["y", "x"]]),
        ("sub(x, mul(y, k))", [["y", "x"]]),
        ("add(mul(x, x), mul(y, w))", [["w", "y", "mul"], ["x", "x", "mul"]]),
    ],
)
def test_a_sum_with_a_product_is_one_call(result: str, operands: list[list[str]]) -> None:
    assert sorted(covers(result)) == sorted(operands)
    assert sorted(covers(result, "bf16")) == sorted(operands)


@pytest.mark.parametrize(
    "result",
    [
        "add(mul(x, y), mul(x, y))",  # the product is read twice
        "sub(mul(x, y), z)",
        "add(x, mul(w, w))",  # a weight that is computed once
        "add(k, mul(x, y))",
        "add(x, mul(k, k))",
        "mul(x, add(y, z))",
        "add(x, div(y, z))",
    ],
)
def test_other_sums_are_not(result: str) -> None:
    assert covers(result) == []


def test_nothing_is_covered_of_integers_or_elsewhere() -> None:
    assert covers("add(x, mul(y, z))", "i64") == covers("add(x, mul(y, z))", device="meta") == []
