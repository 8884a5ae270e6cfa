"""``generate`` of transformers with static caches behind ``torch.compile(backend="taso")``: optimized, and the same."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from io import StringIO
from typing import Any

import pytest
import torch

from taso_py.backend import Program
from taso_py.backend.writes import Writes
from taso_py.driver.decisions import Decision
from taso_py.dynamo import backend as dynamo
from taso_py.models.zoo.libraries import declare_missing_torchvision_operators
from taso_py.search.trace import Trace, write_trace

declare_missing_torchvision_operators()
pytest.importorskip("transformers", "5.23", reason="its caches changed")
from transformers import CompileConfig  # noqa: E402

from tests.huggingface.agreement import assert_agrees, steering, truth_of  # noqa: E402
from tests.huggingface.families import FAMILIES, WINDOWS, assert_alike, how_of, inputs_of, model_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_compilations")


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """The programs of captured graphs, which are built, with their weights, but neither rewritten nor raced."""
    return _building_only(monkeypatch)


def _building_only(patch: pytest.MonkeyPatch) -> list[Program]:
    """Have the programs of captured graphs built, neither rewritten nor raced; return the list they are added to."""
    programs: list[Program] = []

    def decide(_: Any, source: Any, program: Program) -> tuple[Decision, None]:
        programs.append(program)
        return Decision(False, "eager", write_trace(Trace(program.graph.digest, (), ()))), None

    patch.setattr(dynamo._Compiled, "_decide", decide)
    return programs


CASES = [
    ("llama", False, 1, torch.float32),
    ("gemma2", True, 4, torch.float32),
    *(
        pytest.param(family, windows, batch, dtype, marks=pytest.mark.slow)
        for family in FAMILIES
        for windows in ([False, True] if family.startswith("gemma") else [False])
        for batch in (1, 4)
        for dtype in (torch.float32, torch.bfloat16)
    ),
]


def generated(family: str, windows: bool, batch: int, dtype: torch.dtype, **options: Any) -> tuple[Any, Any]:
    """Return what a model generates behind ``torch.compile``, and in eager mode."""
    model = model_of(family, dtype, **(WINDOWS if windows else {}))
    given, how = inputs_of(model, batch, padded=batch > 1), how_of(model, static=True)
    expected = model.generate(**given)
    return generated_compiled(model, given, how, **options), expected


def generated_compiled(model: Any, given: Mapping[str, Any], how: Any, **options: Any) -> Any:
    """Return what a model generates behind ``torch.compile``, which compiles its steps."""
    how.disable_compile = False
    no_mode: Any = None  # it excludes options
    how.compile_config = CompileConfig(backend=dynamo.taso, mode=no_mode, options={"freeze": True, **options})
    vars(how.compile_config)["_compile_all_devices"] = True  # transformers compiles on its own on GPUs only
    try:
        return model.generate(**given)
    finally:
        how.disable_compile, how.compile_config = True, None


@pytest.mark.parametrize(("family", "windows", "batch", "dtype"), CASES)
def test_generation_runs_optimized(
    family: str,
    windows: bool,
    batch: int,
    dtype: torch.dtype,
    built: list[Program],
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert_alike(*generated(family, windows, batch, dtype))
    assert "runs as it is" not in caplog.text
    assert len(built) == (3 if windows else 1)  # windows that fill up, at a number that varies, and those that are full
    assert all(Writes.of(program.graph).inputs for program in built)


FEW = 12
"""The tokens that are generated with a dynamic cache."""
DECODERS = ("llama", "gpt2", "qwen2", "gemma2", "gemma3")


def generated_with_dynamic_cache(family: str, batch: int, **options: Any) -> tuple[Any, Any]:
    """Return what a model generates whose forward passes are compiled, and in eager mode."""
    model = model_of(family)
    given, how = inputs_of(model, batch, padded=batch > 1), how_of(model, static=False)
    how.max_new_tokens = FEW
    expected = model.generate(**given)
    model.forward = torch.compile(model.forward, backend=dynamo.taso, options={"freeze": True, **options})
    return model.generate(**given), expected


@pytest.mark.parametrize(
    ("family", "batch"),
    [
        ("llama", 1),
        ("gpt2", 4),
        *(pytest.param(family, batch, marks=pytest.mark.slow) for batch in (1, 4) for family in DECODERS[2:]),
    ],
)
def test_a_cache_that_grows_is_optimized_once(family: str, batch: int) -> None:
    # In a process of its own: which sizes Dynamo takes for varying depends on what else it has compiled.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        opened, said = pool.submit(_grown, family, batch).result()
    assert "runs as it is" not in said
    # The prompt, the first step, some of whose sizes may be open already, and all others.
    assert len(opened) == 3
    assert (opened[0], opened[-1]) == (False, True)


def _grown(family: str, batch: int) -> tuple[list[bool], str]:
    """Return whether each graph that is built while a cache grows has open sizes, and what is logged."""
    said = StringIO()
    logging.getLogger("taso_py").addHandler(logging.StreamHandler(said))
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        built = _building_only(patch)
        found, expected = generated_with_dynamic_cache(family, batch)
    assert found.sequences.shape[1] == 5 + FEW
    assert_alike(found, expected)
    return [bool(program.open) for program in built], said.getvalue()


@pytest.mark.slow
@pytest.mark.usefixtures("any_gain")
def test_a_cache_that_grows_by_results(optimizations: list[str], caplog: pytest.LogCaptureFixture) -> None:
    limits = {"race_seconds": 0.1, "time_limit": 0.5, "kernels": False, "cache": False}
    found, expected = generated_with_dynamic_cache("llama", 1, **limits)
    assert_alike(found, expected, 1e-3)
    assert len(optimizations) == 3
    assert "runs as it is" not in caplog.text


@pytest.mark.slow
@pytest.mark.usefixtures("any_gain")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("runtime", ["eager", "onnxruntime", "openvino"])
def test_generation_by_results(family: str, runtime: str, caplog: pytest.LogCaptureFixture) -> None:
    limits = {"race_seconds": 0.1, "time_limit": 0.5, "kernels": False, "cache": False}
    model = model_of(family, **(WINDOWS if family.startswith("gemma") else {}))
    given, how = inputs_of(model, 4, padded=True), how_of(model, static=True)
    expected = model.generate(**given)
    truth = truth_of(model, given, expected)
    found = generated_compiled(model, {**given, **steering(expected)}, how, runtime=runtime, **limits)
    assert_agrees(found, expected, truth)
    assert "runs as it is" not in caplog.text
