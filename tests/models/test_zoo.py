from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from taso_py.models import zoo
from taso_py.models.huggingface import adapt
from taso_py.models.zoo import entry as zoo_entry
from taso_py.models.zoo import libraries, weights
from taso_py.models.zoo.nasrnn import NasRnn

QUICK = ("nasrnn", "squeezenet1_1", "densenet121", "t5", "gpt2_eager_attention")
OTHERS = tuple(name for name in zoo.names() if name not in QUICK)
ALL = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]


def first_output(module: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    with torch.no_grad():
        output = module(*inputs)
    return next(iter(output.values())) if isinstance(output, dict) else output


def relative_difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / one.norm())


@pytest.mark.parametrize("name", ALL)
def test_small_variant_is_alive_and_depends_on_the_seed_alone(name: str) -> None:
    entry = zoo.get(name)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    module, inputs = entry.make(0, small=True)
    assert torch.equal(torch.get_rng_state(), before)
    again, _ = entry.make(0, batch=3, small=True)
    _, other_inputs = entry.make(1, small=True)

    output = first_output(module, inputs)
    assert not any(part.training for part in module.modules())
    assert output.isfinite().all()
    assert torch.equal(output, first_output(again, inputs))
    assert relative_difference(output, first_output(module, other_inputs)) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.names())
def test_full_model_is_alive(name: str) -> None:
    module, inputs = zoo.get(name).make(0)
    other_inputs = tuple(value.roll(1, -1).neg() if value.is_floating_point() else value.flip(-1) for value in inputs)
    output = first_output(module, inputs)
    assert output.isfinite().all()
    assert relative_difference(output, first_output(module, other_inputs)) > 0.01


@pytest.mark.parametrize("name", ["bert_base", pytest.param("whisper_encoder", marks=pytest.mark.slow)])
def test_attention_implementations_agree_on_equal_weights(name: str) -> None:
    fused, inputs = zoo.get(name).make(3, small=True)
    written_out, _ = zoo.get(f"{name}_eager_attention").make(3, small=True)
    difference = relative_difference(first_output(fused, inputs), first_output(written_out, inputs))
    assert difference < 1e-5

    def calls_fused_attention(module: nn.Module) -> bool:
        calls = torch.export.export(module, inputs).graph.nodes
        return any("scaled_dot_product_attention" in str(node.target) for node in calls)

    assert calls_fused_attention(fused)
    assert not calls_fused_attention(written_out)


def test_batch_is_the_leading_size() -> None:
    module, inputs = zoo.get("nasrnn").make(0, batch=3, small=True)
    assert [tuple(value.shape) for value in inputs] == [(3, 16), (3, 16)]
    assert first_output(module, inputs).shape == (3, 16)


def test_nasrnn_follows_the_published_benchmark() -> None:
    module, inputs = zoo.get("nasrnn").make(0)
    assert [tuple(value.shape) for value in inputs] == [(1, 512)] * 5
    targets = [str(node.target) for node in torch.export.export(module, inputs).graph.nodes]
    assert targets.count("aten.matmul.default") == 5 * 8 * 2


def test_nasrnn_cell_is_the_tree_of_its_eight_leaves() -> None:
    torch.manual_seed(0)
    module = NasRnn(4)
    x, state = torch.randn(1, 4), torch.randn(1, 4)
    t = [x @ w + state @ u for w, u in zip(module.input_weights, module.state_weights, strict=True)]
    first = torch.tanh(t[0].relu() + t[3].sigmoid()) * torch.tanh(t[6].sigmoid() * t[7].relu())
    second = torch.sigmoid(t[1].sigmoid() + t[2].tanh()) + torch.tanh(t[4].sigmoid() * t[5].tanh())
    assert torch.equal(module.cell(x, state), torch.tanh(first.tanh() * second.tanh()))


def test_unknown_name_offers_the_closest() -> None:
    with pytest.raises(zoo.ZooError, match=r"^the zoo has no model 'resnet5'; did you mean resnet50.*\?$"):
        zoo.get("resnet5")
    with pytest.raises(zoo.ZooError, match="squeezenet1_1"):
        zoo.get("?")


def test_missing_library_says_what_to_install() -> None:
    entry = zoo.ZooEntry("ghost", "no_such_library", lambda small: nn.Identity(), lambda small, batch: ())
    with pytest.raises(zoo.ZooError, match=r"^zoo:ghost needs no_such_library .*run: pip install 'taso-py\[zoo\]'$"):
        entry.make()


def test_listing_the_zoo_imports_no_model_library() -> None:
    code = "import sys; from taso_py.models import zoo; zoo.names(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "taso_py.models.zoo" in loaded
    assert not {"torchvision", "timm", "transformers"} & set(loaded)


def test_constants_become_random_and_the_rest_stays() -> None:
    layer = nn.LayerNorm(64)
    scale = nn.Parameter(torch.full((64,), 1e-6))
    linear = nn.Linear(4, 4)
    module = nn.ParameterList([layer.weight, layer.bias, scale, linear.weight])
    kept = linear.weight.detach().clone()
    torch.manual_seed(0)
    weights.randomize_constants(module)
    weight, bias, layer_scale = (parameter.detach() for parameter in (layer.weight, layer.bias, scale))
    assert 0.9 <= weight.min() < weight.max() <= 1.1
    assert 0.0 < bias.abs().max() < 0.2
    assert 0.05 <= layer_scale.min() < layer_scale.max() <= 0.15
    assert torch.equal(linear.weight, kept)


def test_batch_norms_settle_near_what_they_see_and_are_not_the_identity() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(8)
    inputs = 5.0 + 3.0 * torch.randn(4, 8, 16, 16)
    module = nn.Sequential(norm).eval()
    weights.settle_batch_norms(module, (inputs,))
    with torch.no_grad():
        output = module(inputs)
    assert abs(float(output.mean())) < 0.3
    assert 0.7 < float(output.std()) < 1.3
    assert norm.running_mean is not None
    settled = norm.running_mean.clone()
    module(inputs + 100.0)
    assert torch.equal(norm.running_mean, settled)


@pytest.mark.usefixtures("zoo_libraries")
def test_adapter_keeps_keyword_inputs_and_turns_the_cache_off() -> None:
    from transformers import AutoModelForCausalLM, GPT2Config

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=16, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    model = AutoModelForCausalLM.from_config(config).eval()
    tokens = torch.tensor([[1, 2, 3]])
    original = model(input_ids=tokens, attention_mask=torch.ones_like(tokens))
    assert "past_key_values" in original
    adapted = adapt(model)(input_ids=tokens, attention_mask=torch.ones_like(tokens))
    assert type(adapted) is dict
    assert list(adapted) == ["logits"]
    assert torch.equal(adapted["logits"], original.logits)


def test_adapter_leaves_other_modules_alone() -> None:
    module = nn.Linear(2, 2)
    assert adapt(module) is module


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, version: str, cuda: str | None) -> None:
    """A torchvision of a version, which nobody may import, beside a torch for a version of CUDA."""
    (folder / "torchvision").mkdir()
    (folder / "torchvision" / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "torchvision" / "version.py").write_text(f"__version__ = '{version}'\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.setattr(torch.version, "cuda", cuda)


@pytest.mark.parametrize(
    ("version", "cuda", "fits"),
    [("0.28.0+cu130", None, False), ("0.28.0+cpu", None, True), ("0.28.0", None, True), ("0.28.0+cu130", "13.0", True)],
)
def test_packages_that_do_not_fit_are_told_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, cuda: str | None, fits: bool
) -> None:
    installed(tmp_path, monkeypatch, version, cuda)
    line = libraries.misfit()
    assert (line is None) == fits
    if line is not None:
        assert "\n" not in line
        assert line.endswith("--index-url https://download.pytorch.org/whl/cpu torchvision==0.28.0")


def test_libraries_that_are_not_there_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "LIBRARIES", ("torch", "not_there", "nor_there"))
    line = libraries.advice()
    assert line is not None
    assert line.startswith("not_there and nor_there: not installed; run: ")
    assert line.endswith("-m pip install not_there nor_there")
    monkeypatch.setattr(libraries, "LIBRARIES", ("torch",))
    assert libraries.advice() == libraries.misfit()


def test_a_factory_imports_torchvision_whatever_torch_it_is_for(tmp_path: Path) -> None:
    """In a process of its own, as a user would."""
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("needs torchvision")
    (tmp_path / "mine.py").write_text(
        "import torch, torchvision\ndef model():\n    return torch.nn.Linear(2, 2), (torch.ones(1, 2),)\n"
    )
    model = str(tmp_path / "mine.py:model")
    code = f"from taso_py.models.source import load_source; print(load_source({model!r}).args)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "(tensor([[1., 1.]]),)", done.stderr


def test_torchvision_failure_of_another_kind_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(libraries.importlib, "import_module", fail)
    with pytest.raises(RuntimeError, match="something else"):
        libraries.declare_missing_torchvision_operators()


def test_images_have_the_size_asked_for() -> None:
    make = zoo_entry.images(12, 6)
    assert make(False, 2)[0].shape == (2, 3, 12, 12)
    assert make(True, 1)[0].shape == (1, 3, 6, 6)
