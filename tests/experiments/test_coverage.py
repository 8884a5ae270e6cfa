"""Coverage: every model of the corpus is a row, whatever becomes of it, and what is left over is added up."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from experiments.coverage import (
    CHEAPER,
    ENGINES,
    EVERYTHING,
    EXPERIMENT,
    FAMILY,
    LEFT,
    MODEL,
    OPAQUE,
    QUICK,
    TALLY,
    arrange,
    model_rows,
)
from experiments.coverage_corpus import CORPUS, DIFFUSION, FAMILIES, RECURRENT, Built, CorpusModel
from experiments.harness import Row
from taso_py.rules.database import read_database
from taso_py.rules.match import Matcher
from taso_py.rules.text import read_rules

FEWEST = 60


@cache
def matcher() -> Matcher:
    return Matcher(read_database())


class Computing(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def rows_of(function: Callable[[Tensor], Tensor], rules: Matcher | None = None) -> list[Row]:
    def build() -> Built:
        return Computing(function), (torch.randn(8, 8),)

    return list(model_rows(CorpusModel("function", RECURRENT, build), rules or matcher(), seed=0))


def test_there_are_many_models_of_each_family() -> None:
    assert len(CORPUS) >= FEWEST
    assert {model.family for model in CORPUS.values()} == set(FAMILIES)
    assert all(model.name == name for name, model in CORPUS.items())
    assert set(QUICK) <= set(CORPUS)


@pytest.mark.parametrize("name", [name for name, model in CORPUS.items() if model.family == DIFFUSION])
def test_models_of_our_own_are_imported(name: str) -> None:
    row, tally = model_rows(CORPUS[name], matcher(), seed=0)
    assert row["imported"]
    assert 0 < row["cheaper"] <= row["touched"] <= row["in table"] <= 1
    assert tally["kind"] == TALLY


def test_a_model_and_its_inputs_depend_on_the_seed_only() -> None:
    sources = [CORPUS["unet"].source(seed) for seed in (0, 0, 1)]
    first, again, other = ([*source.callable().parameters(), *source.args] for source in sources)
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[-1], other[-1])


def test_a_model_that_is_refused_is_a_row_with_the_reason() -> None:
    (row,) = rows_of(lambda x: x.relu() if x.sum() > 0 else x)
    assert row["kind"] == MODEL
    assert row["imported"] is False
    assert "depends on the data" in row["reason"]
    assert "\n" not in row["reason"]


def gated(x: Tensor) -> Tensor:
    return torch.cumprod(x * torch.sigmoid(x), 0) + 1


def test_shares_of_a_model() -> None:
    row, tally = rows_of(gated)
    assert row["nodes"] == 4
    assert [row[name] for name in ("in table", "touched", "cheaper")] == pytest.approx([3 / 4, 2 / 4, 2 / 4])
    assert (row["opaque"], tally["operators"]) == ("aten.cumprod 1", {"aten.cumprod": 1})
    assert tally["cheaper"] == {"mul(a, sigmoid(a))": 1}
    assert row["rewritten price"] < 1
    assert tally["untouched"]["2"] == {"aten.cumprod(silu(a))": 1, "add(1, aten.cumprod(a))": 1}
    assert row["untouched"] == 1


def test_engines_take_a_model_or_say_why_not() -> None:
    row, _ = rows_of(lambda x: x.relu(), Matcher(()))
    assert (row[ENGINES], row["reason"]) == ("onnxruntime, openvino", "")
    row, _ = rows_of(lambda x: (x.double() + 1).relu(), Matcher(()))
    assert (row[ENGINES], row["reason"]) == (
        "onnxruntime",
        "openvino cannot run this module: OpenVINO computes f64 in f32",
    )


def test_without_rules_nothing_is_touched() -> None:
    row, tally = rows_of(gated, Matcher(()))
    assert [row[name] for name in ("touched", "cheaper", "rewritten price", "untouched")] == [0, 0, 1, 1]
    assert set(tally["untouched"]["2"]) == {"aten.cumprod(mul(a, b))", "add(1, aten.cumprod(a))", "mul(a, sigmoid(a))"}
    assert not any(tally["touched"].values())


def test_what_a_rule_matches_without_a_gain_is_touched() -> None:
    spread = (
        "rule a: float[..B], b: float[..B], c: float[..B] source mul(a, add(b, c)) target add(mul(a, b), mul(a, c))"
    )
    row, tally = rows_of(lambda x: x.relu() * (x + x.sigmoid()), Matcher(read_rules(spread)))
    assert row["touched"] == 0.5
    assert row["cheaper"] == 0
    assert row["rewritten price"] == 1
    assert tally["touched"]["2"] == {"mul(a, add(b, d))": 1}
    assert 0 < row["untouched"] < 1


def test_large_forms_count_for_models_that_have_them_twice() -> None:
    def chain(x: Tensor, times: int) -> Tensor:
        for _ in range(times):
            x = torch.cumprod(x.relu().tanh().exp(), 0)
        return x

    (_, once), (_, twice) = (rows_of(lambda x, times=times: chain(x, times), Matcher(())) for times in (1, 2))
    form = "aten.cumprod(exp(tanh(relu(a))))"
    assert once["untouched"]["3"]["exp(tanh(relu(a)))"] == 1
    assert not once["untouched"]["4"]
    assert twice["untouched"]["4"] == {form: 2}


def model_row(name: str, family: str, **facts: Any) -> Row:
    shares = {"nodes": 10, "in table": 0.5, "touched": 0.4, "cheaper": 0.2, "subgraphs": 4, "untouched": 0.5}
    made = {
        "kind": MODEL,
        "family": family,
        "name": name,
        "imported": True,
        **shares,
        "opaque": "",
        ENGINES: "openvino",
    }
    return {**made, "rewritten price": 0.5, **facts}


def tally_row(untouched: dict[str, int], touched: dict[str, int]) -> Row:
    made = {"operators": {"aten.roll": 2}, "cheaper": {"mul(a, sigmoid(a))": 1}}
    return {"kind": TALLY, **made, "touched": {"2": touched}, "untouched": {"2": untouched}}


def arranged() -> list[Row]:
    refused = {"kind": MODEL, "family": FAMILIES[0], "name": "c", "imported": False, "reason": "why"}
    rows = [
        model_row("b", FAMILIES[1], nodes=30, **{"in table": 1.0}),
        tally_row({"f": 3, "g": 1, "h": 9}, {}),
        model_row("a", FAMILIES[0]),
        tally_row({"f": 2, "g": 4}, {"g": 1}),
        refused,
    ]
    return list(arrange(rows))


def test_families_are_summed_up_behind_their_models() -> None:
    rows = [row for row in arranged() if row["kind"] in (MODEL, FAMILY)]
    assert [row["name"] for row in rows] == ["a", "c", f"all {FAMILIES[0]}", "b", f"all {FAMILIES[1]}", EVERYTHING]
    assert [row["imported"] for row in rows if row["kind"] == FAMILY] == ["1 of 2", "1 of 1", "2 of 3"]
    everything = rows[-1]
    assert everything["nodes"] == 40
    assert everything["rewritten price"] == pytest.approx(0.5)
    assert everything["in table"] == pytest.approx((10 * 0.5 + 30 * 1.0) / 40)
    (sentence,) = EXPERIMENT.headline(rows)
    assert sentence.startswith("2 of 3 models are imported; 87.5% of their 40 operators")
    assert sentence.endswith("onnxruntime 0, openvino 2")


def test_what_is_left_over_comes_in_the_order_of_models_and_number() -> None:
    rows = [row for row in arranged() if row["kind"] in (OPAQUE, LEFT, CHEAPER)]
    found = [(row["kind"], row["name"], row["models"], row["count"]) for row in rows]
    assert found == [
        (OPAQUE, "aten.roll", 2, 4),
        (LEFT, "f", 2, 5),
        (LEFT, "h", 1, 9),  # g, which a rule touches in one model, is not left over
        (CHEAPER, "mul(a, sigmoid(a))", 2, 2),
    ]


@pytest.mark.parametrize("kinds", [(FAMILY,), (FAMILY, OPAQUE, LEFT)])
def test_the_figure_shows_families_and_what_is_left_over(kinds: tuple[str, ...]) -> None:
    figure = Figure()
    EXPERIMENT.plot(figure, [row for row in arranged() if row["kind"] in kinds])
    names = [text.get_text() for axes in figure.axes for text in axes.get_yticklabels()]
    families = [f"{FAMILIES[0]} (1 of 2)", f"{FAMILIES[1]} (1 of 1)", f"{EVERYTHING} (2 of 3)"]
    assert names == families + (["aten.roll", "f", "h"] if LEFT in kinds else [])
