"""Models of real sizes with random weights: what is optimized chooses the original's tokens, and leaves its caches.

Weights are one or two times those that training begins with, where models are well conditioned: at five times, GPT-2's
own logits in float32 are off by 2.5. With ``--log-cli-level=INFO``, a line tells what each family has in common with
its original.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from taso_py.engines.table import ENGINES
from taso_py.ir.graph import Graph
from taso_py.models.zoo.libraries import declare_missing_torchvision_operators

declare_missing_torchvision_operators()
pytest.importorskip("transformers", "5.23", reason="its caches changed")

from tests.huggingface.agreement import assert_agrees, steering, truth_of  # noqa: E402
from tests.huggingface.families import IDS, how_of, inputs_of, random_model  # noqa: E402
from tests.huggingface.test_compiled import generated_compiled  # noqa: E402
from tests.huggingface.test_steps import (  # noqa: E402
    Making,
    generated,
    optimized,
    with_writes_after_reads,
    with_writes_exchanged,
    without_a_write,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("fresh_compilations", "any_gain"),
]
_log = logging.getLogger(__name__)

TOKENS = {name: IDS[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
WORDS = {**TOKENS, "vocab_size": 32000}
MAMBA = {**TOKENS, "vocab_size": 50280, "hidden_size": 768, "state_size": 16, "num_hidden_layers": 24}
LLAMA = {
    **WORDS, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4, "num_attention_heads": 16,
    "num_key_value_heads": 4,
}  # fmt: skip
QWEN2 = {
    **WORDS, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 4, "num_attention_heads": 14,
    "num_key_value_heads": 2,
}  # fmt: skip
GEMMA3: dict[str, Any] = {
    **WORDS, "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 256, "layer_types": ["full_attention"] * 4, "tie_word_embeddings": False,
}  # fmt: skip
GEMMA3_WINDOWS: dict[str, Any] = {"layer_types": ["sliding_attention"] * 3 + ["full_attention"], "sliding_window": 32}
WHISPER: dict[str, Any] = {
    **TOKENS, "vocab_size": 51865, "d_model": 384, "encoder_layers": 4, "decoder_layers": 4,
    "encoder_attention_heads": 6, "decoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536,
    "decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip


@dataclass(frozen=True)
class Real:
    """A model of a real size."""

    architecture: str
    config: str
    sizes: Mapping[str, Any]
    factor: float
    """Multiple of the weights that training begins with."""


REAL = {
    "gpt2": Real("GPT2LMHeadModel", "GPT2Config", TOKENS, 2),
    "llama": Real("LlamaForCausalLM", "LlamaConfig", LLAMA, 1),
    "qwen2": Real("Qwen2ForCausalLM", "Qwen2Config", QWEN2, 1),
    "gemma3": Real("Gemma3ForCausalLM", "Gemma3TextConfig", GEMMA3, 1),
    "gemma3 windows": Real("Gemma3ForCausalLM", "Gemma3TextConfig", {**GEMMA3, **GEMMA3_WINDOWS}, 1),
    "t5-small": Real("T5ForConditionalGeneration", "T5Config", {**TOKENS, "decoder_start_token_id": 0}, 2),
    "whisper-tiny": Real("WhisperForConditionalGeneration", "WhisperConfig", WHISPER, 2),
    "mamba-130m": Real("MambaForCausalLM", "MambaConfig", MAMBA, 1),
}


@dataclass(frozen=True)
class Reference:
    """A model, a prompt of two rows with padding, what is generated, and that in float64."""

    family: str
    model: Any
    given: Mapping[str, Any]
    how: Any
    expected: Any
    truth: Any

    def check(self, found: Any) -> None:
        """Assert that what was generated, steered by the original, agrees with it; log in what."""
        parameters = sum(parameter.numel() for parameter in self.model.parameters()) / 1e6
        agreement = assert_agrees(found, self.expected, self.truth)
        _log.info("%s, %.0f million parameters: %s", self.family, parameters, agreement)


@cache
def reference_of(family: str) -> Reference:
    real = REAL[family]
    model = random_model(real.architecture, real.config, real.sizes, real.factor)
    given, how = inputs_of(model, 2, padded=True), how_of(model, static=True)
    expected = model.generate(**given)
    truth = truth_of(model, given, expected)
    return Reference(family, model, {**given, **steering(expected)}, how, expected, truth)


@pytest.mark.parametrize("family", [family for family in REAL if "windows" not in family])
def test_an_optimized_step_chooses_the_same_tokens(family: str) -> None:
    """A step with the cache in place."""
    known = reference_of(family)
    known.check(generated(known.model, known.given, optimized(effort="quick", cache=False), keeps=False))


@pytest.mark.parametrize("family", REAL)
def test_compiled_generation_chooses_the_same_tokens(family: str, caplog: pytest.LogCaptureFixture) -> None:
    """``generate`` with a static cache behind ``torch.compile``."""
    known = reference_of(family)
    known.check(generated_compiled(known.model, known.given, known.how, cache=False))
    assert "runs as it is" not in caplog.text


@pytest.mark.parametrize("broken", [without_a_write, with_writes_exchanged, with_writes_after_reads])
@pytest.mark.parametrize("family", ["gpt2", "whisper-tiny"])
def test_wrong_writes_are_seen(family: str, broken: Callable[[Graph], Graph]) -> None:
    known = reference_of(family)
    found = generated(known.model, known.given, Making().by(ENGINES["eager"], broken), keeps=False)
    with pytest.raises(AssertionError, match=r"off by|differs"):
        known.check(found)
