"""What the graphs of small modules look like: the import dialect, in the grammar."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taso_py.frontend import import_module, import_program
from taso_py.ir.text import print_graph
from taso_py.ops.table import parse_graph
from tests.round_trips import Model, opaque_targets, operator_names

X = torch.arange(6.0).view(2, 3)

CASES: dict[str, tuple[Callable[..., Any], str]] = {
    "numbers are exact, first operands of rsub last": (
        lambda s, x: 1 - x * 0.1,
        """v0 = constant{value=1.0, dtype=f32}
           v1 = constant{value=0.1, dtype=f32}
           v2 = mul(args_0, v1)
           v3 = sub(v0, v2)
           return v3""",
    ),
    "promotion is a cast": (
        lambda s, x: x.half() + x,
        """v0 = cast(args_0){dtype=f16}
           v1 = cast(v0){dtype=f32}
           v2 = add(args_0, v1)
           return v2""",
    ),
    "squares and signs are products": (
        lambda s, x: -(x**2),
        """v0 = mul(args_0, args_0)
           v1 = constant{value=-1.0, dtype=f32}
           v2 = mul(v0, v1)
           return v2""",
    ),
    "axes count from the end; leading axes that stay are not listed": (
        lambda s, x: (x[None].transpose(1, 2), x.softmax(0), x.sum(0)),
        """v0 = reshape(args_0){shape=[1,2,3]}
           v1 = permute(v0){order=[-1,-2]}
           v2 = softmax(args_0){axis=-2}
           v3 = sum(args_0){axes=[-2]}
           return v1, v2, v3""",
    ),
    "pieces are slices": (
        lambda s, x: (*x.split([1, 2], 1), x[1]),
        """v0 = slice(args_0){axis=-1, start=0, stop=1}
           v1 = slice(args_0){axis=-1, start=1, stop=3}
           v2 = slice(args_0){axis=-2, start=1, stop=2}
           v3 = reshape(v2){shape=[3]}
           return v0, v1, v3""",
    ),
    "copies disappear": (
        lambda s, x: F.dropout(x.clone(), 0.5, False).contiguous().detach().to(x.dtype),
        "return args_0",
    ),
    "copies that change the layout do not": (
        lambda s, x: x.t().contiguous(),
        """v0 = permute(args_0){order=[-1,-2]}
           v1 = contiguous(v0)
           return v1""",
    ),
    "equal computations are one": (
        lambda s, x: (x + 1) * (1 + x),
        """v0 = constant{value=1.0, dtype=f32}
           v1 = add(args_0, v0)
           v2 = mul(v1, v1)
           return v2""",
    ),
    "what the table does not know is opaque": (
        lambda s, x: x.cumprod(0),
        """v0 = opaque(args_0){target="aten.cumprod.default", arguments=[$0,0], types=[f32[2,3]]}
           return v0""",
    ),
    "random draws are effects": (
        lambda s, x: torch.rand_like(x),
        """v0 = opaque#0(args_0){target="aten.rand_like.default", arguments=[$0], types=[f32[2,3]], """
        """keywords=[["pin_memory",false]], is_pure=false}
           effects v0
           return v0""",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_graph(name: str) -> None:
    function, expected = CASES[name]
    graph = import_module(Model(function), (X,)).graph
    assert print_graph(graph) == print_graph(parse_graph(f"graph(args_0: f32[2,3]) {{ {expected} }}"))


def test_formulas_are_taken_apart() -> None:
    program = import_module(Model(lambda s, x: torch.einsum("ij,kj->ik", x, x)), (X,))
    assert "matmul" in operator_names(program)
    assert opaque_targets(program) == []


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, image: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(image)))


def test_module() -> None:
    program = import_module(Small().eval(), (torch.ones(1, 3, 5, 5),))
    assert print_graph(program.graph).splitlines() == [
        "graph(image: f32[1,3,5,5]) {",
        '  w0 = weight{key="conv.weight", type=f32[4,3,3,3]}',
        "  v0 = conv2d(image, w0){stride=[2,2]}",
        '  w1 = weight{key="norm.weight", type=f32[4]}',
        '  w2 = weight{key="norm.bias", type=f32[4]}',
        '  w3 = weight{key="norm.running_mean", type=f32[4]}',
        '  w4 = weight{key="norm.running_var", type=f32[4]}',
        "  v1 = batch_norm(v0, w1, w2, w3, w4){eps=1e-05}",
        "  v2 = relu(v1)",
        "  return v2",
        "}",
    ]
    sources = [program.provenance[node.digest].line for node in program.graph.nodes if node.op.name == "relu"]
    assert len(sources) == 1
    assert re.fullmatch(r"test_graphs\.py:\d+: return F\.relu\(self\.norm\(self\.conv\(image\)\)\)", sources[0])
    modules = {node.op.name: program.provenance[node.digest].module for node in program.graph.nodes if node.inputs}
    assert modules == {"conv2d": "conv", "batch_norm": "norm", "relu": ""}


def test_exported_program_gives_the_same_graph() -> None:
    model, image = Small().eval(), torch.ones(1, 3, 5, 5)
    exported = torch.export.export(model, (image,))
    direct = import_module(model, (image,))
    assert import_program(exported).graph == direct.graph
    assert import_program(exported, (image + 1,)).example_inputs[0].mean() == 2
