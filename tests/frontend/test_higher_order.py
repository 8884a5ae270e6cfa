"""Calls that write to their arguments, and calls that take graphs, are carried through: saved, loaded, in order."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import scan, while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from taso_py.backend import NO_PLAN, build, fold, poison, retype
from taso_py.checking.roundtrip import difference
from taso_py.frontend import ImportRefusal, export, import_module
from taso_py.frontend.higher_order import without_wrappers
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make
from taso_py.ir.text import print_graph
from taso_py.ops.opaque import Opaque
from taso_py.ops.table import parse_graph
from taso_py.saving.artifact import deserialize, reimport, serialize
from tests.round_trips import Model, opaque_targets, operator_names, round_trip
from tests.versions import need

X = torch.linspace(-2, 2, 12).view(3, 4)


@torch.library.custom_op("taso_tests::bump", mutates_args=("x", "y"))
def bump(x: Tensor, y: Tensor) -> None:
    x.add_(1)
    y.add_(2)


@torch.library.custom_op("taso_tests::take", mutates_args=("total",))
def take(total: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    total.add_(x)
    return x * 2, total.sum()


@take.register_fake
def _(total: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), total.new_empty(())


@torch.library.custom_op("taso_tests::spread", mutates_args=("xs",))
def spread(xs: Sequence[Tensor], y: Tensor) -> None:
    for x in xs:
        x.mul_(y.sum())


def _tags(name: str) -> tuple[Any, ...]:
    """The tag of that name; none before PyTorch 2.13."""
    return (getattr(torch.Tag, name),) if hasattr(torch.Tag, name) else ()


_library = torch.library.Library("taso_tests", "FRAGMENT")
_library.define("triple(Tensor x, *, Tensor(a!) out) -> Tensor(a!)", tags=_tags("out"))
_library.impl("triple", lambda x, out: out.copy_(x * 3), "CPU")
_library.impl("triple", lambda x, out: out, "Meta")
_library.define("shift_(Tensor(a!) x, float by) -> Tensor(a!)", tags=_tags("inplace"))
_library.impl("shift_", lambda x, by: x.add_(by), "CPU")
_library.impl("shift_", lambda x, by: x, "Meta")
ops: Any = torch.ops.taso_tests


def _parts(s: Any, x: Tensor) -> Any:
    z = torch.stack([x, x * 2])
    bump(z[0], z[1, :, 1:3])
    spread([z[0, 0], z[1].mT], x)
    return z + 1, z[1]


def _results(s: Any, x: Tensor) -> Any:
    h = s.linear(x).relu()
    doubled, total = take(h, x)
    again, _ = take(h[:, 1:3], x[:, :2])
    return doubled * total, again, h


def _buffer(s: Any, x: Tensor) -> Any:
    before = s.total.clone()
    doubled, total = take(s.total, x)
    bump(s.total[0], doubled)
    return before + s.total, doubled, total


def _tagged(s: Any, x: Tensor) -> Any:
    out, h = torch.zeros_like(x), x * 2
    tripled = ops.triple(x + 1, out=out)
    shifted = ops.shift_(h[1], 1.5)
    return out + 1, tripled * 2, shifted * 3, h


WRITING: dict[str, Callable[..., Any]] = {"parts": _parts, "results": _results, "buffer": _buffer, "tagged": _tagged}


@pytest.mark.parametrize("name", WRITING)
def test_custom_operators_write(name: str) -> None:
    if name == "tagged":
        need("2.13", "an operator that returns what it writes to cannot be exported")
    model = Model(WRITING[name], linear=nn.Linear(4, 4), total=torch.zeros(3, 4))
    program = round_trip(model, X)
    assert any(isinstance(node.op, Opaque) and node.op.written for node in program.graph.effects)
    _check_all_forms(model, program, X)


def _check_all_forms(model: nn.Module, program: Any, x: Tensor) -> None:
    """As text, folded, with dead values destroyed, in double precision, saved and loaded, and imported again."""
    graph = program.graph
    assert parse_graph(print_graph(graph)).key == graph.key
    content = serialize(build(program), (x,), {})
    forms = poison(build(fold(program), NO_PLAN.eager())), deserialize(content), build(reimport(content))
    with torch.no_grad():
        for form in forms:
            original = copy.deepcopy(model)
            assert [difference(original, form, (x,)) for _ in range(2)] == ["", ""]
        in_double, plain = build(retype(program))(x.double()), build(program)(x)
    for one, other in zip(pytree.tree_leaves(in_double), pytree.tree_leaves(plain), strict=True):
        assert one.dtype is torch.float64
        torch.testing.assert_close(one.float(), other)


def test_a_copy_is_written_to_and_never_the_operand() -> None:
    """What a call writes to may be read by others, before and after: with rules applied also by more than before."""
    program = import_module(Model(lambda s, x: (h := x * 2, bump(h, h[0] * 1), h)[2]), (X,))
    graph = program.graph
    (effect,) = graph.effects
    seen = replace(program, graph=Graph(graph.inputs, (*graph.outputs, effect.inputs[0]), graph.effects))
    seen = replace(
        seen,
        contract=replace(seen.contract, strides=(seen.contract.strides[0],) * 2, bits=(seen.contract.bits[0],) * 2),
        signature=replace(seen.signature, outputs=(0, 1), out_spec=pytree.tree_structure((0, 0))),
    )
    after, before = build(seen)(X)
    assert torch.equal(before, X * 2)
    assert torch.equal(after, X * 2 + 1)


def test_effects_stay_in_order() -> None:
    def forward(s: Any, x: Tensor) -> Tensor:
        h, g = x * 2, x * 3
        bump(h, g)
        spread([g], x)
        bump(g, h)
        return h + g

    program = round_trip(Model(forward), X)
    targets = [node.op.target for node in program.graph.effects if isinstance(node.op, Opaque)]
    assert targets == [f"taso_tests.{name}.default" for name in ("bump", "spread", "bump")]


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "read as well": (lambda s, x: (h := x * 2, take(h[:1], h[1:2]), h)[2], "reads what it writes to by way of another"),
    "read as real numbers": (
        lambda s, x: (z := torch.complex(x, x), bump(torch.view_as_real(z), x * 2), z.abs())[2],
        "writes to a view of another type, or to a conjugate",
    ),
}


def _writing_branch(s: Any, x: Tensor) -> Tensor:
    def write(y: Tensor, c: Tensor) -> Tensor:
        c.add_(y)
        return y @ c.T  # a view beside what it views, which must not be copied here

    return torch.cond(x.sum() > -1, write, lambda y, c: y @ c.T, (x, x * 2))


REFUSED["written to in a branch"] = (_writing_branch, "writes to its operands; return the new content")


@pytest.mark.parametrize("name", REFUSED)
def test_writes_that_an_export_loses_are_refused(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(ImportRefusal, match=message) as caught:
        import_module(Model(function), (X.clone(),))
    assert "\n" not in str(caught.value)


def test_control_flow_runs_in_eager_mode_after_a_refusal() -> None:
    torch._dynamo.reset()
    with pytest.raises(ImportRefusal):
        import_module(Model(_writing_branch), (X.clone(),))
    with torch.no_grad():
        assert torch.equal(torch.cond(X.sum() > -1, lambda x: x * 2, lambda x: x - 1, (X,)), X * 2)


def _branches(s: Any, x: Tensor) -> Any:
    def inner(y: Tensor) -> Tensor:
        return torch.cond(y.sum() > 0, lambda y: y.sin(), lambda y: y * 5, (y,))

    s.steps.add_(1)
    return torch.cond(s.steps > 1, lambda y: inner(y) @ s.linear.weight, lambda y: y.double().float() - 1, (x,))


def _attending(s: Any, x: Tensor) -> Tensor:
    """A step whose branches, one in the other, read a cache and a view of it."""

    def attend(y: Tensor, c: Tensor) -> Tensor:
        return torch.softmax(s.linear(y) @ c.T, -1) @ c

    def inner(y: Tensor, c: Tensor) -> Tensor:
        return torch.cond(y.sum() > 9, lambda y, c: y * 3, attend, (y, c))

    s.cache.copy_(x * 2)
    found = torch.cond(x.sum() > -1, inner, lambda y, c: y + c, (x, s.cache))
    s.cache.mul_(0.5)
    return found


NESTED: dict[str, tuple[Callable[..., Any], str]] = {
    "cond": (_branches, "cond"),
    "cond around a cache": (_attending, "cond"),
    "while_loop": (
        lambda s, x: while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x)),
        "while_loop",
    ),
    "scan": (lambda s, x: scan(lambda carry, y: (carry + y, carry * y), x[0], x), "scan"),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", NESTED)
def test_operators_with_graphs_inside(name: str) -> None:
    function, operator = NESTED[name]
    model = Model(function, linear=nn.Linear(4, 4), steps=torch.zeros(()), cache=torch.zeros(3, 4))
    program = round_trip(model, X)
    assert f"higher_order.{operator}" in [n.op.target for n in program.graph.nodes if isinstance(n.op, Opaque)]
    assert len(program.graph.effects) >= 1
    if name != "while_loop":  # it returns an integer
        _check_all_forms(model, program, X)


def _drawing(x: Tensor) -> Tensor:
    torch.rand_like(x)
    return x * 2


UNREAD: dict[str, Callable[..., Any]] = {
    "a branch": lambda s, x: torch.cond(x.sum() > -9, _drawing, lambda y: y * 3, (x,)),
    "a branch in a branch": lambda s, x: torch.cond(x.sum() > -9, lambda y: UNREAD["a branch"](s, y), _drawing, (x,)),
    "both": lambda s, x: torch.cond(x.sum() > 9, lambda y: y * torch.rand(4), _drawing, (x,)),
    "a loop": lambda s, x: while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, _drawing(y)), (torch.tensor(0), x)),
    "a scan": lambda s, x: scan(lambda carry, y: (_drawing(carry), carry * y), x[0], x),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", UNREAD)
def test_draws_that_nothing_reads_in_bodies_are_kept(name: str) -> None:
    """They move the generator on."""
    model = Model(UNREAD[name])
    program = round_trip(model, X)
    if name != "a loop":  # it returns an integer
        _check_all_forms(model, program, X)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", UNREAD)
def test_draws_that_an_export_drops_are_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "draws_kept", nullcontext)
    model = Model(UNREAD[name])
    assert difference(model, build(import_module(model, (X,))), (X,)) == "other random numbers are drawn"


def _attends(s: Any, x: Tensor) -> Tensor:
    q = s.linear(x).view(1, 1, 3, 4)
    mask = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 3, 3, device="cpu")
    return flex_attention(q, q + 1, q * 2, score_mod=lambda score, b, h, i, j: score + s.bias[i, j], block_mask=mask)


@pytest.mark.filterwarnings("ignore")
def test_flexible_attention_is_carried_through_and_saved() -> None:
    need("2.13", "an export of flexible attention reads by strides")
    model = Model(_attends, linear=nn.Linear(4, 4), bias=torch.arange(9.0).view(3, 3))
    program = round_trip(model, X)
    assert opaque_targets(program)[-1] == "higher_order"
    assert "linear" in operator_names(program)
    loaded = deserialize(serialize(build(program), (X,), {}))
    with torch.no_grad():
        assert torch.equal(loaded(X), model(X))


@torch.compile(backend="eager")
def _compiled(x: Tensor) -> Tensor:
    return x.tanh() * 2


WRAPPERS: dict[str, Callable[..., Any]] = {
    "checkpoint": lambda s, x: checkpoint(s.linear, x, use_reentrant=False).relu(),
    "compiled inside": lambda s, x: _compiled(s.linear(x)),
    "modes": lambda s, x: _moded(s, x),
}


def _moded(s: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = s.linear(x)
    with torch.autocast("cpu", torch.bfloat16):
        return s.linear(y).float()


@pytest.mark.parametrize("name", WRAPPERS)
def test_rules_apply_inside_of_plain_wrappers(name: str) -> None:
    program = round_trip(Model(WRAPPERS[name], linear=nn.Linear(4, 4)), X)
    assert opaque_targets(program) == []
    assert "linear" in operator_names(program)


def _double(x: Tensor) -> Tensor:
    return x.tanh() * 2


_region: Any = torch.compiler.nested_compile_region(_double)

CAPTURED: dict[str, tuple[Callable[..., Any], Any]] = {
    "checkpoint": (WRAPPERS["checkpoint"], torch.ops.higher_order.tag_activation_checkpoint),
    "checkpoints in checkpoints": (
        lambda s, x: checkpoint(lambda y: checkpoint(s.linear, y, use_reentrant=False) + 1, x, use_reentrant=False),
        torch.ops.higher_order.tag_activation_checkpoint,
    ),
    "region": (lambda s, x: _region(s.linear(x)) + _region(x), torch.ops.higher_order.invoke_subgraph),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", CAPTURED)
def test_rules_apply_inside_of_wrappers_that_were_captured(name: str) -> None:
    function, wrapper = CAPTURED[name]
    found: list[Any] = []

    def backend(graph: torch.fx.GraphModule, examples: Sequence[Tensor]) -> Callable[..., Any]:
        found.append((graph, [example.detach().clone() for example in examples]))
        return graph.forward

    torch.compiler.reset()
    model = Model(function, linear=nn.Linear(4, 4))
    with torch.no_grad():
        torch.compile(model, backend=backend)(X)
        ((graph, examples),) = found
        assert wrapper in [node.target for node in graph.graph.nodes]
        program = round_trip(without_wrappers(graph), *examples)
    assert opaque_targets(program) == []
    assert "linear" in operator_names(program)
    assert wrapper in [node.target for node in graph.graph.nodes]
    plain = torch.fx.symbolic_trace(nn.Linear(4, 4))
    assert without_wrappers(plain) is plain


def test_a_graph_inside_that_is_changed_is_another_one() -> None:
    program = import_module(Model(lambda s, x: scan(lambda c, y: (c + y, c * y), x[0], x)), (X,))

    def other(node: Node, inputs: tuple[Value, ...]) -> Node:
        if isinstance(node.op, Opaque) and node.op.target == "higher_order.scan":
            first, *rest = node.op.arguments
            assert isinstance(first, str)
            changed = replace(node.op, arguments=(first.replace(" mul(", " sub("), *rest))
            return make(changed, inputs, node.token)
        return make(node.op, inputs, node.token) if inputs != node.inputs else node

    changed = replace(program, graph=program.graph.map(other))
    assert changed.graph.digest != program.graph.digest
    assert not torch.equal(build(changed)(X)[1], build(program)(X)[1])
