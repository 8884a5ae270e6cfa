"""Model repositories: valid in Triton's own schema, and true to the models in them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from google.protobuf import text_format
from google.protobuf.json_format import MessageToDict
from torch import Tensor, nn

from taso_py.backend import Program
from taso_py.cli import main
from taso_py.frontend import import_module
from taso_py.ir.errors import TasoError
from taso_py.saving import emit as forms
from taso_py.saving.artifact import serialize
from taso_py.saving.emit import TRITON, emit, forms_to_emit, to_onnx, with_repository
from taso_py.saving.folder import ONNX, file_digests, write_result
from taso_py.saving.triton import FILES, repository

X = torch.linspace(-1, 1, 6).view(2, 3)
QUICK = ("--time-limit", "1", "--race-seconds", "0.1", "--effort", "quick")


class Several(nn.Module):
    """Tensors of several types and ranks, one without axes."""

    def forward(self, x: Tensor, rows: Tensor, keep: Tensor) -> dict[str, Tensor]:
        return {"scaled": x[rows].double() * keep, "total": x.sum()}


ARGUMENTS = (X, torch.tensor([1, 0]), torch.tensor([[True], [False]]))


def parsed(text: bytes) -> dict[str, Any]:
    """Reads a configuration by Triton's schema, which is in its client; only that module is imported."""
    package = importlib.util.find_spec("tritonclient")
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).parent / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    assert spec is not None
    assert spec.loader is not None
    schema = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(schema)
    return MessageToDict(text_format.Parse(text, schema.ModelConfig()), preserving_proto_field_name=True)


@pytest.fixture(scope="module")
def program() -> Program:
    return import_module(Several().eval(), ARGUMENTS)


@pytest.fixture(scope="module")
def model() -> bytes:
    return to_onnx(serialize(Several().eval(), ARGUMENTS, {}))


def test_a_configuration_says_what_the_model_takes_and_returns(model: bytes) -> None:
    config, onnx_file = FILES[:2]
    files = repository(model, None, threads=3)
    assert files.keys() == {config, onnx_file}
    assert files[onnx_file] == model
    said = parsed(files[config])
    names = [value.name for value in onnx.load_model_from_string(model).graph.input]
    assert said["input"] == [
        {"name": names[0], "data_type": "TYPE_FP32", "dims": ["2", "3"]},
        {"name": names[1], "data_type": "TYPE_INT64", "dims": ["2"]},
        {"name": names[2], "data_type": "TYPE_BOOL", "dims": ["2", "1"]},
    ]
    scaled, total = said["output"]
    assert (scaled["data_type"], scaled["dims"]) == ("TYPE_FP64", ["2", "3"])
    assert (total["data_type"], total["dims"], total["reshape"]) == ("TYPE_FP32", ["1"], {})
    assert said["instance_group"] == [{"count": 1, "kind": "KIND_CPU"}]
    assert said["parameters"] == {"intra_op_thread_count": {"string_value": "3"}}
    assert "name" not in said


def test_an_archive_is_a_model_whose_tensors_are_named_by_place(model: bytes) -> None:
    files = repository(model, b"archive", threads=1)
    assert tuple(files) == FILES
    said = parsed(files[FILES[2]])
    assert (said["backend"], said["platform"]) == ("pytorch", "torch_aoti")
    assert [tensor["name"] for tensor in said["input"]] == ["INPUT__0", "INPUT__1", "INPUT__2"]
    assert [tensor["name"] for tensor in said["output"]] == ["OUTPUT__0", "OUTPUT__1"]
    assert files[FILES[3]] == b"archive"


def test_open_sizes_are_open_there(model: bytes) -> None:
    proto = onnx.load_model_from_string(model)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    said = parsed(repository(proto.SerializeToString(), None, threads=1)[FILES[0]])
    assert said["input"][0]["dims"] == ["-1", "3"]


def test_names_are_quoted_and_types_without_a_name_refused(model: bytes) -> None:
    proto = onnx.load_model_from_string(model)
    proto.graph.input[0].name = 'x "0"\\'
    assert parsed(repository(proto.SerializeToString(), None, threads=1)[FILES[0]])["input"][0]["name"] == 'x "0"\\'
    proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.COMPLEX64
    with pytest.raises(TasoError, match="no tensors of type complex64"):
        repository(proto.SerializeToString(), None, threads=1)


def test_a_repository_takes_the_place_of_the_model_it_is_made_of(model: bytes, program: Program) -> None:
    asked = [TRITON]
    assert forms_to_emit(asked) == ["onnx"]
    assert forms_to_emit(asked, own=[ONNX]) == []
    files, notes = with_repository({ONNX: model}, asked, program)
    assert (set(files), notes) == ({*FILES[:2]}, [])
    assert ONNX in with_repository({ONNX: model}, [*asked, "onnx"], program)[0]
    assert ONNX in with_repository({ONNX: model}, asked, program, keep=[ONNX])[0]
    assert with_repository({ONNX: model}, ["onnx"], program) == ({ONNX: model}, [])
    assert with_repository({}, asked, program) == ({}, ["triton/ was not written, since there is no model.onnx"])


def test_an_archive_that_takes_more_than_tensors_is_left_out(model: bytes, program: Program) -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor, factor: float) -> Tensor:
            return x * factor

    archive = {ONNX: model, "model.aot.pt2": b"archive"}
    assert set(FILES) <= set(with_repository(archive, [TRITON], program)[0])
    files, notes = with_repository(archive, [TRITON], import_module(Scaled().eval(), (X, 2.0)))
    assert set(files) == {"model.aot.pt2", *FILES[:2]}
    assert notes == []


def test_what_cannot_be_written_is_a_note(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "to_onnx", lambda _: (_ for _ in ()).throw(forms.EmitError("it has no such operator")))
    files, notes = emit(b"", forms_to_emit([TRITON]))
    assert (files, notes) == ({}, ["model.onnx was not written: it has no such operator"])


def test_the_folder_of_a_result_has_it_and_the_next_result_takes_it_away(tmp_path: Path) -> None:
    program = tmp_path / "mine.py"
    program.write_text(
        "import torch\n\n\ndef model():\n    layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())\n"
        "    return layer.eval(), (torch.randn(2, 4),)\n"
    )
    out = tmp_path / "out"
    command = ["optimize", f"{program}:model", "--output", str(out), *QUICK]
    assert main([*command, "--emit", TRITON]) == 0
    assert {*FILES[:2]} <= file_digests(out).keys()
    assert not (out / ONNX).exists()
    session = pytest.importorskip("onnxruntime").InferenceSession(out / FILES[1])
    assert session.get_inputs()[0].name == parsed((out / FILES[0]).read_bytes())["input"][0]["name"]
    (out / FILES[0]).write_text("# changed by its user\n")
    write_result(out, {"model.pt2": b""}, {})
    assert not (out / "triton").exists()
