"""Built modules are frozen: the values of a call without gradients, an error where a gradient is asked for."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, fx, nn
from torch.utils.checkpoint import checkpoint

from fuzz.prices import InventedPrices
from taso_py.backend import build, fold
from taso_py.backend.frozen import FrozenError, FrozenRunner, GradientError
from taso_py.backend.guard import ArgumentError
from taso_py.cost.choice import choose
from taso_py.frontend import import_module
from taso_py.frontend.errors import ImportRefusal
from taso_py.kernels.table import TILES
from tests.round_trips import Model
from tests.versions import need

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
MESSAGE = r"frozen and has no gradients; call the original module where .* or detach the argument$"


def plain(model: nn.Module, *args: Any) -> fx.GraphModule:
    return build(fold(import_module(model, args)))


def planned(model: nn.Module, *args: Any) -> fx.GraphModule:
    """A module of kernels that have no derivatives, which write to operands that are dead."""
    program = fold(import_module(model, args))
    plan = choose(program.graph, InventedPrices(2, fused=0.01, tiles=TILES)).plan.eager()
    assert any(step.kernel for step in plan.steps.values())
    return build(program, plan)


@pytest.fixture(scope="module", params=[plain, planned, lambda *args: FrozenRunner(plain(*args))])
def frozen(request: pytest.FixtureRequest) -> Callable[..., Any]:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval()
    return request.param(model, X)


def leaf() -> Tensor:
    return X.clone().requires_grad_()


def test_without_an_argument_that_requires_gradients_nothing_does(frozen: Callable[..., Any]) -> None:
    with torch.no_grad():
        wanted = frozen(X)
    assert not frozen(X).requires_grad
    assert torch.equal(frozen(X), wanted)
    assert torch.is_grad_enabled()


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_a_result_with_kernels_is_not_traced_by_the_older_tracer() -> None:
    module = planned(nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), X)
    for whole in (module, nn.Sequential(module)):
        with pytest.raises(FrozenError, match=r"^torch\.jit\.trace cannot express an optimized module"):
            torch.jit.trace(whole, (X,))
    assert torch.equal(module(X), module(X))


def test_a_result_with_kernels_is_not_imported_again() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    made, plainly = planned(model, X), plain(model, X)
    for whole, name in ((made, "the model"), (nn.Sequential(nn.Tanh(), made), "the model's 1")):
        with pytest.raises(ImportRefusal, match=f"^{name} is the result of an optimization.*that it was made of$"):
            import_module(whole, (X,))
    assert torch.equal(plain(plainly, X)(X), plainly(X))


ASKS: dict[str, Callable[[Callable[..., Any]], object]] = {
    "backward": lambda f: f(leaf()).sum().backward(),
    "beside another way": lambda f: ((x := leaf()) * f(x)).sum().backward(),
    "through layers around it": lambda f: nn.Linear(8, 1)(f(nn.Linear(8, 8)(X))).sum().backward(),
    "grad": lambda f: torch.autograd.grad(f(x := leaf()).sum(), x),
    "func.grad": lambda f: torch.func.grad(lambda x: f(x).sum())(X),
    "func.jvp": lambda f: torch.func.jvp(f, (X,), (X,)),
    "func.jacrev": lambda f: torch.func.jacrev(f)(X),
    "func.jacfwd": lambda f: torch.func.jacfwd(f)(X),
    "checkpoint": lambda f: checkpoint(f, leaf(), use_reentrant=False).sum().backward(),
}


@pytest.mark.filterwarnings("ignore:.*does not have.*:UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("asks", ASKS)
def test_a_gradient_that_is_asked_for_is_an_error(frozen: Callable[..., Any], asks: str) -> None:
    with pytest.raises(GradientError, match=MESSAGE):
        ASKS[asks](frozen)
    assert torch.is_grad_enabled()


def test_other_gradients_are_those_of_a_constant(frozen: Callable[..., Any]) -> None:
    head, x = nn.Linear(8, 1), leaf()
    (found,) = torch.autograd.grad(head(frozen(x)).sum(), [head.weight])
    assert torch.allclose(found, frozen(X).sum(0, keepdim=True))
    for argument in (x.detach(), X):
        head(frozen(argument)).sum().backward()


def test_what_is_returned_may_be_written_to(frozen: Callable[..., Any]) -> None:
    found = frozen(leaf())
    found += 1
    assert torch.equal(found.detach(), frozen(X) + 1)


def test_an_error_in_a_call_leaves_the_grad_mode_as_it_was(frozen: Callable[..., Any]) -> None:
    with pytest.raises(ArgumentError, match=r"shape \[4, 8\]"):
        frozen(X[:1])
    assert torch.is_grad_enabled()


class Pair(NamedTuple):
    real: Tensor
    where: Tensor


def test_trees_and_complex_numbers_are_refused_and_integers_are_not() -> None:
    def function(_: object, x: Tensor, p: Any) -> Any:
        return {"p": Pair(torch.view_as_complex(x.view(4, 4, 2)) * 2, x.argmax()), "x": p["x"], "sum": p["x"] + x}

    inner = {"x": X}
    found = plain(Model(function), X, inner)(X, {"x": (x := leaf())})
    assert not found["p"].where.requires_grad
    assert isinstance(found["p"], Pair)
    assert found["x"] is x, "an argument that is returned has its own gradient"
    for result in (found["p"].real.abs(), found["sum"]):
        with pytest.raises(GradientError):
            result.sum().backward()


def test_results_share_memory_as_without_gradients() -> None:
    module = plain(Model(lambda s, x: ((y := x + 1), y, y.t())), X)
    first, second, third = module(leaf())
    assert first is second
    assert first.data_ptr() == third.data_ptr()


def _scaled(_: object, c: Tensor, x: Tensor, n: Tensor) -> Tensor:
    c.mul_(3).add_(x)
    n.add_(1)
    return x * 2


@pytest.fixture(scope="module", params=[lambda f: f, FrozenRunner, lambda f: torch.compile(f, backend="eager")])
def writing(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return request.param(plain(Model(_scaled), X.clone(), X, torch.zeros(2, dtype=torch.int64)))


def _passed(write: Callable[..., Any], cache: Tensor, x: Tensor) -> None:
    write(cache, x, torch.zeros(2, dtype=torch.int64))
    cache.sum().backward()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize(
    "asks",
    [
        lambda write: _passed(write, leaf() * 1, X),
        lambda write: _passed(write, X.clone(), leaf()),
        lambda write: _passed(write, (leaf() * 1)[:], leaf()),
    ],
)
def test_a_gradient_through_a_written_argument_is_an_error(
    writing: Callable[..., Any], asks: Callable[[Any], Any]
) -> None:
    with pytest.raises(GradientError, match=MESSAGE):
        asks(writing)


def test_written_arguments_have_no_gradient_where_none_is_asked_for(writing: Callable[..., Any]) -> None:
    for grad_mode, x in ((True, X), (False, leaf())):
        with torch.set_grad_enabled(grad_mode):
            cache, n = X.clone(), torch.zeros(2, dtype=torch.int64)
            writing(cache, x, n)
        assert not cache.requires_grad
        assert torch.equal(cache, X * 3 + X)
        assert n.tolist() == [1, 1]


COPIES: Sequence[Callable[[Any], Any]] = (lambda f: f, copy.copy, copy.deepcopy)


@pytest.mark.parametrize("copied", COPIES)
def test_pickling_is_refused_at_once(frozen: Callable[..., Any], copied: Callable[[Any], Any]) -> None:
    for act in (pickle.dumps, lambda f: torch.save(f, io.BytesIO()), lambda f: pickle.dumps({"inside": [f]})):
        with pytest.raises(FrozenError, match=r"cannot be pickled.*output=FOLDER.*taso_py\.load\(FOLDER\)$"):
            act(copied(frozen))


@pytest.mark.parametrize("copied", COPIES)
def test_copies_are_frozen_too(frozen: Callable[..., Any], copied: Callable[[Any], Any]) -> None:
    twin = copied(frozen)
    assert torch.equal(twin(X), frozen(X))
    with pytest.raises(GradientError):
        twin(leaf()).sum().backward()


@pytest.mark.parametrize(
    ("kind", "layers"),
    [
        *(
            (kind, layers)
            for kind in (plain, planned)
            for layers in ([nn.LayerNorm(8), nn.Linear(8, 8)], [nn.Linear(8, 8)])
        ),
        (plain, []),
    ],
)
def test_casts_and_moves_are_refused_unless_they_change_nothing(
    kind: Callable[..., fx.GraphModule], layers: list[nn.Module]
) -> None:
    """Kernels may have packed all weights, so that no parameters are left, or there are none."""
    module = kind(nn.Sequential(*layers, nn.ReLU()).eval(), X)
    wanted = module(X)
    for act in (
        nn.Module.half,
        nn.Module.double,
        lambda m: m.to("meta"),
        lambda m: nn.Sequential(m).to(torch.bfloat16),
    ):
        with pytest.raises(FrozenError, match="one element type and device"):
            act(module)
    for act in (nn.Module.float, nn.Module.cpu, nn.Module.share_memory, lambda m: m.to(X)):
        assert torch.equal(act(module)(X), wanted)


def test_state_is_copied_by_deepcopy() -> None:
    model = Model(lambda s, x: (s.count.add_(1), x + s.count)[1])
    model.register_buffer("count", torch.zeros(()))
    module = plain(model, X)
    twin = copy.deepcopy(module)
    module(X)
    assert (module.get_buffer("count").item(), twin.get_buffer("count").item()) == (1, 0)


@pytest.mark.filterwarnings("ignore")
def test_a_compiler_around_it_refuses_gradients_too() -> None:
    need("2.13", "what is called from compiled code sees no gradients")
    module = plain(nn.Linear(8, 8).eval(), X)
    torch.compiler.reset()
    compiled = torch.compile(nn.Sequential(nn.Linear(8, 8), module), backend="eager")
    with pytest.raises(GradientError):
        compiled(X).sum().backward()
    with torch.no_grad():
        assert compiled(X).shape == (4, 8)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # PyTorch's, where a graph goes on
@pytest.mark.parametrize("around", [lambda f: f, lambda f: nn.Sequential(nn.Linear(8, 8), f)])
@pytest.mark.parametrize("grad_mode", [True, False])
def test_kernels_are_called_as_they_are_behind_a_compiler(around: Callable[[Any], Any], grad_mode: bool) -> None:
    captured: list[str] = []

    def backend(graph: fx.GraphModule, _: Any) -> Callable[..., Any]:
        captured.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    module = around(planned(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval(), X))
    torch.compiler.reset()
    with torch.set_grad_enabled(grad_mode):
        assert torch.equal(torch.compile(module, backend=backend)(X), module(X))
    assert not any("mkldnn" in target for target in captured)
    with pytest.raises(RuntimeError, match="is called as it is; leave fullgraph off around it"):
        torch.compile(module, backend="eager", fullgraph=True)(X)


def test_a_module_without_kernels_is_compiled_whole() -> None:
    module = plain(nn.Linear(8, 8).eval(), X)
    torch.compiler.reset()
    with torch.no_grad():
        assert torch.equal(torch.compile(module, backend="eager", fullgraph=True)(X), module(X))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("around", [lambda f: f, lambda f: nn.Sequential(nn.Linear(8, 8), f)])
def test_kernels_that_are_exported_are_constants_to_gradients(around: Callable[[Any], Any]) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)).eval()
    module = around(planned(model, X))
    exported: Any = torch.export.export(module, (X,)).module()
    assert torch.allclose(exported(X), module(X))
    with pytest.raises(RuntimeError, match="does not require grad"):
        exported(leaf()).sum().backward()


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_export_without_kernels_has_right_gradients() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval()
    exported: Any = torch.export.export(plain(model, X), (X,)).module()
    exported(x := leaf()).sum().backward()
    model(y := leaf()).sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    assert torch.allclose(x.grad, y.grad)


def test_an_export_is_without_changes_of_the_grad_mode() -> None:
    module = plain(nn.Linear(8, 8).eval(), X)
    targets = {str(node.target) for node in torch.export.export(module, (X,)).graph.nodes if node.op == "call_function"}
    assert targets == {"aten.linear.default"}
