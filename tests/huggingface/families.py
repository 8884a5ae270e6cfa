"""Small random models of transformers that generate, and what generation by one has to leave behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import transformers
from torch import Tensor

WORDS, STEPS = 60, 64
CACHES = ("past_key_values", "cache_params")
"""What families call their caches."""
IDS = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0, "vocab_size": WORDS}
SIZES: dict[str, Any] = {
    **IDS, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1,
    "max_position_embeddings": 128,
}  # fmt: skip
GEMMA = {**SIZES, "num_hidden_layers": 2, "head_dim": 8}
FULL = ["full_attention", "full_attention"]
WINDOWS: dict[str, Any] = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16}
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
    return random_model(architecture, config, {**sizes, **changes}, factor=5).to(dtype)


def random_model(architecture: str, config: str, sizes: Mapping[str, Any], factor: float) -> Any:
    """Return a model of some sizes whose weights are a multiple of those that it begins training with."""
    torch.manual_seed(0)
    model = getattr(transformers, architecture)(getattr(transformers, config)(**sizes)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(1 if name.endswith("A_log") else factor)  # Mamba's are logarithms
    return model


def inputs_of(model: Any, batch: int, *, padded: bool) -> dict[str, Tensor]:
    """Return a prompt, whose first row has padding on its left if wanted."""
    config = model.config
    if config.model_type == "whisper":
        sizes = batch, config.num_mel_bins, 2 * config.max_source_positions
        return {"input_features": torch.randn(sizes, dtype=model.dtype)}
    ids = torch.randint(2, config.vocab_size, (batch, 5))
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
        use_cache=True,
        disable_compile=True,
        return_dict_in_generate=True,
        output_logits=True,
        **ids,
        **more,
    )
    model.generation_config = how
    return how


def cache_of(result: Any) -> Any:
    """Return the cache in a result of a model or of generation, whatever its family calls it."""
    return result[next(name for name in CACHES if name in result)]


def tensors_of(cache: Any) -> list[Tensor]:
    """Return the tensors of a cache in order."""
    return [value for value in _values(cache) if isinstance(value, Tensor)]


def state_of(cache: Any) -> list[Tensor]:
    """Return the tensors of a cache in order, and what it counts in Python."""
    return [torch.as_tensor(value) for value in _values(cache)]


def _values(part: Any) -> Iterator[Tensor | int]:
    if isinstance(part, Tensor | int):
        yield part
    elif isinstance(part, list | dict) or type(part).__module__ == "transformers.cache_utils":
        parts = part if isinstance(part, list) else (part if isinstance(part, dict) else vars(part)).values()
        for inner in parts:
            yield from _values(inner)


def assert_alike(found: Any, expected: Any, tolerance: float | None = None) -> None:
    """Assert that tokens, the numbers that they were chosen by, and the state after them agree.

    Args:
        found: what was generated.
        expected: what it should be.
        tolerance: how far numbers may differ, as a share of the largest in a tensor; by default for each its roundings.
    """
    assert torch.equal(found.sequences, expected.sequences)
    assert len(set(expected.sequences.flatten().tolist())) > 1
    assert_near(found.logits, expected.logits, tolerance)
    assert not torch.equal(expected.logits[0], expected.logits[-1])
    states = [state_of(cache_of(result)) for result in (found, expected)]
    assert len(states[0]) == len(states[1]) > 0
    assert any(tensor.is_floating_point() for tensor in states[1])
    assert_near(states[0], states[1], tolerance)


def assert_near(found: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float | None) -> None:
    for mine, yours in zip(found, expected, strict=True):
        largest = yours.abs().max().item() if tolerance and yours.is_floating_point() else 0.0
        near: dict[str, Any] = {"rtol": 0, "atol": tolerance * largest} if tolerance and largest else {}
        torch.testing.assert_close(mine, yours, **near)
