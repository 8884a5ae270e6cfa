"""Writes to arguments: in place on the caller's tensor, as the original makes them; reads before and after differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from taso_py.backend import build
from taso_py.backend.guard import ArgumentError
from taso_py.backend.input_cases import input_cases
from taso_py.backend.writes import Writes, write
from taso_py.checking.compare import Oracle
from taso_py.frontend import ImportRefusal, import_module, import_program
from taso_py.frontend.reexport import reexport
from taso_py.ir.node import make
from taso_py.ops.elementwise import Mul
from tests.round_trips import Model, round_trip

aten = torch.ops.aten
X = torch.arange(8.0).view(1, 8) - 3
CACHE = torch.arange(48.0).view(1, 6, 8) / 7
ROW = torch.tensor([2])


def copied(module: fx.GraphModule) -> list[Any]:
    """Return the copies to written leaves that a module still makes."""
    checked = [n for n in module.graph.nodes if n.op == "get_attr" or "check_tensor" in str(n.target)]
    return [n for n in module.graph.nodes if n.target is aten.copy_.default and n.args[0] in checked]


IN_PLACE: dict[str, Callable[..., Any]] = {
    "row by index": lambda s, x, c, i: (c.index_copy_(1, i, x[None]), (c * 2).sum(1))[1],
    "row by indices": lambda s, x, c, i: (c.index_put_((torch.zeros_like(i), i), x), c.sum(1))[1],
    "slice": lambda s, x, c, i: (c[:, 1:3].copy_(x + 1), c.amax(1))[1],
    "one element of an axis": lambda s, x, c, i: (c[:, 4].copy_(x * 2), c.amax(1))[1],
    "slice of a slice": lambda s, x, c, i: (c[:, 1:4][:, :, 2:5].mul_(3), c.sum(1))[1],
    "scatter": lambda s, x, c, i: (c.scatter_(1, i.view(1, 1, 1).expand(1, 1, 8), x[None]), c + 1)[1],
    "sum": lambda s, x, c, i: (c.add_(x), c.relu())[1],
    "twice": lambda s, x, c, i: (c.add_(x), c[:, :2].zero_(), c.sum(1))[2],
    "read before": lambda s, x, c, i: (c.sum(1), c.index_copy_(1, i, x[None]), c.sum(1))[::2],
    "read between": lambda s, x, c, i: (c.add_(x), c.prod(1), c.index_copy_(1, i, x[None]), c.sum(1))[1::2],
    "read before, by a view": lambda s, x, c, i: (c[:, 2] * 2, c.index_copy_(1, i, x[None]), c.sum(1))[::2],
    "given back": lambda s, x, c, i: (c.index_copy_(1, i, x[None]), c.sum())[0],
    "given back beside a copy": lambda s, x, c, i: (c.clone(), c.index_copy_(1, i, x[None])),
    "a view given back": lambda s, x, c, i: c.index_copy_(1, i, x[None])[:, :3],
    "row that depends on the cache": lambda s, x, c, i: (c.index_copy_(1, i, c.mean(1, keepdim=True)), c.sum(1))[1],
    "by way of a dropout": lambda s, x, c, i: functional.dropout(c, 0.5, False).add_(x),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_writes_to_an_argument(name: str) -> None:
    program = round_trip(Model(IN_PLACE[name]), X, CACHE.clone(), ROW)
    assert Writes.of(program.graph).inputs == ("args_1",)
    built = build(program)
    assert copied(built) == []
    cache = CACHE.clone()
    place = cache.data_ptr()
    with torch.no_grad():
        built(X, cache, ROW)
    assert cache.data_ptr() == place
    assert not torch.equal(cache, CACHE)
    assert torch.equal(program.example_inputs[1], CACHE)


@pytest.mark.parametrize("name", IN_PLACE)
def test_the_same_writes_to_a_buffer(name: str) -> None:
    model = Model(lambda s, x, i: IN_PLACE[name](s, x, s.c, i), c=CACHE.clone())
    program = round_trip(model, X, ROW)
    assert Writes.of(program.graph).buffers == ("c",)
    assert copied(build(program)) == []


COPIED: dict[str, Callable[..., Any]] = {
    "turned": lambda s, x, c, i: (c.copy_(c.flip(1)), c + x)[1],
    "exchanged": lambda s, x, c, i: (t := c[:, :3].clone(), c[:, :3].copy_(c[:, 3:]), c[:, 3:].copy_(t), c + x)[-1],
    "a view": lambda s, x, c, i: (c.view(-1).mul_(2), c + x)[1],
    "new": lambda s, x, c, i: (c.copy_(x * 2), c + x)[1],
    "product with itself": lambda s, x, c, i: (c.mul_(c), c + x)[1],
    "an older version returned": lambda s, x, c, i: (c * 1, c.detach()[:, :2].contiguous(), c.add_(1))[1],
}


@pytest.mark.parametrize("name", COPIED)
def test_writes_that_are_made_by_a_copy(name: str) -> None:
    program = round_trip(Model(COPIED[name]), X, CACHE.clone(), ROW)
    assert Writes.of(program.graph).inputs == ("args_1",)


@pytest.mark.parametrize("name", sorted(COPIED.keys() - {"an older version returned"}))
def test_the_same_copies_to_a_buffer(name: str) -> None:
    round_trip(Model(lambda s, x, i: COPIED[name](s, x, s.c, i), c=CACHE.clone()), X, ROW)


@pytest.mark.parametrize(
    "function",
    [
        lambda s, x: (s.c.copy_(x * 2), s.c.sum())[1],
        lambda s, x: (s.c.copy_(x.double() / 4), s.c.sum(), s.c * 1)[1:],
        lambda s, x: (s.c.copy_(torch.arange(8)), s.c.sum() + x)[1],
    ],
    ids=["sizes", "type", "both"],
)
def test_a_copy_to_a_buffer_has_the_sizes_and_type_of_the_buffer(function: Callable[..., Any]) -> None:
    round_trip(Model(function, c=CACHE.clone()), X)


READ_BEFORE_IT_IS_WRITTEN: dict[str, Callable[..., Any]] = {
    "a part of an argument": lambda s, x, c: (c[..., :2].copy_(x[..., :2]), x.mul_(0.5)),
    "all of a buffer": lambda s, x, c: (c[..., :8].copy_(s.w), s.w.sub_(s.w * 0.5)),
    "a view of a buffer": lambda s, x, c: (c[0, :2].copy_(s.w.view(1, 8)), s.w[1:].mul_(3)),
    "a buffer that is written to in part": lambda s, x, c: (c[:, 3].copy_(s.w), s.w[2:5].zero_()),
    "what was written to before": lambda s, x, c: (s.w.add_(1), c[:, 3].copy_(s.w), s.w.add_(1)),
    "what is not written to": lambda s, x, c: (c[:, 3].copy_(s.w), c + 1),
}


@pytest.mark.parametrize("name", READ_BEFORE_IT_IS_WRITTEN)
def test_what_is_copied_has_the_content_of_before_a_later_write(name: str) -> None:
    model = Model(READ_BEFORE_IT_IS_WRITTEN[name], w=torch.arange(8.0) + 1)
    given, wanted = [X.clone(), CACHE.clone()], [X.clone(), CACHE.clone()]
    built = build(import_module(model, (X.clone(), CACHE.clone())))
    for _ in range(2):
        assert all(map(torch.equal, built(*given), model(*wanted)))
        assert all(map(torch.equal, given, wanted))


def test_two_caches_that_are_written_in_turns() -> None:
    def forward(s: Any, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        old = (a * b).sum()
        a[:, 0] += x
        b[:, 1] += a[:, 0]
        a[:, 2] *= b[:, 1]
        return old + (a + b).sum()

    program = round_trip(Model(forward), X, CACHE.clone(), CACHE * 2)
    assert set(Writes.of(program.graph).inputs) == {"args_1", "args_2"}
    assert copied(build(program)) == []


LAYERS = torch.stack([CACHE, CACHE + 1, CACHE * 2])


def written_layers(s: Any, x: Tensor, c: Tensor, i: Tensor) -> Tensor:
    """Write a row of each layer, as decoders do that keep one buffer for all."""
    total = x.sum()
    for layer in c:
        layer.index_copy_(1, i, x[None] + total)
        total = total + (layer * x).sum()
    return total


PARTS: dict[str, Callable[..., Any]] = {
    "row of a layer": lambda s, x, c, i: (c[1].index_copy_(1, i, x[None]), c.sum(0))[1],
    "row of each layer": written_layers,
    "row of a slice": lambda s, x, c, i: (c[:, :, 1:5].index_copy_(2, i, x.expand(3, 1, 1, 8)), c.sum(0))[1],
    "slice of a layer": lambda s, x, c, i: (c[1, :, 2:4].mul_(3), c.sum(0))[1],
    "layer counted from the end": lambda s, x, c, i: (c[-1].add_(x), c.sum(0))[1],
    "read between": lambda s, x, c, i: (c[0].add_(x), t := c.prod(0), c[0].mul_(t.sum()), c.sum(0))[1::2],
    "row that depends on another layer": lambda s, x, c, i: (c[1].index_copy_(1, i, c[0].mean(1, True)), c.sum(0))[1],
}


@pytest.mark.parametrize("name", PARTS)
def test_writes_to_a_part_move_nothing_else(name: str) -> None:
    program = round_trip(Model(PARTS[name]), X, LAYERS.clone(), ROW)
    copies = [node for node in build(program).graph.nodes if node.target is aten.copy_.default]
    assert copies == []


@pytest.mark.parametrize("name", PARTS)
def test_writes_to_a_part_move_nothing_else_once_exported_again(name: str) -> None:
    """An axis of one element is then removed and added by reshaping."""
    arguments = X, LAYERS.clone(), ROW
    exported = reexport(build(import_module(Model(PARTS[name]), arguments)), arguments, {})
    again = build(import_program(exported, arguments))
    assert aten.copy_.default not in [node.target for node in again.graph.nodes]
    ours, theirs = LAYERS.clone(), LAYERS.clone()
    torch.testing.assert_close(again(X, ours, ROW), Model(PARTS[name])(X, theirs, ROW), rtol=0, atol=0)
    assert torch.equal(ours, theirs)


COPIED_PARTS: dict[str, Callable[..., Any]] = {
    "row of the same layer": lambda s, x, c, i: (c[1].index_copy_(1, i, c[1][:, 4:5].clone()), c.sum(0))[1],
    "another layer": lambda s, x, c, i: (c[1].copy_(c[0] + 1), c.sum(0))[1],
    "exchanged": lambda s, x, c, i: (t := c[0].clone(), c[0].copy_(c[1]), c[1].copy_(t), c.sum(0))[-1],
    "read as well": lambda s, x, c, i: (t := c[1] + x, c[1].copy_(t), t * 2)[-1],
    "an older version": lambda s, x, c, i: (t := c[1] * x, c[1].zero_(), c[1].copy_(t), c.sum(0))[-1],
    "written meanwhile": lambda s, x, c, i: (t := c[1] + x, c[0].copy_(t), c[1].copy_(t * c[0]), c.sum(0))[-1],
}


@pytest.mark.parametrize("name", COPIED_PARTS)
def test_writes_to_a_part_that_are_made_by_a_copy(name: str) -> None:
    program = round_trip(Model(COPIED_PARTS[name]), X, LAYERS.clone(), ROW)
    assert Writes.of(program.graph).inputs == ("args_1",)


def test_slices_of_one_buffer_are_arguments_of_their_own() -> None:
    buffer = torch.cat([CACHE, CACHE + 1])
    first, second = buffer[:1], buffer[1:]
    model = Model(lambda s, x, a, b: (a.add_(x), b.mul_(2), (a + b).sum())[2])
    built = build(import_module(model, (X, first, second)))
    expected = [first + X, second * 2]
    built(X, first, second)
    assert torch.equal(buffer, torch.cat(expected))


def test_a_layer_of_one_big_buffer_is_given_back_itself() -> None:
    """Its elements do not lie side by side."""
    layers = torch.stack([CACHE[0], CACHE[0] + 1], 1)[None]
    first, second = layers[:, :, 0], layers[:, :, 1]
    model = Model(lambda s, x, c, i: c.index_copy_(1, i, x[None]))
    built = build(import_module(model, (X, second, ROW)))
    expected = second.clone().index_copy_(1, ROW, X[None])
    with torch.no_grad():
        assert built(X, second, ROW) is second
    assert torch.equal(second, expected)
    assert torch.equal(first, CACHE)


def test_arguments_that_share_memory_are_refused() -> None:
    model = Model(lambda s, x, a, b: (a.add_(x), (a + b).sum())[1])
    cache = CACHE.clone()
    with pytest.raises(ImportRefusal, match="writes to overlaps in memory with another"):
        import_module(model, (X, cache, cache[:, :]))
    built = build(import_module(model, (X, cache, CACHE)))
    with pytest.raises(ArgumentError, match="writes to args_1, whose memory another argument shares"):
        built(X, cache, cache)
    assert torch.equal(cache, CACHE)


def test_a_write_that_the_export_does_not_show_is_refused() -> None:
    cache = CACHE.clone()
    with pytest.raises(
        ImportRefusal, match="writes to its input args_1, which its export does not show; write to it by"
    ):
        import_module(Model(lambda s, x, c: c.type_as(x).add_(1)), (X, cache))
    assert torch.equal(cache, CACHE)


@pytest.mark.parametrize(
    ("function", "cache"),
    [
        (lambda s, x, c: c.reshape(-1)[8:].sub_(1), CACHE),
        (lambda s, x, c: c.flatten(1)[:, 2:].zero_(), CACHE),
        (lambda s, x, c: c.flatten()[1:].sub_(1), X.expand(3, 8)),  # a copy here, a view of others
        (lambda s, x, c: c.transpose(1, 2).contiguous().add_(1), CACHE),
        (lambda s, x, c: c.add_(1).reshape(6, 8).mul_(2).reshape(-1).add_(1), CACHE),
    ],
)
def test_a_write_that_the_layout_of_an_argument_decides_is_refused(function: Callable[..., Any], cache: Tensor) -> None:
    given = cache.clone(memory_format=torch.preserve_format)
    model = Model(lambda s, x, c: (function(s, x, c), x + 1)[1])
    with pytest.raises(ImportRefusal, match="a view of an argument or a copy of it, depending on its memory layout"):
        import_module(model, (X, given if cache.is_contiguous() else cache))


@pytest.mark.parametrize(
    "function",
    [
        lambda s, x: (y := x + x, y.expand(2, -1).fill_(1.0))[0],
        lambda s, x: (x + x).expand(2, -1).fill_(1.0) * 2,
        lambda s, x: (y := x + x, y.unsqueeze(0).expand(2, -1, -1)[..., 3:].zero_(), y.relu())[2],
        lambda s, x: (s.c.unsqueeze(0).expand(2, -1, -1, -1)[..., 0].zero_(), x + 1)[1],
    ],
)
def test_a_write_to_elements_that_are_one_in_memory_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(ImportRefusal, match="elements of an expanded value that are one in memory"):
        import_module(Model(function, c=CACHE.clone()), (X,))


EXPANDED: dict[str, Callable[..., Any]] = {
    "one copy": lambda s, x: (y := x + x, y.expand(2, -1)[0, 3:].fill_(1.0), y)[2],
    "a clone": lambda s, x: (y := x + x, y.expand(2, -1).clone().fill_(1.0) + y)[1],
    "expanded to itself": lambda s, x: (y := x + x, y.expand(1, 8)[:, 3:].fill_(1.0), y)[2],
}


@pytest.mark.parametrize("name", EXPANDED)
def test_elements_of_expanded_values_are_written_to_where_each_is_one(name: str) -> None:
    round_trip(Model(EXPANDED[name]), X)


RESHAPED: dict[str, Callable[..., Any]] = {
    "axes split": lambda s, x, c: (c.reshape(2, 3, 2, 4)[1].add_(1), c.sum(1))[1],
    "an axis dropped": lambda s, x, c: (c.reshape(6, 8)[2:].mul_(2), c.sum(1))[1],
    "a result reshaped": lambda s, x, c: ((c * 2).flatten().add_(1), c.relu())[0],
    "view": lambda s, x, c: (c.view(-1)[8:].sub_(1), c.sum(1))[1],
}


@pytest.mark.parametrize("name", RESHAPED)
def test_reshapes_that_are_views_of_any_layout_are_written_through(name: str) -> None:
    program = round_trip(Model(RESHAPED[name]), X, CACHE.clone())
    assert bool(Writes.of(program.graph).inputs) == (name != "a result reshaped")


def test_a_buffer_is_written_to_through_a_reshape() -> None:
    """Its layout never changes."""
    round_trip(Model(lambda s, x: (s.c.flatten()[8:].sub_(1), s.c.sum(1) + x)[1], c=CACHE.clone()), X)


def test_keywords_and_trees() -> None:
    def forward(s: Any, x: Tensor, *, state: dict[str, list[Tensor]]) -> Tensor:
        for cache in state["caches"]:
            cache[:, 1] = x
        return state["caches"][0].sum() + state["caches"][1].sum()

    round_trip(Model(forward), X, state={"caches": [CACHE.clone(), CACHE + 1]})


@pytest.mark.parametrize("function", [lambda s, x, c, i: c.add_(1), lambda s, x, c, i: c.index_copy_(1, i, x[None])])
def test_an_export_of_the_result_writes_too(function: Callable[..., Any]) -> None:
    built = build(import_module(Model(function), (X, CACHE.clone(), ROW)))
    program = torch.export.export(built, (X, CACHE.clone(), ROW))
    ours, theirs = CACHE.clone(), CACHE.clone()
    with torch.no_grad():
        built(X, ours, ROW)
        program.module()(X, theirs, ROW)
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours, CACHE)


class Caching(nn.Module):
    """Writes to an argument and to a buffer, and reads both before and after."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = nn.Buffer(torch.zeros(8))

    def forward(self, x: Tensor, cache: Tensor) -> Tensor:
        before = cache.sum(1)
        cache.add_(x)
        self.calls += x[0]
        return before * 2 + cache.sum(1)


def compared(forward: Callable[[Caching, Tensor, Tensor], Tensor]) -> str:
    """Compare a module with one of another forward method; return why it is refused, or nothing."""
    original, other = Caching(), type("Other", (Caching,), {"forward": forward})()
    cases = input_cases((X, CACHE), {}, seed=0)
    found = Oracle(original, Caching().double(), cases, writes=Writes(("cache",), ("calls",))).compare(other)
    return "" if found.passed else found.reason


def test_what_is_written_is_compared() -> None:
    def dropped(self: Caching, x: Tensor, cache: Tensor) -> Tensor:
        self.calls += x[0]
        return cache.sum(1) * 2 + (cache + x).sum(1) * 1 - cache.sum(1) + cache.sum(1) * 0

    def reordered(self: Caching, x: Tensor, cache: Tensor) -> Tensor:
        cache.add_(x)
        self.calls += x[0]
        return cache.sum(1) * 3

    def miscounted(self: Caching, x: Tensor, cache: Tensor) -> Tensor:
        self.calls += x[0] * 1.01
        before = cache.sum(1)
        return before * 2 + cache.add_(x).sum(1)

    assert compared(Caching.forward) == ""
    assert "output" in compared(reordered)
    assert "is off by" in compared(dropped)
    assert "is off by" in compared(miscounted)


def test_a_write_of_something_else_is_found() -> None:
    """A program whose write was changed computes the same outputs."""
    model = Model(lambda s, x, c: (c.add_(x), x * 2)[1])
    program = import_module(model, (X, CACHE))
    (effect,) = program.graph.effects
    leaf, content = effect.inputs
    op, inputs = write(leaf, make(Mul(), [content, content]).value)
    changed = replace(program, graph=replace(program.graph, effects=(make(op, inputs, effect.token),)))
    cases = input_cases((X, CACHE), {}, seed=0)
    oracle = Oracle(model, None, cases, writes=Writes.of(program.graph))
    assert oracle.compare(build(program)).passed
    assert not oracle.compare(build(changed)).passed
    assert Oracle(model, None, cases).compare(build(changed)).passed  # which is why writes are compared


EXCHANGES: list[tuple[Callable[[Tensor, Any], object], Any]] = [
    (lambda x, c: c.update(k=x * 2), {"k": CACHE}),
    (lambda x, c: c.update(new=x), {"k": CACHE}),
    (lambda x, c: c.pop("k"), {"k": CACHE, "j": CACHE}),
    (lambda x, c: c.update(count=c["count"] + 1), {"k": CACHE, "count": 1}),
    (lambda x, c: c["inner"].append(x), {"inner": [CACHE]}),
    (lambda x, c: c.__setitem__(0, x * 2), [CACHE]),
]


@pytest.mark.parametrize(("change", "cache"), EXCHANGES)
def test_a_model_that_changes_a_container_among_its_arguments_is_refused(
    change: Callable[[Tensor, Any], object], cache: Any
) -> None:
    model, before = Model(lambda s, x, c: (change(x, c), x + 1)[1]), str(cache)
    with pytest.raises(ImportRefusal, match=r"changes a dict or list among its arguments, .* write to the tensors in"):
        import_module(model, (X, cache))
    assert str(cache) == before


def test_containers_among_the_arguments_are_read_and_their_tensors_written_to() -> None:
    def reading(s: Any, x: Tensor, c: dict[str, Any]) -> Tensor:
        c["all"][0].add_(x)
        c["k"] = c["k"]  # which changes nothing
        return x + dict(c, k=x)["k"] + c["k"]

    round_trip(Model(reading), X, {"k": CACHE, "all": [CACHE.clone()]})
