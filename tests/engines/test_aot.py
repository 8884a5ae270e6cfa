"""AOTInductor: archives compute what the program does, here only, and run without this package.

One archive is compiled for all quick tests: that which ``--emit aot`` writes of a program with packed kernels.
"""

from __future__ import annotations

import copy
import errno
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor
from torch import Tensor, nn

from taso_py import files as written
from taso_py.backend import NO_PLAN, Plan, Program, build, fold
from taso_py.backend.guard import ArgumentError
from taso_py.backend.weights import tie
from taso_py.backend.writes import state_of
from taso_py.driver.optimize import optimize
from taso_py.engines import aot
from taso_py.engines.aot import ARCHIVE, INSTRUCTIONS, RELEASE, AotInductor, misfit_of, packable, with_extra
from taso_py.engines.engine import EngineUnavailableError
from taso_py.engines.table import ENGINES
from taso_py.frontend import import_module
from taso_py.ir.graph import Graph
from taso_py.ir.node import make
from taso_py.ir.operator import Weight
from taso_py.kernels.saved import dump
from taso_py.kernels.table import TILES, covers
from taso_py.saving.artifact import reimport, save, serialize
from taso_py.saving.emit import emit
from taso_py.saving.folder import ArtifactError
from taso_py.saving.loading import load
from tests.engines.sessions import Function, called_at_once, program_of
from tests.engines.test_state import PLACE, WRITING, Cached, assert_writes_alike
from tests.engines.test_state import X as ROW
from tests.saving.test_artifact import REPORT

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # PyTorch's compiler uses much that it calls deprecated
    pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler"),
]
CPU = torch.device("cpu")
IMAGES = torch.linspace(-1, 1, 2 * 3 * 6 * 6).view(2, 3, 6, 6)
PACKING = ("onednn.conv", "onednn.linear", "mkl.linear")


class Net(nn.Module):
    """A convolution and two linear layers; results are a tree, one of them a weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.first, self.second = nn.Linear(16 * 6 * 6, 10), nn.Linear(10, 7)

    def forward(self, x: Tensor, scale: int = 2) -> dict[str, Any]:
        y = self.first(self.conv(x).flatten(1)).tanh() * scale
        return {"rows": [self.second(y), y], "nothing": None, "weight": self.second.weight}


NET = Net().eval()


def planned(graph: Graph, names: Sequence[str] = PACKING) -> Plan:
    """The plan with the largest covers of these tiles wherever one fits, MKL's first."""
    steps, inside = {}, set()
    for node in reversed(graph.nodes):
        found = [cover for cover in covers(node, CPU, TILES) if cover.name in names and node not in inside]
        if found:
            chosen = max(found, key=lambda cover: (len(cover.nodes), cover.name == "mkl.linear"))
            steps[node] = chosen.step(chosen.formats[0])
            inside.update(chosen.nodes)
    return Plan(steps).eager()


@pytest.fixture(scope="module")
def program() -> Program:
    content = serialize(build(fold(import_module(NET, (IMAGES,)))), (IMAGES,), {})
    return reimport(content)


@pytest.fixture(scope="module")
def content(program: Program) -> bytes:
    """The archive as ``--emit aot`` writes it."""
    files, notes = emit(serialize(build(program), (IMAGES,), {}), ["aot"], dump(planned(program.graph)))
    assert notes == []
    return files[ARCHIVE]


@pytest.fixture
def folder(content: bytes, tmp_path: Path) -> Path:
    (tmp_path / ARCHIVE).write_bytes(content)
    return tmp_path


def restored(program: Program, folder: Path) -> nn.Module:
    return ENGINES["aot-inductor"].restore(program, folder)


def nearly(found: Any, expected: Any) -> bool:
    assert found["nothing"] is None
    pairs = zip([*found["rows"], found["weight"]], [*expected["rows"], expected["weight"]], strict=True)
    return all(torch.allclose(a, b, atol=1e-5) and a.stride() == b.stride() for a, b in pairs)


def test_an_archive_computes_what_pytorch_does(program: Program, folder: Path) -> None:
    module = restored(program, folder)
    for x in (IMAGES, IMAGES * 3 - 1):
        assert nearly(module(x), NET(x))
        # Compiled code reads memory as the example lay.
        assert nearly(module(x.to(memory_format=torch.channels_last)), NET(x))
    assert not nearly(module(IMAGES), NET(IMAGES + 0.1))
    with pytest.raises(ArgumentError):
        module(IMAGES[:1])


def test_packed_kernels_are_inside_and_mkl_is_replaced(program: Program, content: bytes) -> None:
    kernels = {step.kernel.name for step in planned(program.graph).steps.values() if step.kernel}
    assert "mkl.linear" in kernels or not torch.backends.mkl.is_available()
    with zipfile.ZipFile(BytesIO(content)) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("wrapper.cpp")]
        code = archive.read(name).decode()
    assert code.count("aoti_torch_cpu_mkldnn__convolution_pointwise(") == 1
    assert code.count("aoti_torch_cpu__linear_pointwise(") == 2
    assert "_mkl_linear" not in code


def test_results_are_the_callers_own(program: Program, folder: Path) -> None:
    module = restored(program, folder)
    first = module(IMAGES)
    kept = first["rows"][0].clone()
    first["weight"].zero_()
    module(IMAGES + 1)
    assert torch.equal(first["rows"][0], kept)
    assert nearly(module(IMAGES), NET(IMAGES))


def test_threads_may_call_one_archive(program: Program, folder: Path) -> None:
    inputs = [IMAGES + number for number in range(4)]
    for x, results in zip(inputs, called_at_once(restored(program, folder), inputs, 50), strict=True):
        assert all(nearly(result, NET(x)) for result in results)


def test_an_archive_runs_without_this_package(folder: Path) -> None:
    torch.save((IMAGES, NET(IMAGES)["rows"][0].detach()), folder / "io.pt")
    code = (
        "import sys, torch, torch._inductor\n"
        "x, expected = torch.load('io.pt')\n"
        f"run = torch._inductor.aoti_load_package('{ARCHIVE}')\n"
        "assert torch.allclose(run(x)['rows'][0], expected, atol=1e-5)\n"
        "assert 'taso_py' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folder, env={"PATH": "/usr/bin:/bin"})


MISFITS: dict[str, tuple[str, Any, str]] = {
    "release": ("_release", "1.0.0", r"was compiled by PyTorch 2\S+, and this is 1\.0\.0; optimize the model again$"),
    "processor": (
        "instruction_sets",
        {"sparc"},
        r"for a processor with .*, unlike this one; optimize the model again$",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_an_archive_of_elsewhere_is_refused_in_one_line(
    program: Program, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, here, said = MISFITS[name]
    restored(program, folder)
    monkeypatch.setattr(aot, function, lambda *_: here)
    with pytest.raises(EngineUnavailableError, match=said) as refusal:
        restored(program, folder)
    assert "\n" not in str(refusal.value)


def test_an_archive_without_our_metadata_is_refused() -> None:
    assert misfit_of({"AOTI_PLATFORM": "linux"}) is not None
    assert misfit_of({RELEASE: torch.__version__.partition("+")[0], INSTRUCTIONS: "x86_65"}) is not None


@pytest.mark.parametrize("damage", ["cut", "empty", "absent"])
def test_a_damaged_archive_is_one_line(program: Program, folder: Path, content: bytes, damage: str) -> None:
    if damage == "absent":
        (folder / ARCHIVE).unlink()
    else:
        (folder / ARCHIVE).write_bytes(content[: len(content) // 2] if damage == "cut" else b"")
    with pytest.raises(EngineUnavailableError, match=f"{ARCHIVE} cannot be read") as refusal:
        restored(program, folder)
    assert "\n" not in str(refusal.value)


def test_the_archive_of_another_program_is_refused(folder: Path) -> None:
    with pytest.raises(EngineUnavailableError, match="takes the arguments of another program"):
        restored(program_of(lambda a, b: a + b, (IMAGES, IMAGES)), folder)


def test_further_files_do_not_keep_an_archive_from_loading(program: Program, folder: Path, content: bytes) -> None:
    (folder / ARCHIVE).write_bytes(with_extra(content, {"report.json": b"{}"}))
    assert nearly(restored(program, folder)(IMAGES), NET(IMAGES))
    from torch.export.pt2_archive._package import load_pt2

    assert load_pt2(str(folder / ARCHIVE)).extra_files == {"report.json": "{}"}


class Broken(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        return x + 1, 3


REFUSED: dict[str, tuple[nn.Module | Callable[..., Any], str]] = {
    "draws": (lambda a: a + torch.rand_like(a), "draws random numbers"),
    "a number": (Broken(), "it returns 3, and an archive returns tensors only; return tensors"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compiled_is_one_line(name: str) -> None:
    function, reason = REFUSED[name]
    with pytest.raises(EngineUnavailableError, match=f"aot-inductor cannot run this module: .*{reason}") as refusal:
        AotInductor().build(program_of(function, (IMAGES,)))
    assert "\n" not in str(refusal.value)


def test_a_compiler_that_fails_is_one_line(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Program, plan: Plan) -> bytes:
        tried.append(plan)
        raise RuntimeError("no space left on device\nwith\nmany\nlines")

    tried: list[Plan] = []
    monkeypatch.setattr(aot, "_compiled", broken)
    plan = packable(planned(program.graph))
    with pytest.raises(EngineUnavailableError, match=r"cannot run this module: no space left on device$"):
        AotInductor().build(program, plan)
    assert tried == [plan, NO_PLAN]


def test_kernels_that_an_archive_cannot_hold_are_replaced(program: Program) -> None:
    names = ("mkl.linear", "aten.addcmul")
    before, after = planned(program.graph, names), packable(planned(program.graph, names))
    assert before.steps.keys() >= after.steps.keys()
    assert {step.kernel.name for step in after.steps.values() if step.kernel} <= {"onednn.linear"}


@pytest.mark.slow
def test_open_sizes_stay_open() -> None:
    def function(a: Tensor) -> tuple[Tensor, Tensor]:
        return a.reshape(-1) * 2, (a @ a.T).relu()

    x = IMAGES.view(-1, 6)
    module = AotInductor().build(program_of(Function(function), (x,), is_open=True))
    for given in (x, x[:1], x[:2], torch.cat([x[:5], x[:3] + 1])):
        for found, expected in zip(module(given), function(given), strict=True):
            assert torch.allclose(found, expected, atol=1e-5)
            assert found.stride() == expected.stride()


class Stateful(nn.Module):
    """Counts its calls, keeps rows in a buffer, writes to its input, and draws a number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.calls.add_(1)
        result = self.linear(x) + self.calls
        x.add_(1)
        return result, torch.rand(2)


@pytest.mark.parametrize(
    "name",
    [
        name if name == "an argument with gaps beside an expanded one" else pytest.param(name, marks=pytest.mark.slow)
        for name in WRITING
    ],
)
def test_what_is_written_is_what_pytorch_writes(name: str) -> None:
    assert_writes_alike(AotInductor(), name)


def test_an_archive_has_the_state_of_the_module_around_it(tmp_path: Path) -> None:
    program = program_of(Cached(), (ROW, PLACE))
    module = AotInductor().build(program)
    module(ROW, PLACE)
    after = module.get_buffer("cache").clone()
    assert torch.any(after)
    twin = copy.deepcopy(module)
    twin(ROW * 3, PLACE + 1)
    assert torch.equal(module.get_buffer("cache"), after)
    assert not torch.equal(twin.get_buffer("cache"), after)
    (tmp_path / ARCHIVE).write_bytes(AotInductor().files(module)[ARCHIVE])
    fresh = restored(program, tmp_path)
    assert not torch.any(fresh.get_buffer("cache"))
    tie(fresh, {"cache": module.get_buffer("cache")})
    before, _ = fresh(ROW * 3, PLACE + 1)
    assert torch.allclose(before, after.sum(), atol=1e-6)
    assert torch.allclose(module.get_buffer("cache"), twin.get_buffer("cache"), atol=1e-6)
    with pytest.raises(EngineUnavailableError, match=f"{ARCHIVE} has no state other; optimize the model again"):
        restored(renamed(program), tmp_path)


def renamed(program: Program) -> Program:
    """Return a program whose buffer has another name than that of its archive."""
    cache = program.weights["cache"]
    state = {
        node.value: make(Weight("other", node.types[0], mutable=True)).value
        for node in state_of(program.graph).values()
    }
    graph = program.graph.replace(state)
    return replace(program, graph=graph, weights={**program.weights, "other": cache})


@pytest.mark.slow
def test_state_is_written_to_as_by_the_original(tmp_path: Path) -> None:
    x, model = torch.ones(2, 6), Stateful().eval()
    files, notes = emit(serialize(model, (x,), {}), ["aot"])
    assert notes == []
    path = tmp_path / ARCHIVE
    path.write_bytes(files[ARCHIVE])
    run = torch._inductor.aoti_load_package(str(path))
    given, expected = x.clone(), x.clone()
    for _ in range(3):
        torch.manual_seed(0)
        found = run(given)
        torch.manual_seed(0)
        with torch.no_grad():
            wanted = model(expected)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, wanted, strict=True))
    assert torch.equal(given, x + 3)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs CMake")
def test_the_example_in_cpp_runs_an_archive(folder: Path, tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "examples" / "aot_cpp"
    build, prefix = tmp_path / "build", f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}"
    subprocess.run(["cmake", "-S", source, "-B", build, prefix], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", build], check=True, capture_output=True)
    done = subprocess.run([build / "run_archive", folder / ARCHIVE, "2x3x6x6"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = NET(torch.ones(2, 3, 6, 6))["rows"][0]
    printed = re.search(r"result \[2, 7\], sum (\S+)", done.stdout)
    assert printed is not None
    assert float(printed[1]) == pytest.approx(rows.sum().item(), abs=1e-4)
    (folder / ARCHIVE).write_bytes(b"nothing of that kind")
    failed = subprocess.run([build / "run_archive", folder / ARCHIVE, "2x3x6x6"], capture_output=True, text=True)
    assert failed.returncode == 1
    assert len(failed.stderr.splitlines()) == 1


class Sleeper(nn.Module):
    """A layer, after a sleep that no export sees, so that whatever else computes it is surely faster."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(10e-3)
        return self.layer(x)


@pytest.mark.slow
def test_a_result_is_saved_and_loaded_without_compiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    x, out, model = torch.ones(3, 6), tmp_path / "out", Sleeper().eval()
    limits: dict[str, Any] = {"race_seconds": 0.1, "time_limit": 0.2, "search": "templates", "cache": False}
    optimized = optimize(model, x, runtime="aot-inductor", output=out, **limits)
    assert optimized.report.runtime == "aot-inductor"
    expected = model(x)
    assert torch.allclose(optimized.module(x), expected, atol=1e-6)
    with zipfile.ZipFile(out / ARCHIVE) as archive:
        inside = {name.partition("/extra/")[2]: archive.read(name) for name in archive.namelist() if "/extra/" in name}
    assert inside.keys() == {"plan.json", "report.json", "trace.rules"}
    assert all(inside[name] == (out / name).read_bytes() for name in ("report.json", "trace.rules"))

    def compiled(*_: Any) -> bytes:
        raise AssertionError("nothing is compiled to load a result")

    monkeypatch.setattr(aot, "_compiled", compiled)
    assert torch.allclose(load(out)(x), expected, atol=1e-6)
    assert not caplog.records
    monkeypatch.setattr(aot, "_release", lambda _: "1.0.0")
    assert torch.allclose(load(out)(x), expected, atol=1e-6)
    (record,) = caplog.records
    assert re.search(r"and this is 1\.0\.0; optimize the model again; .*out is run by PyTorch instead$", record.message)
    content = (out / ARCHIVE).read_bytes()
    (out / ARCHIVE).write_bytes(content[: len(content) // 2])
    with pytest.raises(ArtifactError, match=f"belongs to another {ARCHIVE}; optimize the model again$"):
        load(out)


def test_a_disk_that_is_full_costs_nothing_of_an_earlier_archive(
    program: Program, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, report = serialize(build(program), (IMAGES,), {}), replace(REPORT, runtime="aot-inductor")
    save(tmp_path, saved, report.as_dict(), "first", others={ARCHIVE: content})

    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(written.os, "replace", full)
        with pytest.raises(ArtifactError, match=r"cannot write .*: No space left on device; choose another --output$"):
            save(tmp_path, saved, report.as_dict(), "second", others={ARCHIVE: content})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert nearly(load(tmp_path)(IMAGES), NET(IMAGES))
