"""Plans: whatever kernels and formats are chosen, a model computes the same; plans survive being saved."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from fuzz.prices import CPU, InventedPrices
from taso_py.backend import NO_PLAN, Plan, Program, build, fold, poison, retype
from taso_py.backend.build import PACKED_BYTES
from taso_py.backend.plan import Format, PlanStep
from taso_py.backend.storage import KERNEL, OVERWRITES
from taso_py.cost.choice import choose
from taso_py.frontend import import_module
from taso_py.ir.operator import Weight
from taso_py.kernels import mkl, saved, winograd
from taso_py.kernels.saved import dump, restore
from taso_py.kernels.table import TRACED, covers
from taso_py.models import zoo
from taso_py.ops.contraction import Conv2d
from tests.kernels.doctored import doctored_covers

QUICK = ("squeezenet1_1", "mobilenet_v3_large", "bert_base", "nasrnn")
ALL = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in zoo.names() if name not in QUICK)]


class Residual(nn.Module):
    """Blocks whose values are read inside and outside, as views, transposed, written to a buffer and returned."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 1)
        self.norm = nn.BatchNorm2d(6)
        self.linear, self.gate = nn.Linear(6, 6), nn.Linear(6, 6)
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(2, 6, 5, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        inner = self.one(x)
        total = functional.relu(self.norm(self.two(x)) + inner)
        self.seen.copy_(inner)
        rows = total.permute(0, 2, 3, 1)
        last = functional.gelu(self.linear(rows)) * self.gate(rows)
        pooled = functional.max_pool2d(last.permute(0, 3, 1, 2), 2)
        return total, inner[:, 2:4], last, torch.cat([pooled, pooled.sigmoid()], 1).flatten(1), x.transpose(2, 3)


def _plan(program: Program, seed: int) -> Plan:
    # Every other plan prefers fused kernels, so that all of them are met.
    return choose(program.graph, InventedPrices(seed, fused=0.2 if seed % 2 else 1.0)).plan.eager()


def _outputs(program: Program, plan: Plan, args: tuple[Tensor, ...]) -> list[Tensor]:
    """The outputs; what is dead is destroyed meanwhile, and makes no difference."""
    module = build(program, plan)
    with torch.no_grad():
        return pytree.tree_leaves((poison(module) if plan.overwrites else module)(*args))


def _check(program: Program, plan: Plan, args: tuple[Tensor, ...]) -> None:
    """Checks that a plan is about as near to the truth as plain calls are."""
    exact = tuple(tensor.double() if tensor.is_floating_point() else tensor for tensor in args)
    outputs = (
        _outputs(program, NO_PLAN, args),
        _outputs(program, plan, args),
        _outputs(retype(program), NO_PLAN, exact),
    )
    for plain, planned, truth in zip(*outputs, strict=True):
        assert (plain.shape, plain.stride(), plain.dtype) == (planned.shape, planned.stride(), planned.dtype)
        scale = float(truth.abs().max()) or 1.0
        error, own = (float((found - truth).abs().max()) for found in (planned, plain))
        assert error <= 4 * own + 1e-5 * scale


@pytest.mark.parametrize("name", ALL)
def test_models_compute_the_same_under_random_plans(name: str) -> None:
    module, args = zoo.get(name).make(0, small=True)
    program = fold(import_module(module, args))
    for seed in range(3):
        _check(program, _plan(program, seed), args)


def test_every_tile_and_format_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "LEAST_CHANNELS", 1)
    monkeypatch.setattr(winograd, "LEAST_BLOCKS", 1)
    module, args = Residual().eval(), (torch.randn(2, 6, 5, 4, generator=torch.Generator().manual_seed(0)),)
    program = fold(import_module(module, args))
    met: Counter[tuple[str, Format]] = Counter()
    for seed in range(30):
        plan = _plan(program, seed)
        met.update((step.kernel.name if step.kernel else "aten", step.reads) for step in plan.steps.values())
        _check(program, plan, args)
    fused = {"onednn.conv", "onednn.linear", "onednn.gated", "mkl.linear", "winograd"}
    assert {name for name, _ in met} >= {"aten", *fused}
    assert {format_ for _, format_ in met} == set(Format)


class Added(nn.Module):
    """A convolution, and what its result is added to."""

    def __init__(self, function: Callable[[Added, Tensor], object]) -> None:
        super().__init__()
        self.function = function
        self.conv, self.other = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 1)
        self.weight = nn.Parameter(torch.randn(2, 6, 5, 4))

    def forward(self, x: Tensor) -> object:
        return self.function(self, x)


@pytest.mark.parametrize(
    ("function", "overwritten"),
    [
        (lambda m, x: functional.relu(m.conv(x) + m.other(x)), 1),
        # What is computed from what is added, or reads it before.
        (lambda m, x: m.conv(y := torch.tanh(x)) + y, 0),
        (lambda m, x: m.conv(torch.tanh(y := torch.sigmoid(x))) + y, 1),
        (lambda m, x: m.conv(x) + x, 0),
        (lambda m, x: m.conv(x) + m.weight, 0),
        (lambda m, x: (y := torch.tanh(x), m.conv(x) + y), 0),
        (lambda m, x: (m.conv(x) + (y := torch.tanh(x))) * torch.relu(y), 0),
        (lambda m, x: m.conv(x) + torch.tanh(x).reshape(5, 4, 2, 6).reshape(2, 6, 5, 4), 1),
        (lambda m, x: m.conv(x) + torch.tanh(x[:1]).expand(2, 6, 5, 4), 0),
        (lambda m, x: m.conv(m.conv(x) + (y := torch.sigmoid(x))) + torch.tanh(y), 1),
    ],
)
@pytest.mark.parametrize("format_", Format)
def test_a_convolution_is_added_in_place_where_nothing_else_reads(
    format_: Format, function: Callable[[Added, Tensor], object], overwritten: int
) -> None:
    """And where it lies as the result does."""
    module, x = Added(function).eval(), torch.randn(2, 6, 5, 4, generator=torch.Generator().manual_seed(0))
    program = fold(import_module(module, (x,)))
    found = [cover for node in program.graph.nodes for cover in covers(node, CPU) if len(cover.operands) == 2]
    fused = {cover.root: cover for cover in found if cover.name == "onednn.conv"}
    assert fused
    plan = Plan({root: PlanStep(cover, format_, Format.CHANNELS_LAST) for root, cover in fused.items()}).eager()
    written = [node for node in build(program, plan).graph.nodes if KERNEL in node.meta and OVERWRITES in node.meta]
    assert len(written) == (overwritten if format_ is Format.CHANNELS_LAST else 0)
    _check(program, plan, (x,))


@pytest.mark.parametrize(("channels", "rows", "columns"), [(1, 4, 1), (1, 4, 4), (3, 1, 1), (3, 4, 1)])
def test_plain_calls_get_the_strides_that_plain_calls_leave(channels: int, rows: int, columns: int) -> None:
    """PyTorch's convolution with dilation crashes on some others, which count as contiguous all the same."""
    first = nn.Conv2d(2, channels, 1)
    module = nn.Sequential(first, nn.Conv2d(channels, 3, 1, stride=2, padding=1, dilation=2)).eval()
    program = fold(import_module(module, (torch.randn(8, 2, rows, columns),)))
    chosen = next(node for node in program.graph.nodes if isinstance(node.op, Conv2d))
    (cover,) = (cover for cover in covers(chosen, CPU) if cover.name == "onednn.conv")
    plan = Plan({chosen: PlanStep(cover, Format.DENSE, Format.CHANNELS_LAST)})
    seen: list[tuple[int, ...]] = []

    class Watching(torch.fx.Interpreter):
        def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if target is torch.ops.aten.conv2d.default:
                seen.append(args[0].stride())
            return super().call_function(target, args, kwargs)

    with torch.no_grad():
        Watching(build(program, plan)).run(*program.example_inputs)
    assert seen == [(channels * rows * columns, rows * columns, columns, 1)]


def test_contiguous_alone_leaves_other_strides() -> None:
    image = torch.empty(8, 1, 4, 1, memory_format=torch.channels_last)
    assert image.contiguous().stride() == (4, 1, 1, 1)


def test_a_wrong_plan_would_be_noticed() -> None:
    module, args = Residual().eval(), (torch.randn(2, 6, 5, 4, generator=torch.Generator().manual_seed(0)),)
    program = fold(import_module(module, args))
    other = fold(import_module(Residual().eval(), args))
    with torch.no_grad():
        expected, found = build(program)(*args), build(other, _plan(other, 1))(*args)
    assert not torch.allclose(expected[0], found[0], atol=1e-3)


def test_a_buffer_that_is_written_to_gets_the_same_content() -> None:
    module, args = Residual().eval(), (torch.randn(2, 6, 5, 4, generator=torch.Generator().manual_seed(0)),)
    program = fold(import_module(module, args))
    for seed in range(4):
        plain, planned = build(program), build(program, _plan(program, seed))
        with torch.no_grad():
            plain(*args)
            planned(*args)
        assert torch.allclose(plain.get_buffer("seen"), planned.get_buffer("seen"), atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # copying a tree's description warns in torch
def test_packed_weights_are_not_kept_twice_and_copies_share_them() -> None:
    module, args = Residual().eval(), (torch.randn(2, 6, 5, 4, generator=torch.Generator().manual_seed(0)),)
    program = fold(import_module(module, args))
    plan = choose(program.graph, InventedPrices(1, fused=0.0)).plan
    built = build(program, plan)
    packed = {v.node for step in plan.steps.values() if step.kernel for v in step.kernel.statics}
    keys = {node.op.key for node in packed if isinstance(node.op, Weight)}
    assert keys
    assert keys.isdisjoint(name for name, _ in built.named_parameters())
    assert built.meta[PACKED_BYTES] == 4 * (6 * 6 * 9 + 3 * 6 * 6)
    assert build(program).meta[PACKED_BYTES] == 0
    copied = copy.deepcopy(built)
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(built(*args), copied(*args), strict=True))


class Recurrent(nn.Module):
    """Reads a square weight at several steps: by a linear layer alone and before a sum, turned, and for fewer rows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6, generator=torch.Generator().manual_seed(1)))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        first = functional.linear(x, self.weight)
        second = functional.linear(first.tanh(), self.weight) + x
        return (
            second,
            functional.linear(second.exp(), self.weight),
            x @ self.weight,
            functional.linear(x[:2], self.weight),
        )


def test_a_weight_is_packed_once_for_all_kernels_that_want_it_alike() -> None:
    module, args = Recurrent().eval(), (torch.randn(4, 6, generator=torch.Generator().manual_seed(0)),)
    program = fold(import_module(module, args))
    tiles = tuple(tile for tile in TRACED if tile.name in ("aten", "onednn.linear"))
    plan = choose(program.graph, InventedPrices(1, fused=0.0, tiles=tiles)).plan.compiled()
    built = build(program, plan)
    kernels = [node for node in built.graph.nodes if node.meta.get(KERNEL)]
    packed = Counter(node.all_input_nodes[-1].target for node in kernels)
    assert sorted(packed.values()) == [1, 1, 3], "turned, for two rows, and all others"
    assert len([name for name, buffer in built.named_buffers() if buffer.is_mkldnn]) == 3
    _check(program, plan, args)
    _check(program, plan.eager(), args)


class Normalised(nn.Module):
    """Normalises what one weight gives by the same parameters twice, with another epsilon, and as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        norm = (self.norm.running_mean, self.norm.running_var, self.norm.weight, self.norm.bias)
        one, other = (functional.batch_norm(self.conv(x + i), *norm, eps=eps) for i, eps in enumerate((1e-5, 1.0)))
        return one, other, self.conv(x + 2)


def test_a_weight_is_packed_for_each_normalisation_that_is_folded_into_it() -> None:
    module, args = Normalised().eval(), (torch.randn(2, 4, 5, 5, generator=torch.Generator().manual_seed(0)),)
    program = fold(import_module(module, args))
    plan = choose(program.graph, InventedPrices(2, fused=0.0, tiles=TRACED)).plan.compiled()
    kernels = [node for node in build(program, plan).graph.nodes if node.meta.get(KERNEL)]
    packed = {argument.target for node in kernels for argument in node.args[1:2] if isinstance(argument, fx.Node)}
    assert len(packed) == len(kernels) == 3
    _check(program, plan, args)
    _check(program, plan.eager(), args)


def test_a_plan_for_a_compiler_is_calls_of_operators_and_computes_the_same() -> None:
    module, args = Residual().eval(), (torch.randn(2, 6, 5, 4, generator=torch.Generator().manual_seed(0)),)
    program = fold(import_module(module, args))
    for seed in range(6):
        plan = choose(program.graph, InventedPrices(seed, fused=0.2, tiles=TRACED)).plan.compiled()
        built = build(program, plan)
        packed = [node for node in built.graph.nodes if node.meta.get(KERNEL)]
        assert packed
        assert all(isinstance(node.target, torch._ops.OpOverload) for node in packed)
        assert built.state_dict().keys() <= module.state_dict().keys(), "packed weights are not state"
        _check(program, plan, args)
        # Saved, it is of the same kind.
        restored = restore(program.graph, json.loads(json.dumps(dump(plan))), CPU)
        assert (restored.traced, restored.overwrites, restored.direct) == (True, False, False)


def test_plans_survive_being_saved() -> None:
    module, args = zoo.get("squeezenet1_1").make(0, small=True)
    program = fold(import_module(module, args))
    plan = _plan(program, 1)
    restored = restore(program.graph, json.loads(json.dumps(dump(plan))), CPU)
    assert {node: (step.reads, step.gives) for node, step in restored.steps.items()} == {
        node: (step.reads, step.gives) for node, step in plan.steps.items()
    }
    assert all((step.kernel is None) == (plan.steps[node].kernel is None) for node, step in restored.steps.items())
    _check(program, restored, args)


def test_kernels_that_are_not_there_are_plain_calls(caplog: pytest.LogCaptureFixture) -> None:
    module, args = zoo.get("squeezenet1_1").make(0, small=True)
    program = fold(import_module(module, args))
    saved = dump(_plan(program, 1))
    for step in saved["steps"]:
        step["tile"] = "of_another_version" if step["tile"] != "aten" else step["tile"]
    restored = restore(program.graph, saved, CPU)
    assert all(step.kernel is None for step in restored.steps.values())
    assert "are not available here" in caplog.text
    _check(program, restored, args)
    assert restore(program.graph, dump(NO_PLAN), CPU) == NO_PLAN


def test_a_saved_kernel_that_is_wrong_here_is_a_plain_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On this machine, that is: where the plan was made it was right."""
    program = fold(import_module(Residual().eval(), (torch.randn(2, 6, 5, 4),)))
    plan = _plan(program, 1)
    kernels = sum(step.kernel is not None for step in plan.steps.values())
    assert kernels > 0
    monkeypatch.setattr(saved, "covers", doctored_covers(lambda kernel, *operands: kernel(*operands) + 0.1))
    restored = restore(program.graph, dump(plan), CPU)
    assert all(step.kernel is None for step in restored.steps.values())
    assert f"{kernels} kernels of the saved plan are not available here" in caplog.text


def test_a_weight_that_is_not_read_is_one_for_all_layers() -> None:
    one, other, wide = mkl._unread(4, 5), mkl._unread(4, 5), mkl._unread(8, 5)
    assert one is other
    assert (one.shape, wide.shape) == ((4, 5), (8, 5))
    assert bool(one.isnan().all())
