"""An ONNX file is optimized against itself in ONNX Runtime, and what comes back is an ONNX file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from taso_py.checking import import_check
from taso_py.checking.import_check import ImportCheckError, check_import
from taso_py.driver import searches
from taso_py.driver.optimize import optimize_source
from taso_py.engines.session import SessionEngine
from taso_py.engines.table import ENGINES
from taso_py.frontend.onnx import model
from taso_py.frontend.onnx.call import OnnxCall
from taso_py.frontend.onnx.table import ROWS
from taso_py.ir.graph import Graph
from taso_py.judging import evaluation
from taso_py.models.importing import import_source
from taso_py.models.source import Source, at_size, load_source
from taso_py.models.spec import SourceError
from taso_py.options import Options
from taso_py.rules.apply import apply
from taso_py.rules.match import Match, Matcher
from taso_py.rules.text import read_rules
from taso_py.saving.loading import load
from taso_py.search.result import Candidate, SearchResult, SearchStop

onnx: Any = pytest.importorskip("onnx")
onnxruntime: Any = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx_ir")

(RULE,) = read_rules("rule a: float[..B] source relu(relu(a)) target relu(a)")
CHAIN = "a0 = Relu(in) " + " ".join(f"a{n} = Relu(a{n - 1})" for n in range(1, 10)) + " out = Relu(a9)"
HEAD = '<ir_version: 8, opset_import: ["" : 17]> m'
CLAMPED = f"{HEAD} (float[300,300] in) => (float[300,300] out) {{ {CHAIN} }}"
OPEN = f"{HEAD} (float[N,3] x, int64[N] i) => (float[N,3] y) {{ y = Relu(x) }}"


def write(folder: Path, text: str) -> Path:
    path = folder / "given.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return path


def names_and_result(path: Path, given: Tensor) -> tuple[str, str, Tensor]:
    """What a file's only input and output are called, and what it computes."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (taken,), (made,) = session.get_inputs(), session.get_outputs()
    (result,) = session.run(None, {taken.name: given.numpy()})
    return taken.name, made.name, torch.as_tensor(result)


def run_file(content: bytes, x: Tensor) -> list[Tensor]:
    """Compute a file whose only input is x."""
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    assert [argument.name for argument in session.get_inputs()] == ["x"]
    return [torch.as_tensor(result) for result in session.run(None, {"x": x.numpy()})]


@pytest.mark.slow
@pytest.mark.parametrize("rewrites", [True, False])
def test_a_file_becomes_a_file_that_computes_the_same(
    rewrites: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The search is made to apply one rule wherever it can, to a model so slow that this is surely faster."""

    def search(graph: Graph, *_: Any, progress: bool, refines: bool) -> SearchResult:
        original, steps, now = Candidate(graph, graph, 1.0, 0), list[tuple[Match, Graph]](), graph
        while rewrites and (found := Matcher([RULE]).matches(now)):
            now = apply(now, found[0]) or now
            steps.append((found[0], now))
        better = [Candidate(graph, now, 0.1, 0, (RULE.id,) * len(steps), tuple(steps))] if steps else []
        return SearchResult(original, (*better, original), SearchStop.EXHAUSTED, 1, 1, 0.0)

    def no_page(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(searches, "search", search)
    monkeypatch.setattr("taso_py.driver.write.gather_evidence", no_page)
    if not rewrites:  # what is the same may seem faster by chance
        monkeypatch.setattr(evaluation.Evaluation, "_confirmed_outcome", lambda *_: None)
    path, output = write(tmp_path, CLAMPED), tmp_path / "out"
    options = Options(runtime="onnxruntime", race_seconds=0.5, cache=False)
    found = optimize_source(load_source(str(path)), options, [RULE], output)
    assert found.report.runtime == "onnxruntime"
    assert found.report.comparison_passed
    assert found.keeps_original != rewrites
    assert ((output / "model.onnx").read_bytes() == path.read_bytes()) != rewrites
    x = torch.randn(300, 300)
    taken, made, result = names_and_result(output / "model.onnx", x)
    assert (taken, made) == ("in", "out")
    for other in (found.module(x), load(output)(x)):
        assert torch.equal(other, result)
    assert torch.equal(result, x.relu())


def test_a_file_that_was_read_wrongly_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def doctored(call: OnnxCall) -> Tensor:
        return torch.clamp(call.tensor(), min=0, max=3)

    read = model.OnnxFile.module
    rows: Mapping[str, Any] = {**ROWS, "Relu": doctored}
    monkeypatch.setattr(model.OnnxFile, "module", lambda file, examples: read(file, examples, rows))
    source = load_source(str(write(tmp_path, CLAMPED)))
    with pytest.raises(ImportCheckError, match="computes something else than ONNX Runtime"):
        optimize_source(source, Options(runtime="onnxruntime", cache=False), [])


def test_what_rounding_decides_in_a_file_may_be_decided_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The sign of the difference of two sums of the same numbers is that of their roundings."""
    weights = f"<float[256,1] w = {{{', '.join(['1'] * 256)}}}, int64[1] a = {{1}}>"
    body = "s = MatMul(x, w) t = ReduceSum(x, a) d = Sub(s, t) y = Sign(d)"
    path = write(tmp_path, f"{HEAD} (float[64,256] x) => (float[64,1] y) {weights} {{ {body} }}")
    source = load_source(str(path))
    program = import_source(source)
    (note,) = check_import(source, program, 0)
    assert "differs slightly" in note
    monkeypatch.setattr(import_check, "FACTOR", 0.0)
    with pytest.raises(ImportCheckError, match="computes something else than ONNX Runtime"):
        check_import(source, program, 0)


@pytest.mark.parametrize(
    ("outputs", "body"),
    [
        ("float[3,2] y", "a = Relu(x) y = Transpose(a)"),
        ("float[2,1] y", "a = Relu(x) y = Slice(a, one, two, one)"),
        ("float[2,3] x, float[2,3] y", "y = Relu(x)"),
        ("float[2,3] y, float[2,3] y", "y = Relu(x)"),
        ("float[2,3] y, int64[1] one", "y = Relu(x)"),
    ],
    ids=["a view", "a part", "an input", "a value twice", "a weight"],
)
def test_outputs_are_dense_and_may_be_inputs(outputs: str, body: str, tmp_path: Path) -> None:
    weights = "<int64[1] one = {1}, int64[1] two = {2}>"
    path = write(tmp_path, f"{HEAD} (float[2,3] x) => ({outputs}) {weights} {{ {body} }}")
    source = load_source(str(path))
    program = import_source(source)
    assert check_import(source, program, 0) == ()
    assert source.onnx is not None
    session = ENGINES["onnxruntime"]
    assert isinstance(session, SessionEngine)
    renamed = source.onnx.renamed(session.model_of(program.graph, program.weights).as_bytes)
    results = [run_file(content, *source.args) for content in (path.read_bytes(), renamed)]
    for wanted, found, own in zip(*results, pytree.tree_leaves(source.callable()(*source.args)), strict=True):
        assert torch.equal(wanted, found)
        assert torch.equal(wanted, own)


def test_sizes_that_a_file_leaves_open_are_the_users_to_choose(tmp_path: Path) -> None:
    path = str(write(tmp_path, OPEN))
    with pytest.raises(SourceError, match=r"takes x \(Nx3:float32\) and i \(N:int64\), with sizes left open"):
        load_source(path)
    source: Source = load_source(path, ["2x3", "2:int64"])
    assert [tuple(one.shape) for one in source.args] == [(2, 3), (2,)]
    assert torch.equal(source.callable()(*source.args), source.args[0].relu())
    assert torch.equal(replace(source, onnx=None).callable()(*source.args), source.args[0].relu())


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        (["2x3"], {}, "given 1; give one --input SPEC for each input"),
        (["2x4", "2:int64"], {}, r"input x of .* is Nx3:float32; give that as its --input SPEC"),
        (["2x3", "2:int32"], {}, r"input i of .* is N:int64"),
        ([], {"dtype": "bf16"}, "which cannot be cast"),
    ],
)
def test_inputs_that_do_not_fit_are_one_line(
    inputs: list[str], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = str(write(tmp_path, OPEN))
    with pytest.raises(SourceError, match=message) as raised:
        load_source(path, inputs, **options)
    assert "\n" not in str(raised.value)


def test_files_that_nothing_can_be_made_of_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no file"):
        load_source(str(tmp_path / "absent.onnx"))
    with pytest.raises(SourceError, match="sizes of its example inputs; give --input, once for each run"):
        at_size(load_source(str(write(tmp_path, OPEN)), ["2x3", "2"]), "4x3,4", 0)
    broken = write(tmp_path, CLAMPED.replace("Relu(a9)", "Relu(a77)"))
    with pytest.raises(SourceError, match=r"onnxruntime cannot run this module|is not a readable ONNX model"):
        load_source(str(broken))
    unknown = write(tmp_path, f"{HEAD} (float[2,2] x) => (int64[2,N] y) {{ y = NonZero(x) }}")
    with pytest.raises(SourceError, match="ONNX operator NonZero"):
        load_source(str(unknown))


LOOKUP = "k = Constant <value = int64[1] {7}> () z = Gather(k, a)"


@pytest.mark.parametrize(
    ("body", "drawn"),
    [
        ("y = Add(a, b)", "ab"),
        ("y = Div(a, b)", "a"),
        ("y = Mod(a, b)", "a"),
        ("y = Div(b, a)", "b"),
        (f"{LOOKUP} y = Add(z, b)", "b"),
        (f"{LOOKUP} y = Div(z, b)", ""),
    ],
)
def test_integers_may_be_divisors_and_indices(body: str, drawn: str, tmp_path: Path) -> None:
    source = load_source(str(write(tmp_path, f"{HEAD} (int64[4,8] a, int64[4,8] b) => (int64[4,8] y) {{ {body} }}")))
    assert check_import(source, import_source(source), 0) == ()
    assert "".join(name for name, given in zip("ab", source.args, strict=True) if len(given.unique()) == 2) == drawn


@pytest.mark.parametrize(
    ("inputs", "body", "message"),
    [
        ("int64[4] a, int64[4] b", "d = Sub(a, a) y = Div(b, d)", r"Div \(node that gives y\) fails: .*ZeroDivision"),
        ("float[4,4] a", "y = NonZero(a)", r"NonZero \(node that gives y\) is not supported"),
    ],
)
def test_a_node_without_a_name_is_said_by_what_it_computes(
    inputs: str, body: str, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path, f"{HEAD} ({inputs}) => (y) {{ {body} }}")
    with pytest.raises(SourceError, match=message):
        load_source(str(path))


def test_a_file_is_named_once(tmp_path: Path) -> None:
    path = tmp_path / "junk.onnx"
    path.write_bytes(b"junk")
    with pytest.raises(SourceError, match="is not a readable ONNX model") as raised:
        load_source(str(path))
    assert str(raised.value).count("junk.onnx") == 1
