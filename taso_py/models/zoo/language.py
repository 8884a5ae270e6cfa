"""The zoo's models from transformers, built from configurations.

Invariant: every model comes twice, with fused attention (`scaled_dot_product_attention`) and, under a name that ends in
``_eager_attention``, with attention written out; both have the same weights for the same seed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from taso_py.models.huggingface import adapt
from taso_py.models.zoo.entry import ZooEntry

_SEQUENCE, _SMALL_SEQUENCE = 64, 8
_VOCABULARY = 128


def _bert_base(attention: str, small: bool) -> nn.Module:
    from transformers import AutoModel, BertConfig

    config = BertConfig(
        vocab_size=_VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    return adapt(AutoModel.from_config(config if small else BertConfig(), attn_implementation=attention))


def _distilbert(attention: str, small: bool) -> nn.Module:
    from transformers import AutoModel, DistilBertConfig

    config = DistilBertConfig(vocab_size=_VOCABULARY, dim=32, hidden_dim=64, n_layers=2, n_heads=4)
    return adapt(AutoModel.from_config(config if small else DistilBertConfig(), attn_implementation=attention))


def _gpt2(attention: str, small: bool) -> nn.Module:
    from transformers import AutoModelForCausalLM, GPT2Config

    config = GPT2Config(vocab_size=_VOCABULARY, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    return adapt(AutoModelForCausalLM.from_config(config if small else GPT2Config(), attn_implementation=attention))


def _llama(attention: str, small: bool) -> nn.Module:
    """Llama's architecture, grouped-query attention included, at a size that fits any machine."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=_VOCABULARY if small else 32000,
        hidden_size=32 if small else 512,
        intermediate_size=64 if small else 1376,
        num_hidden_layers=2 if small else 4,
        num_attention_heads=4 if small else 8,
        num_key_value_heads=2 if small else 4,
    )
    return adapt(AutoModelForCausalLM.from_config(config, attn_implementation=attention))


def _t5(attention: str, small: bool) -> nn.Module:
    """T5-small, encoder and decoder."""
    from transformers import AutoModel, T5Config

    config = T5Config(vocab_size=_VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    model = AutoModel.from_config(config if small else T5Config(), attn_implementation=attention)
    return adapt(model, ("input_ids", "decoder_input_ids"))


def _whisper_encoder(attention: str, small: bool) -> nn.Module:
    """The encoder of Whisper-base on log-mel spectrograms."""
    from transformers import AutoModel, WhisperConfig

    layers, width = (2, 32) if small else (6, 512)
    config = WhisperConfig(
        vocab_size=_VOCABULARY,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        decoder_start_token_id=0,
        d_model=width,
        encoder_layers=layers,
        encoder_attention_heads=width // 64 or 4,
        encoder_ffn_dim=4 * width,
        max_source_positions=16 if small else 1500,
        decoder_layers=1,
        decoder_attention_heads=1,
        decoder_ffn_dim=width,
    )
    return adapt(AutoModel.from_config(config, attn_implementation=attention).get_encoder())


def _tokens(count: int) -> Callable[[bool, int], tuple[Tensor, ...]]:
    def make(small: bool, batch: int) -> tuple[Tensor, ...]:
        length = _SMALL_SEQUENCE if small else _SEQUENCE
        return tuple(torch.randint(0, _VOCABULARY, (batch, length)) for _ in range(count))

    return make


def _spectrogram(small: bool, batch: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 80, 32 if small else 3000),)


def _entries() -> tuple[ZooEntry, ...]:
    table = {
        "bert_base": (_bert_base, _tokens(1)),
        "distilbert": (_distilbert, _tokens(1)),
        "gpt2": (_gpt2, _tokens(1)),
        "llama": (_llama, _tokens(1)),
        "t5": (_t5, _tokens(2)),
        "whisper_encoder": (_whisper_encoder, _spectrogram),
    }
    return tuple(
        ZooEntry(name + suffix, "transformers", partial(build, attention), inputs)
        for name, (build, inputs) in table.items()
        for suffix, attention in (("", "sdpa"), ("_eager_attention", "eager"))
    )


ENTRIES = _entries()
"""Language and speech models: token ids ``[batch, 64]``, two of them for T5, or a spectrogram ``[batch, 80, 3000]``."""
