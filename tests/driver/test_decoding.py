"""Decoders that write their key-value caches in place: the optimized ones give the same tokens, and the same caches."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

import taso_py
from taso_py.backend.writes import Writes
from taso_py.driver.optimize import optimize
from taso_py.dynamo import backend as dynamo
from taso_py.frontend import import_program
from taso_py.models.source import Source
from taso_py.profiling.profile import ProfileOptions, profile_source

QUICK: dict[str, Any] = {"race_seconds": 0.1, "time_limit": 1.0, "kernels": False, "cache": False}
WIDTH, HEADS, LENGTH, WORDS = 16, 2, 24, 50


class Decoder(nn.Module):
    """A layer of attention over a cache whose next place it counts itself, or is told."""

    def __init__(self, *, counts: bool, keeps: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, WORDS)
        self.counts, self.keeps = counts, keeps
        if keeps:
            for name, value in zip(("keys", "values", "place"), fresh(), strict=True):
                self.register_buffer(name, value)

    def forward(self, token: Tensor, *state: Tensor) -> Tensor:
        buffers = (self.get_buffer(name) for name in ("keys", "values", "place"))
        keys, values, place = buffers if self.keeps else state
        x = self.embedding(token)
        q, k, v = (layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        position = place.clone()
        if self.counts:
            place.add_(1)
        keys.index_copy_(2, position, k)
        values[:, :, position] = v
        seen = torch.arange(LENGTH) <= position
        attended = functional.scaled_dot_product_attention(q, keys, values, attn_mask=seen[None, None, None])
        return self.head(torch.relu(self.out(attended.transpose(1, 2).flatten(2)) + x))


def fresh() -> tuple[Tensor, Tensor, Tensor]:
    """Return an empty cache and its next place."""
    shape = 1, HEADS, LENGTH, WIDTH // HEADS
    return torch.zeros(shape), torch.zeros(shape), torch.zeros(1, dtype=torch.int64)


def decoded(model: Any, *, counts: bool, keeps: bool) -> tuple[list[int], list[Tensor]]:
    """Return tokens and the state after as many steps as the cache has places."""
    state, token, found = [] if keeps else list(fresh()), torch.tensor([[3]]), list[int]()
    with torch.no_grad():
        for step in range(LENGTH):
            if not counts and not keeps:
                state[2].fill_(step)
            token = model(token, *state).argmax(-1)
            found.append(int(token))
    return found, state


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Draw the same weights each time: of others, all tokens may be equal."""
    torch.manual_seed(0)


@pytest.mark.parametrize(("counts", "keeps"), [(False, False), (True, False), (True, True)])
@pytest.mark.usefixtures("any_gain")
def test_a_decoder_gives_the_same_tokens(counts: bool, keeps: bool, tmp_path: Path) -> None:
    model = Decoder(counts=counts, keeps=keeps).eval()
    example = (torch.tensor([[1]]), *(() if keeps else fresh()))
    before = [tensor.clone() for tensor in (*example, *model.buffers())]
    optimized = optimize(model, example, output=tmp_path / "out", **QUICK)
    assert not optimized.keeps_original, optimized.report.notes
    assert all(map(torch.equal, (*example, *model.buffers()), before))
    assert isinstance(optimized.module, fx.GraphModule)
    names = [str(node.target) for node in optimized.module.graph.nodes]
    assert names.count("aten.index_copy_.default") + names.count("aten.index_put_.default") == 2
    results = [
        decoded(f, counts=counts, keeps=keeps) for f in (model, optimized.module, taso_py.load(tmp_path / "out"))
    ]
    (tokens, state), *others = results
    assert len(set(tokens)) > 1
    for found, left in others:
        assert found == tokens
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(state, left, strict=True))


@pytest.mark.usefixtures("any_gain")
def test_a_decoder_compiled_by_torch(caplog: pytest.LogCaptureFixture) -> None:
    model = Decoder(counts=True, keeps=False).eval()
    compiled = torch.compile(model, backend=dynamo.taso, dynamic=False, options={**QUICK, "freeze": True})
    expected, found = (decoded(f, counts=True, keeps=False) for f in (model, compiled))
    assert found[0] == expected[0]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(expected[1], found[1], strict=True))
    assert "runs as it is" not in caplog.text


@pytest.mark.parametrize("keeps", [True, False])
def test_a_decoder_is_profiled_beyond_the_length_of_its_cache(keeps: bool) -> None:
    model: Any = Decoder(counts=True, keeps=keeps).eval()
    example = (torch.tensor([[1]]), *(() if keeps else fresh()))
    place = model.place if keeps else example[3]
    place.fill_(LENGTH - 1)  # the last one that there is
    profile = profile_source(Source("decoder", model, example), ProfileOptions(seconds=0.2))
    assert any("index_copy" in str(region.calls) for region in profile.regions)
    assert place.item() == LENGTH - 1


@pytest.mark.usefixtures("any_gain", "zoo_libraries")
def test_generation_by_transformers(caplog: pytest.LogCaptureFixture) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=1, n_embd=16, n_head=2, n_positions=32, vocab_size=40, bos_token_id=1, eos_token_id=None
    )
    model: Any = GPT2LMHeadModel(config).eval()
    given = {"input_ids": torch.tensor([[3, 7, 5]]), "attention_mask": torch.ones(1, 3, dtype=torch.int64)}
    how = {"cache_implementation": "static", "max_new_tokens": 8, "do_sample": False, "disable_compile": True}
    expected = model.generate(**given, **how, pad_token_id=0)
    model.forward = torch.compile(model.forward, backend=dynamo.taso, dynamic=False, options={**QUICK, "freeze": True})
    with torch.no_grad():
        assert torch.equal(model.generate(**given, **how, pad_token_id=0), expected)
    assert "runs as it is" not in caplog.text


@pytest.mark.usefixtures("any_gain", "zoo_libraries")
def test_decoding_exported_by_transformers() -> None:
    pytest.importorskip("transformers", "5.23", reason="its exporters changed")
    exporters = pytest.importorskip("transformers.exporters")
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes: Any = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model: Any = LlamaForCausalLM(LlamaConfig(vocab_size=40, max_position_embeddings=32, **sizes)).eval()
    given = {"input_ids": torch.tensor([[3, 7, 5]]), "attention_mask": torch.ones(1, 3, dtype=torch.int64)}
    how = GenerationConfig(cache_implementation="static", max_new_tokens=8)
    exported = exporters.DynamoExporter().export_for_generation(
        model, given, exporters.DynamoConfig(), generation_config=how
    )
    for component in exported.components.values():
        program = component.program
        args, kwargs = copy.deepcopy(program.example_inputs)
        optimized = optimize(program, (), kwargs, **QUICK)
        assert Writes.of(import_program(program).graph).inputs
        mine, yours = copy.deepcopy(kwargs), copy.deepcopy(kwargs)
        expected, found = program.module()(**mine), optimized.module(**yours)
        pairs = zip(*map(pytree.tree_leaves, ((expected, mine), (found, yours))), strict=True)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in pairs if isinstance(a, Tensor))
        assert not args
