"""The run of the original leaves no trace; what a model keeps for its next call is in the export, or refused."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from taso_py.backend import build
from taso_py.backend.writes import Writes
from taso_py.frontend import ImportRefusal, import_module
from tests.round_trips import Model, round_trip

X = torch.arange(6.0).view(2, 3)


class Keeping(Model):
    """A model with buffers and plain attributes; tensors among the latter are copies of the ones given."""

    def __init__(
        self, function: Callable[..., Any], *, buffers: dict[str, Tensor] | None = None, **attributes: Any
    ) -> None:
        super().__init__(function, **(buffers or {}))
        for name, value in attributes.items():
            setattr(self, name, value.clone() if isinstance(value, Tensor) else value)


def counting(s: Any, x: Tensor) -> Tensor:
    s.n = s.n + 1
    return x + s.n


def test_assigned_buffer_is_written_to_and_is_the_models_own_afterwards() -> None:
    model = Model(counting, n=torch.zeros(3))
    n = model.get_buffer("n")
    round_trip(model, X)
    assert model.get_buffer("n") is n
    assert n.tolist() == [0, 0, 0]


def test_assigned_buffer_of_a_module_within_is_refused() -> None:
    """Its export says nothing of the write."""
    model = nn.Sequential(nn.ReLU(), Model(counting, n=torch.zeros(3)))
    n = model.get_buffer("1.n")
    with pytest.raises(
        ImportRefusal, match=r"changes its 1\.n from call to call, .* a buffer that is written to in place"
    ):
        import_module(model, (X,))
    assert model.get_buffer("1.n") is n
    assert n.tolist() == [0, 0, 0]


def stepping(s: Any, x: Tensor) -> Tensor:
    s.k = s.k + 1
    return x * s.k


def switching(s: Any, x: Tensor) -> Tensor:
    s.k = not s.k
    return x if s.k else -x


def starting(s: Any, x: Tensor) -> Tensor:
    s.k, first = 1, s.k == 0
    return x if first else -x


def differing(s: Any, x: Tensor) -> Tensor:
    s.k, old = x.clone(), s.k
    return x - old


def remembering(s: Any, x: Tensor) -> Tensor:
    s.k = x if s.k is None else torch.tanh(s.k + x)
    return s.k * 1


def pairing(s: Any, x: Tensor) -> Tensor:
    s.k = (s.k[0] + 1, None)
    return x * s.k[0]


def appending(s: Any, x: Tensor) -> Tensor:
    s.k.append(x)
    return x + 1


def queueing(s: Any, x: Tensor) -> Tensor:
    s.k.append(s.k[-1] + 1)
    return x * s.k[-1]


def filing(s: Any, x: Tensor) -> Tensor:
    s.k["last"], last = x + 1, s.k.get("last", x)
    return x + last


def tallying(s: Any, x: Tensor) -> Tensor:
    s.k["counts"][0] += 1
    return x * s.k["counts"][0]


def collecting(s: Any, x: Tensor) -> Tensor:
    s.k.add(len(s.k))
    return x * len(s.k)


def exchanging(s: Any, x: Tensor) -> Tensor:
    s.k[0] = s.k[0] + 1
    return x * s.k[0]


def peaking(s: Any, x: Tensor) -> Tensor:
    s.k = torch.maximum(s.k, x.abs().max())
    return x / s.k


def settling(s: Any, x: Tensor) -> Tensor:
    s.k = x if s.k is None else 0.5 * s.k + 0.5 * x
    return x - s.k.mean()


STATEFUL: list[tuple[Callable[..., Any], Any]] = [
    (stepping, 0),
    (stepping, 0.5),
    (stepping, torch.zeros(3)),
    (switching, False),
    (starting, 0),
    (differing, torch.zeros(2, 3)),
    (remembering, None),
    (pairing, (torch.zeros(3), None)),
    (appending, []),
    (queueing, deque([torch.zeros(3), torch.zeros(3)], maxlen=2)),
    (filing, {}),
    (tallying, {"counts": [0]}),
    (collecting, set()),
    (exchanging, [torch.zeros(3)]),
    (peaking, torch.zeros(())),
    (settling, None),
]


@pytest.mark.parametrize("is_within", [False, True])
@pytest.mark.parametrize(("function", "start"), STATEFUL)
def test_attribute_that_the_next_result_depends_on_is_refused(
    function: Callable[..., Any], start: Any, is_within: bool
) -> None:
    keeping = Keeping(function, k=start)
    before, content = keeping.k, copy.deepcopy(keeping.k)
    with pytest.raises(ImportRefusal, match=r"changes its (0\.)?k(\[.*\])? from call to call"):
        import_module(nn.Sequential(keeping) if is_within else keeping, (X,))
    assert keeping.k is before
    assert str(before) == str(content)


def test_a_model_that_returns_something_else_while_it_is_exported_is_refused() -> None:
    model = Model(lambda s, x: x + 1 if torch.compiler.is_compiling() else (x + 1, x))
    with pytest.raises(ImportRefusal, match="returns 2 values, and 1 while it is exported"):
        import_module(model, (X,))


def test_a_model_that_fails_is_left_as_it_was() -> None:
    def failing(s: Any, x: Tensor) -> Tensor:
        s.k, s.made = s.k + 1, torch.ones(2)
        return x @ x

    model = Keeping(failing, k=0)
    with pytest.raises(ImportRefusal, match="fails on the example inputs"):
        import_module(model, (X,))
    assert model.k == 0
    assert not hasattr(model, "made")


def caching(s: Any, x: Tensor) -> Tensor:
    if s.length != x.shape[0]:
        s.length, s.table = x.shape[0], torch.arange(x.shape[0]).float()[:, None]
    return x + s.table


def recording(s: Any, x: Tensor) -> Tensor:
    s.table = torch.softmax(x, -1)
    return x * s.table


def filling(s: Any, x: Tensor) -> Tensor:
    if x.shape not in s.tables:
        s.tables[x.shape] = torch.arange(x.shape[1]).float()
    return x + s.tables[x.shape]


def noting(s: Any, x: Tensor) -> Tensor:
    s.notes["softmax"] = torch.softmax(x, -1)
    return x * s.notes["softmax"]


CACHING: list[Callable[[], Model]] = [
    lambda: Keeping(filling, tables={}),
    lambda: Keeping(noting, notes={}),
    lambda: Keeping(noting, notes={"softmax": None}),
    lambda: Keeping(caching, length=0),
    lambda: Keeping(caching, length=0, table=None),
    lambda: Keeping(caching, length=5, table=torch.zeros(5, 1)),
    lambda: Keeping(recording),
    lambda: Keeping(recording, table=torch.zeros(2, 3)),
]


@pytest.mark.parametrize("make", CACHING)
def test_what_is_filled_at_the_first_call_is_no_state(make: Callable[[], Model]) -> None:
    round_trip(make(), X)
    round_trip(nn.Sequential(make(), nn.ReLU()), X)


def test_a_model_with_a_cache_that_fails_on_other_inputs_is_imported() -> None:
    def careful(s: Any, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            assert torch.equal(x, X)
        s.n = s.n + 1
        return caching(s, x) + s.n

    round_trip(Keeping(careful, buffers={"n": torch.zeros(1)}, length=0), X)


def test_a_table_in_a_buffer_that_is_made_longer_is_no_state() -> None:
    def model() -> Model:
        return Keeping(caching, buffers={"table": torch.zeros(5, 1)}, length=5)

    round_trip(model(), X)
    round_trip(nn.Sequential(model()), X)


def test_weights_that_are_computed_anew_at_each_call_are_no_state() -> None:
    for normalize in (nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm):
        model = normalize(nn.Linear(3, 3)).eval()
        with torch.no_grad():
            assert torch.equal(build(import_module(model, (X,)))(X), model(X))


def test_lazy_modules_become_what_they_are_at_the_first_call() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d()).eval()
    built = build(import_module(model, (X,)))
    assert torch.equal(built(X), model(X))


def test_not_a_number_is_no_change() -> None:
    unknown = torch.full((3,), float("nan"))
    round_trip(Keeping(lambda s, x: x + 1, buffers={"n": unknown}, k=unknown), X)


def test_what_tracing_leaves_in_attributes_is_removed() -> None:
    def tracing(s: Any, x: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            s.seen = x + 1
        return x * 2

    model = Model(tracing)
    import_module(model, (X,))
    assert not hasattr(model, "seen")


def test_neighbours_in_memory_are_not_taken_for_written() -> None:
    """They share the count of writes."""
    memory = torch.zeros(6)
    round_trip(Model(lambda s, x: (s.a.add_(1), x + s.a + s.b)[1], a=memory[:3], b=memory[3:]), X)


def test_writes_to_buffers_that_an_export_does_not_show_are_refused() -> None:
    library = torch.library.Library("taso_py_test_silent", "DEF")
    library.define("count(Tensor n, Tensor x) -> Tensor")

    def count(n: Tensor, x: Tensor) -> Tensor:
        n.add_(1)
        return x + n

    library.impl("count", count, "CompositeExplicitAutograd")
    torch.library.register_fake("taso_py_test_silent::count", lambda n, x: x + n, lib=library)
    model = Model(lambda s, x: torch.ops.taso_py_test_silent.count(s.n, x), n=torch.zeros(3))
    with pytest.raises(ImportRefusal, match="writes to its n, which its export does not show"):
        import_module(model, (X,))
    assert model.get_buffer("n").tolist() == [0, 0, 0]


def test_inference_mode() -> None:
    """The versions of tensors made there are not counted."""
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
    with torch.inference_mode():
        x = torch.ones(2, 3)
        assert torch.equal(build(import_module(model, (x,)))(x), model(x))
        assert Writes.of(import_module(Model(lambda s, x: x.add_(1)), (x,)).graph).inputs == ("args_0",)
        assert x.tolist() == [[1, 1, 1], [1, 1, 1]]
        made = nn.Sequential(nn.Linear(3, 3), Model(counting, n=torch.zeros(3)))
        with pytest.raises(ImportRefusal, match=r"1\.n"):
            import_module(made, (x,))
    assert made.get_buffer("1.n").tolist() == [0, 0, 0]
    with torch.no_grad():
        assert torch.equal(build(import_module(model, (x,)))(x), model(x))


def seeding(s: Any, x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return x + torch.rand_like(x)


def seeding_itself(s: Any, x: Tensor) -> Tensor:
    torch.default_generator.manual_seed(0)
    return x + 1


def forking(s: Any, x: Tensor) -> Tensor:
    with torch.random.fork_rng():
        return x + torch.rand_like(x)


def replaying(s: Any, x: Tensor) -> Tensor:
    state = torch.get_rng_state()
    noise = torch.rand_like(x)
    torch.set_rng_state(state)
    return x + noise


@pytest.mark.parametrize("function", [seeding, seeding_itself, forking, replaying])
def test_a_model_that_seeds_a_random_generator_is_refused(function: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    with pytest.raises(ImportRefusal, match=r"sets the state of a random generator \(at test_original\.py:.*; take "):
        import_module(Model(function), (X,))
    assert torch.equal(torch.get_rng_state(), before)


def drawing(s: Any, x: Tensor) -> Tensor:
    return torch.dropout(x + torch.rand_like(x), 0.5, train=True)


def forking_for_nothing(s: Any, x: Tensor) -> Tensor:
    with torch.random.fork_rng():
        torch.set_rng_state(torch.get_rng_state())
        return x + 1


def choosing(s: Any, x: Tensor) -> Tensor:
    """Compiles the branches, for which the compiler saves and restores states."""
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


@pytest.mark.parametrize("function", [drawing, forking_for_nothing, choosing])
def test_a_model_that_only_draws_is_imported(function: Callable[..., Any]) -> None:
    model = Model(function)
    built, results = build(import_module(model, (X,))), list[Tensor]()
    for run in (model, built):
        torch.manual_seed(3)
        results += [run(X), torch.rand(2)]
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[1], results[3])
