"""Hooks of a model: those that only look on see nothing of an optimization, those that compute are part of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import while_loop
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import weight_norm

from taso_py.backend import build
from taso_py.driver.optimize import optimize
from taso_py.frontend import import_module
from taso_py.frontend.hooks import hooks_set_aside
from taso_py.models.importing import import_source
from taso_py.models.source import Source

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
QUICK: dict[str, Any] = {"kernels": False, "race_seconds": 0.1, "time_limit": 1.0, "cache": False}
seen: list[Any] = []
calls = 0


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()


class Collector:
    """Keeps what passes by in attributes and in containers of containers."""

    def __init__(self) -> None:
        self.features: defaultdict[str, list[Tensor]] = defaultdict(list)
        self.last: Any = None

    def __call__(self, name: str, module: nn.Module, args: Any, output: Tensor) -> None:
        del module, args
        self.features[name].append(output)
        self.last = output

    def method(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self("method", module, args, output)


def counting(module: nn.Module, args: Any, output: Tensor) -> None:
    global calls
    calls += 1
    seen.append(output.detach().numpy().sum())


def test_hooks_that_look_on_see_nothing() -> None:
    module, kept, count, collector = model(), dict[str, Any](), 0, Collector()

    def count_up(_: Any, args: Any) -> None:
        nonlocal count
        count += 1
        kept["last"] = args[0].numpy()  # what no fake tensor has

    def on_module(m: Any, _: Any, output: Tensor) -> Tensor:
        m.features = output
        return output  # what it was given, which changes nothing

    module[0].register_forward_pre_hook(count_up)
    module[0].register_forward_hook(on_module)
    module[0].register_full_backward_hook(lambda *_: seen.append("backward"))
    module[1].register_forward_hook(partial(collector, "relu"))
    module[1].register_forward_hook(collector.method)
    module.register_forward_hook(counting)
    module.register_forward_hook(lambda m, a, k, y: seen.append(y), with_kwargs=True)
    registered = [list(part._forward_hooks.items()) for part in module.modules()]
    found = optimize(module, X, **QUICK)
    assert (seen, kept, count, calls, dict(collector.features), collector.last) == ([], {}, 0, 0, {}, None)
    assert not hasattr(module[0], "features")
    assert [list(part._forward_hooks.items()) for part in module.modules()] == registered
    assert "7 hooks of the model that change nothing: an optimized module has none of them" in found.report.notes
    with torch.no_grad():
        module(X)
    assert (count, calls, len(seen)) == (1, 1, 2), "they are back"


def test_an_import_alone_shows_hooks_nothing_either() -> None:
    module = model()
    module[0].register_forward_hook(counting)
    import_source(Source("model", module, (X,)))
    assert seen == []


@pytest.mark.parametrize("make", [lambda: X.to("meta"), lambda: FakeTensorMode().from_tensor(X), lambda: X.to_sparse()])
def test_hooks_are_set_aside_for_inputs_that_nobody_can_vary(make: Callable[[], Tensor]) -> None:
    x = make()
    module = nn.Sequential(nn.Identity(), nn.Identity())
    module[0].register_forward_hook(lambda *_: None)
    with hooks_set_aside(module, (x,), {}) as notes:
        assert not module[0]._forward_hooks
    assert len(notes) == 1


def test_a_model_without_hooks_is_not_called() -> None:
    with hooks_set_aside(nn.Linear(3, 3), ("of another type",), {}) as notes:
        assert notes == ()


def scaling(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * 2


def halving(module: nn.Module, args: Any) -> Any:
    return (args[0] * 0.5,)


def writing(module: nn.Module, args: Any, output: Tensor) -> None:
    output.add_(1)


@pytest.mark.parametrize("hook", [scaling, writing])
def test_hooks_that_compute_are_part_of_the_model(hook: Callable[..., Any]) -> None:
    module = model()
    module[0].register_forward_hook(hook)
    module[1].register_forward_hook(lambda *_: seen.append("looking"))
    module[1].register_forward_pre_hook(halving)
    wanted = module(X)
    seen.clear()
    with hooks_set_aside(module, (X,), {}) as notes, torch.no_grad():
        assert import_module(module, (X,)).graph.outputs
        assert torch.equal(module(X), wanted)
    assert [note.partition(" of")[0] for note in notes] == ["1 hook", "2 hooks"]
    assert seen == []
    assert torch.equal(optimize(module, X, **QUICK).module(X), wanted)


class Decoding(nn.Module):
    """An encoder and a decoder; the latter reads what a hook keeps of the former."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.middle, self.kept = nn.Linear(8, 8), nn.Linear(8, 8), Collector()
        self.encoder.register_forward_hook(partial(self.kept, "encoder"))
        self.middle.register_forward_hook(lambda *_: None)

    def forward(self, x: Tensor) -> Tensor:
        middle = torch.relu(self.middle(self.encoder(x)))
        return middle if self.kept.last is None else middle + self.kept.last


@pytest.mark.parametrize("calls_before", [0, 1])
def test_hooks_whose_keepings_the_model_reads_are_part_of_it(calls_before: int) -> None:
    module, other = Decoding().eval(), torch.randn(4, 8)
    with torch.no_grad():
        for _ in range(calls_before):
            module(X)
        built = build(import_source(Source("model", module, (X,))))
        assert (module.kept.last is None) == (calls_before == 0)
        assert torch.equal(built(other), module(other))
    with hooks_set_aside(module, (X,), {}) as notes:
        assert notes == ["2 hooks of the model that change what is computed: an optimized module does the same"]


def test_a_loop_that_ends_for_positive_numbers_ends_while_hooks_are_judged() -> None:
    class Root(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            def step(found: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
                return 0.5 * (found + x / found), x.clone()

            def is_off(found: Tensor, x: Tensor) -> Tensor:
                return (found * found - x).abs().max() > 1e-3

            return while_loop(is_off, step, (torch.ones_like(x), x))[0]

    module = nn.Sequential(Root(), nn.ReLU())
    module[1].register_forward_hook(counting)
    with torch.no_grad(), hooks_set_aside(module, (X.abs() + 0.1,), {}) as notes:
        assert [note.partition(" that")[0] for note in notes] == ["1 hook of the model"]
        assert not module[1]._forward_hooks


class Naming(nn.Module):
    """A module that returns a dict."""

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"y": torch.relu(x), "all": [x]}


class Reading(nn.Module):
    """A module that reads the dict of another."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Naming()

    def forward(self, x: Tensor) -> Tensor:
        found = self.inner(x)
        return found["y"] + found["all"][-1]


def exchanging(module: nn.Module, args: Any, output: Any) -> None:
    output["y"] = output["y"] * 2


def appending(module: nn.Module, args: Any, output: Any) -> None:
    output["all"].append(output["y"])


@pytest.mark.parametrize("hook", [exchanging, appending])
def test_hooks_that_change_a_container_are_part_of_the_model(hook: Callable[..., Any]) -> None:
    module = Reading()
    wanted = module(X)
    module.inner.register_forward_hook(lambda m, a, y: seen.append(y["y"].numpy()))
    with hooks_set_aside(module, (X,), {}) as notes:
        assert [note.partition(" of")[0] for note in notes] == ["1 hook"]
        assert torch.equal(module(X), wanted)
    module.inner.register_forward_hook(hook)
    with hooks_set_aside(module, (X,), {}) as notes:
        assert [note.partition(" of")[0] for note in notes] == ["1 hook", "1 hook"]
        built = build(import_module(module, (X,)))
        assert torch.equal(built(X), module(X))
        assert not torch.equal(built(X), wanted)
    assert seen == []


def test_lazy_modules_and_buffers_are_as_without_hooks() -> None:
    """A lazy module drops the hook that found its sizes; the calls that judge hooks write to no buffer for good."""
    lazy = nn.Sequential(nn.LazyLinear(4), nn.BatchNorm1d(4))
    lazy[1].register_forward_hook(counting)
    with hooks_set_aside(lazy, (X,), {}):
        assert lazy[1].get_buffer("num_batches_tracked") == 0
        assert import_module(lazy, (X,)).state["1.num_batches_tracked"] == 0
    assert not lazy[0]._forward_pre_hooks
    assert lazy(X).shape == (4, 4)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_weights_that_a_hook_computes_are_those_of_now() -> None:
    module = nn.Sequential(weight_norm(nn.Linear(8, 8))).eval()
    with torch.no_grad():
        module[0].get_parameter("weight_g").mul_(3)  # the weight follows at the next call only
    found = optimize(module, X, **QUICK)
    with torch.no_grad():
        torch.testing.assert_close(found.module(X), module(X))


def test_hooks_come_back_after_an_error() -> None:
    module = model()
    handle = module[0].register_forward_hook(lambda *_: seen.append(1))

    def fail() -> None:
        with hooks_set_aside(module, (X,), {}):
            assert not module[0]._forward_hooks
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert len(module[0]._forward_hooks) == 1
    handle.remove()
    assert not module[0]._forward_hooks
    assert seen == []
