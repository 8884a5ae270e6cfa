"""Other forms of a result: they compute what the saved program computes, or are not written."""

from __future__ import annotations

import runpy
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, fx, nn

from taso_py.backend.onnx import NotInOnnx
from taso_py.saving import emit as forms
from taso_py.saving.artifact import serialize
from taso_py.saving.emit import EmitError, check_forms, emit, to_code, to_onnx

X = torch.linspace(-1, 1, 24).view(1, 2, 3, 4)


class Small(nn.Module):
    """Named submodules, a buffer, and a result with structure."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU())
        self.scale: Tensor
        self.register_buffer("scale", torch.full((3, 1, 1), 0.5))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.block(x)
        return {"scaled": y * self.scale, "flat": y.flatten(1)}


@pytest.fixture(scope="module")
def content() -> bytes:
    torch.manual_seed(0)
    return serialize(Small().eval(), (X,), {})


def write(folder: Path, content: bytes) -> nn.Module:
    (folder / "model.pt2").write_bytes(content)
    (folder / "model.py").write_bytes(to_code(content))
    return runpy.run_path(str(folder / "model.py"))["Optimized"]()


def test_code_computes_the_same_without_this_package(content: bytes, tmp_path: Path) -> None:
    module = write(tmp_path, content)
    torch.manual_seed(0)
    original = Small().eval()
    for x in (X, X * 3 - 1):
        expected, found = original(x), module(x)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected)
    text = (tmp_path / "model.py").read_text()
    assert "taso_py" not in text
    assert "relu = torch.ops.aten.relu.default(conv2d)  # float32[1, 3, 3, 4]" in text


class Shifted(nn.Module):
    """Keywords that an example may give in another order."""

    def forward(self, x: Tensor, factor: Tensor, shift: Tensor) -> Tensor:
        return x * factor + shift


def test_keyword_arguments_are_given_to_the_code_by_name(tmp_path: Path) -> None:
    module = write(tmp_path, serialize(Shifted().eval(), (X,), {"shift": X, "factor": X}))
    assert torch.equal(module(X, factor=X + 1, shift=X), X * (X + 1) + X)
    with pytest.raises(TypeError, match="positional argument"):
        module(X, X + 1, X)


def test_code_that_computes_something_else_is_not_written(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = forms._lines

    def wrong(module: fx.GraphModule, graph: fx.Graph) -> list[str]:
        return [line.replace("aten.relu.default", "aten.sigmoid.default") for line in honest(module, graph)]

    monkeypatch.setattr(forms, "_lines", wrong)
    assert emit(content, ["code"]) == ({}, ["model.py was not written: the code gives another result than the program"])


def test_code_that_does_not_run_is_a_note(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "_lines", lambda *_: ["def forward(self, x):", "    return absent"])
    files, notes = emit(content, ("pt2", "code"))
    assert (files, notes) == ({}, ["model.py was not written: the code does not run: name 'absent' is not defined"])


def test_onnx_computes_the_same(content: bytes) -> None:
    session = pytest.importorskip("onnxruntime").InferenceSession(to_onnx(content))
    torch.manual_seed(0)
    expected = Small().eval()(X * 2)
    found = session.run(None, {session.get_inputs()[0].name: (X * 2).numpy()})
    for array, tensor in zip(found, expected.values(), strict=True):
        assert torch.allclose(torch.as_tensor(array), tensor, atol=1e-6)


@pytest.mark.parametrize("has_rows", [True, False])
def test_onnx_is_written_by_rows_or_by_torch(content: bytes, has_rows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx = pytest.importorskip("onnx")
    if not has_rows:
        monkeypatch.setattr(forms, "onnx_model", Mock(side_effect=NotInOnnx("an operator has no row")))
    assert (onnx.load_from_string(to_onnx(content)).producer_name == "taso-py") == has_rows


def test_onnx_that_computes_something_else_is_not_written(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(forms, "outputs_of", lambda *_: [torch.zeros(1, 3, 3, 4), torch.zeros(1, 36)])
    with pytest.raises(EmitError, match="another result 0: off by"):
        to_onnx(content)


def test_what_onnx_cannot_say_is_a_note_of_one_line() -> None:
    class Decomposition(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.eigvals(x @ x.mT).abs()

    files, (note,) = emit(serialize(Decomposition(), (X,), {}), ["pt2", "onnx"])
    assert files == {}
    assert note.startswith("model.onnx was not written: ")
    assert "\n" not in note


def test_unknown_forms_are_refused() -> None:
    check_forms(forms.FORMS)
    with pytest.raises(EmitError, match="'pdf' to emit; there are pt2, onnx, aot, code"):
        check_forms(["pt2", "pdf"])
