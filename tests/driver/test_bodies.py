"""Bodies of control flow that are optimized: found, compared, raced, saved, loaded, replayed and made again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import map as map_
from torch._higher_order_ops import scan, while_loop
from torch.export import Dim
from torch.utils import _pytree as pytree

import taso_py
from taso_py.cost.model import CostModel
from taso_py.driver import bodies
from taso_py.driver.decisions import Decision
from taso_py.driver.optimize import optimize_source
from taso_py.driver.prepare import source_of
from taso_py.driver.replay import replay_trace
from taso_py.driver.result import Optimized
from taso_py.driver.searches import rules_for
from taso_py.engines.engine import CompiledGraph
from taso_py.engines.session import Session
from taso_py.ir.graph import Graph
from taso_py.latency.database import LatencyDatabase
from taso_py.ops.nested import ControlFlow
from taso_py.options import Options
from taso_py.rules.apply import apply
from taso_py.rules.match import Matcher
from taso_py.rules.text import read_rules
from taso_py.search.result import Candidate, Limits, SearchResult, SearchStop
from taso_py.search.trace import TraceError, read_trace, write_trace
from tests.engines.sessions import NAMES, engine_named
from tests.gains import take_any_gain
from tests.round_trips import Model, round_trip

pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}Warning") for kind in ("Future", "Deprecation")]
QUICK: Mapping[str, Any] = {"effort": "quick", "time_limit": 4.0, "race_seconds": 0.1, "cache": False, "kernels": False}
UNCHANGED = ("original", "unchanged graph, eager")
IMAGE = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


def _branches(s: Any, x: Tensor) -> Tensor:
    """A convolution with its normalization, in the branch that is not taken."""
    return torch.cond(x.sum() > 1e6, lambda y: s.norm(s.conv(y)).relu(), lambda y: y * 1 + 0, (x,))


def _loop(s: Any, x: Tensor) -> Any:
    def body(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, s.one(y).tanh() * (s.two(y) * 1 + 0)

    return while_loop(lambda i, y: i < 3, body, (torch.tensor(0), x))


def _scanned(s: Any, x: Tensor) -> Any:
    return scan(lambda carry, y: (s.one(carry) + s.one(y) * 1 + 0, carry * y), x[0], x)


def _mapped(s: Any, x: Tensor) -> Tensor:
    return map_(lambda y, w: s.one(y) + s.two(y) + w, x, s.shift)


def _nested(s: Any, x: Tensor) -> Tensor:
    def inner(y: Tensor) -> Tensor:
        return torch.cond(y.sum() > 0, lambda z: s.one(z) * 1 + 0, lambda z: z * 3, (y,))

    return torch.cond(x.sum() > 1, lambda y: inner(s.two(y) * 1 + 0) * 1 + 0, lambda y: y * 2, (x,))


MODELS: Mapping[str, tuple[Callable[..., Any], Tensor]] = {
    "cond": (_branches, IMAGE),
    "while_loop": (_loop, X),
    "scan": (_scanned, X),
    "map": (_mapped, X),
    "cond around cond": (_nested, X),
}


def model(function: Callable[..., Any], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    made = Model(
        function,
        conv=nn.Conv2d(3, 3, 3, padding=1),
        norm=nn.BatchNorm2d(3),
        one=nn.Linear(6, 6),
        two=nn.Linear(6, 6),
        shift=torch.full((6,), 0.5),
    )
    return made.eval()


def optimized(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], x: Tensor, **options: Any) -> Optimized:
    """The result with its bodies rewritten, whatever that gains."""
    take_any_gain(monkeypatch, UNCHANGED)
    return taso_py.optimize(model(function), x, **{**QUICK, **options})


def texts(graph: Graph) -> list[str]:
    """The bodies of a graph."""
    flows = [flow for node in graph.effects if (flow := ControlFlow.of(node)) is not None]
    return [body.text for flow in flows for body in flow.bodies]


def notes(found: Optimized, beginning: str) -> list[str]:
    return [note for note in found.report.notes if beginning in note]


@pytest.mark.parametrize("name", MODELS)
def test_bodies_are_optimized_saved_loaded_and_replayed(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    function, x = MODELS[name]
    found = optimized(monkeypatch, function, x, output=tmp_path / "out")
    assert not found.keeps_original, found.report.notes
    assert found.trace.bodies
    assert found.report.applied == found.trace.applied
    (note,) = notes(found, "bodies of control flow were rewritten")
    assert name.split()[0] in note
    original = model(function)
    for result in (found.module, taso_py.load(tmp_path / "out"), _exported(tmp_path / "out" / "model.pt2")):
        for given in (x, -x, 3 * x + 1):
            expected, got = (pytree.tree_leaves(call(given)) for call in (original, result))
            for one, other in zip(expected, got, strict=True):
                torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "No substitution was applied" not in page
    written = read_trace((tmp_path / "out" / "trace.rules").read_text())
    assert written == found.trace
    assert replay_trace(tmp_path / "out" / "trace.rules", source_of(original, x, {})) == len(found.report.applied)


def _sized(s: Any, x: Tensor) -> Tensor:
    """Bodies of open sizes, one of which computes with its size."""
    return torch.cond(x.sum() > 1, lambda y: s.one(y) * 1 + 0 + y.shape[0], lambda y: s.two(s.one(y)) * 1 + 0, (x,))


def test_bodies_of_open_sizes_are_optimized(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    take_any_gain(monkeypatch, UNCHANGED)
    original = model(_sized)
    with torch.no_grad():
        exported = torch.export.export(original, (X,), dynamic_shapes={"args": ({0: Dim("rows", min=2, max=64)},)})
    found = taso_py.optimize(exported, output=tmp_path / "out", **QUICK)
    assert notes(found, "2 of 2 bodies of control flow were rewritten"), found.report.notes
    for result in (found.module, taso_py.load(tmp_path / "out"), _exported(tmp_path / "out" / "model.pt2")):
        for rows in (2, 4, 63):
            x = torch.rand(rows, 6) + 0.1
            for given in (x, -x):
                torch.testing.assert_close(result(given), original(given), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("runtime", [NAMES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])])
def test_bodies_are_optimized_for_engines(runtime: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the prices of that engine, which computes them and their operators itself."""
    engine_named(runtime)
    found = optimized(monkeypatch, _mapped, X, runtime=runtime, output=tmp_path / "out")
    assert isinstance(found.module, nn.Module)
    assert isinstance(CompiledGraph.of(found.module), Session)
    assert notes(found, "1 of 1 bodies of control flow were rewritten")
    original = model(_mapped)
    for given in (X, -X):
        torch.testing.assert_close(taso_py.load(tmp_path / "out")(given), original(given), rtol=1e-4, atol=1e-4)


def _exported(path: Path) -> nn.Module:
    """The saved program as PyTorch loads it: plain calls, in bodies too."""
    program = torch.export.load(path)
    for module in program.graph_module.modules():
        graph = getattr(module, "graph", None)
        for node in [] if graph is None else graph.nodes:
            if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
                assert node.target.namespace == "aten"
    return program.module()


def test_a_trace_is_followed_into_bodies_and_a_changed_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = optimized(monkeypatch, _mapped, X, output=tmp_path / "out")
    source, options = source_of(model(_mapped), X, {}), Options.from_mapping(QUICK)
    followed = optimize_source(source, options, rules_for(options), trace=found.trace)
    assert followed.report.applied == found.report.applied
    trace = tmp_path / "trace.rules"
    trace.write_text(write_trace(found.trace).replace(found.trace.bodies[0].result, "0" * 32))
    with pytest.raises(TraceError, match="body 1: its steps give another graph"):
        replay_trace(trace, source)


def test_bodies_are_made_again_with_other_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is computed from weights outside of a body is computed anew."""
    optimized(monkeypatch, _mapped, X, output=tmp_path / "out")
    new = model(_mapped, seed=1)
    result = taso_py.refresh(tmp_path / "out", new.state_dict())
    torch.testing.assert_close(result(X), new(X), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(result(X), model(_mapped)(X), rtol=0.1)


def _wrong(graph: Graph, *_: Any, **__: Any) -> SearchResult:
    """A search that finds a rule that leaves a layer's bias out."""
    (rule,) = read_rules("rule x: float[..A,B], a: float[C,B], b: float[C] source linear(x, a, b) target linear(x, a)")
    original, now, steps = Candidate(graph, graph, 1.0, 0), graph, list[Any]()
    for match in Matcher([rule]).matches(graph)[:1]:
        now = apply(graph, match) or graph
        steps = [(match, now)]
    found = Candidate(graph, now, 0.1, 0, (rule.id,) * len(steps), tuple(steps))
    return SearchResult(original, (found, original) if steps else (original,), SearchStop.EXHAUSTED, 1, 1, 0.0)


@pytest.mark.parametrize("compared", [True, False])
def test_a_wrong_body_is_refused(monkeypatch: pytest.MonkeyPatch, compared: bool) -> None:
    """By its own comparison, and without that by the one of its steps, or of the whole."""
    monkeypatch.setattr(bodies, "search", _wrong)
    if not compared:
        monkeypatch.setattr(bodies, "body_error", lambda *_: None)
    found = optimized(monkeypatch, _mapped, X)
    assert not found.trace.bodies
    assert bool(notes(found, "refused a rewritten body: body 0 of higher_order.map_impl computes")) is compared
    assert (
        bool(notes(found, "rules applied, eager: ") or notes(found, "refused 1 rule applied, eager: ")) is not compared
    )
    torch.testing.assert_close(found.module(X), model(_mapped)(X))


def _in_a_branch_not_taken(s: Any, x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 1e6, lambda y: s.one(y).relu(), lambda y: y * 2, (x,))


def test_a_wrong_body_of_a_branch_that_is_not_taken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No comparison of outputs sees it."""
    monkeypatch.setattr(bodies, "search", _wrong)
    found = optimized(monkeypatch, _in_a_branch_not_taken, X)
    assert notes(found, "refused a rewritten body: body 0 of higher_order.cond computes something else")
    assert not found.trace.bodies


def _drawing(s: Any, x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda y: (y + torch.rand_like(y)) * 1 + 0, lambda y: y * 2, (x,))


def _nested_draw(s: Any, x: Tensor) -> Tensor:
    def inner(y: Tensor) -> Tensor:
        return torch.cond(y.sum() > 0, lambda z: z + torch.rand_like(z), lambda z: z * 3, (y,))

    return torch.cond(x.sum() > 1, lambda y: inner(y) * 1 + 0, lambda y: y * 2, (x,))


@pytest.mark.parametrize("function", [_drawing, _nested_draw])
def test_bodies_with_effects_stay_as_they_were(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Random draws, also in control flow in a body, happen in order."""
    monkeypatch.setattr(CostModel, "warm", lambda *_: None)
    program = round_trip(model(function), X)
    searched: list[Graph] = []

    def seen(graph: Graph, *_: Any, **__: Any) -> SearchResult:
        searched.append(graph)
        return SearchResult(*(c := (Candidate(graph, graph, 1.0, 0),)), c, SearchStop.EXHAUSTED, 1, 1, 0.0)

    monkeypatch.setattr(bodies, "search", seen)
    with LatencyDatabase() as database:
        cost = CostModel(torch.device("cpu"), database)
        outer = Candidate(program.graph, program.graph, 1.0, 0)
        found = SearchResult(outer, (outer,), SearchStop.EXHAUSTED, 1, 1, 0.0)
        result = bodies.BodySearch(Matcher([]), cost, "backtracking", Limits(), 0).add_to(found)
    assert (result.candidates, result.notes) == (found.candidates, ())
    assert [str(graph.outputs[0].node.op.name) for graph in searched] == ["mul"]
    assert len(texts(program.graph)) == 2


def test_a_decision_holds_the_steps_in_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    found, program = optimized(monkeypatch, _mapped, X), round_trip(model(_mapped), X)
    decision = Decision.of(found)
    assert found.trace.bodies
    torch.testing.assert_close(decision.apply(program, (X,))(X), model(_mapped)(X), rtol=1e-4, atol=1e-4)


def test_a_gain_that_laying_a_result_out_costs_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewritten result is fixed to the original's layout, which takes a call."""
    monkeypatch.setattr(CostModel, "warm", lambda *_: None)
    program = round_trip(model(lambda s, x: torch.cond(x.sum() > 0, lambda y: y * 1, lambda y: y * 1, (x,))), X)
    for price, count in ((0.5, 2), (2.0, 0)):
        prices = {"contiguous": price, "mul": 1.0}
        monkeypatch.setattr(CostModel, "graph_cost", lambda _, graph, prices=prices: _seconds(graph, prices))
        with LatencyDatabase() as database:
            outer = Candidate(program.graph, program.graph, 1.0, 0)
            found = SearchResult(outer, (outer,), SearchStop.EXHAUSTED, 1, 1, 0.0)
            monkeypatch.setattr(bodies, "search", _without_products)
            cost = CostModel(torch.device("cpu"), database)
            result = bodies.BodySearch(Matcher([]), cost, "backtracking", Limits(), 0).add_to(found)
        assert len(result.best.bodies) == count


def _seconds(graph: Graph, prices: Mapping[str, float]) -> float:
    return sum(price for name, price in prices.items() for node in graph.nodes if name in node.op.text)


def _without_products(graph: Graph, *_: Any, **__: Any) -> SearchResult:
    (rule,) = read_rules("rule a: float[..B] source mul(a, constant{value=1.0, dtype=float}) target a")
    original = Candidate(graph, graph, 1.0, 0)
    (match,) = Matcher([rule]).matches(graph)
    after = apply(graph, match)
    assert after is not None
    better = Candidate(graph, after, 0.0, 0, (rule.id,), ((match, after),))
    return SearchResult(original, (better, original), SearchStop.EXHAUSTED, 1, 1, 0.0)
