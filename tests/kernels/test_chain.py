"""Chains: which products kernels of a weight and a bias may compute."""

import pytest

from taso_py.kernels.chain import chains
from taso_py.ops.table import parse_graph


@pytest.mark.parametrize(("product", "count"), [("baddbmm(x, u, v)", 0), ("linear(x, u, b)", 1), ("matmul(x, u)", 1)])
def test_the_matrices_of_an_added_product_are_no_weight_and_bias(product: str, count: int) -> None:
    shapes = {"u": "4,4", "v": "4,4", "b": "4"}
    weights = " ".join(f'{key} = weight{{key="{key}", type=f32[{shape}]}}' for key, shape in shapes.items())
    graph = parse_graph(f"graph(x: f32[4,4]) {{ {weights} return relu({product}) }}")
    assert len(list(chains(graph.outputs[0].node))) == count
