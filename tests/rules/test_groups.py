"""Convolutions that have nothing in common, as one of as many groups."""

from __future__ import annotations

import pytest

from taso_py.ir.graph import Graph
from taso_py.ops.table import parse_graph
from taso_py.rules.apply import apply
from taso_py.rules.lemma import LEMMA
from taso_py.rules.verdict import Numerics, Outcome
from taso_py.search.backtracking import search
from taso_py.search.result import Limits
from tests.rules.examples import assert_follows, assert_replayed, lemmas, rules, running
from tests.search.examples import FakeCost
from verify import check, prove

MOST_TO_PROVE = 4
"""The prover takes graphs of up to a hundred operators."""
PLAIN = "conv2d(x{0}, w{0})"
BIASED = "conv2d(x{0}, w{0}, b{0}){{stride=[2,1], padding=[1,0], dilation=[1,2]}}"


def convolutions(count: int, done: str = PLAIN, image: str = "2,4,7,6", kernel: str = "5,4,3,2") -> Graph:
    """Convolutions of images, each by a kernel of its own."""
    features = kernel.partition(",")[0]
    inputs = ", ".join(f"x{i}: f32[{image}]" for i in range(count))
    weights = "".join(
        f'w{i} = weight{{key="w.{i}", type=f32[{kernel}]}} b{i} = weight{{key="b.{i}", type=f32[{features}]}} '
        for i in range(count)
    )
    results = ", ".join(f"tanh({done.format(i)})" for i in range(count))
    return parse_graph(f"graph({inputs}) {{ {weights} return {results} }}")


@pytest.mark.parametrize(
    ("graph", "groups"),
    [
        (convolutions(3), 3),
        (convolutions(4, BIASED), 4),
        (convolutions(12), 12),
        (convolutions(3, "conv2d(x{0}, w{0}){{groups=2}}", kernel="6,2,3,3"), 6),
        (convolutions(3, "conv2d(x{0}, w{0}){{padding=[1,1], groups=4}}", kernel="4,1,3,3"), 12),
    ],
)
def test_convolutions_with_nothing_in_common_are_one_of_groups(graph: Graph, groups: int) -> None:
    (match,) = lemmas(graph)
    after = apply(graph, match)
    assert after is not None
    assert [name for name in running(after) if name != "tanh"] == ["concat", "conv2d"]
    assert f"groups={groups}" in match.rule.statement
    assert match.rule.numerics is Numerics.REORDER
    assert match.rule.proof == LEMMA
    assert check(match.rule).outcome is not Outcome.REFUTED
    assert len(graph.outputs) > MOST_TO_PROVE or prove(match.rule).outcome is Outcome.PROVED


@pytest.mark.parametrize(
    "graph",
    [
        convolutions(2),
        convolutions(4, "conv2d(x{0}, w0)"),
        convolutions(4, "conv2d(x{0}, w{0}, b0)"),
    ],
)
def test_what_is_few_or_shared_is_left_to_other_rules(graph: Graph) -> None:
    assert not any("groups" in match.rule.statement for match in lemmas(graph))


def test_batch_norms_of_parts_of_an_image_are_one_but_not_of_images_that_would_be_copied() -> None:
    def norms(image: str) -> Graph:
        vectors = "".join(f'{name}{i} = weight{{key="{name}.{i}", type=f32[4]}} ' for i in range(3) for name in "wbms")
        images = [image.format(i, 4 * i, 4 * i + 4) for i in range(3)]
        results = ", ".join(f"batch_norm({images[i]}, w{i}, b{i}, m{i}, s{i}){{eps=0.1}}" for i in range(3))
        inputs = ", ".join(["x: f32[2,12,5,6]", *(f"x{i}: f32[2,4,5,6]" for i in range(3))])
        return parse_graph(f"graph({inputs}) {{ {vectors} return {results} }}")

    graph = norms("slice(x){{axis=-3, start={1}, stop={2}}}")
    (match,) = lemmas(graph)
    after = apply(graph, match)
    assert after is not None
    assert running(after) == ["concat", "batch_norm"]
    assert_follows(match)
    assert prove(match.rule).outcome is Outcome.PROVED
    assert not lemmas(norms("x{0}"))


def test_convolutions_that_differ_are_no_groups() -> None:
    strides = (1, 1, 2, 2)
    inputs = ", ".join(f"x{i}: f32[1,4,7,6], w{i}: f32[5,4,3,2]" for i in range(4))
    results = ", ".join(f"conv2d(x{i}, w{i}){{stride=[{stride},1]}}" for i, stride in enumerate(strides))
    assert not lemmas(parse_graph(f"graph({inputs}) {{ return {results} }}"))


def test_a_lemma_follows_from_its_rule_and_no_other() -> None:
    (match,) = lemmas(convolutions(3, BIASED))
    assert len(match.bases) == 1
    assert_follows(match)


def test_the_layers_of_networks_are_one_layer_each_and_the_trace_is_replayed() -> None:
    """The images that later layers read are parts of one value, which is not taken apart."""
    layers = "".join(
        f'w{i} = weight{{key="w.{i}", type=f32[4,3,3,3]}} v{i} = weight{{key="v.{i}", type=f32[6,4,3,3]}} '
        f"t{i} = conv2d(relu(conv2d(x, w{i}){{stride=[2,2]}}), v{i}){{padding=[1,1]}} "
        for i in range(5)
    )
    joined = ", ".join(f"t{i}" for i in range(5))
    graph = parse_graph(f"graph(x: f32[2,3,9,9]) {{ {layers} return concat({joined}){{axis=-3}} }}")
    found = search(graph, rules(), FakeCost({"slice": 0.1}), Limits(seconds=60.0)).best
    assert running(found.graph) == ["conv2d", "relu", "conv2d"]
    assert_replayed(graph, found)
