"""Arguments of opaque operators survive encoding, the grammar, and decoding."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from taso_py.backend.tensors import TORCH_DTYPES, TensorError, decode, encode, ir_dtype, tensor_type
from taso_py.ir.graph import Graph
from taso_py.ir.node import make
from taso_py.ir.operator import Ref
from taso_py.ir.text import print_graph
from taso_py.ir.types import DType
from taso_py.ops.opaque import Opaque
from taso_py.ops.table import parse_graph

ARGUMENTS: list[Any] = [
    None,
    True,
    1,
    1.0,
    -2.5e-7,
    float("inf"),
    -float("inf"),
    "constant",
    "device:cpu",
    'a "quoted" text',
    torch.float16,
    torch.device("cuda:1"),
    torch.strided,
    torch.channels_last,
    1 + 2j,
    [1, [2, None]],
]


@pytest.mark.parametrize("argument", ARGUMENTS, ids=repr)
def test_arguments(argument: Any) -> None:
    effect = make(Opaque("aten.add.Tensor", (encode(argument),), (), is_pure=False), (), 0)
    (node,) = parse_graph(print_graph(Graph((), (), (effect,)))).nodes
    assert isinstance(node.op, Opaque)
    found = decode(node.op.arguments[0], [], str)
    assert found == argument
    assert type(found) is type(argument)


def test_references_stand_for_inputs() -> None:
    assert decode((Ref(1), (None, Ref(0))), ["a", "b"], str) == ["b", [None, "a"]]


def test_what_has_no_form_is_refused() -> None:
    with pytest.raises(TensorError, match="argument of type Generator"):
        encode(torch.Generator())
    with pytest.raises(TensorError, match=r"torch\.complex32"):
        ir_dtype(torch.complex32)
    with pytest.raises(TensorError, match=r"sparse_coo.*to_dense"):
        tensor_type(torch.ones(2, 2).to_sparse())


def test_types() -> None:
    assert str(tensor_type(torch.ones(2, 3, dtype=torch.bfloat16))) == "bf16[2,3]"
    assert set(TORCH_DTYPES) == set(DType) - {DType.FLOAT, DType.INT}
