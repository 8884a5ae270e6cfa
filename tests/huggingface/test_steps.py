"""Steps of decoding by models of transformers, optimized with the cache in place: they generate what the models do.

A step is what a user makes of a model to run it elsewhere: a module that takes tokens, masks and the cache's tensors,
or keeps these in buffers. After the prompt, which the original reads, all tokens are those of the step.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from taso_py.backend import UNLIMITED, Program, fold
from taso_py.backend.writes import Writes
from taso_py.driver.optimize import optimize
from taso_py.engines.engine import Engine, EngineUnavailableError
from taso_py.engines.table import ENGINES
from taso_py.frontend import import_module, import_program
from taso_py.ir.graph import Graph
from taso_py.ir.node import make
from taso_py.models.zoo.libraries import declare_missing_torchvision_operators
from tests.engines.sessions import NAMES, engine_named

declare_missing_torchvision_operators()
pytest.importorskip("transformers", "5.23", reason="its caches changed")
from transformers.integrations.executorch import TorchExportableModuleForDecoderOnlyLM  # noqa: E402

from tests.huggingface.agreement import assert_agrees, steering, truth_of  # noqa: E402
from tests.huggingface.families import (  # noqa: E402
    CACHES,
    FAMILIES,
    STEPS,
    assert_alike,
    how_of,
    inputs_of,
    model_of,
    tensors_of,
)

QUICK: dict[str, Any] = {"race_seconds": 0.1, "time_limit": 0.5, "kernels": False, "cache": False}
DECODERS = ("llama", "qwen2", "gemma2", "gemma3", "gpt2")
Run: TypeAlias = Callable[..., Tensor]
Make: TypeAlias = Callable[["Step", tuple[Any, ...]], Run]


class Step(nn.Module):
    """A forward pass of a model on a cache whose tensors are arguments, or buffers."""

    def __init__(self, model: Any, name: str, cache: Any, fixed: Mapping[str, Any], *, keeps: bool) -> None:
        super().__init__()
        self.model, self.name, self.cache, self.fixed, self.keeps = model, name, cache, fixed, keeps
        for place, tensor in enumerate(tensors_of(cache) if keeps else ()):
            self.register_buffer(f"state_{place}", tensor.clone())

    def forward(self, given: dict[str, Any], *state: Tensor) -> Tensor:
        old = tensors_of(self.cache)
        new = [self.get_buffer(f"state_{place}") for place in range(len(old))] if self.keeps else state
        images = {id(before): after for before, after in zip(old, new, strict=True)}
        return self.model(**given, **self.fixed, **{self.name: copy.deepcopy(self.cache, images)}).logits


def generated(model: Any, given: Mapping[str, Any], make: Make, *, keeps: bool) -> Any:
    """Return what a model generates by a step that is made when the second token is due."""
    original, first, made = model.forward, list[Any](), list[Any]()

    @wraps(original)
    def forward(**kwargs: Any) -> Any:
        if not first:
            first.append(original(**kwargs))
            return first[0]
        (name,) = kwargs.keys() & set(CACHES)
        cache = kwargs.pop(name)
        taken = {key: value for key, value in kwargs.items() if has_tensors(value)}
        state = () if keeps else tensors_of(cache)
        if not made:
            fixed = {key: value for key, value in kwargs.items() if key not in taken}
            model.forward = original
            step = Step(model, name, copy.deepcopy(cache), fixed, keeps=keeps)
            made.append(make(step, copy.deepcopy((taken, *state))))
            model.forward = forward
        with torch.no_grad():
            logits = made[0](taken, *state)
            held = dict(made[0].named_buffers()) if keeps else {}  # without those that a step does not touch
            for place, tensor in enumerate(tensors_of(cache)):  # which tells what is taken next
                tensor.copy_(held.get(f"state_{place}", tensor))
        return type(first[0])(logits=logits, **{name: cache})

    model.forward = forward
    try:
        return model.generate(**given)
    finally:
        del model.forward


def has_tensors(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(value))


class Making:
    """Builds a step for an engine, of one program for all engines."""

    def __init__(self) -> None:
        self.program: Program | None = None

    def by(self, engine: Engine, change: Callable[[Graph], Graph] = lambda graph: graph) -> Make:
        def build(step: Step, args: tuple[Any, ...]) -> Run:
            if self.program is None:
                self.program = fold(import_module(step, args), UNLIMITED)
            program = self.program
            assert Writes.of(program.graph)
            return engine.build(replace(program, graph=change(program.graph)))

        return build


def expected_of(
    family: str, batch: int, dtype: torch.dtype = torch.float32, **changes: Any
) -> tuple[Any, dict[str, Tensor], Any]:
    """Return a model, a prompt, with padding if it has several rows, and what the model generates."""
    model = model_of(family, dtype, **changes)
    given = inputs_of(model, batch, padded=batch > 1)
    how_of(model, static=True)
    return model, given, model.generate(**given)


# ONNX Runtime has no bfloat16 on the CPU, and OpenVINO rounds less often. T5 computes places of its bias by logarithms.
CASES = [
    *(("eager", family, 4, torch.float32, family == "gpt2") for family in FAMILIES),
    *((name, family, 4, torch.float32, family == "llama") for name in NAMES for family in ("llama", "mamba")),
    *(
        pytest.param(name, family, batch, dtype, keeps, marks=pytest.mark.slow)
        for name in ("eager", *NAMES)
        for family in FAMILIES
        for batch in (1, 4)
        for dtype in ((torch.float32, torch.bfloat16) if name == "eager" else (torch.float32,))
        for keeps in (False, True)
        if (name, family) != ("openvino", "t5")  # refused below
    ),
]


@pytest.mark.parametrize(("name", "family", "batch", "dtype", "keeps"), CASES)
def test_a_step_generates_what_the_model_does(
    name: str, family: str, batch: int, dtype: torch.dtype, keeps: bool
) -> None:
    engine = ENGINES["eager"] if name == "eager" else engine_named(name)
    model, given, expected = expected_of(family, batch, dtype)
    found = generated(model, given, Making().by(engine), keeps=keeps)
    assert_alike(found, expected, None if name == "eager" else 1e-4)


def test_what_an_engine_cannot_count_is_refused() -> None:
    model, given, _ = expected_of("t5", 1)
    with pytest.raises(EngineUnavailableError, match=r"computes \S+ of i64 with a different overflow$") as caught:
        generated(model, given, Making().by(engine_named("openvino")), keeps=False)
    assert "\n" not in str(caught.value)


def without_a_write(graph: Graph) -> Graph:
    return replace(graph, effects=graph.effects[:-1])


def with_writes_exchanged(graph: Graph) -> Graph:
    """Return a graph that writes keys where values belong, and values where keys belong."""
    keys, values = [node for node in graph.effects if node.inputs[0].type.rank == 4][:2]
    exchanged = {
        one: make(one.op, [one.inputs[0], other.inputs[1]], one.token)
        for one, other in ((keys, values), (values, keys))
    }
    return replace(graph, effects=tuple(exchanged.get(node, node) for node in graph.effects))


def with_writes_after_reads(graph: Graph) -> Graph:
    """Return a graph whose results are those of the cache before this step."""
    before = {node.inputs[1]: node.inputs[0] for node in graph.effects if node.inputs[0].type.rank == 4}
    return replace(graph, outputs=Graph((), graph.outputs).replace(before).outputs)


@pytest.mark.parametrize("broken", [without_a_write, with_writes_exchanged, with_writes_after_reads])
def test_wrong_writes_are_seen(broken: Callable[[Graph], Graph]) -> None:
    model, given, expected = expected_of("llama", 1)
    found = generated(model, given, Making().by(ENGINES["eager"], broken), keeps=False)
    with pytest.raises(AssertionError):
        assert_alike(found, expected)


@pytest.mark.slow
@pytest.mark.usefixtures("any_gain")
@pytest.mark.parametrize(
    ("name", "family", "dtype"),
    [
        (name, family, dtype)
        for name in ("eager", *NAMES)
        for family in FAMILIES
        for dtype in ((torch.float32, torch.bfloat16) if name == "eager" else (torch.float32,))
        if (name, family) != ("openvino", "t5")  # refused above
    ],
)
def test_an_optimized_step_generates_what_the_model_does(name: str, family: str, dtype: torch.dtype) -> None:
    model, given, expected = expected_of(family, 4, dtype)
    found = generated(model, {**given, **steering(expected)}, optimized(runtime=name, **QUICK), keeps=False)
    assert_agrees(found, expected, truth_of(model, given, expected))


def optimized(**options: Any) -> Make:
    """Return how to make a step by optimizing it, with the cache in place."""

    def make_optimized(step: Step, args: tuple[Any, ...]) -> Run:
        found = optimize(step, args, **options)
        assert not found.keeps_original, found.report.notes
        return found.module

    return make_optimized


@pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects")  # transformers exports strictly
@pytest.mark.parametrize(
    ("name", "family"),
    [("eager", "llama"), ("openvino", "gpt2")]
    + [pytest.param(name, family, marks=pytest.mark.slow) for name in ("eager", *NAMES) for family in DECODERS],
)
def test_a_module_that_transformers_exports_generates_what_the_model_does(name: str, family: str) -> None:
    """``TorchExportableModuleForDecoderOnlyLM``: one token at a time, the prompt's too; the cache is in buffers."""
    engine = ENGINES["eager"] if name == "eager" else engine_named(name)
    model, given, expected = expected_of(family, 1)
    exportable = TorchExportableModuleForDecoderOnlyLM(model, batch_size=1, max_cache_len=80)
    prompt = given["input_ids"]
    exported = exportable.export(input_ids=prompt[:, :1], cache_position=torch.tensor([0]))
    module = engine.build(fold(import_program(exported), UNLIMITED))
    assert torch.equal(continued(module, prompt), expected.sequences)
    original = exported.module()
    assert torch.equal(continued(original, prompt), expected.sequences)
    state, found = dict(original.named_buffers()), dict(module.named_buffers())
    written = [name for name in state if "cache" in name or "length" in name]
    assert len(written) == 3 * model.config.num_hidden_layers
    for name in written:
        torch.testing.assert_close(found[name], state[name])


def continued(run: Callable[..., Tensor], prompt: Tensor) -> Tensor:
    """Return a prompt with STEPS tokens behind it, of a module that takes one at a time."""
    tokens = prompt
    for place in range(prompt.shape[1] + STEPS - 1):
        with torch.no_grad():
            logits = run(input_ids=tokens[:, place : place + 1], cache_position=torch.tensor([place]))
        if place + 1 >= prompt.shape[1]:
            tokens = torch.cat([tokens, logits[:, -1].argmax(-1, keepdim=True)], 1)
    return tokens
