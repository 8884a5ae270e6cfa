"""The backend of torch.compile: whatever is captured computes what it computes in eager mode."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from taso_py.backend import Program
from taso_py.backend.storage import COMPUTES
from taso_py.driver.decisions import Decision
from taso_py.dynamo import backend as dynamo
from taso_py.dynamo import captured
from taso_py.dynamo.prospects import Prospects
from taso_py.frontend import import_module
from taso_py.search.templates import read_templates, search
from taso_py.search.trace import Trace, write_trace
from tests.engines.sessions import NAMES, engine_named
from tests.search.examples import FakeCost

QUICK = {"race_seconds": 0.1, "time_limit": 3.0, "search": "templates-measured"}
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Images(nn.Module):
    """Convolution, batch normalisation, two layers that share their input, a buffer, and a drop-out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.left, self.right = nn.Linear(4, 5), nn.Linear(4, 5)
        self.register_buffer("scale", torch.full((5,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm(self.conv(x))).mean((2, 3))
        return functional.dropout(self.left(y) * self.scale, 0.5, self.training) + self.right(y)


pytestmark = pytest.mark.usefixtures("fresh_compilations")


def compiled(module: nn.Module | Callable[..., Any], **options: Any) -> Callable[..., Any]:
    chosen: Any = {**QUICK, **options}
    return torch.compile(module, backend=dynamo.taso, options=chosen)


def same(module: Callable[..., Any], result: Callable[..., Any], *args: Tensor, tolerance: float = 1e-5) -> None:
    """Asserts that both give the same, from the same random state, and leave the same random state."""
    torch.manual_seed(1)
    expected, state = module(*args), torch.get_rng_state()
    torch.manual_seed(1)
    found = result(*args)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("freeze", [False, True])
def test_weights_may_change_whether_frozen_or_not(freeze: bool, optimizations: list[str]) -> None:
    module, other = Images().eval(), Images().eval()
    result = compiled(module, freeze=freeze)
    with torch.no_grad():
        same(module, result, X)
        module.left.weight.mul_(2)
        same(module, result, X)
        module.load_state_dict(other.state_dict())
        same(module, result, X)
        module.left.weight.data = torch.randn(5, 4)
        same(module, result, X)
        module.left.weight = nn.Parameter(torch.randn(5, 4))
        same(module, result, X)
        module.norm.train()(torch.randn(2, 4, 6, 6))
        module.norm.eval()
        same(module, result, X)
    assert len(optimizations) == 1  # what was decided holds for other weights too


class Doubled(nn.Module):
    """A layer with a product that is folded."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, 2 * self.weight)


def as_captured(self: Any, source: Any, program: Program) -> tuple[Decision, None]:
    """Decides that a program is built, with its weights, but not rewritten."""
    return Decision(False, "eager", write_trace(Trace(program.graph.digest, (), ()))), None


def rewriting(program: Program) -> Trace:
    """What surely rewrites a program."""
    return search(program.graph, read_templates(), FakeCost()).best.trace


def test_frozen_weights_are_folded_and_watched(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a decision that surely rewrites; and weights that change too often are not folded again."""
    module = Images().eval()
    carried: list[int] = []

    def decided(self: Any, source: Any, program: Program) -> tuple[Decision, None]:
        trace = rewriting(program)
        carried.append(len(trace.steps))
        return Decision(False, "eager", write_trace(trace)), None

    monkeypatch.setattr(dynamo._Compiled, "_decide", decided)
    result = compiled(module, freeze=True)
    with torch.no_grad():
        for _ in range(dynamo.REFREEZES + 2):
            same(module, result, X)
            module.norm.train()(torch.randn(2, 4, 6, 6))
            module.norm.eval()
    assert len(carried) == 1
    assert carried[0] >= 2
    assert f"its weights changed {dynamo.REFREEZES} times" in caplog.text


def test_weights_that_were_not_folded_to_the_end_are_folded_at_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Images().eval()

    def decided(self: Any, source: Any, program: Program) -> tuple[Decision, None]:
        return Decision(False, "eager", write_trace(rewriting(program))), None

    monkeypatch.setattr(dynamo._Compiled, "_decide", decided)
    result = compiled(module, freeze=True)
    apply = Decision.apply

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with torch.no_grad():
        same(module, result, X)
        module.left.weight.mul_(2)
        monkeypatch.setattr(Decision, "apply", interrupted)
        with pytest.raises(KeyboardInterrupt):
            result(X)
        monkeypatch.setattr(Decision, "apply", apply)
        same(module, result, X)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # by what PyTorch imports to compile a step
@pytest.mark.parametrize(
    ("optimizer", "compiles"),
    [
        (torch.optim.SGD, False),
        (torch.optim.Adam, False),
        (torch.optim.AdamW, False),
        (torch.optim.Adagrad, False),
        (torch.optim.AdamW, True),
    ],
)
def test_a_fused_step_of_an_optimizer_is_noticed(
    optimizer: Any, compiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamo._Compiled, "_decide", as_captured)
    module, x = Doubled().eval(), torch.randn(3, 6)
    steps = optimizer(module.parameters(), lr=0.1, fused=True)
    step = torch.compile(steps.step, backend="eager") if compiles else steps.step
    result = compiled(module, freeze=True)
    for _ in range(3):
        with torch.no_grad():
            same(module, result, x)
        module(x).square().mean().backward()
        step()


def test_a_step_leaves_frozen_what_has_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamo._Compiled, "_decide", as_captured)
    module, head, x = Doubled().eval().requires_grad_(False), nn.Linear(6, 6), torch.randn(3, 6)
    steps = torch.optim.AdamW([*module.parameters(), *head.parameters()], fused=True)
    result = compiled(module, freeze=True)
    same(module, result, x)
    version = module.weight._version
    head(result(x)).sum().backward()
    steps.step()
    assert module.weight._version == version
    same(module, result, x)


def test_gradients_pass_through_untouched(optimizations: list[str], caplog: pytest.LogCaptureFixture) -> None:
    module = Images().eval()
    result = compiled(module, freeze=True)
    result(X).sum().backward()
    found = module.conv.weight.grad
    module.zero_grad()
    module(X).sum().backward()
    assert found is not None
    torch.testing.assert_close(found, module.conv.weight.grad)
    assert optimizations == []
    assert "needs gradients" in caplog.text


class Rows(nn.Module):
    """A layer whose results go to a row of a buffer, and whose calls another one counts."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.rows: Tensor
        self.calls: Tensor
        self.register_buffer("rows", torch.zeros(3, 8))
        self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        self.rows[self.calls - 1] = self.layer(x).mean((0, 1, 2), keepdim=True).reshape(1, 8)
        return torch.relu(self.layer(self.rows))


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("kind", [Images, Rows])
@pytest.mark.usefixtures("any_gain")
def test_what_writes_to_buffers_writes_to_the_same(
    kind: Callable[[], nn.Module], freeze: bool, optimizations: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """In training mode batch normalisation updates its statistics, and drop-out draws random numbers."""
    module, reference = kind(), kind()
    reference.load_state_dict(module.state_dict())
    result, before = compiled(module, freeze=freeze), copy.deepcopy(module.state_dict())
    with torch.no_grad():
        for call in range(3):
            same(reference, result, X + call)
    torch.testing.assert_close(module.state_dict(), reference.state_dict())
    changed = {name for name, tensor in module.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == ({"rows", "calls"} if kind is Rows else {f"norm.{name}" for name in STATISTICS})
    assert len(optimizations) == 1
    assert "runs as it is" not in caplog.text


class Shared(nn.Module):
    """Writes to a buffer, and reads a part of it by another name."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: Tensor
        self.first: Tensor
        self.register_buffer("rows", torch.zeros(3, 8))
        self.register_buffer("first", self.rows.data[0])

    def forward(self, x: Tensor) -> Tensor:
        self.rows.add_(x[0, 0, :3])
        return torch.relu(self.first * 2)


@pytest.mark.usefixtures("any_gain")
def test_what_shares_memory_with_what_is_written_to_is_not_frozen(caplog: pytest.LogCaptureFixture) -> None:
    module, reference = Shared(), Shared()
    result = compiled(module, freeze=True)
    with torch.no_grad():
        for call in range(3):
            same(reference, result, X + call)
    assert "runs as it is" in caplog.text


def test_random_draws_are_those_of_the_original(optimizations: list[str]) -> None:
    def noisy(x: Tensor) -> Tensor:
        return functional.dropout(torch.relu(torch.relu(x)), 0.5) + torch.rand_like(x)

    with torch.no_grad():
        same(noisy, compiled(noisy), X)
    assert len(optimizations) == 1


def test_under_autocast_the_casts_are_those_of_the_original(optimizations: list[str]) -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Softmax(-1)).eval()
    result = compiled(module, freeze=True)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert result(X).dtype is module(X).dtype
        same(module, result, X, tolerance=1e-2)
        same(module, result, X, tolerance=1e-2)
    with torch.no_grad():
        same(module, result, X)
    assert len(optimizations) == 2


@pytest.mark.usefixtures("any_gain")
@pytest.mark.parametrize("freeze", [False, True])
def test_sizes_that_vary_are_left_open(
    freeze: bool, optimizations: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    module = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.ReLU())
    result = compiled(module, freeze=freeze, cache=False)
    with torch.no_grad():
        for batch in (2, 3, 4, 5, 64):
            same(module, result, torch.randn(batch, 8))
    assert len(optimizations) == 2  # at the first size, and at all others
    assert "runs as it is" not in caplog.text


def test_sizes_that_cannot_stay_open_pass_through_with_one_line(
    optimizations: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = captured.import_source

    def fixed(source: Any, shapes: Any = None) -> Program:
        return imported(source)

    monkeypatch.setattr(captured, "import_source", fixed)
    module = nn.Sequential(nn.Linear(8, 4), nn.ReLU())
    result = compiled(module)
    with torch.no_grad():
        for batch in (2, 3, 4, 5):
            same(module, result, torch.randn(batch, 8))
    assert len(optimizations) == 1
    own = [record.levelno for record in caplog.records if record.name.startswith("taso_py")]
    assert own == [logging.WARNING]
    assert "with a size fixed that varies between calls (compile with dynamic=False" in caplog.text
    torch._dynamo.reset()
    chosen: Any = QUICK
    with torch.no_grad():
        same(module, torch.compile(module, backend=dynamo.taso, dynamic=False, options=chosen), torch.randn(6, 8))
    assert len(optimizations) == 2


def test_every_graph_is_optimized_on_its_own_and_the_same_graph_once(optimizations: list[str]) -> None:
    def broken(x: Tensor) -> Tensor:
        y = torch.relu(torch.relu(x))
        torch._dynamo.graph_break()
        return torch.relu(torch.relu(y))

    with torch.no_grad():
        same(broken, compiled(broken), X)
    assert len(optimizations) == 1


def test_inference_mode_and_tensors_made_in_it(optimizations: list[str]) -> None:
    with torch.inference_mode():
        module = nn.Linear(8, 8)
        result = compiled(module, freeze=True)
        same(module, result, torch.randn(2, 8))
        module.weight.mul_(2)
        same(module, result, torch.randn(2, 8))
    assert len(optimizations) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_result_may_be_handed_to_inductor(optimizations: list[str]) -> None:
    module = Images().eval()
    with torch.no_grad():
        same(module, compiled(module, runtime="inductor", freeze=True), X)
    assert len(optimizations) == 1


@pytest.mark.parametrize("trace", ["no trace", write_trace(Trace("00" * 16, (), ())), 5])
def test_a_decision_that_cannot_be_carried_out_is_made_anew(
    trace: Any, optimizations: list[str], tmp_path: Path
) -> None:
    module, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), torch.randn(2, 8)

    def call_afresh() -> None:
        torch._dynamo.reset()
        dynamo._decisions._known.clear()
        same(module, compiled(module, freeze=True), x)

    with torch.no_grad():
        call_afresh()
        for file in (tmp_path / "decisions").iterdir():
            file.write_text(json.dumps({"keeps_original": False, "trace": trace}), encoding="utf-8")
        for _ in range(2):
            call_afresh()
    assert len(optimizations) == 2


@pytest.mark.parametrize("is_final", [True, False])
def test_that_nothing_was_faster_is_remembered_of_calm_runs_only(
    is_final: bool, optimizations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted run, or one beside other programs, shows nothing."""
    optimize = dynamo.optimize_source

    def found(*args: Any, **kwargs: Any) -> Any:
        result = optimize(*args, **kwargs)
        return replace(result, report=replace(result.report, is_final=is_final), keeps_original=True)

    monkeypatch.setattr(dynamo, "optimize_source", found)
    module, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), torch.randn(2, 8)
    with torch.no_grad():
        for _ in range(2):
            torch._dynamo.reset()
            dynamo._decisions._known.clear()
            monkeypatch.setattr(dynamo, "_prospects", Prospects())
            same(module, compiled(module), x)
    assert len(optimizations) == (1 if is_final else 2)


def test_a_decision_is_carried_out_on_other_weights() -> None:
    module, other = Images().eval(), Images().eval()
    program = import_module(module, (X,))
    found = search(program.graph, read_templates(), FakeCost())
    assert len(found.best.trace.steps) >= 2
    decision = Decision(False, "eager", write_trace(found.best.trace))
    with torch.no_grad():
        for each in (module, other):
            runner = decision.apply(import_module(each, (X,)), (X,))
            torch.testing.assert_close(runner(X), each(X), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frieze": True}, "no option 'frieze'; did you mean freeze"),
        ({"runtime": "cudagraph"}, "openvino, not cudagraph"),
        ({"search": "magic"}, "no search is called magic"),
        ({"alpha": 0.5}, "alpha"),
        ({"freeze": 3}, "freeze must be True or False, not 3"),
        ({"runtime": "magic"}, "has the runtimes eager, inductor, onnxruntime, openvino, not magic"),
    ],
)
def test_wrong_options_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message), torch.no_grad():
        compiled(torch.relu, **options)(X)


def test_there_are_no_modes() -> None:
    with pytest.raises(Exception, match="no mode max-autotune"), torch.no_grad():
        torch.compile(torch.relu, backend=dynamo.taso, mode="max-autotune")(X)


def test_weights_that_are_no_longer_tied_are_read_each_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
            self.two.weight.data = self.one.weight.data

        def forward(self, x: Tensor) -> Tensor:
            return self.one(x).relu() + self.two(x).tanh()

    monkeypatch.setattr(dynamo._Compiled, "_decide", as_captured)
    module, x = Tied().eval(), torch.randn(3, 6)
    result = compiled(module, freeze=True)
    with torch.no_grad():
        same(module, result, x)
        for layer in (module.two, module.one):
            layer.weight.data = torch.randn(6, 6)
            same(module, result, x)


@pytest.mark.parametrize("is_frozen", [True, False], ids=["frozen", "weights are inputs"])
@pytest.mark.parametrize("name", NAMES)
def test_a_graph_runs_in_the_engine_that_was_asked_for(
    name: str, is_frozen: bool, monkeypatch: pytest.MonkeyPatch, taso_backend: None
) -> None:
    """With a decision that rewrites for it; weights that change are noticed, and what is folded is folded anew."""
    engine, module, built, runs = engine_named(name), Images().eval(), list[Program](), list[Any]()

    def decided(self: Any, source: Any, program: Program) -> tuple[Decision, None]:
        assert self._options.runtime == name
        return Decision(False, name, write_trace(rewriting(program))), None

    def build(program: Program, *given: Any) -> nn.Module:
        built.append(program)
        made = type(engine).build(engine, program, *given)
        made.get_submodule(COMPUTES).register_forward_pre_hook(lambda *_: runs.append(None))
        return made

    monkeypatch.setattr(dynamo._Compiled, "_decide", decided)
    monkeypatch.setattr(engine, "build", build)
    options: Any = {"runtime": name, "freeze": is_frozen}
    result = torch.compile(module, backend="taso", options=options)
    changed: Sequence[Tensor] = (torch.zeros(0), module.left.weight, module.norm.weight)
    with torch.no_grad():
        for number, weight in enumerate(changed, 1):
            weight.mul_(2)
            before = len(runs)
            same(module, result, X)
            same(module, result, -X)
            assert len(runs) >= before + 2
            assert len(built) == (number if is_frozen else 1)
    assert not is_frozen or all(len(program.graph.inputs) == 1 for program in built)


@pytest.mark.skipif(not hasattr(torch.compiler, "set_default_backend"), reason="this PyTorch has no default backend")
@pytest.mark.usefixtures("taso_backend")
def test_it_can_be_the_default(optimizations: list[str]) -> None:
    before = torch.compiler.get_default_backend()
    torch.compiler.set_default_backend("taso")
    try:
        options: Any = {**QUICK, "freeze": True}
        model: Any = torch.compile(Images().eval(), options=options)
        with torch.no_grad():
            model(X)
    finally:
        torch.compiler.set_default_backend(before)
    assert len(optimizations) == 1
