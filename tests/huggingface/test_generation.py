"""Models of transformers that generate: their optimized components give the same tokens, and the same caches."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from taso_py.backend import UNLIMITED, Program, build, fold
from taso_py.backend.schema import storage_of
from taso_py.backend.writes import state_of
from taso_py.entries.entry import import_together
from taso_py.entries.optimize import OptimizedEntry
from taso_py.ir.errors import TasoError
from taso_py.models.source import Source
from taso_py.models.zoo.libraries import declare_missing_torchvision_operators
from taso_py.saving.artifact import without_weights
from taso_py.saving.savable import pt2_bytes
from taso_py.saving.together import SavableEntry
from tests.saving.test_artifact import REPORT

declare_missing_torchvision_operators()
transformers = pytest.importorskip("transformers")
try:
    from taso_py.huggingface import exporter, generation
except TasoError as error:  # another version than those that were tested
    pytest.skip(str(error), allow_module_level=True)
from tests.huggingface.families import FAMILIES, WINDOWS, assert_alike, how_of, inputs_of, model_of  # noqa: E402

QUICK: dict[str, Any] = {"race_seconds": 0.1, "time_limit": 0.5, "kernels": False, "cache": False}


@pytest.fixture
def unsearched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are imported, folded and built, but neither rewritten nor raced, which takes a hundred times as long."""

    def built(source: Source, program: Program) -> OptimizedEntry:
        folded = fold(program, UNLIMITED)
        content, weights = without_weights(pt2_bytes(source, folded, program))
        optimized: Any = SimpleNamespace(module=build(folded))
        return OptimizedEntry(optimized, SavableEntry(content, weights, list(state_of(folded.graph)), REPORT, "", None))

    def all_built(sources: Mapping[str, Source], *_: Any, **__: Any) -> dict[str, OptimizedEntry]:
        return {name: built(sources[name], program) for name, program in import_together(sources).items()}

    monkeypatch.setattr(exporter, "optimize_together", all_built)


def exported(model: Any, given: Any, how: Any, *, dynamic: bool = False) -> Any:
    config = exporter.TasoConfig(options=QUICK, dynamic=dynamic)
    return exporter.TasoExporter().export_for_generation(model, copy.deepcopy(given), config, generation_config=how)


@pytest.mark.parametrize("how_built", ["unsearched", pytest.param("any_gain", marks=pytest.mark.slow)])
def test_an_exported_model_generates_before_and_after_it_is_saved(
    how_built: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    request.getfixturevalue(how_built)
    model = model_of("llama")
    given, how = inputs_of(model, 1, padded=False), how_of(model, static=True)
    expected = model.generate(**given)
    before = exported(model, given, how)
    before.save_pretrained(tmp_path)
    for optimized in (before, transformers.exporters.ExportedModel.from_pretrained(tmp_path)):
        runner = generation.generation_model(optimized)
        assert all(parameter.is_meta for parameter in runner.parameters())
        assert_alike(runner.generate(**given), expected)
        modules = [component.program.module for component in optimized.components.values()]
        prefill, decode = ({storage_of(tensor) for tensor in module.parameters()} for module in modules)
        assert prefill & decode
    own = sum(tensor.nbytes for tensor in model.state_dict().values())
    assert (tmp_path / "weights.pt").stat().st_size < 2 * own + 20_000
    manifest = json.loads((tmp_path / "export.json").read_text())
    assert {entry["file"] for entry in manifest["components"].values()} == {"prefill.taso", "decode.taso"}


@pytest.mark.usefixtures("unsearched")
@pytest.mark.parametrize(
    ("family", "static", "batch", "dtype"),
    [("gpt2", True, 4, torch.float32)]
    + [
        pytest.param(family, True, batch, dtype, marks=pytest.mark.slow)
        for family in FAMILIES
        for batch, dtype in ((1, torch.float32), (4, torch.float32), (1, torch.bfloat16), (4, torch.bfloat16))
        if (family, dtype) != ("mamba", torch.bfloat16)  # refused below
    ]
    + [
        pytest.param(family, False, batch, torch.float32, marks=pytest.mark.slow)
        for family in FAMILIES
        for batch in (1, 4)
    ],
)
def test_families_give_the_same_tokens(family: str, static: bool, batch: int, dtype: torch.dtype) -> None:
    model = model_of(family, dtype)
    given, how = inputs_of(model, batch, padded=batch > 1), how_of(model, static=static)
    expected = model.generate(**given)
    optimized = exported(model, given, how, dynamic=not static)
    assert_alike(generation.generation_model(optimized).generate(**given), expected)


@pytest.mark.parametrize("tokens", [1, 2])
def test_the_length_of_a_cache_is_open_also_where_it_begins_with_one_token(tokens: int) -> None:
    """A size of 1 would be fixed; a longer one is open as it is."""
    caches = [transformers.DynamicCache() for _ in range(2)]
    for cache, length in zip(caches, (tokens, 5), strict=True):
        cache.update(torch.ones(1, 2, length, 4), torch.ones(1, 2, length, 4), 0)
    cache = transformers.EncoderDecoderCache(*caches)
    exporter.register_cache_pytrees_for_model(model_of("t5"))
    found, shapes = exporter._with_open_cache({"past_key_values": cache, "use": True})
    lengths = [sizes[2] for sizes in shapes["past_key_values"]]
    assert [getattr(length, "__name__", "") for length in lengths] == ["cached" if tokens == 1 else ""] * 2 + [""] * 2
    layers = [part.layers[0] for part in vars(found["past_key_values"]).values() if hasattr(part, "layers")]
    assert [tuple(layer.keys.shape) for layer in layers] == [(1, 2, 3 if tokens == 1 else 2, 4), (1, 2, 5, 4)]
    assert cache.get_seq_length() == tokens


@pytest.mark.slow
@pytest.mark.usefixtures("any_gain")
@pytest.mark.parametrize("family", FAMILIES)
def test_families_optimized_give_the_same_tokens(family: str) -> None:
    model = model_of(family)
    given, how = inputs_of(model, 1, padded=False), how_of(model, static=True)
    expected = model.generate(**given)
    assert_alike(generation.generation_model(exported(model, given, how)).generate(**given), expected)


@pytest.mark.usefixtures("unsearched")
@pytest.mark.parametrize("static", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_windows_that_are_counted_in_python_are_refused(static: bool) -> None:
    model = model_of("gemma2", **WINDOWS)
    given, how = inputs_of(model, 1, padded=False), how_of(model, static=static)
    with pytest.raises(exporter.ExporterError, match="returns another structure of past_key_values") as caught:
        exported(model, given, how, dynamic=not static)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("unsearched")
@pytest.mark.slow
def test_a_cache_that_transformers_casts_is_refused() -> None:
    model = model_of("mamba", torch.bfloat16)
    with pytest.raises(exporter.ExporterError, match="export the model in float32"):
        exported(model, inputs_of(model, 1, padded=False), how_of(model, static=True))


def test_a_static_cache_without_a_length_is_refused() -> None:
    model = model_of("llama")
    how = how_of(model, static=True)
    how.max_cache_len = None
    with pytest.raises(exporter.ExporterError, match="give generation_config a max_cache_len"):
        exported(model, inputs_of(model, 1, padded=False), how)


def test_a_version_that_was_not_tested_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for found in ("5.2.0", "5.24.0"):
        monkeypatch.setattr(exporter, "version", lambda _, found=found: found)
        with pytest.raises(exporter.ExporterError, match=rf"{found}.*install transformers=="):
            exporter._check_version()
    monkeypatch.setattr(exporter, "version", lambda _: "5.23.7")
    exporter._check_version()
