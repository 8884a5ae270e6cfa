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
from torch import Tensor
from torch.utils import _pytree as pytree

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

QUICK: dict[str, Any] = {"race_seconds": 0.1, "time_limit": 0.5, "kernels": False, "cache": False}
WORDS, STEPS = 60, 64
IDS = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0, "vocab_size": WORDS}
SIZES: dict[str, Any] = {
    **IDS, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1,
    "max_position_embeddings": 128,
}  # fmt: skip
GEMMA = {**SIZES, "num_hidden_layers": 2, "head_dim": 8}
FULL = ["full_attention", "full_attention"]
WHISPER: dict[str, Any] = {
    **IDS, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "num_mel_bins": 8,
    "max_source_positions": 20, "max_target_positions": 128, "decoder_start_token_id": 1, "suppress_tokens": None,
    "begin_suppress_tokens": None,
}  # fmt: skip
FAMILIES: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {**SIZES, "num_hidden_layers": 1}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {**SIZES, "num_hidden_layers": 1}),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**GEMMA, "layer_types": FULL}),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**GEMMA, "layer_types": FULL}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {**IDS, "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 128}),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {**IDS, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0},
    ),
    "whisper": ("WhisperForConditionalGeneration", "WhisperConfig", WHISPER),
    "mamba": ("MambaForCausalLM", "MambaConfig", {**IDS, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 1}),
}  # fmt: skip


def model_of(family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """Return a small random model whose tokens are not all alike."""
    architecture, config, sizes = FAMILIES[family]
    torch.manual_seed(0)
    model = getattr(transformers, architecture)(getattr(transformers, config)(**{**sizes, **changes})).eval().to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    return model


def inputs_of(model: Any, batch: int, *, padded: bool) -> dict[str, Tensor]:
    """Return a prompt, whose first row has padding on its left if wanted."""
    if model.config.model_type == "whisper":
        return {"input_features": torch.randn(batch, 8, 40, dtype=model.dtype)}
    ids = torch.randint(2, WORDS, (batch, 5))
    mask = torch.ones_like(ids)
    if padded:
        ids[0, :2] = mask[0, :2] = 0
    return {"input_ids": ids, "attention_mask": mask}


def how_of(model: Any, *, static: bool) -> Any:
    """Return how to generate: the likeliest token, STEPS times."""
    more: dict[str, Any] = {"cache_implementation": "static", "max_cache_len": 80} if static else {}
    if model.config.is_encoder_decoder:
        more["decoder_start_token_id"] = model.config.decoder_start_token_id
    ids = {name: IDS[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    how = transformers.GenerationConfig(
        max_new_tokens=STEPS,
        do_sample=False,
        disable_compile=True,
        return_dict_in_generate=True,
        output_logits=True,
        **ids,
        **more,
    )
    model.generation_config = how
    return how


def assert_alike(found: Any, expected: Any) -> None:
    """Assert that tokens, the numbers that they were chosen by, and the state after them agree."""
    assert torch.equal(found.sequences, expected.sequences)
    assert len(set(expected.sequences.flatten().tolist())) > 1
    torch.testing.assert_close(found.logits, expected.logits)
    assert not torch.equal(expected.logits[0], expected.logits[-1])
    states = [pytree.tree_leaves(result.past_key_values) for result in (found, expected)]
    assert len(states[0]) == len(states[1]) > 0
    for mine, yours in zip(*states, strict=True):
        torch.testing.assert_close(mine, yours)


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
        for family in ("llama", "qwen2", "gemma2", "gpt2", "mamba")
        for batch in (1, 4)
    ],
)
def test_families_give_the_same_tokens(family: str, static: bool, batch: int, dtype: torch.dtype) -> None:
    model = model_of(family, dtype)
    given, how = inputs_of(model, batch, padded=batch > 1), how_of(model, static=static)
    expected = model.generate(**given)
    optimized = exported(model, given, how, dynamic=not static)
    assert_alike(generation.generation_model(optimized).generate(**given), expected)


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
    model = model_of("gemma2", layer_types=["sliding_attention", "full_attention"], sliding_window=16)
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
