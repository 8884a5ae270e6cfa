"""Programs on arrays and their best forms: the two agree, the search leads from one to the other, and rows say so."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

from experiments import engines
from experiments.harness import Row
from experiments.programs import GROUPS, PROGRAMS, ArrayProgram, Computing, Function
from experiments.relatives import (
    EXPERIMENT,
    MARGIN,
    MODELS,
    PUBLISHED,
    QUICK,
    arrange,
    check_best_form,
    is_reached,
    model_rows,
)
from experiments.running import circumstances_of, part_path
from fuzz.prices import ModelledCost
from taso_py.driver.prepare import source_of
from taso_py.ir.errors import TasoError
from taso_py.ir.graph import Graph
from taso_py.kernels.tile import Cover, Formats
from taso_py.models.importing import import_source
from taso_py.ops.movement import Contiguous
from taso_py.rules.database import read_database
from taso_py.rules.match import Matcher
from taso_py.search.backtracking import search
from taso_py.search.result import Limits
from tests.experiments.examples import settings

KNOWN = {program.name: program for program in PROGRAMS}
MISSED = ("exponential of logarithms",)
"""Programs whose best form is equal to them for positive inputs only."""
FEWEST, LEAST_ELEMENTS = 30, 500_000


class Priced(ModelledCost):
    """Prices from a model of a machine, on which a copy of what is dense costs nothing, as in PyTorch."""

    def cover_seconds(self, cover: Cover, formats: Formats) -> float:
        copies_dense = isinstance(cover.root.op, Contiguous) and not cover.root.inputs[0].node.op.is_view
        return 1e-6 if copies_dense else super().cover_seconds(cover, formats)


@cache
def matcher() -> Matcher:
    return Matcher(read_database())


def graph_of(function: Function, program: ArrayProgram) -> Graph:
    return import_source(source_of(Computing(function).eval(), program.inputs(0), {})).graph


def test_there_are_many_programs_of_each_group_under_names_of_their_own() -> None:
    assert len(KNOWN) == len(PROGRAMS) >= FEWEST
    counts = Counter(program.group for program in PROGRAMS)
    assert list(counts) == list(GROUPS)
    assert min(counts.values()) >= 5
    assert set(QUICK) <= set(KNOWN)
    assert all(max(x.numel() for x in program.inputs(0)) >= LEAST_ELEMENTS for program in PROGRAMS)


@pytest.mark.parametrize("name", KNOWN)
def test_a_program_and_its_best_form_agree(name: str) -> None:
    check_best_form(KNOWN[name], seed=1)


def test_a_best_form_that_computes_something_else_is_refused() -> None:
    program = KNOWN["multiples collected"]
    for wrong in (lambda a: 5.00001 * a, lambda a: 5 * a[:1]):
        with pytest.raises(TasoError, match="computes something else"):
            check_best_form(replace(program, best=wrong), seed=0)
    with pytest.raises(TasoError, match="computes something else"):
        check_best_form(replace(KNOWN[MISSED[0]], is_positive=False), seed=0)


@pytest.mark.parametrize("name", KNOWN)
@torch.no_grad()
def test_the_search_leads_to_the_best_form(name: str) -> None:
    program = KNOWN[name]
    prices = Priced(0)
    original, best = (graph_of(form, program) for form in (program.original, program.best))
    assert original.outputs != best.outputs
    found = search(original, matcher(), prices, Limits(seconds=60)).best.graph
    reached = found.outputs == best.outputs or prices.graph_cost(found) <= MARGIN * prices.graph_cost(best)
    assert reached == (name not in MISSED)


def row(**changes: Any) -> Row:
    made = {"program": "p", "group": GROUPS[0], "ours": 2.0, "best": 2.0, "inductor": 1.5, "ours/best": 1.0}
    facts = {"ours/best_low": 0.98, "ours/best_high": 1.02, "same graph": False, "predicted/best": 1.0}
    return {**made, **facts, **changes}


def test_a_program_is_reached_by_its_graph_or_by_price_and_time() -> None:
    assert is_reached(row())
    assert is_reached(row(**{"same graph": True, "predicted/best": 2.0}))
    assert not is_reached(row(**{"predicted/best": 1.2}))
    assert not is_reached(row(**{"ours/best_high": 0.9}))


def test_groups_are_summed_up_behind_their_programs() -> None:
    rows = [
        row(program="a", reached=True, ours=4.0),
        row(program="b", group=GROUPS[1], reached=True),
        row(program="c", reached=False, ours=1.0),
        {"program": "resnet50", "group": MODELS},
    ]
    arranged = arrange(rows)
    names = ["a", "c", f"all {GROUPS[0]}", "b", f"all {GROUPS[1]}", "all programs", "resnet50"]
    assert [each["program"] for each in arranged] == names
    assert [each["reached"] for each in arranged if each["group"] == "summary"] == ["1 of 2", "1 of 1", "2 of 3"]
    assert arranged[2]["ours"] == pytest.approx(2.0)
    (sentence,) = EXPERIMENT.headline(arranged)
    assert sentence.startswith("2 of 3 programs reach their best known form")
    assert not EXPERIMENT.headline(rows)


def test_models_have_the_rows_of_engines(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    with pytest.raises(TasoError, match="run the experiment engines first"):
        list(model_rows(chosen))
    measured = {
        "rules in onnxruntime": 1.5,
        "rules in onnxruntime_low": 1.4,
        "rules in onnxruntime_high": 1.6,
        "auto": 9.0,
    }
    path = part_path(chosen, engines.EXPERIMENT.name, "nasrnn")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**circumstances_of(chosen), "rows": [{"model": "nasrnn", **measured}]}))
    found = {each["program"]: each for each in model_rows(chosen)}
    assert list(found) == list(PUBLISHED)
    del measured["auto"]
    assert found["nasrnn"] == {"program": "nasrnn", "group": MODELS, **measured, "published": 1.4, "missing": ""}
    assert "rules in onnxruntime" not in found["resnet50"]
    assert found["resnet50"]["missing"]
    assert "published" not in found["squeezenet1_1"]


@pytest.mark.parametrize("shown", [slice(None), slice(3), slice(3, None)], ids=["all", "programs", "models"])
def test_the_figure_shows_programs_and_models(shown: slice) -> None:
    interval = {f"{way}{end}": 2.0 for way in ("ours", "best", "inductor") for end in ("_low", "_high")}
    programs = [row(program=name, reached=name != "b", **interval) for name in "abc"]
    models = [{"program": "nasrnn", "group": MODELS, "published": 1.4}, {"program": "vit", "group": MODELS}]
    figure = Figure()
    EXPERIMENT.plot(figure, arrange([*programs, *models][shown]))
    names = [text.get_text() for axes in figure.axes for text in axes.get_yticklabels()]
    assert names == ["a", "b (not reached)", "c", "nasrnn", "vit"][shown]
