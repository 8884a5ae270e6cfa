"""A Hugging Face model, built from a configuration: optimized, compared, saved.

    python examples/text_encoder.py --output out

The weights are random, so that nothing is downloaded; ``BertModel.from_pretrained`` gives a model of the same kind.
"""

import argparse
import sys
from pathlib import Path

import torch
from rich import print

import taso_py

try:
    from transformers import BertConfig, BertModel
except (ImportError, RuntimeError):  # not there, or made for another build of torch
    sys.exit("transformers does not import; this says what to install: python -m taso_py.models.zoo")

parser = argparse.ArgumentParser(description="Optimize a BERT encoder for sequences of one length.")
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--width", type=int, default=256, help="a multiple of 64, the width of a head")
parser.add_argument("--tokens", type=int, default=64, help="the length of a sequence")
parser.add_argument("--time-limit", type=float, default=60, help="seconds of search")
parser.add_argument("--race-seconds", type=float, default=20, help="seconds to time the best graphs")
parser.add_argument("--output", type=Path, help="save the result to this folder")
arguments = parser.parse_args()

torch.manual_seed(0)
config = BertConfig(
    vocab_size=2000,
    hidden_size=arguments.width,
    intermediate_size=4 * arguments.width,
    num_attention_heads=arguments.width // 64,
    num_hidden_layers=arguments.layers,
)
model = BertModel(config, add_pooling_layer=False).eval()
tokens = torch.randint(config.vocab_size, (1, arguments.tokens))

optimized = taso_py.optimize(
    model,
    (tokens,),
    time_limit=arguments.time_limit,
    race_seconds=arguments.race_seconds,
    output=arguments.output,
    progress=True,
)
print(optimized.report)

with torch.no_grad():
    before = model(tokens).last_hidden_state
    after = optimized.module(tokens)["last_hidden_state"]  # a plain dict instead of transformers' output class
print(f"largest difference {(before - after).abs().max():.1e} of values up to {before.abs().max():.1f}")
