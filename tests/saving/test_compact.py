"""The compact form of saved programs: it gives what the ``.pt2`` file gives, or there is none."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import while_loop
from torch.nn import functional

import taso_py
from fuzz.prices import InventedPrices
from taso_py.backend import Program, build
from taso_py.backend.weights import tie
from taso_py.cost.choice import choose
from taso_py.driver.optimize import optimize
from taso_py.kernels.saved import dump
from taso_py.saving import result
from taso_py.saving.artifact import read_back, reimport, save, serialize
from taso_py.saving.compact import COMPACT, CompactFormError, describe, restore
from taso_py.saving.folder import MODEL, ArtifactError
from taso_py.saving.loading import load
from taso_py.saving.result import read
from tests.round_trips import Model
from tests.saving.test_artifact import REPORT

X = torch.linspace(-1, 1, 12).view(3, 4)
WEIGHT = torch.linspace(-2, 2, 16).view(4, 4)


def _tree(s: Any, x: Tensor, *, more: Mapping[str, Tensor]) -> Any:
    return {"sum": x + more["b"], "none": None, "number": 3, "both": [x @ s.w, (x * s.w[0],)]}


def _counting(s: Any, x: Tensor) -> Tensor:
    s.calls.add_(1)
    return x * s.calls


FORMS: dict[str, tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = {
    "layers": (nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 2)), (X,), {}),
    "tree": (Model(_tree, w=WEIGHT), (X,), {"more": {"b": X + 1}}),
    "transposed weight": (Model(lambda s, x: x @ s.w, w=WEIGHT.t()), (X,), {}),
    "part of a tensor": (Model(lambda s, x: x @ s.w, w=torch.arange(40.0).view(5, 8)[1:, ::2]), (X,), {}),
    "half precision": (Model(lambda s, x: x @ s.w, w=WEIGHT.bfloat16()), (X.bfloat16(),), {}),
    "complex": (Model(lambda s, x: x * s.w, w=torch.complex(X, -X)), (X,), {}),
    "truth values": (Model(lambda s, x: x.masked_fill(s.w, 0), w=X > 0), (X,), {}),
    "nothing": (Model(lambda s, x: torch.cat([x, s.w]), w=torch.zeros(0, 4)), (X,), {}),
    "outside the table": (Model(lambda s, x: torch.cumprod(x @ s.w, 1), w=WEIGHT), (X,), {}),
    "a graph inside": (
        Model(lambda s, x: torch.cond(x.sum() > 0, lambda a: a @ s.w, lambda a: a - 1, (x,)), w=WEIGHT),
        (X,),
        {},
    ),
    "not a number": (Model(lambda s, x: x + s.w, w=torch.full((4,), torch.nan)), (X,), {}),
    "other layout": (nn.Conv2d(3, 4, 2), (torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last),), {}),
    "written argument": (Model(lambda s, x, held: held.add_(x @ s.w).relu(), w=WEIGHT), (X, X + 1), {}),
    "zeros are invalid": (Model(lambda s, i: functional.embedding(i - 1, s.w), w=WEIGHT), (torch.tensor([1, 4]),), {}),
    "by keyword": (Model(lambda s, x, *, a: torch.linalg.inv(a) @ x @ s.w, w=WEIGHT), (X,), {"a": torch.eye(3) * 2}),
    "counter": (Model(_counting, calls=torch.zeros(())), (X,), {}),
}


def _content(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    return serialize(module.eval(), args, kwargs)


@pytest.mark.parametrize("name", FORMS)
def test_a_restored_program_is_the_imported_one(name: str, tmp_path: Path) -> None:
    module, args, kwargs = FORMS[name]
    content = _content(module, args, kwargs)
    path = tmp_path / MODEL
    path.write_bytes(content)
    imported = reimport(content)
    said = describe(imported, content)
    assert said is not None
    results = []
    for program in (imported, restore(json.loads(json.dumps(said)), path)):
        built = build(program)
        tie(built, program.weights)
        given, named = copy.deepcopy((args, kwargs))
        with torch.no_grad():
            results.append([built(*given, **named), built(*given, **named)])
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0, equal_nan=True)
    assert path.read_bytes() == content, "what it writes stays in memory"


def _halved(s: Any, n: Tensor, x: Tensor) -> Tensor:
    return while_loop(lambda n, _: n < 8, lambda n, x: (n * 2, x * 1.0), (n, x))[1] * s.w


def test_example_inputs_are_those_of_the_file(tmp_path: Path) -> None:
    """With zeros in their place, this loop would not end."""
    module, args = Model(_halved, w=torch.ones(4)), (torch.tensor(1), X)
    content = _content(module, args, {})
    (tmp_path / MODEL).write_bytes(content)
    said = describe(reimport(content), content)
    assert said is not None
    restored = restore(said, tmp_path / MODEL)
    for found, given in zip(restored.example_inputs, args, strict=True):
        assert torch.equal(found, given)
    assert torch.equal(build(restored)(*args), X)


def test_what_has_open_sizes_has_none() -> None:
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    exported = torch.export.export(nn.Linear(4, 5), (X,), dynamic_shapes=shapes)
    content = serialize(exported.module(), (X,), {}, {"input": {0: torch.export.Dim.DYNAMIC}})
    program = reimport(content)
    assert program.open
    assert describe(program, content) is None


def _with_other_weights(program: Program) -> Program:
    return replace(program, weights={key: tensor + 1 for key, tensor in program.weights.items()})


def _with_other_names(program: Program) -> Program:
    return replace(program, weights={f"{key}_": tensor for key, tensor in program.weights.items()})


def _with_other_parameters(program: Program) -> Program:
    return replace(program, device=torch.device("meta"))


@pytest.mark.parametrize("change", [_with_other_weights, _with_other_names, _with_other_parameters])
def test_what_does_not_describe_the_file_is_none(change: Callable[[Program], Program]) -> None:
    content = _content(*FORMS["layers"])
    assert describe(change(reimport(content)), content) is None


def _kernels_of(program: Program) -> Mapping[str, Any]:
    return dump(choose(program.graph, InventedPrices(2, fused=0.01)).plan.eager())


@pytest.fixture(scope="module")
def optimized(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 7)).eval()
    folder = tmp_path_factory.mktemp("compact") / "out"
    image = torch.ones(1, 3, 4, 4)
    content = serialize(module, (image,), {})
    form, _, _ = read_back(content, _kernels_of, describes=True)
    assert form.plan is not None
    assert {step["tile"] for step in form.plan["steps"]} - {"aten"}
    save(folder, content, REPORT.as_dict(), "the trace", plan=form.plan, compact=form.compact)
    return module, folder


def test_a_result_loads_by_it_alone(optimized: tuple[nn.Module, Path]) -> None:
    module, folder = optimized
    script = (
        "import sys, torch, taso_py; y = taso_py.load(sys.argv[1])(torch.ones(1, 3, 4, 4)); print(y.tolist());"
        "heavy = {'torch._dynamo', 'sympy', 'z3', 'networkx', 'jinja2', 'rich', 'taso_py.search', 'taso_py.frontend'};"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()"
    )
    ran = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    torch.testing.assert_close(torch.tensor(json.loads(ran.stdout)), module(torch.ones(1, 3, 4, 4)))


def test_what_optimize_saves_has_it(tmp_path: Path) -> None:
    found = optimize(
        nn.Sequential(nn.Linear(4, 5), nn.ReLU()).eval(), X, output=tmp_path, race_seconds=0.1, time_limit=1.0
    )
    saved = read(tmp_path)
    assert COMPACT in saved.files
    assert saved.compact_program({}) is not None
    torch.testing.assert_close(load(tmp_path)(X), found.module(X))


def _other_model(folder: Path) -> None:
    (folder / MODEL).write_bytes(_content(nn.Conv2d(3, 8, 3), (torch.ones(1, 3, 4, 4),), {}))


def _truncated_model(folder: Path) -> None:
    (folder / MODEL).write_bytes((folder / MODEL).read_bytes()[:-100])


@pytest.mark.parametrize("damage", [_other_model, _truncated_model])
def test_a_file_that_was_not_described_is_refused(
    damage: Callable[[Path], None], optimized: tuple[nn.Module, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    shutil.copytree(optimized[1], folder)
    damage(folder)
    with pytest.raises(CompactFormError):
        restore(json.loads((folder / COMPACT).read_text()), folder / MODEL)
    with pytest.raises(ArtifactError) as caught:
        taso_py.load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_one_byte_that_is_another_is_refused(
    share: float, optimized: tuple[nn.Module, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    shutil.copytree(optimized[1], folder)
    assert read(folder).compact_program({}) is not None
    content = bytearray((folder / MODEL).read_bytes())
    content[int(share * len(content))] ^= 0x20
    (folder / MODEL).write_bytes(content)
    assert read(folder).compact_program({}) is None
    with pytest.raises(ArtifactError, match=r"\A.*optimize the model again\Z"):
        taso_py.load(folder)
    monkeypatch.setattr(result, "CHECKED_BYTES", len(content) - 1)
    assert read(folder).compact_program({}) is not None, "weights of a large file are not read to be compared"


def test_a_form_that_is_not_listed_is_not_read(optimized: tuple[nn.Module, Path], tmp_path: Path) -> None:
    module, folder = optimized[0], tmp_path / "out"
    shutil.copytree(optimized[1], folder)
    said = json.loads((folder / COMPACT).read_text())
    (folder / COMPACT).write_text(json.dumps({**said, "outputs": [[1]]}))
    assert read(folder).compact_program({}) is None
    with pytest.raises(ArtifactError, match="files of several runs"):
        taso_py.load(folder)
    (folder / COMPACT).unlink()
    torch.testing.assert_close(taso_py.load(folder)(torch.ones(1, 3, 4, 4)), module(torch.ones(1, 3, 4, 4)))
