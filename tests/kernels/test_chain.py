"""Chains: which products kernels of a weight and a bias may compute."""

import pytest
import torch

from taso_py.backend import Plan, build, fold
from taso_py.frontend import import_module
from taso_py.kernels.chain import chains
from taso_py.kernels.table import covers
from taso_py.ops.table import parse_graph


@pytest.mark.parametrize(("product", "count"), [("baddbmm(x, u, v)", 0), ("linear(x, u, b)", 1), ("matmul(x, u)", 1)])
def test_the_matrices_of_an_added_product_are_no_weight_and_bias(product: str, count: int) -> None:
    shapes = {"u": "4,4", "v": "4,4", "b": "4"}
    weights = " ".join(f'{key} = weight{{key="{key}", type=f32[{shape}]}}' for key, shape in shapes.items())
    graph = parse_graph(f"graph(x: f32[4,4]) {{ {weights} return relu({product}) }}")
    assert len(list(chains(graph.outputs[0].node))) == count


@pytest.mark.parametrize("bias", [torch.randn(8, 2)[:, 0], torch.randn(1).expand(8)], ids=["strided", "expanded"])
def test_a_bias_is_read_as_it_lies_in_memory(bias: torch.Tensor) -> None:
    """Libraries take it for dense."""
    layer, x = torch.nn.Linear(8, 8).eval(), torch.randn(3, 8)
    layer.bias = torch.nn.Parameter(bias)
    program = fold(import_module(layer, (x,)))
    (node,) = (node for node in program.graph.nodes if node.op.name == "linear")
    found = [cover for cover in covers(node, x.device) if cover.binder is not None]
    assert found
    for cover in found:
        module = build(program, Plan({node: cover.step(cover.formats[0])}).eager())
        torch.testing.assert_close(module(x), layer(x).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "text", ["softmax(cast(x){dtype=f32}){axis=-3}", "layer_norm(cast(x){dtype=f32}){axes=3, eps=1e-05}"]
)
def test_functions_of_axes_that_the_probe_lacks_have_no_kernel_in_single_precision(text: str) -> None:
    graph = parse_graph(f"graph(x: bf16[2,3,8,16]) {{ return cast({text}){{dtype=bf16}} }}")
    assert "aten.single" not in {cover.name for cover in covers(graph.outputs[0].node, torch.device("cpu"))}
