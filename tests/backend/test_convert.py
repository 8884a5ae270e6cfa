"""Programs in double precision compute what the model means; programs on other devices make nothing on the old one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from taso_py.backend import build, retype, to_device
from taso_py.backend.tensors import TensorError
from taso_py.frontend import import_module
from taso_py.ir.types import DType
from tests.round_trips import Model

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))


def in_double(model: nn.Module, *inputs: Tensor) -> list[Tensor]:
    """What the model computes in double precision."""
    program = retype(import_module(model, inputs))
    types = {type_.dtype for node in program.graph.nodes for type_ in node.types}
    assert not types & {DType.F16, DType.BF16, DType.F32}
    result = build(program)(*(tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs))
    return list(result) if isinstance(result, tuple) else [result]


def test_casts_inside_the_model_do_not_round() -> None:
    """``.double()`` on the module would leave them."""
    (found,) = in_double(Model(lambda s, x: (x.half() * s.w.half()).float() / 3, w=torch.full((3,), 0.1)), X)
    assert torch.equal(found, X.double() * torch.full((3,), 0.1).double() / 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_models(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU(), nn.Softmax(-1)).to(dtype).eval()
    (found,) = in_double(model, X.to(dtype))
    assert torch.allclose(found, model.double()(X.to(dtype).double()), rtol=1e-12)


def test_types_that_torch_would_choose_are_stated() -> None:
    def forward(s: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.zeros(3),
            torch.full((3,), 0.1) * 3,
            torch.arange(0, 1, 0.25) + 1,
            torch.log(torch.arange(1, 3)),
            x.half().log_softmax(-1, dtype=torch.float32),
            torch.ones(3, dtype=torch.float16).cumsum(0),
            x.sum(0, dtype=torch.float64),
        )

    found = in_double(Model(forward), X)
    assert all(tensor.dtype is torch.float64 for tensor in found)
    assert torch.equal(found[1], torch.full((3,), 0.1, dtype=torch.float64) * 3)
    assert torch.equal(found[4], X.double().log_softmax(-1))


def test_integers_and_booleans_stay() -> None:
    found = in_double(Model(lambda s, x, i: (i + 1, x > 0, x.argmax(), i.float() / 2)), X, torch.arange(3))
    assert [tensor.dtype for tensor in found] == [torch.int64, torch.bool, torch.int64, torch.float64]


def test_complex_numbers_widen() -> None:
    (found,) = in_double(Model(lambda s, x: torch.fft.fft(x).abs()), X)
    assert torch.equal(found, torch.fft.fft(X.double()).abs())


@pytest.mark.parametrize("dtype", [DType.F64, DType.F32])
def test_complex_inputs_and_weights_are_of_the_type_that_the_graph_says(dtype: DType) -> None:
    wide = torch.complex128 if dtype is DType.F64 else torch.complex64
    z, w = torch.randn(2, 3, dtype=torch.complex64), torch.randn(3, 3, dtype=torch.complex64)
    program = retype(import_module(Model(lambda s, z: (z @ s.w).real * 2, w=w), (z,)), dtype)
    assert program.weights["w"].dtype is program.example_inputs[0].dtype is wide
    assert torch.equal(build(program)(z.to(wide)), (z.to(wide) @ w.to(wide)).real * 2)


def test_reading_bits_cannot_be_retyped() -> None:
    program = import_module(Model(lambda s, x: x.view(torch.int32)), (X,))
    with pytest.raises(TensorError, match=r"aten\.view\.dtype reads the bits"):
        retype(program)


def test_structure_and_sources_follow() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU()).eval()
    program = import_module(model, (X,))
    double = retype(program)
    assert [n.op.name for n in double.graph.nodes] == [n.op.name for n in program.graph.nodes]
    assert sorted(double.provenance.values()) == sorted(program.provenance.values())
    assert set(double.provenance) <= {node.digest for node in double.graph.nodes}


def test_layout_variants_follow() -> None:
    last = torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last)
    first = torch.randn(2, 4, 3, 3)
    for function in (lambda s, x, y: (x + y) * 2, lambda s, x, y: (y + x) * 2):
        program = import_module(Model(function), (first, last))
        assert build(retype(program))(first.double(), last.double()).stride() == program.contract.strides[0]


def test_other_device() -> None:
    def forward(s: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
        return (
            x @ s.get_parameter("w") + torch.arange(3, device=x.device),
            torch.zeros(2, device=x.device),
            x.new_ones(2),
        )

    program = import_module(Model(forward, w=nn.Parameter(torch.randn(3, 3))), (X,))
    moved = to_device(program, torch.device("meta"))
    assert {tensor.device.type for tensor in build(moved)(X.to("meta"))} == {"meta"}
    assert {tensor.device.type for tensor in moved.weights.values()} == {"meta"}
