"""OpenVINO models: what is computed of constants is the same in each call, and no value is taken for another."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops import while_loop

from taso_py.backend import build
from taso_py.engines.engine import CompiledGraph
from taso_py.engines.openvino import compile_settings
from taso_py.engines.openvino_models import of_constants, prepared, take_apart
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


def _joined(x: Tensor) -> tuple[Tensor, Tensor]:
    return (c := torch.cat([x, x])), c.abs()


JOINED: dict[str, Callable[[Tensor], Any]] = {
    "returned": _joined,
    "returned, of many": lambda x: (c := torch.cat([x] * 5), c.abs(), c.abs() + 1),
    "read": lambda x: (c := torch.cat([x, x * 2])).exp() + c.abs(),
    "in a branch": lambda x: torch.cond(x.sum() > 9, _joined, lambda x: _joined(x - 1), (x,)),
    "in a loop": lambda x: while_loop(
        lambda i, c, a: i < 2,
        lambda i, c, a: (i + 1, *_joined(c[:6] - a[:6])),
        (torch.tensor(0), torch.cat([x, x]), torch.cat([x, x])),
    ),
    "reshaped": lambda x: (c := torch.cat([x.reshape(2, 3)] * 2).flatten(), c.abs(), c.reshape(2, 6).abs()),
}


@pytest.mark.parametrize("name", JOINED)
def test_a_value_is_not_taken_for_its_magnitude(name: str) -> None:
    found = engine_named("openvino").build(program_of(JOINED[name], (X,)))(X)
    torch.testing.assert_close(found, JOINED[name](X))


@pytest.mark.parametrize("shape", [[2], [-1], [2, 2]])
def test_a_magnitude_of_a_vector_is_one_of_a_matrix(shape: list[int]) -> None:
    openvino: Any = pytest.importorskip("openvino")
    ops: Any = importlib.import_module("openvino.opset13")
    x = ops.parameter(shape, np.float32)
    magnitude = ops.abs(x)
    magnitude.output(0).set_names({"magnitude"})
    model = openvino.Model([magnitude], [x], "magnitude")
    take_apart(model)
    kinds = [node.get_type_name() for node in model.get_ordered_ops()]
    assert ("Unsqueeze" in kinds) == (shape != [2, 2])
    assert [port.get_names() for port in model.outputs] == [{"magnitude"}]
    given = -X[:4].reshape(2, 2).numpy() if shape == [2, 2] else -X[:2].numpy()
    (found,) = openvino.Core().compile_model(model, "CPU").create_infer_request().infer([given]).values()
    assert found.tolist() == abs(given).tolist()
