"""The main job on unusual operators and arguments, and under unusual settings of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from taso_py.driver.decisions import KNOWN_SHARE
from taso_py.driver.optimize import optimize
from taso_py.driver.prepare import IN_TRAINING
from taso_py.ir.errors import TasoError
from taso_py.options import Options
from taso_py.rules.verdict import Numerics
from taso_py.saving.loading import load
from tests.round_trips import Model

X = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
QUICK: dict[str, Any] = {"kernels": False, "race_seconds": 0.1, "time_limit": 1.0, "cache": False}


@pytest.mark.parametrize("error", [AssertionError, TypeError, ValueError])
def test_an_operator_that_checks_its_element_type_is_compared_with_itself(error: type[Exception]) -> None:
    name = f"taso_py_test_checked::{error.__name__}"

    def double(x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise error("single precision only")
        return x * 2

    operator: Any = torch.library.custom_op(name, double, mutates_args=())
    operator.register_fake(torch.empty_like)
    # What depends on weights only is computed when the reference is built.
    found = optimize(Model(lambda s, x: x + operator(s.w), w=X.clone()), X, **QUICK)
    assert found.report.comparison_passed
    assert (
        "the model cannot be computed in float64 (single precision only); compared with the original instead"
        in found.report.notes
    )


def test_autocast_around_the_job_is_refused() -> None:
    """It would cast inside of kernels; the default element type of autocast does not matter."""
    model = nn.Linear(8, 8).eval()
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(TasoError, match="module that enters it in forward"):
        optimize(model, X, **QUICK)
    with torch.autocast("cpu", enabled=False):
        assert optimize(model, X, **QUICK).report.comparison_passed


@pytest.mark.parametrize(
    ("layer", "differs"),
    [(nn.Dropout(0.5), True), (nn.BatchNorm1d(8), True), (nn.Dropout(0.0), False), (nn.Linear(8, 8), False)],
    ids=["dropout", "batch normalisation", "idle dropout", "linear"],
)
def test_training_mode_is_noted_where_it_makes_a_difference(layer: nn.Module, differs: bool) -> None:
    model = nn.Sequential(layer)
    assert (IN_TRAINING in optimize(model, X, **QUICK).report.notes) == differs
    assert IN_TRAINING not in optimize(model.eval(), X, **QUICK).report.notes


def test_what_is_on_the_meta_device_is_refused() -> None:
    with pytest.raises(TasoError, match="on the meta device, which computes nothing; move them"):
        optimize(nn.Linear(8, 8, device="meta").eval(), X.to("meta"), **QUICK)


@pytest.fixture
def meta() -> Iterator[None]:
    """Everything is made on the meta device unless it is told otherwise."""
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@pytest.mark.usefixtures("meta")
def test_the_default_device_may_be_one_that_computes_nothing(tmp_path: Path) -> None:
    with torch.device("cpu"):
        model = nn.Linear(8, 8).eval()
    found = optimize(model, X, output=tmp_path, **QUICK)
    assert not [note for note in found.report.notes if "cannot be saved" in note]
    with torch.no_grad():
        for module in (found.module, load(tmp_path)):
            torch.testing.assert_close(module(X), model(X))


def test_numbers_may_be_those_of_numpy() -> None:
    options: dict[str, Any] = {**QUICK, "seed": np.int64(3), "budget": np.int64(20), "alpha": np.float32(1.05)}
    assert optimize(nn.ReLU(), X, **options).report.comparison_passed


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((5,), {}, "example_inputs must be a tensor or a tuple of inputs, not of type int"),
        (("text",), {}, "example_inputs must be a tensor or a tuple of inputs, not of type str"),
        (({"input": X},), {}, "give a dict of keyword inputs as example_kwargs"),
        ((X, [1]), {}, "example_kwargs must be a dict of inputs by their names"),
        ((X, {1: X}), {}, "example_kwargs must be a dict of inputs by their names"),
        ((X,), {"output": 5}, "output must be the path of a folder, not 5"),
        ((X,), {"output": ""}, "output must be the path of a folder, not ''; the current folder is '.'"),
        (
            (X,),
            {"positive": nn.MultiheadAttention(2, 1)},
            r"positive must be a list of names of inputs, not MultiheadAttention\(",
        ),
        ((X,), {"kernels": nn.Sequential(nn.ReLU())}, r"kernels must be True or False, not Sequential\("),
        ((X,), {"positive": 5}, "positive must be a list of names of inputs, not 5"),
        (((X.numpy(),),), {}, r"an example input is a numpy.ndarray; give a tensor \(torch.as_tensor\)"),
        ((X, {"s": np.int64(3)}), {}, "an example input is a numpy.int64"),
        ((X,), {"cache": "no"}, "cache must be True or False, not 'no'"),
        ((X,), {"kernels": 1}, "kernels must be True or False, not 1"),
        ((X,), {"budget": True}, "budget must be a whole number, not True"),
        ((X,), {"race_seconds": "1"}, "race_seconds must be a number, not '1'"),
        ((X,), {"time_limit": "long"}, "time_limit must be a number, not 'long'"),
        ((X,), {"effort": "none"}, "no effort is called none; there are quick, normal, thorough"),
        ((X,), {"effort": None}, "effort must be a name, not None"),
        ((X,), {"seed": 1.5}, "seed must be a whole number, not 1.5"),
        ((X,), {"budget": 1e3}, "budget must be a whole number, not 1000.0"),
        ((X,), {"search": []}, r"search must be a name, not \[\]"),
        ((X,), {"numerics": 1}, "no numerics class is called '1'; there are exact"),
    ],
)
def test_a_mistaken_argument_is_one_line(arguments: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TasoError, match=message) as caught:
        optimize(nn.ReLU(), *arguments, **options)
    assert "\n" not in str(caught.value)


def test_races_are_as_short_as_the_search_unless_the_user_sets_their_length() -> None:
    normal = Options().effective_effort
    assert Options().evaluation_effort(KNOWN_SHARE) == replace(normal, race_s=KNOWN_SHARE * normal.race_s)
    assert Options().evaluation_effort(1.0) == normal
    assert Options(race_seconds=7.0).evaluation_effort(KNOWN_SHARE).race_s == 7.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda"}, "there is no option 'device'; did you mean"),
        ({"time_limt": 3}, "there is no option 'time_limt'; did you mean time_limit"),
        ({"numerics": "reordered"}, "no numerics class is called 'reordered'; there are exact, reorder"),
        ({"seed": -1}, "seed must be a whole number from 0"),
        ({"seed": 2**64}, "seed must be a whole number from 0"),
        ({"alpha": float("nan")}, "alpha and growth"),
        ({"time_limit": float("nan")}, "a time limit"),
        ({"race_seconds": float("nan")}, "race_seconds must be positive"),
    ],
)
def test_options_without_meaning_are_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TasoError, match=message):
        optimize(nn.ReLU(), X, **options)


def test_a_numerics_class_has_a_label() -> None:
    assert Options(numerics="zero-terms") == Options(numerics=Numerics.ZERO_TERMS)  # pyright: ignore[reportArgumentType]
    assert [Numerics.labelled(one.label) for one in Numerics] == list(Numerics)
