"""Random models pass; what is wrong with a rule, a liveness or an import is found, and made small."""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from fuzz import campaign, check
from fuzz.__main__ import main
from fuzz.campaign import BATCH, CampaignTally, run, run_batch
from fuzz.check import CALLED_ONE_IN, Checker, CheckOutcome, DiscrepancyError
from fuzz.draft import Case, Draft
from fuzz.excerpts import add_excerpt, known_rules
from fuzz.kinds import CACHES, COMPLEX, HOOKS, THREADS, WRITING
from taso_py.backend import build, overwrite
from taso_py.backend.bits import PLAIN
from taso_py.engines.onnxruntime import OnnxRuntimeSession
from taso_py.executors import Pool, fingerprint
from taso_py.frontend import import_module, importer
from taso_py.frontend.dialect import movement, strides
from taso_py.frontend.higher_order import writing_call
from taso_py.rules.database import read_database
from taso_py.rules.match import Matcher
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules
from tests.engines.sessions import NAMES, engine_named

TEXT = """
import torch

def model():
    class Model(torch.nn.Module):
        def forward(self, x):
            y = x * 2
            z = y.tanh()
            return z + y, z
    return Model().eval(), (torch.linspace(-2, 2, 12).view(3, 4),)
"""


def _tally(count: int, seed: int) -> CampaignTally:
    tally = CampaignTally()
    for found in run(count, seed):
        tally.add(found)
    return tally


def test_random_models_pass() -> None:
    # Which models a seed means depends on the modules that are loaded; of a dozen none may have a product.
    tally = _tally(36, 0)
    assert [str(failure) for failure in tally.failures] == []
    assert tally.tried == 36
    assert {COMPLEX, THREADS} <= tally.kinds.keys()
    assert tally.rules
    assert tally.kernels


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_many_random_models_pass(seed: int) -> None:
    tally = _tally(200, seed)
    assert [str(failure) for failure in tally.failures] == []
    assert tally.kernels


@pytest.mark.parametrize("kind", [WRITING, HOOKS, CACHES])
def test_models_of_other_kinds_pass(kind: str) -> None:
    tally = run_batch(1, 6, kind)
    assert [str(failure) for failure in tally.failures] == []
    assert tally.kinds[kind]


CONJUGATE = """
import torch

def model():
    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.view_as_real((x * 2).conj().resolve_conj())
    return Model().eval(), (torch.polar(torch.ones(3), torch.arange(3.0)).conj(),)
"""


def test_a_conjugate_that_is_not_resolved_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(CONJUGATE, is_smooth=True)
    assert Checker([]).check(case, 0).refused == ""
    monkeypatch.setattr(importer, "bits_of", lambda tensor: PLAIN)
    monkeypatch.setattr(movement, "bits_of", lambda tensor: PLAIN)
    monkeypatch.setattr(strides, "may_have_bits", lambda value: False)
    with pytest.raises(DiscrepancyError, match="view_as_real doesn't work on unresolved"):
        Checker([]).check(case, 0)


OVERLAPPING = """
import torch
import fuzz.writing

def model():
    class Model(torch.nn.Module):
        def forward(self, x):
            y = x * 2
            torch.ops.taso_fuzz.scale(y[1:], 3.0)
            return y, y.sum()
    return Model().eval(), (torch.linspace(-2, 2, 12).view(3, 4),)
"""


def test_a_write_to_another_place_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(OVERLAPPING, is_smooth=True)
    assert Checker([]).check(case, 1).refused == ""

    def elsewhere(*args: Any, **kwargs: Any) -> Any:
        call = writing_call(*args, **kwargs)
        ((base, shape, stride, offset),) = call.op.views
        return replace(call, op=replace(call.op, views=((base, shape, stride, offset - 4),)))

    monkeypatch.setattr(importer, "writing_call", elsewhere)
    with pytest.raises(DiscrepancyError, match="as imported: the results differ"):
        Checker([]).check(case, 1)


def test_a_result_that_threads_disturb_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that keeps what it computes in itself between two of its calls."""
    kept: dict[str, Any] = {}

    def shared(*args: Any, **kwargs: Any) -> Any:
        built = build(*args, **kwargs)
        forward = built.forward

        def disturbed(x: Any) -> Any:
            kept["x"] = x
            if threading.current_thread() is not threading.main_thread():
                time.sleep(0.001)
                kept["x"] = kept["x"] + 1
            return forward(kept["x"])

        built.forward = disturbed
        return built

    checker, case = Checker([]), Case(TEXT, is_smooth=True)
    assert THREADS in checker.check(case, CALLED_ONE_IN).kinds
    monkeypatch.setattr(check, "build", shared)
    with pytest.raises(DiscrepancyError, match="called at once"):
        checker.check(case, CALLED_ONE_IN)


def test_the_seed_decides() -> None:
    assert run_batch(5, 2) == run_batch(5, 2)


@pytest.mark.parametrize("numerics", ["EXACT", "REORDER"])
def test_a_false_rule_is_found(numerics: str) -> None:
    (false,) = read_rules(f"rule x: float[..B] source tanh(x) target sigmoid(x) numerics {numerics}")
    with pytest.raises(DiscrepancyError, match=f"rewritten by {false.id}"):
        Checker([false]).check(Case(TEXT, is_smooth=True), 3)
    assert Checker(read_database()).check(Case(TEXT, is_smooth=True), 3).refused == ""


class Drawn(Draft):
    """A draft that draws from a seed, of rules a given one."""

    def __init__(self, seed: int, rule: Substitution) -> None:
        super().__init__(lambda strategy: None)
        self._chance, self._rule = random.Random(seed), rule

    def integer(self, low: int, high: int) -> int:
        return self._chance.randint(low, high)

    def choice(self, options: Sequence[Any]) -> Any:
        return self._rule if self._rule in options else self._chance.choice(options)


def test_the_source_of_a_rule_is_written_so_that_it_matches() -> None:
    rules, matched = known_rules()[::36], set[str]()
    for number, rule in enumerate(rules):
        draft = Drawn(number, rule)
        add_excerpt(draft)
        results = ", ".join(name for name in draft.values if name.startswith("v"))
        if results:
            module, args = draft.case(f"({results},)").make()
            with torch.no_grad():
                found = Matcher([rule]).matches(import_module(module, args).graph)
            matched |= {match.rule.id for match in found}
    assert len(matched) > len(rules) / 2


class Picky:
    """A checker that cannot stand sums."""

    def check(self, case: Case, seed: int) -> CheckOutcome:
        case.make()
        if ".sum(" in case.text:
            raise DiscrepancyError("a sum")
        return CheckOutcome()


def test_a_failing_model_is_made_small_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "_checker", lambda _engines: Picky())
    (failure,) = run_batch(0, 500).failures
    (line,) = (line for line in failure.text.splitlines() if line.strip().startswith("v"))
    assert ".sum(" in line
    with pytest.raises(DiscrepancyError):
        Picky().check(Case(str(failure), is_smooth=True), failure.seed)


def test_engines_compute_models_and_what_they_compute_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case, checker = Case(TEXT, is_smooth=True), Checker([], [engine_named(name).name for name in NAMES])
    outcome = checker.check(case, 3)
    assert (outcome.engines, outcome.refusals) == (NAMES, ())
    forward = OnnxRuntimeSession.forward
    monkeypatch.setattr(OnnxRuntimeSession, "forward", lambda *given: [x * (1 + 1e-3) for x in forward(*given)])
    with pytest.raises(DiscrepancyError, match=r"^in onnxruntime, result 0: error"):
        checker.check(case, 3)
    monkeypatch.setattr(OnnxRuntimeSession, "forward", lambda *given: [x.double() for x in forward(*given)])
    with pytest.raises(DiscrepancyError, match=r"^in onnxruntime: results have other shapes or types"):
        checker.check(case, 3)


def test_what_engines_refuse_is_counted() -> None:
    case = Case(TEXT.replace("y.tanh()", "y.lgamma()"), is_smooth=True)
    tally = CampaignTally()
    tally.count(Checker([], [engine_named(name).name for name in NAMES]).check(case, 3))
    assert not tally.engines
    assert [reason.partition(" cannot")[0] for reason in tally.refusals] == list(NAMES)
    assert "refused 1 x: openvino cannot run this module: aten.lgamma.default has no row" in str(tally)


def test_a_wrong_liveness_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(node: object, operand: object, storages: object) -> bool:
        return True

    monkeypatch.setattr(overwrite, "_may_take", careless)
    with pytest.raises(DiscrepancyError, match="overwritten"):
        Checker([]).check(Case(TEXT, is_smooth=True), 0)


def test_an_exception_that_is_no_refusal_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(importer, "lower", broken)
    with pytest.raises(DiscrepancyError, match="KeyError"):
        Checker([]).check(Case(TEXT, is_smooth=True), 0)


def _dies(number: int, count: int, kind: str) -> CampaignTally:
    if number == BATCH:
        os._exit(1)
    return CampaignTally(tried=count)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs processes that fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_that_dies_is_a_failure_and_loses_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "run_batch", _dies)
    tally = CampaignTally()
    fingerprint()  # found out once: processes that fork know it
    pool = Pool(lambda: ProcessPoolExecutor(2, multiprocessing.get_context("fork")))
    try:
        for found in run(3 * BATCH, 0, pool):
            tally.add(found)
    finally:
        pool.close(wait=True)
    assert tally.tried == 3 * BATCH
    (failure,) = tally.failures
    assert failure.batch == BATCH


def test_a_batch_without_models_is_a_failure_and_ends_no_campaign(monkeypatch: pytest.MonkeyPatch) -> None:
    @st.composite
    def broken(draw: st.DrawFn, kind: str) -> Case:
        draw(st.integers())
        raise RuntimeError("cannot draw")

    monkeypatch.setattr(campaign, "models", broken)
    found = list(run(2 * BATCH, 0))
    assert [failure.reason for tally in found for failure in tally.failures] == [
        "no model was made: RuntimeError: cannot draw"
    ] * 2


def test_the_command_tells_what_became_of_the_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--count", "3", "--seed", "1"]) == 0
    assert capsys.readouterr().out.startswith("3 models: ")


def test_the_command_refuses_nonsense(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--count", "0"])
    assert "at least 1" in capsys.readouterr().err
