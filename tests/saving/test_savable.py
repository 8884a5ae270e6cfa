"""What has no form to be saved in: it is optimized all the same, and refused at once where it is to be saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from taso_py.backend import Plan
from taso_py.driver import optimize, prepare, searches
from taso_py.driver.result import Optimized
from taso_py.frontend import ImportRefusal
from taso_py.ir.errors import TasoError
from taso_py.judging import evaluation
from taso_py.judging.timing import Race, RaceStop
from taso_py.kernels.saved import dump
from taso_py.latency.latencies import Latencies
from taso_py.models.importing import import_source
from taso_py.models.source import Source
from taso_py.saving import artifact
from taso_py.saving.artifact import UnsavableError
from taso_py.saving.folder import ArtifactError
from taso_py.saving.loading import load
from taso_py.saving.savable import is_plain
from tests.round_trips import Model

X = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


CASES: dict[str, tuple[Callable[..., Any], Any, str]] = {
    "the result of an operator": (lambda _, x: x.relu().topk(2), X, "No registered serialization name for <class "),
    "a named tuple as result": (lambda _, x: Pair(x.relu(), x + 1), X, "serialize TreeSpec of namedtuple class"),
    "a named tuple as argument": (lambda _, p: p.first - p.second, Pair(X, X + 1), "serialize TreeSpec of namedtuple"),
    "a string": (lambda _, x: {"y": x.relu(), "kind": "text"}, X, "cannot read back what it has saved"),
    "nothing": (lambda _, x: (), X, "the model returns nothing"),
    "keys that are tuples": (lambda _, x: {(1, 2): x.relu()}, X, "keys of a dict are read back as something else"),
}


def _optimized(model: Any, args: tuple[Any, ...] = (), output: Path | None = None, **options: Any) -> Optimized:
    settings: dict[str, Any] = {"kernels": False, "race_seconds": 0.1, "time_limit": 1.0, "cache": False, **options}
    return optimize.optimize(model, args, output=output, **settings)


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_saved_is_judged_as_it_is(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    function, argument, reason = CASES[name]
    found = _optimized(Model(function), (argument,), reload=True)
    assert found.report.comparison_passed
    (note,) = [note for note in found.report.notes if note.startswith("cannot be saved (")]
    assert reason in note
    assert "\n" not in note
    assert note.endswith("); the result was checked without a round trip through a file")
    assert capfd.readouterr() == ("", ""), "what torch.export logs is not for users"
    result, expected = found.module(argument), function(None, argument)
    assert type(result) is type(expected)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5) if name != "a string" else None


@pytest.mark.parametrize("name", CASES)
def test_what_is_to_be_saved_and_cannot_is_refused_before_the_search(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searches, "search", _not_reached)
    function, argument, reason = CASES[name]
    with pytest.raises(ArtifactError, match=r"the result could not be saved: .* lists or dicts, or leave") as caught:
        _optimized(Model(function), (argument,), tmp_path)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_saved_is_not_plain(name: str) -> None:
    function, argument, _ = CASES[name]
    assert not is_plain(import_source(Source(name, Model(function), (argument,))))


def test_operators_of_the_table_on_tensors_are_saved_without_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "check_savable", _tried)
    plain = Model(lambda _, x, more: [x.relu(), {"sum": more["y"] + x}])
    arguments = X, {"y": X + 1}
    assert is_plain(import_source(Source("plain", plain, arguments)))
    _optimized(plain, arguments, tmp_path)
    torch.testing.assert_close(load(tmp_path)(*arguments), plain(*arguments))
    with pytest.raises(TasoError, match="the trial was reached"):
        _optimized(Model(lambda _, x: x.logcumsumexp(0)), (X,), tmp_path)


def test_sizes_may_be_open_in_what_cannot_be_saved() -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(Model(lambda _, x: x.relu().max(-1)), (X,), dynamic_shapes=(({0: batch},),))
    found = _optimized(program)
    assert found.report.comparison_passed
    assert isinstance(found.module(X[:3]), torch.return_types.max)


def _not_imported(*_: object) -> None:
    raise ImportRefusal("cannot export the model, says somebody")


def test_what_cannot_be_imported_again_is_judged_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of a result with kernels is imported to find them again."""
    monkeypatch.setattr(evaluation, "race", _all_lead)
    monkeypatch.setattr(evaluation, "confirm", _confirmed)
    monkeypatch.setattr(artifact, "import_program", _not_imported)
    found = _optimized(Model(lambda _, x: x.relu()), (X,), kernels=True, reload=True)
    assert any(note.startswith("cannot be saved (cannot export the model") for note in found.report.notes)


def test_what_cannot_be_imported_again_is_refused_before_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searches, "search", _not_reached)
    monkeypatch.setattr(artifact, "import_program", _not_imported)
    model = Model(lambda _, x: x.relu().logcumsumexp(0))
    with pytest.raises(ArtifactError, match=r"a saved result could not be read again: .*; leave --output out"):
        _optimized(model, (X,), tmp_path)
    with pytest.raises(TasoError, match="the search was reached"):
        _optimized(model, (X,))


def test_what_alone_cannot_be_saved_is_refused_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(plan: Plan) -> object:
        if plan.steps:
            raise UnsavableError("for a reason")
        return dump(plan)

    # In so small a model plain calls are at times measured to be faster than kernels.
    monkeypatch.setattr(Latencies, "of_cover", lambda _, cover, __: 1e-3 if cover.binder is None else 1e-6)
    monkeypatch.setattr(evaluation, "dump", refusing)
    monkeypatch.setattr(evaluation, "race", _all_lead)
    monkeypatch.setattr(evaluation, "confirm", _confirmed)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    found = _optimized(model, (X,), tmp_path, kernels=True)
    assert found.keeps_original
    assert any("cannot be saved (for a reason)" in note for note in found.report.notes)
    assert torch.equal(load(tmp_path)(X), model(X))


def _all_lead(contestants: Mapping[str, object], **_: object) -> Race:
    """A race in which everything is faster than the original, which is the first."""
    return Race({name: (9.0 - place,) * 6 for place, name in enumerate(contestants)}, RaceStop.TIME)


def _confirmed(*_: object, **__: object) -> Race:
    """A confirming race in which the winner is twice as fast."""
    return Race({"baseline": (2.0,) * 10, "winner": (1.0,) * 10}, RaceStop.ROUNDS)


def _tried(*_: object) -> None:
    raise TasoError("the trial was reached")


def _not_reached(*_: object, **__: object) -> None:
    raise TasoError("the search was reached")
