"""Prices of operators in an engine that takes whole graphs, by an engine and a clock that say what they are told."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import torch
from torch import Tensor

from taso_py.backend.plan import Format
from taso_py.engines import calls
from taso_py.engines.calls import operators_made
from taso_py.engines.engine import EngineUnavailableError
from taso_py.engines.onnxruntime import _node_times
from taso_py.engines.openvino import _reorder_direction, _stretch_means
from taso_py.engines.prices import EMPTY_S as EMPTY_BUDGET_S
from taso_py.engines.prices import SessionLatencies
from taso_py.engines.session import NodeTime, OnnxModel, Session, SessionEngine
from taso_py.engines.tiles import SESSION_TILES, single_node_cover
from taso_py.ir.node import Node, make
from taso_py.ir.operator import Input, Weight
from taso_py.ir.types import DType, TensorType
from taso_py.kernels.tile import Cover
from taso_py.latency.clock import Latency
from taso_py.latency.database import LatencyDatabase
from taso_py.ops.contraction import Conv2d, Matmul
from taso_py.ops.elementwise import Relu
from taso_py.ops.movement import Reshape
from taso_py.ops.pooling import MaxPool2d
from tests.engines.sessions import NAMES, engine_named

EMPTY_S = 1e-4
DEVICE = torch.device("cpu")


def tensor(*shape: int) -> TensorType:
    return TensorType(DType.F32, shape)


X = make(Input("x", tensor(64, 64))).value
PRODUCT = make(Matmul(), [X, make(Weight("w", tensor(64, 64))).value])
IMAGE = make(Input("x", tensor(1, 8, 16, 16))).value
CONVOLUTION = make(Conv2d(), [IMAGE, make(Weight("w", tensor(8, 8, 3, 3))).value])


class Told(SessionEngine):
    """An engine that runs nothing."""

    name, packages, file = "told", (), "told"
    release = 1

    @property
    def version(self) -> str:
        return f"told {self.release}"

    def __init__(
        self, times: Sequence[NodeTime] = (), refused: str = "", operators: Callable[[int], int] = int
    ) -> None:
        self.models: list[ir.Model] = []
        self.times, self.refused, self.operators = times, refused, operators

    def bind(self, model: OnnxModel, tensors: Sequence[Tensor]) -> Callable[[], object]:
        self._take(model)
        return lambda: None

    def profile(self, model: OnnxModel, tensors: Sequence[Tensor], runs: int) -> Sequence[NodeTime]:
        self._take(model)
        return self.times

    def count(self, model: OnnxModel, tensors: Sequence[Tensor]) -> int:
        self._take(model)
        return self.operators(len(self.models[-1].graph))

    def _take(self, model: OnnxModel) -> None:
        assert isinstance(model.content, bytes)
        self.models.append(ir.from_proto(onnx.load_model_from_string(model.content)))
        if any(node.op_type == self.refused for node in self.models[-1].graph):
            raise EngineUnavailableError(f"told cannot run this module: {self.refused}")

    def _session(self, model: OnnxModel, threads: int) -> Session:
        raise NotImplementedError

    def _files(self, session: Session) -> Mapping[str, bytes]:
        raise NotImplementedError


class Clock:
    """Says what a run takes: for each copy of what is measured so long, and what an empty one takes besides."""

    is_calm = True

    def __init__(self, each_s: float) -> None:
        self.each_s = each_s

    def measured(self, call: calls.SessionCall, budget_s: float, beside: object = None) -> tuple[Latency, bool]:
        seconds = EMPTY_S + (0.0 if budget_s == EMPTY_BUDGET_S else call.copies * self.each_s)
        return Latency(seconds, seconds, seconds, 9, 0), True


@pytest.fixture
def latencies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., SessionLatencies]]:
    """Makes the latencies of an engine, of which the clock says what a cover takes."""
    monkeypatch.setattr(calls, "wait_until_idle", lambda: None)
    with LatencyDatabase(tmp_path / "latencies.sqlite") as database:

        def made(engine: SessionEngine, each_s: float = 2e-3) -> SessionLatencies:
            found = SessionLatencies(engine, database, weight_bytes=1 << 20)
            found._measuring = Clock(each_s)  # pyright: ignore[reportAttributeAccessIssue] -- it is asked no more
            return found

        yield made


def test_an_empty_run_is_taken_off_and_copies_are_shared_out(latencies: Callable[..., SessionLatencies]) -> None:
    found = latencies(engine := Told())
    assert found.of_cover(single_node_cover(PRODUCT), Format.DENSE) == pytest.approx(2e-3)
    assert len(engine.models) == 2
    found.of_cover(single_node_cover(PRODUCT), Format.DENSE)
    assert len(engine.models) == 2, "what is known is not measured again"


def contents(model: ir.Model) -> list[bytes]:
    return [value.const_value.tobytes() for value in model.graph.initializers.values() if value.const_value is not None]


def test_copies_have_weights_of_their_own(
    latencies: Callable[..., SessionLatencies], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal ones an engine may keep once, and then they would be near at hand."""
    latencies(engine := Told()).of_cover(single_node_cover(PRODUCT), Format.DENSE)
    copies = len(engine.models[0].graph)
    assert copies > 8
    assert len(set(contents(engine.models[0]))) == copies
    assert len(engine.models[0].graph.inputs) == 1
    monkeypatch.setattr(calls, "_numbers", lambda count, dtype, seed: torch.zeros(count))
    latencies(engine := Told()).of_cover(single_node_cover(make(Matmul(), [*reversed(PRODUCT.inputs)])), Format.DENSE)
    assert len(set(contents(engine.models[0]))) == 1, "the check above sees equal weights"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("nodes", [[PRODUCT], [make(Matmul(), [X, make(Input("y", tensor(64, 64))).value])]])
def test_an_engine_computes_each_copy(name: str, nodes: Sequence[Node]) -> None:
    engine, operators = engine_named(name), []
    for copies in (1, 5):
        operators.append(engine.count(*calls._model(engine, nodes, copies)))
    assert operators == [1, 5]


def test_what_an_engine_refuses_costs_infinity_and_nothing_else_does(
    latencies: Callable[..., SessionLatencies], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    found = latencies(Told(refused="MatMul"))
    assert found.of_cover(single_node_cover(PRODUCT), Format.DENSE) == math.inf
    assert found.of_cover(single_node_cover(make(Relu(), [X])), Format.DENSE) < math.inf
    assert found.unknown == 1
    assert not caplog.records, "the note is that of the whole graph"


def test_what_was_left_out_for_lack_of_time_is_measured_once_it_is_required(
    latencies: Callable[..., SessionLatencies],
) -> None:
    found = latencies(Told())
    found.limit_s = 0.0
    for node in (PRODUCT, make(Relu(), [X])):
        cover = single_node_cover(node)
        assert found.of_cover(cover, Format.DENSE) == math.inf
        with found.required():
            assert found.of_cover(cover, Format.DENSE) < math.inf


def test_what_shares_memory_costs_nothing(latencies: Callable[..., SessionLatencies]) -> None:
    found = latencies(engine := Told())
    assert found.of_cover(single_node_cover(make(Reshape((4096,)), [X])), Format.DENSE) == 0.0
    assert not engine.models


def times(copies: int) -> list[NodeTime]:
    """The times of copies of a convolution that read one image; what comes first is brought into order once."""
    each = [NodeTime("conv", "Conv", (1e-3,)), NodeTime("out", "ReorderOutput", (1e-4,), "out")]
    return [NodeTime("in", "ReorderInput", (2e-4,), "in"), *each * copies]


def test_reordering_of_images_is_told_apart(latencies: Callable[..., SessionLatencies]) -> None:
    copies = calls._copies([CONVOLUTION], 1 << 20)
    assert copies > 8
    found = latencies(Told(times(copies)))
    assert found.of_cover(single_node_cover(CONVOLUTION), Format.CHANNELS_LAST) == pytest.approx(1e-3)
    assert found.of_cover(single_node_cover(CONVOLUTION), Format.DENSE) == pytest.approx(1e-3 + 2e-4 + 1e-4)


@pytest.mark.parametrize(
    ("operators", "left"), [(lambda nodes: nodes, 1), (lambda nodes: 1, 0)], ids=["apart", "fused"]
)
def test_what_is_computed_with_a_product_costs_nothing(
    latencies: Callable[..., SessionLatencies], operators: Callable[[int], int], left: int
) -> None:
    relu = make(Relu(), [PRODUCT.value])
    chain = Cover(
        "session", (PRODUCT, relu), tuple(PRODUCT.inputs), single_node_cover(PRODUCT).formats, text="matmul; relu %0"
    )
    found = latencies(Told(operators=operators))
    product, tail = (found.of_cover(single_node_cover(node), Format.DENSE) for node in (PRODUCT, relu))
    assert tail > 0
    assert found.of_cover(chain, Format.DENSE) == pytest.approx(product + left * tail)


def test_what_is_computed_with_a_convolution_is_priced_in_each_order_of_its_image(
    latencies: Callable[..., SessionLatencies],
) -> None:
    relu = make(Relu(), [CONVOLUTION.value])
    chain = next(cover for tile in SESSION_TILES for cover in tile.covers(relu, DEVICE) if len(cover.nodes) == 2)
    copies = calls._copies([CONVOLUTION], 1 << 20)
    found = latencies(engine := Told(times(copies), operators=lambda nodes: 1))
    for _ in range(2):  # an answer for one order is none for the other
        assert found.of_cover(chain, Format.CHANNELS_LAST) == pytest.approx(1e-3)
        assert found.of_cover(chain, Format.DENSE) == pytest.approx(1e-3 + 2e-4 + 1e-4)
    assert len(engine.models) == 3, "the convolution, and two small ones to tell what is fused"


@pytest.mark.parametrize(("bias", "is_free"), [(Weight("b", tensor(8)), True), (Input("b", tensor(8)), False)])
def test_a_bias_costs_a_convolution_nothing(
    bias: Weight | Input, is_free: bool, latencies: Callable[..., SessionLatencies]
) -> None:
    biased = make(CONVOLUTION.op, [*CONVOLUTION.inputs, make(bias).value])
    found = latencies(engine := Told(times(calls._copies([CONVOLUTION], 1 << 20))))
    bare = found.of_cover(single_node_cover(CONVOLUTION), Format.DENSE)
    if is_free:
        assert found.of_cover(single_node_cover(biased), Format.DENSE) == bare
        assert len(engine.models) == 1
    else:
        found.of_cover(single_node_cover(biased), Format.DENSE)
        assert len(engine.models) == 2


def test_latencies_are_those_of_a_version(
    latencies: Callable[..., SessionLatencies], monkeypatch: pytest.MonkeyPatch
) -> None:
    cover = single_node_cover(PRODUCT)
    assert latencies(Told(), 2e-3).of_cover(cover, Format.DENSE) == pytest.approx(2e-3)
    assert latencies(Told(), 5e-3).of_cover(cover, Format.DENSE) == pytest.approx(2e-3)
    monkeypatch.setattr(Told, "release", 2)
    assert latencies(Told(), 5e-3).of_cover(cover, Format.DENSE) == pytest.approx(5e-3)


def test_the_first_run_of_onnxruntime_does_not_count() -> None:
    def event(name: str, index: int, microseconds: int, kind: str = "Conv") -> dict[str, Any]:
        told = {"op_name": kind, "node_index": str(index), "activation_size": "8", "output_size": "4"}
        return {"cat": "Node", "name": f"{name}_kernel_time", "dur": microseconds, "args": told}

    events = [
        event("a", 1, 900),
        event("a", 2, 50),
        event("a", 1, 9),
        event("a", 2, 5),
        {"cat": "Session", "name": "run"},
    ]
    first, second = _node_times([*events, event("b", 3, 7, "ReorderOutput")])[:2]
    assert (first.seconds, second.seconds) == pytest.approx((9e-6, 5e-6)), "operators of one name are several"
    assert first.moved_bytes == 12
    (*_, last) = _node_times([event("b", 3, 7, "ReorderOutput")])
    assert (last.seconds, last.reorders) == (7e-6, "out")


def test_the_first_run_of_openvino_does_not_count() -> None:
    """It tells the average of all runs: after the first, the second, the fourth and the eighth here."""
    averages = [1000e-6, 505e-6, 257.5e-6, 133.75e-6]
    totals = [average * 2**place for place, average in enumerate(averages)]
    assert _stretch_means(totals) == pytest.approx((10e-6, 10e-6, 10e-6))
    assert _stretch_means([5e-6]) == (5e-6,)
    assert _stretch_means([5e-6, 4e-6]) == (0.0,), "what is lost in rounding is no negative time"


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("x_abcd_acdb_conv.1", "in"),
        ("conv.1/WithoutBiases_acdb_abcd_output_0/sink_port_0", "out"),
        ("x_abcd_aBcd8b_conv", "in"),
        ("conv_aBcd8b_abcd_y", "out"),
        ("unknown", "in"),
    ],
)
def test_the_name_of_a_reordering_tells_its_way(name: str, way: str) -> None:
    assert _reorder_direction(name, "Reorder") == way
    assert _reorder_direction(name, "Convolution") == ""


@pytest.mark.parametrize("name", NAMES)
def test_what_an_engine_makes_of_an_example_is_counted(name: str) -> None:
    engine, relu = engine_named(name), make(Relu(), [CONVOLUTION.value])
    assert operators_made(engine, (CONVOLUTION, relu)) == 1
    pooled = make(MaxPool2d((2, 2), (2, 2)), [relu.value])
    assert operators_made(engine, (CONVOLUTION, relu, pooled)) == 2
