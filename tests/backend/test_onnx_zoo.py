"""The models of the zoo as ONNX models: engines are as near to a float64 reference as PyTorch is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from taso_py.backend import fold, retype
from taso_py.backend.onnx import onnx_bytes, onnx_model
from taso_py.backend.run import run_graph
from taso_py.frontend import import_module
from taso_py.models import zoo
from tests.backend.onnx_engines import ENGINES

TIMES_WORSE = 20.0
"""How many times farther from the reference than PyTorch an engine may be, which has kernels of its own."""


def error(found: Tensor, reference: Tensor) -> float:
    return float((found.double() - reference).norm() / reference.norm())


@pytest.mark.slow
@pytest.mark.usefixtures("zoo_libraries")
@pytest.mark.parametrize("name", zoo.names())
def test_models_of_the_zoo_run_in_engines(name: str) -> None:
    program = fold(import_module(*zoo.get(name).make(small=True)))
    graph, inputs = program.graph, program.example_inputs
    wide = retype(program)
    references = run_graph(wide.graph, wide.example_inputs, wide.weights)
    plain = run_graph(graph, inputs, program.weights)
    model = onnx_model(graph, program.weights)
    names = [str(value.name) for value in model.graph.inputs]
    content = onnx_bytes(model)
    for engine, run in ENGINES.items():
        found = run(content, dict(zip(names, (tensor.numpy() for tensor in inputs), strict=True)))
        for reference, before, after in zip(references, plain, found, strict=True):
            allowed = max(TIMES_WORSE * error(before, reference), 1e-6)
            assert error(torch.as_tensor(after), reference) <= allowed, engine
