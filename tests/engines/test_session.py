"""Engines that take whole graphs: they compute what PyTorch does, or refuse a program in one line."""

from __future__ import annotations

import copy
import errno
import gc
import importlib
import pickle
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from taso_py.backend import Program
from taso_py.backend.frozen import FrozenError, GradientError
from taso_py.backend.guard import ArgumentError
from taso_py.backend.onnx import model as onnx_model
from taso_py.backend.run import run_graph
from taso_py.backend.schema import storage_of
from taso_py.engines import session
from taso_py.engines.engine import CompiledGraph, EngineUnavailableError
from taso_py.engines.session import OnnxModel, SessionEngine
from tests.engines.sessions import Function, called_at_once, engine_named, program_of

X = torch.linspace(-2, 2, 12).reshape(3, 4)
IDS = torch.tensor([2, 0, 1])


def nearly(found: Any, expected: Any) -> bool:
    """Whether results are of equal types, shapes and strides, and equal but for roundings."""
    pairs = list(zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True))
    alike = all((a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride()) for a, b in pairs)
    bounds = [2**-7 if expected.itemsize < 4 else 1e-5 for _, expected in pairs]
    return alike and all(
        torch.allclose(a.double(), b.double(), rtol=r, atol=1e-6) for (a, b), r in zip(pairs, bounds, strict=True)
    )


COMPUTED: dict[str, tuple[Callable[..., Any], Sequence[Tensor]]] = {
    "an input that nothing reads": (lambda a, b, c: a * 2 + c, (X, X + 1, X + 2)),
    "a first input that nothing reads": (lambda a, b: b.relu(), (X, X + 1)),
    "transposed": (lambda a: a.relu() * 2, (X.T,)),
    "expanded": (lambda a: a + 1, (X[:1].expand(5, 4),)),
    "with gaps": (lambda a: a + 1, (X[:, ::2],)),
    "channels last": (lambda a: a * 2, (torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last),)),
    "a number": (lambda a: a * 2, (torch.tensor(3.0),)),
    "truth values": (lambda a: (~a, a > 0), (X > 0,)),
    "places": (lambda a, ids: (a[ids], a.argmax(1), ids, torch.nn.functional.one_hot(ids, 3)), (X, IDS)),
    "a remainder by a power of two": (lambda a: (a % 0.5, a // 2, torch.fmod(a, -4)), (X,)),
    "maxima without their places": (
        lambda a: torch.nn.functional.adaptive_max_pool1d(a[None], 3),
        (X,),
    ),
    "looked up": (lambda a: torch.searchsorted(torch.tensor([-1.0, 0.0, 1.0]), a), (X,)),
    "int32": (lambda a: a * 3 - 1, (torch.tensor([2**31 - 1, 5], dtype=torch.int32),)),
    "uint8": (lambda a: torch.cat([a, a]), (torch.tensor([255, 5], dtype=torch.uint8),)),
    "half": (lambda a: a.relu() + 1, (X.half(),)),
    "statistics": (
        lambda a: (a.std(-1), a.var(0, unbiased=False), *torch.var_mean(a, 1), torch.std_mean(a, 0)[0]),
        (X,),
    ),
    "similarities": (lambda a: (torch.cosine_similarity(a, a.relu()), torch.outer(a[0], a[1])), (X,)),
    "a step of a recurrent layer": (
        lambda a, h: torch.lstm_cell(a, (h, h), torch.ones(8, 4), torch.ones(8, 2)),
        (X, X[:, :2]),
    ),
    "a tree": (lambda a: {"sum": a + 1, "both": [a * 2, a.mean()]}, (X,)),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_an_engine_computes_what_pytorch_does(engine: SessionEngine, name: str) -> None:
    function, args = COMPUTED[name]
    module = engine.build(program_of(function, args))
    assert nearly(module(*args), function(*args))


def test_results_are_the_callers_own(engine: SessionEngine) -> None:
    module = engine.build(program_of(lambda a: (a, a.relu(), a.relu(), a.reshape(-1)), (X,)))
    first = module(X)
    kept = [tensor.clone() for tensor in first]
    assert len({storage_of(tensor) for tensor in (X, *first)}) == 5
    module(X + 1)
    first[1].zero_()
    assert [torch.equal(a, b) for a, b in zip(first, kept, strict=True)] == [True, False, True, True]


REFUSED: dict[str, tuple[Callable[..., Any], Sequence[Tensor], str]] = {
    "complex": (lambda a: (a * 1j).real, (X,), "c64"),
    "no elements": (lambda a: a + 1, (X[:0],), r"without elements \(f32\[0,4\]\)"),
    "no row": (lambda a: a.lgamma(), (X,), r"aten\.lgamma\.default has no row"),
    "draws": (lambda a: a + torch.rand_like(a), (X,), "draws random numbers"),
    "a view of what is expanded": (lambda a: (a, a + 1), (X[:1].expand(3, 4),), "elements share memory"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_an_engine_cannot_compute_is_refused_in_one_line(engine: SessionEngine, name: str) -> None:
    function, args, reason = REFUSED[name]
    with pytest.raises(EngineUnavailableError, match=f"{engine.name} cannot run this module: .*{reason}") as refusal:
        engine.build(program_of(function, args))
    assert "\n" not in str(refusal.value)


def test_what_fails_in_its_first_call_is_refused_in_one_line(
    engine: SessionEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, transposed = (engine.build(program_of(f, (X,))) for f in (lambda a: a + 1, lambda a: a.T + 1))
    compiled = CompiledGraph.of(module)
    assert compiled is not None
    assert engine.prepare(module, (X,), {}) is module
    monkeypatch.setattr(type(compiled), "forward", lambda _, x: [x[:2]])
    with pytest.raises(EngineUnavailableError, match=f"{engine.name} cannot run this module: .*size"):
        engine.prepare(transposed, (X,), {})
    with pytest.raises(EngineUnavailableError, match=r"it returns the shape \[2, 4\] in place of f32\[3,4\]"):
        engine.build(program_of(lambda a: a + 1, (X,)))

    def fails(*_: Any) -> Any:
        raise RuntimeError("the type of a node is not supported\nmore")

    monkeypatch.setattr(type(compiled), "forward", fails)
    with pytest.raises(EngineUnavailableError, match=rf"^{engine.name} cannot run this module: the type .* supported$"):
        engine.build(program_of(lambda a: a + 1, (X,)))


OTHER_PRECISION: dict[str, tuple[Callable[..., Any], Tensor, str]] = {
    "double": (lambda a: a + 1, X.double(), "computes f64 in f32"),
    "double inside": (lambda a: (a.double() * 3).float(), X, "computes f64 in f32"),
    "uint8": (lambda a: a + 250, torch.arange(9, dtype=torch.uint8), "add of u8 with a different overflow"),
    "products of int64": (
        lambda a: a * a * a,
        torch.arange(9),
        "i64 in 32 bits and compares integers in f32, which might not hold them",
    ),
    "to an integer": (lambda a: a.long(), X, "of i64 with a different overflow"),
    "of integers": (lambda a: a.amax(), torch.arange(9, dtype=torch.int32), "of i32 with a different overflow"),
    "a remainder": (lambda a: a % 0.1, X, "rounds the quotients of aten.remainder"),
    "a quotient rounded down": (
        lambda a: torch.div(a, 0.1, rounding_mode="floor"),
        X,
        "rounds the quotients of aten.div",
    ),
    "sorted": (lambda a: a.argsort(), X.round(), "orders equal elements otherwise than"),
    "sorted values": (lambda a: a.sort()[0], X, "orders equal elements otherwise than"),
    "a weight": (lambda a: torch.where(a, torch.tensor([2**40, 1]), 0), X[0, :2] > 0, "has larger ones"),
    "a number": (lambda a: torch.where(a, 2**40, 1), X > 0, "1099511627776 is larger"),
}


@pytest.mark.parametrize("name", OTHER_PRECISION)
def test_what_openvino_computes_in_other_types_is_refused(name: str) -> None:
    function, x, reason = OTHER_PRECISION[name]
    program = program_of(function, [x])
    with pytest.raises(EngineUnavailableError, match=f"openvino cannot run this module: .*{reason}"):
        engine_named("openvino").build(program)
    assert nearly(engine_named("onnxruntime").build(program)(x), function(x))  # which has these types


def test_integers_beyond_those_of_openvino_are_refused_at_the_call() -> None:
    module = engine_named("openvino").build(program_of(lambda a: torch.cat([a, a]), [IDS]))
    assert torch.equal(module(IDS), IDS.repeat(2))
    with pytest.raises(ArgumentError, match="computes integers in 32 bits, and args_0 has larger ones"):
        module(IDS + 2**31)


COUNTING: dict[str, tuple[Callable[..., Any], int]] = {
    "moved": (lambda a: torch.cat([a, a]), 2**31 - 1),
    "counted": (lambda a: a + 1, 2**30),
    "counted from": (lambda a: (a - torch.arange(7, 7 + len(a))) * 3, 2**24),
    "in rows": (lambda a: a * 100 + a.unsqueeze(1), 2**24),
    "squared": (lambda a: a * a.flip(0), 2**15),
    "added up": (lambda a: a.cumsum(0), 2**24),
    "in a sum": (lambda a: a.sum(), 2**15),
    "where they are not 1, in a sum": (lambda a: (a != 1).sum() + a.count_nonzero(), 2**31 - 1),
    "looked up": (lambda a: torch.bucketize(a, torch.tensor([-2, 0, 3])), 2**24),
    "where they are not 1, counted": (lambda a: torch.cumsum((a != 1).int(), 0).type_as(a) + 2, 2**31 - 1),
    "the place of the largest": (lambda a: a.int().argmax(), 2**24),
    "beside one that float32 holds": (lambda a: (a > 2**24 - 1) & (a >= -7), 2**31 - 1),
    "beside each other": (lambda a: a > a.flip(0), 2**24),
    "among others": (lambda a: torch.isin(a, a.flip(0)[1:3]), 2**24),
    "beside a large one": (lambda a: a == 2**24 + 1, 2**15),
    "the first place of a positive one": (lambda a: (a > 0).int().argmax(), 2**31 - 1),
}
"""Functions of int64, and the largest numbers that OpenVINO takes for each."""


@pytest.mark.parametrize("name", COUNTING)
def test_integers_are_counted_as_far_as_32_bits_hold_them(name: str) -> None:
    function, most = COUNTING[name]
    x = torch.tensor([3, -most, 0, most, 1])
    module = engine_named("openvino").build(program_of(function, [torch.arange(5)]))
    assert torch.equal(module(x), function(x))
    with pytest.raises(ArgumentError, match="args_0 has larger ones than"):
        module(x * 2)


def test_bfloat16_is_computed_or_refused(engine: SessionEngine) -> None:
    x = X.bfloat16()
    program = program_of(lambda a: a.relu() + 1, [x])
    if engine.name == "onnxruntime":
        with pytest.raises(EngineUnavailableError, match="NOT_IMPLEMENTED"):
            engine.build(program)
    else:
        assert nearly(engine.build(program)(x), x.relu() + 1)


def large(monkeypatch: pytest.MonkeyPatch) -> Program:
    """Return a linear layer whose model is written to a file, with its weights in another."""
    monkeypatch.setattr(session, "LARGE", 0)
    return program_of(nn.Linear(200, 5), [torch.ones(3, 200)])


def test_large_weights_lie_in_a_file_for_as_long_as_they_are_read(
    engine: SessionEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = large(monkeypatch)
    model = engine.model_of(program.graph, program.weights)
    assert isinstance(model.content, Path)
    assert model.content.with_name("model.onnx.data").stat().st_size >= 4 * 5 * 200
    x = torch.ones(3, 200)
    (expected,) = run_graph(program.graph, [x], program.weights)
    built = engine.build(program)
    assert nearly(built(x), expected)
    assert nearly(engine.compile(OnnxModel(model.as_bytes, model.inputs))(x)[0], expected)
    folder = model.content.parent
    del model
    gc.collect()
    assert not folder.exists()
    assert nearly(built(x), expected)


@pytest.mark.parametrize("most", [1 << 31, 100])
def test_weights_too_large_for_one_file_are_saved_beside_it(
    engine: SessionEngine, most: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(onnx_model, "MOST_BYTES", most)
    program, x = large(monkeypatch), torch.ones(3, 200)
    built = engine.build(program)
    files = engine.files(built)
    assert set(files) <= {engine.file, *engine.beside}
    assert ("model.onnx.data" in files) == (engine.name == "onnxruntime" and most == 100)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    restored = engine.restore(program, tmp_path)
    assert nearly(restored(x), built(x))
    if most == 100:
        with pytest.raises(EngineUnavailableError, match="does not fit into one file"):
            _ = engine.model_of(program.graph, program.weights).as_bytes


def test_without_room_for_files_models_are_kept_in_memory(
    engine: SessionEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    program, x = large(monkeypatch), torch.ones(3, 200)
    expected = engine.build(program)(x)
    monkeypatch.setattr("taso_py.backend.onnx.save", full)
    assert isinstance(engine.model_of(program.graph, program.weights).content, bytes)
    assert nearly(engine.build(program)(x), expected)
    monkeypatch.setattr(onnx_model, "MOST_BYTES", 100)
    with pytest.raises(EngineUnavailableError, match=r"cannot run this module: the model has .* GB of weights") as told:
        engine.build(program)
    assert "\n" not in str(told.value)


def test_a_module_that_is_too_large_to_be_exported_is_refused(
    engine: SessionEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exported(*_: Any, **__: Any) -> Any:
        class Program:
            @property
            def model_proto(self) -> Any:
                raise ValueError("Message onnx.ModelProto exceeds maximum protobuf size of 2GB: 3000000000\nin C++")

        return Program()

    monkeypatch.setattr(torch.onnx, "export", exported)
    with pytest.raises(
        EngineUnavailableError, match=f"{engine.name} cannot run this module: Message .* of 2GB: [0-9]*$"
    ):
        engine.prepare(nn.Linear(4, 5), (X,), {})


def test_an_argument_that_requires_gradients_gets_none(engine: SessionEngine) -> None:
    module, x = engine.build(program_of(lambda a: a * 2, [X])), X.clone().requires_grad_()
    result = module(x)
    assert torch.equal(result, 2 * X)
    with pytest.raises(GradientError):
        result.sum().backward()


def test_a_copy_computes_the_same_and_there_is_no_pickle(engine: SessionEngine) -> None:
    module = engine.build(program_of(lambda a: a * 2, [X]))
    for copied in (copy.deepcopy(module), copy.copy(module)):
        assert torch.equal(copied(X), 2 * X)
    for refused in (module, module.computes):
        with pytest.raises(FrozenError, match="cannot be pickled"):
            pickle.dumps(refused)


@pytest.mark.filterwarnings("ignore")
def test_a_session_is_neither_exported_nor_cast(engine: SessionEngine) -> None:
    """What it computes with is not in PyTorch's hands; a tracer would read memory that is not there."""
    module = engine.build(program_of(nn.Linear(4, 5), [X]))
    wanted = module(X)
    for act in (torch.export.export, torch.jit.trace):
        with pytest.raises(FrozenError, match="cannot be exported or traced; export the PyTorch program that optimize"):
            act(module, (X,))
    for cast in (nn.Module.half, nn.Module.double, lambda m: m.to("meta")):
        with pytest.raises(FrozenError, match="for one element type and device"):
            cast(module)
    assert torch.equal(module.float()(X), wanted)


def test_threads_may_call_at_once(engine: SessionEngine) -> None:
    x = torch.rand(8, 64)
    layers = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)).eval()
    inputs = [x + number for number in range(4)]
    for given, results in zip(inputs, called_at_once(engine.build(program_of(layers, [x])), inputs, 50), strict=True):
        assert all(nearly(result, layers(given).detach()) for result in results)


def restored(engine: SessionEngine, module: nn.Module, folder: Path, function: Any, x: Tensor, **options: Any) -> Any:
    for name, content in engine.files(module).items():
        (folder / name).write_bytes(content)
    return engine.restore(program_of(function, [x], **options), folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bool], ids=str)
def test_sizes_may_be_open(engine: SessionEngine, dtype: torch.dtype, tmp_path: Path) -> None:
    function, x = Function(lambda a: (a.reshape(-1), a[:, :2], a.T)), X > 0 if dtype is torch.bool else X.to(dtype)
    module = engine.build(program_of(function, [x], is_open=True))
    again = restored(engine, module, tmp_path, function, x, is_open=True)
    for given in (x, x[:1], x.repeat(5, 1)):
        assert nearly(module(given), function(given))
        assert nearly(again(given), function(given))


def test_results_of_open_sizes_are_the_callers_own(engine: SessionEngine) -> None:
    module = engine.build(program_of(lambda a: a + 1, [X], is_open=True))
    first = module(X)
    module(X + 1)
    assert nearly(first, X + 1)


def test_a_saved_form_is_read_again_with_inputs_that_nothing_reads(engine: SessionEngine, tmp_path: Path) -> None:
    function, args = Function(lambda a, b, c: a - c), (X, X + 1, X.flip(0))
    module = engine.build(program_of(function, args))
    for name, content in engine.files(module).items():
        (tmp_path / name).write_bytes(content)
    assert nearly(engine.restore(program_of(function, args), tmp_path)(*args), function(*args))


def test_the_saved_form_of_another_program_is_refused(engine: SessionEngine, tmp_path: Path) -> None:
    class Other(nn.Module):
        def forward(self, image: Tensor) -> Tensor:
            return image + 1

    module = engine.build(program_of(lambda a: a + 1, [X]))
    with pytest.raises(EngineUnavailableError, match="inputs of another program: args_0"):
        restored(engine, module, tmp_path, Other(), X)
    (tmp_path / engine.file).write_bytes(b"nothing of that kind")
    with pytest.raises(EngineUnavailableError, match="cannot run this module"):
        engine.restore(program_of(lambda a: a + 1, [X]), tmp_path)


def test_an_engine_that_does_not_load_is_one_line(engine: SessionEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert engine.absence(cpu) is None
    for error, said in (
        (ImportError("No module named 'x'\nat all"), f"{engine.name} needs .* \\(No module named 'x'\\); pip install"),
        (OSError("wrong ELF class\nat all"), "does not load here: wrong ELF class$"),
    ):

        def broken(name: str, error: Exception = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(importlib, "import_module", broken)
            reason = engine.absence(cpu)
        assert reason is not None
        assert "\n" not in reason
        assert re.search(said, reason)


def test_an_engine_is_for_the_cpu(engine: SessionEngine) -> None:
    assert "runs on the CPU" in (engine.absence(torch.device("cuda")) or "")
    with pytest.raises(EngineUnavailableError, match="cannot run this module"):
        engine.compile(OnnxModel(b"no model", ("x",)))


def test_tensors_on_other_devices_are_refused(engine: SessionEngine) -> None:
    """Their memory would be read as that of the processor."""
    built = engine.build(program_of(torch.relu, [torch.ones(3)]))
    with pytest.raises(ArgumentError, match="computes on the CPU, and was given a tensor on meta"):
        built(torch.ones(3, device="meta"))


def test_results_are_on_the_cpu_whatever_device_is_the_default(engine: SessionEngine) -> None:
    built, x = engine.build(program_of(torch.relu, [torch.ones(3)])), torch.ones(3)
    with torch.device("meta"):
        found = built(x)
    assert torch.equal(found, x)
