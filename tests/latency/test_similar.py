"""Latencies estimated from those of similar calls."""

import math
from dataclasses import replace

import pytest
import torch

from taso_py.backend.plan import Format
from taso_py.kernels.table import covers
from taso_py.kernels.tile import Cover
from taso_py.latency.similar import OTHER_FORMAT, OTHER_KERNEL, CallTraits, SimilarCalls, conversion_traits, traits_of
from taso_py.ops.table import parse_graph

CALL = CallTraits("conv2d", "onednn.conv", (), Format.DENSE, flops=10**8, moved=10**6)


def of_work(factor: float) -> CallTraits:
    return replace(CALL, flops=round(factor * CALL.flops), moved=round(factor * CALL.moved))


def test_a_call_between_two_measured_ones_takes_a_time_between_theirs() -> None:
    calls = SimilarCalls()
    calls.add(of_work(0.8), 0.8e-3)
    calls.add(of_work(1.2), 1.2e-3)
    estimate = calls.estimate(CALL, 1.0)
    assert estimate == pytest.approx(1e-3, rel=0.05)


def test_the_nearest_count_most() -> None:
    calls = SimilarCalls()
    calls.add(of_work(1.01), 1e-3)
    for factor in (0.5, 0.6, 2.0):
        calls.add(of_work(factor), 10e-3 * factor)
    assert calls.estimate(CALL, 1.0) == pytest.approx(1e-3, rel=0.1)


def test_nothing_is_estimated_from_calls_out_of_reach_or_of_other_operators_or_that_fail() -> None:
    calls = SimilarCalls()
    calls.add(of_work(math.e), 1e-3)
    calls.add(replace(CALL, operator="linear"), 1e-3)
    calls.add(CALL, math.inf)
    calls.add(CALL, 0.0)
    assert calls.estimate(CALL, 1.9) is None
    assert calls.estimate(CALL, 2.1) is not None
    assert SimilarCalls().estimate(CALL, math.inf) is None


def test_other_kernels_are_further_away_than_other_formats() -> None:
    other = replace(CALL, kernel="winograd")
    assert CALL.distance(other) == OTHER_KERNEL
    assert CALL.distance(replace(CALL, format=Format.CHANNELS_LAST)) == OTHER_FORMAT < OTHER_KERNEL
    assert CALL.distance(CALL) == 0


def convolution(groups: int, window: int, tail: str = "") -> Cover:
    graph = parse_graph(
        f"""graph(x: f32[1,8,6,6]) {{
          w = weight{{key="w", type=f32[8,{8 // groups},{window},{window}]}}
          return {tail}(conv2d(x, w){{groups={groups}}})
        }}"""
    )
    return max(covers(graph.outputs[0].node, torch.device("cpu")), key=lambda cover: len(cover.nodes))


def test_convolutions_differ_by_groups_window_and_what_follows() -> None:
    traits = {
        (groups, window): traits_of(convolution(groups, window, "relu"), Format.DENSE)
        for groups in (1, 8)
        for window in (1, 3)
    }
    assert len({one.shapes for one in traits.values() if one is not None}) == 4
    pointwise, windowed = traits[1, 1], traits[1, 3]
    assert pointwise is not None
    assert windowed is not None
    assert (pointwise.operator, pointwise.tail) == (windowed.operator, ("relu",))
    assert windowed.flops > 3 * pointwise.flops, "without padding there are fewer results"


def test_the_work_of_what_has_no_definition_is_unknown() -> None:
    graph = parse_graph(
        """graph(x: f32[2]) {
          return opaque{target="aten.rand.default", arguments=[[2]], types=[f32[2]], is_pure=true}
        }"""
    )
    (cover,) = covers(graph.outputs[0].node, torch.device("cpu"))
    assert traits_of(cover, Format.DENSE) is None


def test_conversions_are_told_by_their_bytes_and_format() -> None:
    graph = parse_graph("graph(x: f32[1,8,6,6]) { return x }")
    there = conversion_traits(graph.inputs[0].value, Format.CHANNELS_LAST)
    assert there.moved == 2 * 4 * 8 * 36
    assert there.distance(conversion_traits(graph.inputs[0].value, Format.DENSE)) == OTHER_FORMAT
