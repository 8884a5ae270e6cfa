"""Control flow in engines that read ONNX: conditions and loops with graphs inside, whichever way they go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import map as map_
from torch._higher_order_ops import scan, while_loop
from torch.export import Dim
from torch.utils import _pytree as pytree

from taso_py.backend import Program, fold
from taso_py.backend.onnx import NotInOnnx, onnx_model
from taso_py.backend.onnx.control import _ControlFlow
from taso_py.engines.engine import EngineUnavailableError
from taso_py.engines.session import SessionEngine
from taso_py.engines.table import ENGINES
from taso_py.frontend import import_program
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make, remake
from taso_py.ir.types import DType
from taso_py.ops.nested import ControlFlow
from tests.engines.sessions import engine_named, program_of
from tests.round_trips import Model

pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}Warning") for kind in ("Future", "Deprecation")]
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


def _branches(s: Any, x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda y: s.one(y).relu(), lambda y: s.two(y) - 1, (x,))


def _several(s: Any, x: Tensor) -> Any:
    """Results that are an operand, a constant and one value twice; a condition that is not of rank 0."""
    y = x * 2

    def yes(y: Tensor, z: Tensor) -> Any:
        return y.clone(), torch.full((2,), 3.0), z + 1, z + 1

    def no(y: Tensor, z: Tensor) -> Any:
        return z.clone(), torch.zeros(2), y.clone(), (y * z).exp()

    return torch.cond(x.sum(dim=(0, 1), keepdim=True).flatten() > 0, yes, no, (y, x.tanh()))


def _counted(s: Any, x: Tensor) -> Any:
    def body(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, s.one(y).tanh() * (s.two(y) + i)

    return while_loop(lambda i, y: i < 3, body, (torch.tensor(0), x))


def _until_it_is_small(s: Any, x: Tensor) -> Any:
    """No iteration for small numbers."""
    half = s.one(x).sigmoid()
    return while_loop(lambda y, i: (y.abs().sum() > 5) & (i > -9), lambda y, i: (y * half, i - 1), (x, torch.tensor(4)))


def _scanned(s: Any, x: Tensor) -> Any:
    scale = s.two(x[0]).relu()

    def step(carry: tuple[Tensor, Tensor], y: tuple[Tensor, Tensor]) -> Any:
        h = torch.tanh(s.one(carry[0]) + y[0] * scale)
        return (h, carry[1] + 1), (h * y[1], carry[0] * 1)

    return scan(step, (x[0], torch.zeros(6)), (x, x.flip(0)), reverse=True)


def _mapped(s: Any, x: Tensor) -> Tensor:
    return map_(lambda y, w: s.one(y) + s.two(y) + w, x, s.shift)


def _nested(s: Any, x: Tensor) -> Any:
    """A condition in a scan, in a branch; another loop over the same names outside."""

    def step(carry: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        new = torch.cond(y.sum() > 0, lambda a, b: s.one(a) + b, lambda a, b: a - b * 2, (carry, y))
        return new, new + y

    def yes(y: Tensor) -> tuple[Tensor, Tensor]:
        return scan(step, y[0], y.tanh())

    def no(y: Tensor) -> tuple[Tensor, Tensor]:
        return y[0] * 2, map_(lambda z, w: z * w, y, s.shift)

    last, rows = torch.cond(x.abs().sum() > 10, yes, no, (x,))
    return last, rows, map_(lambda z, w: z + w, x, s.shift)


def _attending(s: Any, x: Tensor) -> Tensor:
    """Attention with a mask, inside and outside."""
    mask = torch.ones(4, 4, dtype=torch.bool).tril()

    def attend(y: Tensor, mask: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(y, s.one(y), y, mask)

    inner = torch.cond(x.sum() > 0, attend, lambda y, mask: y * 1, (x[None], mask))
    return inner + attend(x[None], mask)


MODELS: Mapping[str, Callable[..., Any]] = {
    "cond": _branches,
    "cond with several results": _several,
    "while_loop": _counted,
    "while_loop without iterations": _until_it_is_small,
    "scan": _scanned,
    "map": _mapped,
    "nested": _nested,
    "attention": _attending,
}


def model(function: Callable[..., Any]) -> nn.Module:
    torch.manual_seed(0)
    return Model(function, one=nn.Linear(6, 6), two=nn.Linear(6, 6), shift=torch.full((6,), 0.5)).eval()


@cache
def program_named(name: str) -> Program:
    return program_of(model(MODELS[name]), (X,))


def assert_alike(found: Callable[..., Any], original: nn.Module, inputs: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for x in inputs:
            pairs = zip(pytree.tree_leaves(found(x)), pytree.tree_leaves(original(x)), strict=True)
            for one, other in pairs:
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_engines_compute_what_pytorch_does(engine: SessionEngine, name: str, tmp_path: Path) -> None:
    original, program = model(MODELS[name]), program_named(name)
    built = engine.build(program)
    for file, content in engine.files(built).items():
        (tmp_path / file).write_bytes(content)
    for module in (built, engine.restore(program, tmp_path)):
        assert_alike(module, original, (X, -X, X * 0.01, X.abs(), X * 10))


def test_inputs_take_every_way() -> None:
    """Results of the models differ where branches and numbers of iterations do: a mistake would be seen."""
    assert {bool(x.sum() > 0) for x in (X, -X)} == {True, False}
    with torch.no_grad():
        assert int(model(_until_it_is_small)(X * 0.01)[1]) == 4
        assert int(model(_until_it_is_small)(X)[1]) < 4


@pytest.mark.parametrize("mistake", ["branches", "first test", "order of carried"])
def test_mistakes_are_seen(engine: SessionEngine, mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = {"branches": "cond", "first test": "while_loop without iterations", "order of carried": "scan"}[mistake]
    original, program = model(MODELS[name]), program_named(name)
    if mistake == "branches":
        program = replace(program, graph=_with_bodies_swapped(program.graph))
    elif mistake == "first test":
        tested = _ControlFlow._tested

        def always(self: Any, w: Any, test: Any, carried: Any) -> Any:
            return tested(self, w, test, carried) if w is not self.w else w.number(True, DType.BOOL)

        monkeypatch.setattr(_ControlFlow, "_tested", always)
    else:
        varying = _ControlFlow._varying
        monkeypatch.setattr(_ControlFlow, "_varying", lambda self, places: varying(self, places)[::-1])
    with pytest.raises(AssertionError, match="not close"):
        assert_alike(engine.build(program), original, (X, -X, X * 0.01))


def _with_bodies_swapped(graph: Graph) -> Graph:
    def swapped(node: Node, inputs: tuple[Value, ...]) -> Node:
        flow = ControlFlow.of(node)
        if flow is None:
            return remake(node, inputs)
        return make(flow.with_bodies(flow.bodies[::-1], flow.shared, 0), inputs, node.token)

    return graph.map(swapped)


def _cached(s: Any, x: Tensor, cache: Tensor, place: Tensor) -> Tensor:
    """Rows that a branch computes, written to a cache outside, which a loop reads before and after."""
    before = map_(lambda row, w: row * w, cache, s.shift).sum()
    cache.index_copy_(0, place, torch.cond(x.sum() > 0, s.one, lambda y: y * 2, (x,)))
    return scan(lambda c, row: (c + row, c * 1), x[0], cache)[1] + before


def test_what_a_body_computes_is_written_outside(engine: SessionEngine) -> None:
    original = model(_cached)
    module = engine.build(program_of(original, (X[:1], torch.zeros(3, 6), torch.tensor([1]))))
    caches = torch.ones(3, 6), torch.ones(3, 6)
    for step, x in enumerate((X[:1], -X[:1], X[1:2])):
        with torch.no_grad():
            found, wanted = (m(x, c, torch.tensor([step])) for m, c in zip((module, original), caches, strict=True))
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(*caches)
    assert not torch.any(caches[0] == 1)


def test_a_loop_over_slices_has_as_many_as_there_are(engine: SessionEngine) -> None:
    def function(s: Any, x: Tensor) -> Any:
        return scan(lambda c, y: (s.one(c) + y, c * y), s.shift, x), map_(lambda y, w: y * w, x, s.shift)

    original = model(function)
    exported = torch.export.export(original, (X,), dynamic_shapes={"args": ({0: Dim("rows", min=2, max=64)},)})
    module = engine.build(fold(import_program(exported, (X,))))
    assert_alike(module, original, (X, -X, X.repeat(2, 1), -X.repeat(3, 1)))


def _sized(s: Any, x: Tensor) -> Any:
    """Bodies that compute with an open size, and reshape by it."""
    branched = torch.cond(
        x.sum() > 0,
        lambda y: s.one(y).reshape(y.shape[0] * 2, 3) / y.shape[0],
        lambda y: y.reshape(y.shape[0] * 2, 3) + 1,
        (x,),
    )
    return branched, while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y / y.shape[0] + y.mean(0)), (x[0, 0] * 0, x))


def test_bodies_may_have_open_sizes(engine: SessionEngine) -> None:
    original = model(_sized)
    exported = torch.export.export(original, (X,), dynamic_shapes={"args": ({0: Dim("rows", min=2, max=64)},)})
    module = engine.build(fold(import_program(exported, (X,))))
    assert_alike(module, original, (X, -X, X.repeat(2, 1), -X.repeat(3, 1)))


def _drawing(s: Any, x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda y: y + torch.rand_like(y), lambda y: y * 2, (x,))


def _gamma(s: Any, x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda y: y.lgamma(), lambda y: y * 2, (x,))


@pytest.mark.parametrize(
    ("function", "why"), [(_drawing, "draws random"), (_gamma, r"aten\.lgamma\.default has no row")]
)
def test_bodies_that_engines_do_not_compute_are_refused(
    engine: SessionEngine, function: Callable[..., Any], why: str
) -> None:
    program = program_of(model(function), (X,))
    with pytest.raises(EngineUnavailableError, match=rf"^{engine.name} cannot run this module: .*{why}"):
        engine.build(program)
    with pytest.raises(NotInOnnx):
        onnx_model(program.graph, program.weights)


def _total(s: Any, x: Tensor) -> Any:
    """The numbers are bounded by what they count to, the total by nothing."""
    body = lambda i, total: (i + 1, total + i)  # noqa: E731
    return while_loop(lambda i, total: i < 5, body, (torch.tensor(0), x.argmax()))


def _counting(bound: int, step: int, start: int = 0) -> Callable[..., Any]:
    def function(s: Any, x: Tensor) -> Any:
        def test(i: Tensor, y: Tensor) -> Tensor:
            return (i < bound if step > 0 else i > bound) & (y.sum() < 1e9)

        return while_loop(test, lambda i, y: (i + step, y * 2 + i), (torch.tensor(start), x))

    return function


@pytest.mark.parametrize(
    ("function", "refused"),
    [
        (_counting(5, 2), False),
        (_counting(-5, -2), False),
        (_counting(2**31, 2**30), True),
        (_counting(2**31 - 2, 2**30), True),
        (_total, True),
        (lambda s, x: torch.cond(x.sum() > 0, lambda y: y.double().exp().float(), lambda y: y + 1, (x,)), True),
        (lambda s, x: map_(lambda y, w: (y * w).argmax(), x, s.shift), False),
        (lambda s, x: map_(lambda y, w: (y > w).sum(), x, s.shift), False),
        (lambda s, x: map_(lambda y, w: (y > w).prod(), x, s.shift), True),
    ],
)
def test_openvino_computes_bodies_in_the_types_that_they_state(function: Callable[..., Any], refused: bool) -> None:
    engine, original = engine_named("openvino"), model(function)
    program = program_of(original, (X,))
    if refused:
        with pytest.raises(EngineUnavailableError, match=r"^openvino cannot run this module: OpenVINO computes"):
            engine.build(program)
    else:
        assert_alike(engine.build(program), original, (X, -X))
    if function is _total:
        assert_alike(engine_named("onnxruntime").build(program), original, (X, -X))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cond", "scan", "map", "nested"])
def test_machine_code_made_ahead_of_time_has_control_flow(name: str) -> None:
    original = model(MODELS[name])
    assert_alike(ENGINES["aot-inductor"].build(program_named(name)), original, (X, -X, X * 0.01))


@pytest.mark.slow
def test_machine_code_is_refused_where_the_compiler_fails() -> None:
    with pytest.raises(EngineUnavailableError, match=r"^aot-inductor cannot run this module: [^\n]+$"):
        ENGINES["aot-inductor"].build(program_of(model(_counted), (X,)))


def test_an_engine_without_a_form_of_a_node_leaves_others_alone() -> None:
    """What is pure for an engine keeps its order in the program."""
    program = program_named("cond")
    assert [ControlFlow.of(node) is not None for node in program.graph.effects] == [True]
    engine_named("onnxruntime").build(program)
    assert not program.graph.effects[0].op.pure
