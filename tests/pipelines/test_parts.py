"""Parts of pipelines optimized in place: right results, one search for equal blocks, and the original elsewhere."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import taso_py
from taso_py.backend.frozen import FrozenError
from taso_py.driver import optimize as driver
from taso_py.judging.finalists import ORIGINAL
from taso_py.judging.timing import Race, Ratio
from taso_py.pipelines import parts
from taso_py.pipelines.inspecting import PipelineError
from taso_py.pipelines.parts import AS_IT_WAS, OPTIMIZED, OptimizedParts, PartOutcome, PartState, optimize_parts
from tests.gains import take_any_gain

QUICK: dict[str, Any] = {"race_seconds": 0.1, "time_limit": 1.0, "kernels": False, "cache": False, "least": 0.0}


class Block(nn.Module):
    """Two layers that read the same input, and a normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.norm = nn.Linear(16, 16), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + torch.relu(self.left(x)) * torch.sigmoid(self.right(x)))


class Stack(nn.Module):
    """Equal blocks with their own weights; what it does besides cannot be exported."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(blocks)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x) if float(x.detach().sum()) < 1e9 else x
        return x


@pytest.fixture(autouse=True)
def any_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is built is the result, whether it is faster or not; the race of the whole is short."""
    torch.manual_seed(0)
    take_any_gain(monkeypatch, (ORIGINAL, AS_IT_WAS))
    monkeypatch.setattr(parts, "RACE_S", 0.05)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the modules that are searched for."""
    found: list[str] = []

    def counted(source: Any, *args: Any, **kwargs: Any) -> Any:
        found.append(source.name)
        return driver.optimize_source(source, *args, **kwargs)

    monkeypatch.setattr(parts, "optimize_source", counted)
    return found


def tokens(batch: int = 2) -> Tensor:
    return torch.randn(batch, 5, 16, generator=torch.Generator().manual_seed(batch))


def test_equal_blocks_are_searched_for_once_and_keep_their_own_weights(searches: list[str]) -> None:
    model = Stack().eval()
    with torch.no_grad():
        expected = model(tokens())
        found = optimize_parts(taso_py.inspect(model, tokens()), **QUICK)
        states = {outcome.label: outcome.state for outcome in found.outcomes}
        assert states == {
            "Stack": PartState.REFUSED,
            **{f"blocks.{i}": PartState.REPLACED for i in range(3)},
        }
        assert searches == ["blocks.0"]
        assert [outcome.note for outcome in found.outcomes[1:]] == ["", "like blocks.0", "like blocks.0"]
        assert all(block.forward in found.replacements for block in model.blocks)
        assert torch.allclose(model(tokens()), expected, atol=1e-5)
        assert found.whole is not None
        assert "blocks.2" in str(found)
        found.undo()
        assert all("forward" not in vars(block) for block in model.blocks)
        assert torch.equal(model(tokens()), expected)


def test_calls_that_no_form_was_made_for_run_the_module(searches: list[str]) -> None:
    model = Block().eval()
    found = optimize_parts(taso_py.inspect(model, tokens()), **QUICK)
    (replacement,) = found.replacements
    ran: list[int] = []
    (runner,) = replacement._runners
    replacement._runners[:] = [lambda *args: (ran.append(len(args[0])), runner(*args))[1]]
    with torch.no_grad():
        for batch in (2, 3):
            assert torch.allclose(model(tokens(batch)), type(model).forward(model, tokens(batch)), atol=1e-5)
    assert ran == [2, 3]  # the form itself refuses the second

    model(tokens()).sum().backward()  # gradients are those of the module
    assert model.left.weight.grad is not None
    model.train()
    with torch.no_grad():
        model(tokens())
    assert ran == [2, 3]


class Scaled(nn.Module):
    """A part with a keyword that calls may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor, scale: Tensor | None = None, shift: Tensor | None = None) -> Tensor:
        y = self.block(x) if scale is None else self.block(x) * scale
        return y if shift is None else y + shift


def test_calls_with_other_keywords_run_the_module() -> None:
    model = Scaled().eval()
    found = optimize_parts(taso_py.inspect(model, tokens(), shift=tokens()), **QUICK)
    assert model.forward in found.replacements
    with torch.no_grad():
        for args, kwargs in (
            ((), {"shift": tokens()}),
            ((), {"scale": tokens()}),
            ((), {"scale": tokens(), "shift": tokens()}),
            ((tokens(),), {}),
            ((), {}),
        ):
            expected = type(model).forward(model, tokens(), *args, **kwargs)
            assert torch.allclose(model(tokens(), *args, **kwargs), expected, atol=1e-5)
        with pytest.raises(TypeError, match="other"):
            model(tokens(), other=tokens())


def test_changed_weights_end_the_replacement(caplog: pytest.LogCaptureFixture) -> None:
    model = Block().eval()
    optimize_parts(taso_py.inspect(model, tokens()), **QUICK)
    with torch.no_grad():
        for change in (lambda: model.left.weight.mul_(2), lambda: model.load_state_dict(Block().state_dict())):
            change()
            assert torch.equal(model(tokens()), type(model).forward(model, tokens()))
    assert caplog.text.count("have changed") == 1


def test_copies_are_plain_and_pickles_refused() -> None:
    model = Block().eval()
    found = optimize_parts(taso_py.inspect(model, tokens()), **QUICK)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.left.weight.zero_()
        assert torch.equal(copied(tokens()), Block.forward(copied, tokens()))
    with pytest.raises(FrozenError, match="undo"):
        pickle.dumps(model)
    found.undo()
    assert isinstance(pickle.loads(pickle.dumps(model)), Block)


def test_a_form_that_computes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = parts.Decision.apply

    def wrong(*args: Any, **kwargs: Any) -> Any:
        runner = right(*args, **kwargs)
        return lambda *inputs: runner(*inputs) * 1.01

    monkeypatch.setattr(parts.Decision, "apply", wrong)
    model = Stack(2).eval()
    found = optimize_parts(taso_py.inspect(model, tokens()), **QUICK)
    assert [(o.label, o.state) for o in found.outcomes if o.label in ("blocks.0", "blocks.1")] == [
        ("blocks.0", PartState.REPLACED),
        ("blocks.1", PartState.REFUSED),
    ]
    assert "is off by" in str(found)
    assert "forward" not in vars(model.blocks[1])


def test_parts_that_slow_the_whole_down_are_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    gained = Race.ratio

    def slower(self: Race, name: str, over: str | None = None) -> Ratio:
        return Ratio(0.8, 0.7, 0.9, 9, 0.95) if name == OPTIMIZED else gained(self, name, over)

    monkeypatch.setattr(Race, "ratio", slower)
    model = Block().eval()
    found = optimize_parts(taso_py.inspect(model, tokens()), **QUICK)
    assert not found.replacements
    assert "forward" not in vars(model)
    assert "taken out" in str(found)


def test_modules_that_are_left_alone_have_a_reason() -> None:
    model = Block()
    found = optimize_parts(taso_py.inspect(model, tokens()), **QUICK)
    assert {outcome.note for outcome in found.outcomes} == {"it is in training mode; call eval()"}
    model.eval()
    many = taso_py.inspect(lambda: [model(tokens(batch)) for batch in range(1, 6)])
    assert "called with 5 combinations of shapes" in str(optimize_parts(many, **QUICK))


def test_what_is_no_inspection_is_one_line() -> None:
    with pytest.raises(PipelineError, match=r"\Agive the result of taso_py\.inspect, not Block\(\Z"):
        optimize_parts(Block())  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("speedup", "text"), [(1.5, " 1.50 "), (math.nan, " withheld ")])
def test_a_speedup_that_is_withheld_is_said_to_be(speedup: float, text: str) -> None:
    assert text in str(OptimizedParts([PartOutcome("block", PartState.REPLACED, 0.5, speedup)]))


def test_an_interrupt_leaves_the_pipeline_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_args: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(parts, "_judge_whole", interrupted)
    model = Block().eval()
    with pytest.raises(KeyboardInterrupt):
        optimize_parts(taso_py.inspect(model, tokens()), **QUICK)
    assert "forward" not in vars(model)
    assert not model._forward_pre_hooks


class _Doubled(nn.Module):
    """A layer around another, as adapters put one in its place."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.layer(x)


@pytest.mark.parametrize(
    "change",
    [
        lambda block: setattr(block, "left", _Doubled(block.left)),
        lambda block: nn.utils.parametrizations.weight_norm(block.left),
        lambda block: prune.l1_unstructured(block.left, "weight", amount=0.5),
        lambda block: block.left.register_forward_hook(lambda _module, _args, result: 3 * result),
        lambda block: setattr(block.left, "forward", lambda x: x),
    ],
    ids=["exchanged", "parametrized", "pruned", "hooked", "patched"],
)
def test_changed_parts_end_the_replacement(change: Callable[[Any], object], caplog: pytest.LogCaptureFixture) -> None:
    model = Block().eval()
    optimize_parts(taso_py.inspect(model, tokens()), **QUICK)
    with torch.no_grad():
        before = model(tokens())
        change(model)
        after = model(tokens())
        assert torch.equal(after, type(model).forward(model, tokens()))
    assert caplog.text.count("have changed") == 1
    if "parametrize" not in str(type(model.left)).lower():
        assert not torch.allclose(after, before)


def test_calls_under_autocast_run_the_module() -> None:
    model = Block().eval()
    optimize_parts(taso_py.inspect(model, tokens()), **QUICK)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model(tokens()), type(model).forward(model, tokens()))
    with torch.no_grad():
        assert torch.allclose(model(tokens()), type(model).forward(model, tokens()), atol=1e-5)


@pytest.mark.parametrize(
    "register",
    [
        lambda block: block.register_forward_hook(lambda _module, _args, result: 3 * result),
        lambda block: block.register_forward_pre_hook(lambda _module, args: (args[0] * 2,)),
        lambda block: block.left.register_forward_hook(lambda _module, _args, result: 3 * result),
    ],
    ids=["after", "before", "of a part"],
)
def test_hooks_run_once(register: Callable[[Any], object]) -> None:
    model = Block().eval()
    register(model)
    with torch.no_grad():
        expected = model(tokens())
        found = optimize_parts(taso_py.inspect(model, tokens()), **QUICK)
        assert [outcome.state for outcome in found.outcomes] == [PartState.REPLACED]
        assert torch.allclose(model(tokens()), expected, atol=1e-5)
        found.undo()
        assert torch.equal(model(tokens()), expected)


def test_a_module_whose_hook_reads_what_another_stores_is_left_alone() -> None:
    model, stored = Block().eval(), list[Tensor]()

    def store(_module: Any, _args: Any, result: Tensor) -> None:
        stored.append(result)

    def add(_module: Any, _args: Any, result: Tensor) -> Tensor:
        return result + stored.pop()

    model.left.register_forward_hook(store)
    model.register_forward_hook(add)
    with torch.no_grad():
        expected = model(tokens(1))
        found = optimize_parts(taso_py.inspect(model, tokens()), **QUICK)
        whole, *below = found.outcomes
        assert whole.state is PartState.REFUSED
        assert "hooks of its parts" in whole.note
        assert PartState.REPLACED in {outcome.state for outcome in below}
        assert torch.allclose(model(tokens(1)), expected, atol=1e-5)


class _Keeping(Block):
    """A block that makes a tensor of the size of its input at each call."""

    def forward(self, x: Tensor) -> Tensor:
        self.kept = torch.zeros(x.shape[1:])
        return super().forward(x) + self.kept


class _Showing(nn.Module):
    """A model that shows others what its block computed last."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.block(x)
        return self.last * 2


@pytest.mark.parametrize("is_hook", [True, False])
def test_what_others_may_read_of_a_call_is_there_after_each(is_hook: bool) -> None:
    model: Any = (Block() if is_hook else _Showing()).eval()
    seen: dict[str, Tensor] = {}
    if is_hook:
        model.left.register_forward_hook(lambda _module, _args, result: seen.update(left=result))
    with torch.no_grad():
        found = optimize_parts(taso_py.inspect(model, tokens()), **QUICK)
        whole, *below = found.outcomes
        assert whole.state is PartState.REFUSED
        assert ("hooks of its parts" if is_hook else "keeps values of each call in its last") in whole.note
        assert PartState.REPLACED in {outcome.state for outcome in below}
        model(tokens(1))
        shown = seen["left"] if is_hook else model.last
        expected = model.left(tokens(1)) if is_hook else model.block(tokens(1))
        assert torch.allclose(shown, expected, atol=1e-5)


def test_what_a_module_keeps_from_the_timed_runs_does_not_end_the_replacement(caplog: pytest.LogCaptureFixture) -> None:
    model = _Keeping().eval()
    with torch.no_grad():
        (replacement,) = optimize_parts(taso_py.inspect(lambda: model(torch.randn(2, 5, 16))), **QUICK).replacements
        model(tokens())
    assert replacement._runners
    assert not caplog.text


@pytest.mark.parametrize("is_in_turn", [False, True])
def test_modules_that_were_optimized_twice_are_given_back_in_any_order(is_in_turn: bool) -> None:
    model = Block().eval()
    with torch.no_grad():
        expected = model(tokens())
        first = optimize_parts(taso_py.inspect(model, tokens()), **QUICK)
        second = optimize_parts(taso_py.inspect(model, tokens()), **QUICK)
        assert first.replacements
        assert model.forward in second.replacements
        assert torch.allclose(model(tokens()), expected, atol=1e-5)
        undone, left = (second, first) if is_in_turn else (first, second)
        undone.undo()
        assert model.forward in left.replacements
        assert torch.allclose(model(tokens()), expected, atol=1e-5)
        left.undo()
        assert torch.equal(model(tokens()), expected)


def test_a_second_inspection_leaves_the_replacement() -> None:
    model = Stack().eval()
    with torch.no_grad():
        expected = model(tokens())
        found = optimize_parts(taso_py.inspect(model, tokens()), **QUICK)
        taso_py.inspect(model, tokens())
        assert torch.allclose(model(tokens()), expected, atol=1e-5)
        assert found.replacements
        assert all(replacement._runners for replacement in found.replacements)
