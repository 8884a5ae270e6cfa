"""Profiles: every operator of a run is there once, with its time, its place in the source and what bounds it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from taso_py.backend import build
from taso_py.backend.plan import NO_PLAN, Plan
from taso_py.cost.model import CostModel
from taso_py.frontend import import_module
from taso_py.kernels.saved import dump
from taso_py.kernels.table import covers
from taso_py.kernels.tile import CHANNELS_LAST, DENSE
from taso_py.latency.contention import NOTHING
from taso_py.latency.environment import float32_precision
from taso_py.models.source import Source, load_source
from taso_py.profiling import run as profile_run
from taso_py.profiling.profile import ProfileError, ProfileOptions, _ProfileBuilder, profile_source
from taso_py.profiling.run import Part, time_parts
from taso_py.profiling.trace import observe
from taso_py.report.profile import Profile
from taso_py.report.profile_page import profile_page
from taso_py.saving.artifact import reimport, serialize
from taso_py.saving.folder import MODEL, write_result
from taso_py.saving.result import VERSION, read

X = torch.randn(64, 128)
IMAGE = torch.randn(1, 3, 16, 16)


class Small(nn.Module):
    """A matrix product, a wide elementwise operator, views, and an operator that the table does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(128, 256)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.dense(x))
        return torch.cumprod(y.reshape(64, 2, 128).permute(1, 0, 2), 0)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASO_PY_CACHE", str(tmp_path))


@pytest.fixture
def profile() -> Profile:
    return profile_source(Source("small", Small().eval(), (X,)), ProfileOptions(seconds=0.1))


def test_every_operator_is_there_in_order(profile: Profile) -> None:
    assert [region.kind for region in profile.regions] == [
        "linear", "relu", "reshape", "permute", "aten.cumprod.default",
    ]  # fmt: skip
    starts = [region.start_ms for region in profile.regions]
    assert starts == sorted(starts)
    assert starts[0] == pytest.approx(profile.input.ms)
    for region, following in zip(profile.regions, starts[1:], strict=False):
        assert region.start_ms + region.time.ms == pytest.approx(following)
        assert 0 <= region.time.low_ms <= region.time.ms <= region.time.high_ms
    assert profile.rounds >= profile_run.MIN_ROUNDS


def test_regions_have_their_work_and_their_place(profile: Profile) -> None:
    linear, relu, reshape, permute, product = profile.regions
    assert linear.flops == 2 * 64 * 128 * 256 + 64 * 256
    assert linear.moved_bytes == 4 * (64 * 128 + 128 * 256 + 256 + 64 * 256)
    assert (relu.flops, relu.moved_bytes) == (64 * 256, 8 * 64 * 256)
    # Views move nothing, whatever their definition reads.
    assert [(r.flops, r.moved_bytes, r.bound) for r in (reshape, permute)] == [(0, 0, "overhead")] * 2
    assert product.flops is None
    assert linear.line.startswith("test_profile.py:")
    assert linear.line.endswith("y = F.relu(self.dense(x))")
    assert [region.module for region in profile.regions] == ["dense", "", "", "", ""]
    assert linear.isolated_ms is not None
    assert linear.isolated_ms > 0


def test_sums_add_up(profile: Profile) -> None:
    for groups in (profile.kinds, profile.bottlenecks):
        assert sum(group.count for group in groups) == len(profile.regions)
        assert sum(group.share for group in groups) < 1
        assert [group.ms for group in groups] == sorted((group.ms for group in groups), reverse=True)
    assert sum(profile.bounds.values()) == pytest.approx(sum(region.time.ms for region in profile.regions))


def test_memory_is_what_the_values_of_a_run_take(profile: Profile) -> None:
    value = 64 * 256 * 4
    linear, relu, *_ = profile.regions
    assert value <= linear.live_bytes < 2 * value
    assert 2 * value <= relu.live_bytes < 3 * value
    assert profile.peak_bytes >= 2 * value
    assert profile.weight_bytes == 4 * (128 * 256 + 256)
    assert profile.input_bytes == X.nbytes


@pytest.mark.parametrize(("layer", "shape"), [(nn.ReLU(), (2, 3)), (nn.Conv2d(3, 3, 1), (1, 3, 4, 4))])
def test_convolutions_have_a_ceiling_where_there_are_any(layer: nn.Module, shape: tuple[int, ...]) -> None:
    source = Source("small", layer.eval(), (torch.randn(shape),))
    with float32_precision("bf16", torch.device("cpu"), "conv"):
        profile = profile_source(source, ProfileOptions(seconds=0.01))
    peaks = ["f32", "f32 convolutions"] if isinstance(layer, nn.Conv2d) else ["f32"]
    assert list(profile.ceilings.peaks) == peaks
    assert all(f"operations in {name}<" in profile_page(profile) for name in peaks)


@pytest.fixture
def result(tmp_path: Path) -> Path:
    """A saved result that computes a linear layer and its activation at once, and a convolution channels last."""
    module = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Flatten(0, 2), nn.Linear(16, 16), nn.ReLU()).eval()
    content = serialize(module, (IMAGE,), {})
    program = reimport(content)
    found = [cover for node in program.graph.nodes for cover in covers(node, program.device)]
    fused = next(cover for cover in found if cover.name == "onednn.linear" and len(cover.nodes) == 2)
    convolution = next(cover for cover in found if cover.name == "onednn.conv")
    plan = Plan({fused.root: fused.step(DENSE), convolution.root: convolution.step(CHANNELS_LAST)}).eager()
    said = {"version": VERSION, "model": MODEL, "runtime": "eager", "plan": dump(plan)}
    write_result(tmp_path / "out", {MODEL: content}, said)
    return tmp_path / "out"


def test_a_saved_result_is_profiled_kernel_by_kernel(result: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        CostModel, "cover_seconds", lambda _, cover, __: 5.0 if cover.name.startswith("onednn") else 1.0
    )
    saved = replace(read(result), threads=torch.get_num_threads() + 1)
    profile = profile_source(load_source(str(saved.program)), ProfileOptions(seconds=0.1), saved=saved)
    assert any("threads, and PyTorch uses" in note for note in profile.notes)
    kinds = [region.kind for region in profile.regions]
    assert kinds == ["aten.contiguous.default", "conv2d", "aten.contiguous.default", "reshape", "linear+relu"]
    before, convolution, after, _, fused = profile.regions
    assert convolution.calls == ("onednn_conv",)
    assert fused.calls == ("onednn_linear",)
    assert (convolution.isolated_ms, fused.isolated_ms) == (5e3, 5e3), "alone, they are computed by the same kernels"
    assert fused.moved_bytes == 4 * (2 * 8 * 16 * 16 + 16 * 16 + 16)
    # To lay an image out anew, it is read and written.
    assert [region.moved_bytes for region in (before, after)] == [2 * IMAGE.nbytes, 2 * 4 * 8 * 16 * 16]
    assert before.types == "f32[1,3,16,16]"


def test_a_result_for_a_compiler_is_not_profiled(result: Path) -> None:
    saved = replace(read(result), runtime="inductor")
    with pytest.raises(ProfileError, match=r"out runs in inductor, .*; profile .*model\.pt2 to see the operators"):
        profile_source(load_source(str(saved.program)), ProfileOptions(), saved=saved)


def test_a_call_that_computes_several_nodes_is_one_region() -> None:
    source = Source("small", Small().eval(), (X,))
    program = import_module(source.callable(), (X,))
    module = build(program)
    linear, relu = [node for node in module.graph.nodes if "digest" in node.meta][:2]
    linear.meta["digest"] = relu.meta["digest"]
    job = _ProfileBuilder(source, ProfileOptions(), program, NO_PLAN, module, NOTHING)
    parts = time_parts([module], (X,), {}, torch.device("cpu"), 0.01)[0].parts
    assert parts[0] == Part(relu.meta["digest"], ("aten.linear.default", "aten.relu.default"))
    assert [node.op.name for node in job._nodes(parts[0])] == ["linear", "relu"]
    assert len(parts) == 4


def test_marks_change_nothing() -> None:
    module = build(import_module(Small().eval(), (X,)))
    before = module(X)
    code = module.code
    time_parts([module], (X,), {}, torch.device("cpu"), 0.01)
    observe(module, ["part"] * 5, (X,), {}, torch.device("cpu"))
    assert module.code == code
    assert torch.equal(module(X), before)


def test_the_cost_of_marks_is_taken_off() -> None:
    marked = np.array([[1.0, 2.0, 3.0, 4.0]] * 3)
    parts = [Part("a", ("f",)), Part("b", ("g",))]
    run = profile_run._summary(parts, [8.5] * 3, marked, least=0.0, most=10.0)
    assert run.mark_s == pytest.approx(0.5)
    assert [run.input.median, *(time.median for time in run.times), run.output.median] == [0.5, 1.5, 2.5, 4.0]
    # However slow the marked run was by accident, a mark costs no more than a mark alone.
    assert profile_run._summary(parts, [1.0] * 3, marked, least=0.0, most=0.25).mark_s == 0.25
    assert profile_run._summary(parts, [99.0] * 3, marked, least=0.0, most=0.25).mark_s == 0.0


def test_a_module_without_inputs_or_operators_can_be_timed() -> None:
    class Nothing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    run = time_parts([build(import_module(Nothing(), (X,)))], (X,), {}, torch.device("cpu"), 0.01)[0]
    assert len(run.times) == len(run.parts)


def test_modules_are_timed_in_the_same_rounds() -> None:
    called: list[str] = []

    def noting(name: str) -> fx.GraphModule:
        module = build(import_module(nn.ReLU(), (X,)))
        (relu,) = [node for node in module.graph.nodes if "digest" in node.meta]
        with module.graph.inserting_before(relu):

            def note() -> None:
                called.append(name)

            module.graph.call_function(note)
        module.recompile()
        return module

    runs = time_parts([noting("a"), noting("b")], (X,), {}, torch.device("cpu"), 0.01)
    assert [run.rounds for run in runs] == [runs[0].rounds] * 2
    # With and without marks, warm-up included.
    assert called == ["a", "a", "b", "b"] * (runs[0].rounds + profile_run.WARM_UP)


def test_a_time_must_be_given() -> None:
    with pytest.raises(ProfileError, match="--seconds"):
        ProfileOptions(seconds=0)
