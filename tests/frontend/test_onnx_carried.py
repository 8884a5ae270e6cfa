"""ONNX nodes that PyTorch has no operator for are carried through, and ONNX Runtime computes them as in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from taso_py.backend import build
from taso_py.backend.onnx import onnx_model
from taso_py.backend.onnx.model import OPSET, onnx_bytes
from taso_py.backend.onnx_call import TARGET, call_onnx, decoded_model
from taso_py.checking.compare import float64_reference, to_float64
from taso_py.frontend import ImportRefusal, import_module
from taso_py.frontend.onnx import OnnxFile, carried, read_onnx
from taso_py.frontend.program import Program
from taso_py.ops.opaque import Opaque
from tests.frontend.test_onnx import IMAGE, Case, X, assert_computes, random_inputs, write

onnx: Any = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx_ir")

CASES = {
    "Det": Case("float[2,3,3] x", "a = Relu(x) b = Det(a) y = Neg(b)"),
    "MaxPool": Case(IMAGE, "y, i = MaxPool<kernel_shape = [2, 2]>(x)", results="float[] y, int64[] i"),
    "LRN": Case(IMAGE, "a = Relu(x) y = LRN<size = 3>(a)", opset=13),
    "LSTM": Case(
        "float[5,2,3] x, float[1,8,3] w, float[1,8,2] r",
        "y, h, c = LSTM<hidden_size = 2>(x, w, r)",
        opset=14,
        results="float[] y, float[] h, float[] c",
    ),
    "MatMulInteger": Case(
        "float[3,4] x",
        "q, s, z = DynamicQuantizeLinear(x) p = MatMulInteger(q, w, z) f = Cast<to = 1>(p) y = Mul(f, s)",
        "uint8[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}",
        opset=13,
    ),
    "CenterCropPad": Case("float[4,5] x", "y = CenterCropPad(x, s)", "int64[2] s = {2, 7}"),
    "FusedMatMul": Case(
        "float[3,4] x, float[5,4] w",
        "y = com.microsoft.FusedMatMul<alpha = 2.0, transB = 1>(x, w)",
        others='"com.microsoft" : 1',
    ),
}


def read(path: Path, case: Case) -> tuple[OnnxFile, Program]:
    """A file, and the program that is made of it."""
    file = write(path / "model.onnx", case)
    examples = random_inputs(file, 0)
    with torch.no_grad():
        return file, import_module(file.module(examples), examples)


def carried_calls(program: Program) -> list[Opaque]:
    ops = [node.op for node in program.graph.nodes]
    return [op for op in ops if isinstance(op, Opaque) and op.target == TARGET]


@pytest.mark.parametrize("kind", CASES)
def test_nodes_are_carried_through_the_graph_and_written_again(kind: str, tmp_path: Path) -> None:
    file, program = read(tmp_path, CASES[kind])
    assert all(op.is_pure for op in carried_calls(program))
    assert any(str(op.arguments[1]).endswith(kind) for op in carried_calls(program))
    assert_computes(file, build(program))
    written = onnx_model(program.graph, program.weights, input_names=[argument.name for argument in file.inputs])
    assert kind in {node.op_type for node in written.graph}
    assert written.graph.opset_imports[""] == OPSET
    again = tmp_path / "again.onnx"
    again.write_bytes(onnx_bytes(written))
    assert_computes(read_onnx(again), build(program))


def test_a_reference_in_double_precision_computes_them_too(tmp_path: Path) -> None:
    _, program = read(tmp_path, CASES["Det"])
    reference, _, note = float64_reference(program)
    assert reference is not None
    assert not note
    x = torch.randn(2, 3, 3)
    found = reference(to_float64(x))
    assert found.dtype is torch.float64
    torch.testing.assert_close(found, -torch.linalg.det(x.relu()).double(), rtol=1e-5, atol=1e-5)


def test_small_vectors_of_integers_are_a_part_of_the_node(tmp_path: Path) -> None:
    _, program = read(tmp_path, CASES["CenterCropPad"])
    (op,) = carried_calls(program)
    model = onnx.load_model_from_string(decoded_model(str(op.arguments[2]).partition(":")[2]))
    assert [tuple(tensor.dims) for tensor in model.graph.initializer] == [(2,)]
    assert [value.name for value in model.graph.input] == ["x0"]


@pytest.mark.parametrize(
    "case",
    [
        Case(X, "y = NonZero(x)", results="int64[] y"),
        Case(X, "y = RandomNormalLike(x)"),
        Case(X, "r = RandomNormalLike(x) y = Add(x, r)"),
        Case(X, "y, m = Dropout(x)", results="float[] y, bool[] m"),
        Case("bool c, float[2] x", "y = If(c) <then_branch = t () => (a) { a = Neg(x) },"
             " else_branch = e () => (b) { b = Relu(x) }>"),
        Case("float[2,3] x, int64[2] k", "y = CenterCropPad(x, k)"),
    ],
)  # fmt: skip
def test_nodes_that_cannot_be_carried_are_refused(case: Case, tmp_path: Path) -> None:
    with pytest.raises(ImportRefusal, match=r"ONNX operator .* is not supported"):
        read(tmp_path, case)


def test_nodes_that_differ_from_run_to_run_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(carried, "RANDOM", frozenset[str]())
    with pytest.raises(ImportRefusal, match="RandomNormalLike"):
        read(tmp_path, Case(X, "y = RandomNormalLike(x)"))


def test_operands_of_other_sizes_are_refused(tmp_path: Path) -> None:
    _, program = read(tmp_path, CASES["Det"])
    (op,) = carried_calls(program)
    model = str(op.arguments[2]).partition(":")[2]
    (result,) = call_onnx([torch.eye(3).expand(2, 3, 3)], model)
    assert torch.equal(result, torch.ones(2))
    x: Tensor = torch.eye(3).expand(4, 3, 3)
    with pytest.raises(Exception, match=r"(?i)dimension"):
        call_onnx([x], model)
