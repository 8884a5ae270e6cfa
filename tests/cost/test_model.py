"""The cost model: sums of measured latencies, remembered in the database; what is static is free."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import takewhile
from typing import Any

import pytest
import torch

from taso_py.backend.plan import BoundKernel
from taso_py.cost import model
from taso_py.cost.model import CostModel
from taso_py.ir.node import Node
from taso_py.kernels import mkl, onednn
from taso_py.kernels.table import PLAIN, covers
from taso_py.kernels.tile import Cover
from taso_py.latency import latencies, measuring
from taso_py.latency.clock import Latency, TimingError
from taso_py.latency.database import LatencyDatabase
from taso_py.latency.environment import Environment
from taso_py.latency.schema import Key, LatencyKind
from taso_py.ops.table import parse_graph
from tests.kernels.doctored import doctored_covers

CPU = torch.device("cpu")
GRAPH = parse_graph(
    """graph(x: f32[2,4]) {
      w = weight{key="w", type=f32[4,4]}
      h = linear(x, concat(w, w){axis=-2})
      r = opaque#0{target="aten.rand.default", arguments=[[2,8]], types=[f32[2,8]], is_pure=false}
      return add(relu(h), r), tanh(h)
    }"""
)


def test_a_graph_costs_the_sum_of_what_runs(measured: list[object]) -> None:
    with LatencyDatabase(":memory:") as database:
        assert math.isclose(CostModel(CPU, database, tiles=PLAIN).graph_cost(GRAPH), 4e-3)
    assert len(measured) == 4


def test_a_second_model_measures_nothing(measured: list[object]) -> None:
    with LatencyDatabase(":memory:") as database:
        first, second = CostModel(CPU, database), CostModel(CPU, database)
        first.warm(GRAPH)
        count = len(measured)
        assert second.graph_cost(GRAPH) == first.graph_cost(GRAPH)
        assert (second.latencies.measured, len(measured)) == (0, count)


def test_past_the_time_to_measure_a_graph_still_has_a_price_and_later_runs_go_on(measured: list[object]) -> None:
    graph = parse_graph('graph(x: f32[2,4]) { return relu(linear(x, weight{key="w", type=f32[8,4]})) }')
    with LatencyDatabase(":memory:") as database:
        first, second, third = (CostModel(CPU, database) for _ in range(3))
        first.latencies.limit_s = 0.0
        first.warm(graph)
        plain = len(measured)
        assert plain == 2  # a product and an activation, as PyTorch computes them
        assert math.isfinite(first.graph_cost(graph))
        assert first.latencies.left_out > 0
        first.record_convergence(graph, "?", 1.0)
        assert not first.has_converged(graph, "?")
        second.warm(graph)
        assert (second.latencies.left_out, second.latencies.measured) == (0, len(measured) - plain)
        third.latencies.limit_s = 0.0
        assert third.graph_cost(graph) == second.graph_cost(graph)
        assert third.latencies.left_out == 0  # all is known


def test_those_that_take_longest_are_measured_first(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = parse_graph(
        """graph(x: f32[2,4], y: f32[64,512]) {
          return linear(x, weight{key="v", type=f32[8,4]}), linear(y, weight{key="w", type=f32[512,512]})
        }"""
    )
    asked: list[int] = []

    def measured(_: object, make: Callable[[], object], key: Key, *_more: object) -> tuple[Latency, bool]:
        is_large = "512" in key[1]
        if not key[0].startswith("torch:"):
            asked.append(is_large)
        seconds = 1e-3 if is_large else 1e-6
        return Latency(seconds, seconds, seconds, 9, 0), True

    monkeypatch.setattr(latencies.Latencies, "_measure", measured)
    with LatencyDatabase(":memory:") as database:
        CostModel(CPU, database).warm(graph)
    assert asked == sorted(asked, reverse=True)
    assert {True, False} == set(asked)


def test_views_are_measured_once_whatever_they_show(measured: list[object]) -> None:
    graph = parse_graph(
        """graph(x: f32[6,4], y: f32[8,2]) {
          return slice(x){axis=-1, start=0, stop=2}, slice(y){axis=-2, start=3, stop=4},
            reshape(x){shape=[24]}, reshape(y){shape=[16]}, reshape(permute(x){order=[-1,-2]}){shape=[24]}
        }"""
    )
    with LatencyDatabase(":memory:") as database:
        CostModel(CPU, database).warm(graph)
        kernels = [(row.kernel, row.signature) for row in database.rows()]
    assert kernels == [
        ("torch:permute", "view of rank 2 as 2"),
        ("torch:reshape", "view of rank 2 as 1"),
        ("torch:reshape{shape=[24]}", "f32[4,6]:1x4"),
        ("torch:slice", "view of rank 2 as 2"),
    ]
    assert len(measured) == 4


def test_a_weight_that_is_packed_is_measured_once_however_it_lay(measured: list[object]) -> None:
    """Two measurements differ by a few hundredths, which a search that chooses between the two would take for a gain.

    The plain products are two calls, and so are packed ones of the same sizes the other way round.
    """
    graph = parse_graph(
        """graph(x: f32[3,6], y: f32[3,4]) {
          w = weight{key="w", type=f32[4,6]}
          v = weight{key="v", type=f32[6,4]}
          return linear(x, w), matmul(x, permute(w){order=[-1,-2]}), matmul(x, v), matmul(y, w)
        }"""
    )
    with LatencyDatabase(":memory:") as database:
        CostModel(CPU, database).warm(graph)
        kernels = [(row.kernel, row.signature.split(" of ")[0]) for row in database.rows()]
    plain = [kernel for kernel in kernels if kernel[0].startswith("torch:")]
    assert plain == [
        ("torch:linear", "f32[3,6], weight f32[4,6]"),
        ("torch:matmul", "f32[3,4], weight f32[4,6]"),
        ("torch:matmul", "f32[3,6], weight f32[6,4]"),
        ("torch:matmul", "f32[3,6], weight f32[6,4]:1x6"),
    ]
    packed = [kernel for kernel in kernels if kernel not in plain]
    assert {kernel.partition(":")[2] for kernel, _ in packed} == {"linear"}
    assert {signature for _, signature in packed} == {"f32[3,4]; weight f32[6,4]", "f32[3,6]; weight f32[4,6]"}
    assert len(measured) == len(kernels) == len(set(kernels))


@pytest.mark.parametrize("known_s", [None, 1.0])
def test_what_a_kernel_computes_besides_is_measured_beside_the_kernel_without_it(
    monkeypatch: pytest.MonkeyPatch, known_s: float | None
) -> None:
    """It takes a part more of whatever the plain kernel is known to take; a call of its own would not."""
    # All is kept, however busy the machine is.
    monkeypatch.setattr(measuring.Probe, "is_calm", lambda _: True)
    monkeypatch.setattr(measuring.Measuring, "_clock", None)
    monkeypatch.setattr(measuring, "DOUBT", math.inf)
    monkeypatch.setattr(measuring, "SAMPLES", 1)
    graph = parse_graph('graph(x: f32[8,64]) { return relu(linear(x, weight{key="w", type=f32[64,64]})) }')
    plain = "onednn.linear:linear", "f32[8,64]; weight f32[64,64] of 1 MiB"
    with LatencyDatabase(":memory:") as database:
        if known_s is not None:
            database.put(Environment.current(CPU), *plain, Latency(known_s, known_s, known_s, 10, 0))
        CostModel(CPU, database).warm(graph)
        latencies = {row.kernel: row.latency.median_s for row in database.rows()}
    assert 0.2 < latencies["onednn.linear:linear relu"] / latencies[plain[0]] < 5.0
    assert latencies["torch:relu"] < 0.1


def test_what_two_graphs_do_not_share_is_measured_in_turns_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured at a bad moment is corrected, for what is computed besides a product as well."""
    monkeypatch.setattr(measuring.Probe, "is_calm", lambda _: True)
    monkeypatch.setattr(measuring, "DOUBT", math.inf)
    monkeypatch.setattr(measuring, "SAMPLES", 1)
    inputs = """x: f32[8,64]) {
      w = weight{key="w", type=f32[64,64]} v = weight{key="v", type=f32[64,32]}
      h = matmul(x, v)"""
    graph, other = (
        parse_graph(f"graph({inputs} return h, {result} }}") for result in ("relu(linear(x, w))", "tanh(exp(x))")
    )
    plain = "onednn.linear:linear", "f32[8,64]; weight f32[64,64] of 1 MiB"
    wrong = Latency(1e-6, 1e-6, 1e-6, 10, 0)
    with LatencyDatabase(":memory:") as database:
        database.put(Environment.current(CPU), *plain, wrong)
        cost, again = CostModel(CPU, database), CostModel(CPU, database)
        before = cost.graph_cost(graph) / cost.graph_cost(other)
        first = {row.kernel: row.latency.median_s for row in database.rows()}
        assert cost.refine(graph, other)
        refined = {row.kernel: row.latency.median_s for row in database.rows(LatencyKind.INTERLEAVED)}
        assert refined.keys() == {"onednn.linear:linear", "torch:tanh", "torch:exp"}
        ratios = sorted(seconds / first[kernel] for kernel, seconds in refined.items())
        assert ratios[1] == pytest.approx(1)
        assert refined["onednn.linear:linear"] > wrong.median_s
        assert cost.graph_cost(graph) / cost.graph_cost(other) > before
        assert again.graph_cost(graph) == pytest.approx(cost.graph_cost(graph))
        # Another kernel may be the best now, of which no more is known than of this one before.
        refinements = sum(1 for _ in takewhile(bool, (cost.refine(graph, other) for _ in range(9))))
        assert refinements < 9
        assert not cost.has_converged(graph, "greedy")
        cost.record_convergence(graph, "greedy", math.inf)
        assert not cost.has_converged(graph, "greedy")
        cost.record_convergence(graph, "greedy", 1.0)
        assert again.has_converged(graph, "greedy")
        assert not again.has_converged(graph, "backtracking")
        assert not again.has_converged(other, "greedy")
        count = cost.latencies.measured
        assert not cost.refine(graph, other)
        assert not cost.refine(graph, graph)
        assert cost.latencies.measured == count


ELEMENTWISE = [parse_graph(f"graph(x: f32[2]) {{ return {chain} }}") for chain in ("relu(exp(x))", "tanh(sigmoid(x))")]


@pytest.fixture
def interleaved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls take 1 ms, and 2 ms interleaved, but the first of those interleaved 50 ms."""

    def measured(*_: object) -> tuple[Latency, bool]:
        return Latency(1e-3, 1e-3, 1e-3, 10, 0), True

    def measure_interleaved(_: object, calls: Mapping[Key, object]) -> tuple[Mapping[Key, Latency], bool]:
        seconds = [5e-2 if place == 0 else 2e-3 for place in range(len(calls))]
        return {key: Latency(s, s, s, 10, 0) for key, s in zip(calls, seconds, strict=True)}, True

    monkeypatch.setattr(measuring.Measuring, "measured", measured)
    monkeypatch.setattr(measuring.Measuring, "measure_interleaved", measure_interleaved)


@pytest.mark.usefixtures("interleaved")
def test_one_latency_that_turns_out_wrong_leaves_the_others() -> None:
    with LatencyDatabase(":memory:") as database:
        assert CostModel(CPU, database).refine(*ELEMENTWISE)
        rows = database.rows(LatencyKind.INTERLEAVED)
        assert sorted(row.latency.median_s for row in rows) == pytest.approx([1e-3, 1e-3, 1e-3, 25e-3])


@pytest.mark.usefixtures("interleaved")
def test_interleaved_latencies_are_kept_beside_the_first_ones_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read as ratios to those."""
    put = LatencyDatabase.put

    def put_most(self: LatencyDatabase, environment: Environment, kernel: str, *others: Any) -> None:
        if kernel != "torch:exp":
            put(self, environment, kernel, *others)

    monkeypatch.setattr(LatencyDatabase, "put", put_most)
    with LatencyDatabase(":memory:") as database:
        cost = CostModel(CPU, database)
        assert cost.refine(*ELEMENTWISE)
        assert len(database.rows(LatencyKind.CALL)) == 3
        assert not database.rows(LatencyKind.INTERLEAVED)
        assert cost.latencies.disturbed == 4
        assert not cost.refine(*ELEMENTWISE)


def test_the_time_that_measuring_takes_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [0.0]

    def measured(_: object, call: Callable[[], object], *others: object) -> tuple[Latency, bool]:
        call()
        times[0] += 1.0
        return Latency(1e-3, 1e-3, 1e-3, 10, 0), True

    def measure_interleaved(_: object, calls: Mapping[Key, object]) -> tuple[Mapping[Key, Latency], bool]:
        times[0] += 1.0
        return {key: Latency(2e-3, 2e-3, 2e-3, 10, 0) for key in calls}, True

    monkeypatch.setattr(time, "monotonic", lambda: times[0])
    monkeypatch.setattr(measuring.Measuring, "measured", measured)
    monkeypatch.setattr(measuring.Measuring, "measure_interleaved", measure_interleaved)
    graph, other = (parse_graph(f"graph(x: f32[2]) {{ return {name}(x) }}") for name in ("relu", "tanh"))
    with LatencyDatabase(":memory:") as database:
        cost = CostModel(CPU, database)
        assert cost.graph_cost(graph) + cost.graph_cost(other) > 0
        assert cost.refine(graph, other)
        assert (times[0], cost.now()) == (3.0, 0.0)
        times[0] += 5.0
        assert cost.now() == 5.0


def test_what_was_disturbed_is_used_but_not_kept(measured: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring.Probe, "is_calm", lambda _: False)
    monkeypatch.setattr(measuring, "PATIENCE_S", 0.0)
    with LatencyDatabase(":memory:") as database:
        cost = CostModel(CPU, database, tiles=PLAIN)
        assert math.isclose(cost.graph_cost(GRAPH), 4e-3)
        assert (cost.latencies.measured, cost.latencies.disturbed, database.rows()) == (4, 4, [])
        # What a search decided by such latencies is open, though all is calm now: another one shall find out more.
        monkeypatch.setattr(measuring.Probe, "is_calm", lambda _: True)
        cost.record_convergence(GRAPH, "greedy", 1.0)
        assert not cost.has_converged(GRAPH, "greedy")
    assert len(measured) == 4 * measuring.ATTEMPTS


def test_what_cannot_be_called_alone_counts_as_free(caplog: pytest.LogCaptureFixture) -> None:
    graph = parse_graph(
        'graph(x: f32[3]) { return opaque(x){target="aten.cumsum.default", arguments=[$0,7], types=[f32[3]]} }'
    )
    with LatencyDatabase(":memory:") as database:
        cost = CostModel(CPU, database)
        assert cost.graph_cost(graph) == 0
        assert cost.latencies.disturbed == 0
        assert database.rows(LatencyKind.CALL) == [], "it may be otherwise later"
    assert "counts as free" in caplog.text


def test_an_opaque_operator_may_raise_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> object:
        raise AssertionError

    monkeypatch.setattr(latencies, "timed_call", fail)
    opaque = 'opaque(x){target="aten.cumsum.default", arguments=[$0,0], types=[f32[3]]}'
    with LatencyDatabase(":memory:") as database:
        assert CostModel(CPU, database).graph_cost(parse_graph(f"graph(x: f32[3]) {{ return {opaque} }}")) == 0


def test_an_operator_of_the_table_that_fails_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> object:
        raise torch.OutOfMemoryError("too large")

    monkeypatch.setattr(latencies, "timed_call", fail)
    image = "graph(x: f32[1,4,6,6]) { return relu(max_pool2d(relu(x)){kernel=[2,2], stride=[1,1]}), relu(x) }"
    with LatencyDatabase(":memory:") as database:
        assert CostModel(CPU, database).graph_cost(parse_graph(image)) == math.inf
        assert [row for row in database.rows() if row.kernel.startswith("torch:")] == []


def test_a_rescaled_model_prices_everything_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "measure", lambda *_, **__: Latency(1e-3, 1e-3, 1e-3, 10, 0))
    monkeypatch.setattr(measuring.Probe, "is_calm", lambda _: True)
    with LatencyDatabase(":memory:") as database:
        cost = CostModel(CPU, database, tiles=PLAIN)
        assert math.isclose(cost.graph_cost(GRAPH), 4e-3)
        alone = {node: cost.node_cost(node) for node in GRAPH.nodes}
        cost.rescale(1.5)
        assert math.isclose(cost.graph_cost(GRAPH), 6e-3)
        assert all(math.isclose(cost.node_cost(node), 1.5 * alone[node]) for node in GRAPH.nodes)
        assert math.isclose(cost.with_tiles(PLAIN).graph_cost(GRAPH), 6e-3)
        cost.rescale(1.0)
        assert math.isclose(cost.graph_cost(GRAPH), 4e-3)


def _failing(error: Exception) -> Callable[..., list[Cover]]:
    """What finds the covers of a node, whose kernels raise an error where they are bound."""

    def fail(*_: object) -> BoundKernel:
        raise error

    def found(node: Node, device: torch.device, _tiles: object) -> list[Cover]:
        return [replace(cover, binder=cover.binder and fail) for cover in covers(node, device)]

    return found


def test_a_kernel_that_fails_is_not_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(model, "covers", _failing(RuntimeError("no primitive")))
    graph = parse_graph('graph(x: f32[2,4]) { return relu(linear(x, weight{key="w", type=f32[4,4]})) }')
    with LatencyDatabase(":memory:") as database:
        cost = CostModel(CPU, database)
        assert math.isfinite(cost.graph_cost(graph))
        assert cost.plan(graph).steps == {}
        assert not any(row.kernel.startswith("onednn") for row in database.rows())
    assert "onednn.linear:linear relu fails on f32[2,4]; weight f32[4,4] of 1 MiB and is not used" in caplog.text


def test_captured_calls_have_latencies_of_their_own(measured: list[object]) -> None:
    with LatencyDatabase(":memory:") as database:
        CostModel(CPU, database, tiles=PLAIN).graph_cost(GRAPH)
        count = len(measured)
        for _ in range(2):
            CostModel(CPU, database, tiles=PLAIN, captured=True).graph_cost(GRAPH)
            assert len(measured) == 2 * count
        described = [about.get("settings", "") for about in database.environments().values()]
    assert sorted(described) == ["", "in CUDA graphs"]


def test_a_kernel_that_cannot_be_captured_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    error = TimingError("this cannot be captured in a CUDA graph")
    monkeypatch.setattr(model, "covers", _failing(error))
    graph = parse_graph('graph(x: f32[2,4]) { return relu(linear(x, weight{key="w", type=f32[4,4]})) }')
    with LatencyDatabase(":memory:") as database:
        assert CostModel(CPU, database, captured=True).plan(graph).steps == {}
    assert "is not used: this cannot be captured in a CUDA graph" in caplog.text


def test_a_kernel_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(model, "covers", doctored_covers(lambda kernel, *operands: kernel(*operands) + 0.1))
    graph = parse_graph('graph(x: f32[2,4]) { return relu(linear(x, weight{key="w", type=f32[4,4]})) }')
    with LatencyDatabase(":memory:") as database:
        assert CostModel(CPU, database).plan(graph).steps == {}
        assert not any(row.kernel.startswith("onednn") for row in database.rows())
    assert (
        "onednn.linear:linear relu fails on f32[2,4]; weight f32[4,4] of 1 MiB and is not used: it is off"
        in caplog.text
    )


def test_kernels_of_another_processor_need_not_work_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for works in ("convolution_works", "linear_works", "overwriting_works"):
        monkeypatch.setattr(onednn, works, lambda _: False)
    monkeypatch.setattr(mkl, "linear_works", lambda: False)
    graph = parse_graph(
        """graph(x: f32[1,4,4,4]) {
          c = conv2d(x, weight{key="w", type=f32[4,4,1,1]})
          return relu(add(x, c)), linear(x, weight{key="u", type=f32[4,4]})
        }"""
    )
    there = replace(Environment.current(CPU), device_name="another processor")
    with LatencyDatabase(":memory:") as database:
        names = [
            {cover.name for node in graph.nodes for cover in CostModel(CPU, database, environment=where).covers(node)}
            for where in (None, there)
        ]
        (key,) = {
            cover.text
            for cover in CostModel(CPU, database, environment=there).covers(graph.outputs[0].node)
            if len(cover.nodes) == 3
        }
    assert names[0] == {"aten"}
    assert names[1] == {"aten", "onednn.conv", "onednn.linear", "mkl.linear"}
    assert key.endswith("in place"), "what is overwritten there is, too"


def test_a_real_measurement_is_positive() -> None:
    with LatencyDatabase(":memory:") as database:
        cost = CostModel(CPU, database)
        assert cost.graph_cost(GRAPH) > 0
        assert cost.value_bytes(GRAPH.outputs[0]) == 2 * 8 * 4
