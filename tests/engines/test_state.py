"""Models that write to their buffers and arguments, in engines that write to nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from taso_py.backend.division import divided
from taso_py.backend.guard import ArgumentError
from taso_py.backend.identifiers import input_names
from taso_py.backend.onnx import onnx_bytes, onnx_model
from taso_py.backend.schema import storage_of
from taso_py.backend.weights import tie
from taso_py.engines.engine import CompiledGraph, Engine, EngineUnavailableError
from taso_py.engines.session import WRITES, OnnxModel, Session, SessionEngine
from tests.engines.sessions import program_of
from tests.frontend.test_writes import CACHE, IN_PLACE, LAYERS, PARTS
from tests.frontend.test_writes import X as X8
from tests.round_trips import Model

WIDTH, LENGTH = 4, 6
X, PLACE = torch.linspace(-1, 1, WIDTH).reshape(1, 1, WIDTH), torch.tensor([2])


class Cached(nn.Module):
    """A layer whose rows go to a cache, which is read before and after."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.cache: Tensor
        self.register_buffer("cache", torch.zeros(1, LENGTH, WIDTH))

    def forward(self, x: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        before = self.cache.sum()
        self.cache.index_copy_(1, place, self.layer(x))
        return before, self.cache.softmax(-1)


class Replaced(Cached):
    """A layer that leaves its result in a buffer, which it does not read."""

    def forward(self, x: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        self.cache.copy_(self.layer(x).expand_as(self.cache))
        return x + place, x * 2


def stacked(x: Tensor, place: Tensor, caches: Tensor) -> Tensor:
    """Write to each layer of one argument."""
    for cache in caches:
        cache[:, place] = x
        x = x + cache.sum(1, keepdim=True)
    return x


def placed(x: Tensor, place: Tensor, cache: Tensor) -> Tensor:
    """Write to places of two axes of an argument, and add to it there."""
    cache[0, place] = x[0]
    cache.index_put_((torch.tensor([0]), place), x[0], accumulate=True)
    return cache.relu()


def returned(x: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
    """Write to an argument, and return it."""
    held.add_(x)
    return held.relu(), held


def with_gaps() -> Tensor:
    return torch.ones(2, 3, 2 * WIDTH)[..., ::2]


REPEATED = torch.arange(float(WIDTH)).expand(2, 3, -1)
WRITING: dict[str, tuple[Callable[..., Any], Callable[[], Sequence[Tensor]]]] = {
    "a buffer": (Cached(), lambda: (X, PLACE)),
    "a buffer that is not read": (Replaced(), lambda: (X, PLACE)),
    "layers of an argument": (stacked, lambda: (X, PLACE, torch.ones(3, 1, LENGTH, WIDTH))),
    "a place of an argument": (placed, lambda: (X, PLACE, torch.ones(1, LENGTH, WIDTH))),
    "an argument that is returned": (returned, lambda: (X, torch.ones(2, 3, WIDTH))),
    "an argument with gaps": (returned, lambda: (X, with_gaps())),
    "an argument with gaps beside an expanded one": (
        returned,
        lambda: (torch.ones(WIDTH).expand(2, 3, -1), with_gaps()),
    ),
}


@pytest.mark.parametrize("name", WRITING)
def test_what_is_written_is_what_pytorch_writes(engine: SessionEngine, name: str) -> None:
    assert_writes_alike(engine, name)


def assert_writes_alike(engine: Engine, name: str) -> None:
    """Assert that an engine's module returns and writes what the original does, in the same memory."""
    function, make = WRITING[name]
    expecting = copy.deepcopy(function)
    module = engine.build(program_of(function, make()))
    given, expected = make(), make()
    for _ in range(3):
        found, wanted = (pytree.tree_leaves(called(*args)) for called, args in ((module, given), (expecting, expected)))
        for pair in zip((*found, *given), (*wanted, *expected), strict=True):
            assert torch.allclose(*pair, atol=1e-6)
        owners = [[storage_of(a) == storage_of(b) for b in args] for a, args in zip(found, [given] * 9, strict=False)]
        assert owners == [[storage_of(a) == storage_of(b) for b in expected] for a in wanted]
    if isinstance(expecting, Cached):
        assert not torch.equal(expecting.cache, torch.zeros_like(expecting.cache))
        assert torch.allclose(module.get_buffer("cache"), expecting.cache, atol=1e-6)


@pytest.mark.parametrize("name", [*IN_PLACE, *PARTS])
def test_rows_are_written_in_place(engine: SessionEngine, name: str) -> None:
    """In a part of one big cache, whose other parts stay as they are, twice in a row."""
    function = IN_PLACE.get(name) or PARTS[name]
    x, cache = X8, CACHE if name in IN_PLACE else LAYERS
    module = engine.build(program_of(Model(function), (x, cache.clone(), PLACE)))
    whole = [torch.stack([cache, cache + 1], 1) for _ in range(2)]
    for step in range(2):
        with torch.no_grad():
            found, wanted = (
                pytree.tree_leaves(called(x + step, held[:, 1], PLACE + step))
                for called, held in zip((module, Model(function)), whole, strict=True)
            )
        for one, other in zip([*found, *whole[:1]], [*wanted, *whole[1:]], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4, check_stride=False)
    assert torch.equal(whole[0][:, 0], cache)
    assert not torch.equal(whole[0][:, 1], cache + 1)


def test_a_file_returns_rows(engine: SessionEngine) -> None:
    module = engine.build(program_of(Cached(), (X, PLACE)))
    compiled = CompiledGraph.of(module)
    assert isinstance(compiled, Session)
    results = compiled(X, PLACE, torch.zeros(1, LENGTH, WIDTH))
    assert [tuple(result.shape) for result in results[2:]] == [(1,), (1, 1, WIDTH)]


def test_a_file_of_an_earlier_release_returns_whole_contents(engine: SessionEngine, tmp_path: Path) -> None:
    """It has no file beside it that says what is written where."""
    program = program_of(Cached(), (X, PLACE))
    pure = divided(program.graph, whole=True).pure
    session = engine.compile(OnnxModel(onnx_bytes(onnx_model(pure, program.weights)), input_names(pure)))
    modules = engine.build(program), engine.build_around(program, session)
    for name, content in engine.files(modules[1]).items():
        (tmp_path / name).write_bytes(content)
    assert not (tmp_path / WRITES).exists()
    modules += (engine.restore(program, tmp_path),)
    for step in range(LENGTH):
        found = [module(X * step, torch.tensor([step])) for module in modules]
        torch.testing.assert_close(found[1:], found[:1] * 2)
    for module in modules:
        torch.testing.assert_close(module.get_buffer("cache"), modules[0].get_buffer("cache"))
        assert torch.all(module.get_buffer("cache")[0, 1:].abs().sum(-1) > 0)


def test_modules_of_one_program_have_state_of_their_own_unless_tied(engine: SessionEngine) -> None:
    model = Cached()
    program = program_of(model, (X, PLACE))
    first, second = (engine.build(program) for _ in range(2))
    first(X, PLACE)
    assert [not torch.any(held.get_buffer("cache")) for held in (first, second)] == [False, True]
    assert not torch.any(model.cache)
    tie(second, {"cache": first.get_buffer("cache")})
    second(X + 1, PLACE + 1)
    assert torch.all(first.get_buffer("cache")[:, 2:4] != 0)


def test_a_file_is_read_with_the_state_that_its_program_has(engine: SessionEngine, tmp_path: Path) -> None:
    program = program_of(Cached(), (X, PLACE))
    module = engine.build(program)
    for name, content in engine.files(module).items():
        (tmp_path / name).write_bytes(content)
    again = engine.restore(program, tmp_path)
    for step in range(LENGTH):
        found, wanted = (called(X * step, torch.tensor([step])) for called in (again, module))
        assert all(map(torch.equal, found, wanted))
    assert torch.equal(again.get_buffer("cache"), module.get_buffer("cache"))


def test_arguments_that_share_what_is_written_are_refused(engine: SessionEngine) -> None:
    module = engine.build(program_of(returned, (torch.ones(3), torch.ones(3))))
    held = torch.ones(3)
    with pytest.raises(ArgumentError, match="writes to args_1, whose memory another argument shares"):
        module(held, held)
    assert torch.equal(held, torch.ones(3))


def test_other_effects_are_refused(engine: SessionEngine) -> None:
    class Drawing(Cached):
        def forward(self, x: Tensor, place: Tensor) -> Any:
            return super().forward(torch.dropout(x, 0.5, train=True), place)

    with pytest.raises(EngineUnavailableError, match="draws random numbers"):
        engine.build(program_of(Drawing(), (X, PLACE)))
