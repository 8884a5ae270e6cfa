"""What OpenVINO computes of constants: each call gives the same, results that are computed over others too."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taso_py.backend import build
from taso_py.engines.engine import CompiledGraph
from taso_py.engines.openvino import compile_settings
from taso_py.engines.openvino_constants import of_constants, prepared
from taso_py.frontend import import_module
from tests.engines.sessions import engine_named, program_of

CALLS = 3
X = torch.linspace(-1, 2, 6)


class Weighted(nn.Module):
    """A function of an image, a kernel for it, and an argument."""

    def __init__(self, function: Callable[[Tensor, Tensor, Tensor], Any]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.image = nn.Buffer(torch.randn(1, 4, 8, 8, generator=generator))
        self.kernel = nn.Buffer(torch.randn(6, 4, 3, 3, generator=generator))
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.image, self.kernel, x)


# Folding our graph leaves the convolutions whose bias is an argument.
OF_CONSTANTS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "bias": lambda image, kernel, x: F.conv2d(image, kernel, x),
    "bias of a transposed convolution": lambda image, kernel, x: F.conv_transpose2d(image, kernel.transpose(0, 1), x),
    "bias of a grouped convolution": lambda image, kernel, x: F.conv3d(
        image.reshape(2, 4, 2, 4, 4), kernel[:, :2, :, :, None], x, padding=1, groups=2
    ),
    "a view of a convolution": lambda image, kernel, x: F.conv2d(image, kernel).reshape(36, 6) + x,
    "a view of a pool": lambda image, kernel, x: F.avg_pool2d(kernel, 2).reshape(4, 6) + x,
    "also returned": lambda image, kernel, x: (F.conv2d(image, kernel, x), F.conv2d(image, kernel)),
}


def _session(function: Callable[..., Any], *, is_folded: bool) -> tuple[nn.Module, Sequence[Tensor]]:
    """Return the module of a function in OpenVINO, and the results of plain calls."""
    module = Weighted(function)
    program = program_of(module, (X,)) if is_folded else import_module(module, (X,))
    expected = build(program)(X)
    return engine_named("openvino").build(program), expected if isinstance(expected, tuple) else (expected,)


@pytest.mark.parametrize("is_folded", [True, False])
@pytest.mark.parametrize("name", OF_CONSTANTS)
def test_each_call_gives_the_same(name: str, is_folded: bool) -> None:
    module, expected = _session(OF_CONSTANTS[name], is_folded=is_folded)
    for _ in range(CALLS):
        found = module(X)
        torch.testing.assert_close(found if isinstance(found, tuple) else (found,), expected, rtol=1e-4, atol=1e-4)


def _read(function: Callable[..., Any]) -> tuple[Any, Any]:
    """Return OpenVINO, and its model of an imported function as it reads it."""
    engine = engine_named("openvino")
    import openvino

    program, core = import_module(Weighted(function), (X,)), openvino.Core()
    return core, core.read_model(engine.model_of(program.graph, program.weights).as_bytes)


@pytest.mark.parametrize("name", OF_CONSTANTS)
def test_nothing_is_left_to_compute_of_constants(name: str) -> None:
    core, model = _read(OF_CONSTANTS[name])
    found = prepared(core, model, compile_settings(1))
    assert found is not model
    assert of_constants(model)
    assert not of_constants(found)
    assert [port.get_names() for port in found.outputs] == [port.get_names() for port in model.outputs]


def test_what_openvino_folds_by_itself_is_left_to_it() -> None:
    core, model = _read(lambda image, kernel, x: kernel.mT.reshape(36, 6) + x)
    assert of_constants(model)
    assert prepared(core, model, compile_settings(1)) is model


def test_random_numbers_are_left_to_each_run() -> None:
    openvino: Any = pytest.importorskip("openvino")
    ops: Any = importlib.import_module("openvino.opset13")
    least, most = (ops.constant(X.numpy()[place]) for place in (0, -1))
    drawn = ops.exp(ops.random_uniform(ops.constant([3]), least, most, "f32"))
    model = openvino.Model([drawn], [], "random")
    assert prepared(openvino.Core(), model, compile_settings(1)) is model


def test_the_file_of_a_result_is_prepared() -> None:
    import openvino

    module, _ = _session(OF_CONSTANTS["bias"], is_folded=True)
    assert CompiledGraph.of(module) is not None
    files = engine_named("openvino").files(module)
    xml, content = files["openvino_model.xml"], files["openvino_model.bin"]
    model = openvino.Core().read_model(xml, content)
    assert not of_constants(model)
