"""What cannot be imported faithfully is refused in one line that says where and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao.nn.quantized import dynamic

from taso_py.backend import build
from taso_py.frontend import ImportRefusal, import_module
from taso_py.frontend.source import LONGEST_LINE, source_line
from tests.round_trips import Model
from tests.versions import need

X = torch.arange(6.0).view(2, 3) - 2


class Selecting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[x > 0] * 2  # the line that the refusal names


def _beyond(s: Any, x: Tensor) -> Tensor:
    return torch.as_strided((x + 1)[1], (5,), (1,), 0)


CASES: dict[str, tuple[Callable[..., Any], str]] = {
    "size from data": (lambda s, x: x.nonzero().sum(), "size depends on the data .* use masks or padding"),
    "size from an input": (lambda s, x: x[: x[0, 0].long().item()], "depends on the data"),
    "python branch": (lambda s, x: x + 1 if x.sum() > 0 else x, "depends on the data; use torch.where"),
    "number as an operand": (lambda s, x: x * x[0, 0].item(), r"mul.* depends on a number read from a tensor"),
    "number as an output": (lambda s, x: x.sum().item(), "is a number read from a tensor; return the tensor"),
    "number from a comparison": (lambda s, x: x + 1 if torch.equal(x, x) else x, "depends on the data"),
    "memory beyond the operand": (_beyond, "as_strided.* reads memory by strides beyond its operand"),
    "list among results": (
        lambda s, x: torch.histogramdd(x, [2, 2, 2]).bin_edges,
        "getitem reads a result that is not a tensor .* compute it from tensors",
    ),
    "wrong shape": (
        lambda s, x: x @ x,
        r"the model fails on the example inputs \(at test_refusals.py:\d+: .*\): RuntimeError: .*; check their shapes",
    ),
    "unknown output": (lambda s, x: re, "cannot export the model"),
    "shape of its own in an export": (
        lambda s, x: x[None] if torch.compiler.is_exporting() else x,
        r"output 0 has the shape \[2, 3\], and \[1, 2, 3\] where it is exported .* let it be the same in both",
    ),
    "key-value cache": (lambda s, x: s.fail(), "pass use_cache=False"),
}


class Failing(Model):
    def fail(self) -> None:
        if torch.compiler.is_exporting():
            raise RuntimeError("Found <class 'transformers.cache_utils.DynamicCache'> in output\nand more")


@pytest.mark.parametrize("name", CASES)
def test_refusal(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    function, message = CASES[name]
    with pytest.raises(ImportRefusal, match=message) as caught:
        import_module(Failing(function), (X.clone(),))
    assert "\n" not in str(caught.value)
    # What torch.export prints on its way is not for users.
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("is_causal", [None, False, True])
def test_a_mask_of_a_transformer_comes_with_what_it_is(is_causal: bool | None) -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval(), torch.randn(2, 3, 4)
    given = {"mask": nn.Transformer.generate_square_subsequent_mask(3), "is_causal": is_causal}
    if is_causal is None:
        with pytest.raises(ImportRefusal, match=r"to tell whether it is causal; say it .*: is_causal=False"):
            import_module(model, (x,), given)
    else:
        torch.testing.assert_close(build(import_module(model, (x,), given))(x, **given), model(x, **given))


def test_refusal_names_the_source_line() -> None:
    with pytest.raises(ImportRefusal, match=r"test_refusals\.py:\d+: return x\[x > 0\] \* 2"):
        import_module(Selecting(), (X,))


def test_an_attribute_that_contains_itself_is_refused() -> None:
    model = Model(lambda s, x: x + 1)
    notes: Any = {}
    notes["again"] = model.notes = notes
    advice = "contains itself, .* take such attributes out of the model"
    with pytest.raises(ImportRefusal, match=rf"^cannot export the model: a list or dict .* {advice}") as caught:
        import_module(model, (X,))
    assert "contextlib" not in str(caught.value)


def _quantized(x: Tensor) -> Tensor:
    return torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)


def _nested(x: Tensor) -> Tensor:
    return torch.nested.nested_tensor([x, x[:1]])


LAYOUTS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], str]] = {
    "coo": (Tensor.to_sparse, Tensor.to_dense, r"a sparse tensor \(sparse_coo\), .* call \.to_dense\(\)"),
    "csr": (Tensor.to_sparse_csr, Tensor.to_dense, r"a sparse tensor \(sparse_csr\), .* call \.to_dense\(\)"),
    "packed": (lambda x: x.to_mkldnn(), Tensor.to_dense, r"packed for oneDNN, .* call \.to_dense\(\)"),
    "quantized": (_quantized, Tensor.dequantize, "a quantized tensor, .* before it is quantized"),
    "nested": (_nested, lambda x: torch.nested.to_padded_tensor(x, 0.0), "a nested tensor, .* pad it"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("where", ["example input", "buffer", "parameter", "attribute", "inside"])
@pytest.mark.parametrize("kind", LAYOUTS)
def test_tensors_of_other_layouts_are_refused(kind: str, where: str) -> None:
    make, back, message = LAYOUTS[kind]
    if where == "inside":
        model, x = Model(lambda s, x: back(make(x * 1)) + 1), X
        message = message.replace("a quantized tensor, .* before", "quantize_per_tensor.* before")
    elif where == "example input":
        model, x = Model(lambda s, x: back(x) + 1), make(X)
    else:
        model, x = Model(lambda s, x: back(s.w).sum() + x), X
        holder = {"parameter": lambda t: nn.Parameter(t, requires_grad=False)}.get(where, lambda t: t)
        if where == "buffer":
            model.register_buffer("w", make(X))
        else:
            model.w = holder(make(X))
    with pytest.raises(ImportRefusal, match=message) as caught:
        import_module(model, (x,))
    text = str(caught.value)
    assert "\n" not in text
    assert where == "inside" or (where if where == "example input" else "the model's w") in text


def test_an_argument_that_cannot_be_copied_is_refused() -> None:
    with pytest.raises(
        ImportRefusal, match=r"an example input cannot be copied \(.*\); pass strided tensors"
    ) as caught:
        import_module(Model(lambda s, x, y: x), (X, (number for number in range(3))))
    assert "\n" not in str(caught.value)


def _energy(s: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(x.tanh().pow(2).sum(), x)
    return -slope


def _backward(s: Any, x: Tensor) -> Tensor | None:
    with torch.enable_grad():
        x = x.detach().clone().requires_grad_()
        x.tanh().sum().backward()
    assert x.grad is not None
    return x.grad


GRADIENTS: dict[str, Callable[..., Any]] = {
    "autograd.grad": _energy,
    "backward": _backward,
    "func.grad": lambda s, x: torch.func.grad(lambda y: y.tanh().sum())(x),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_inside_of_a_model_are_refused_by_name(name: str) -> None:
    with pytest.raises(ImportRefusal, match=r"it computes gradients while it runs .* \(at test_refusals\.py") as caught:
        import_module(Model(GRADIENTS[name]), (X,))
    assert "\n" not in str(caught.value)
    assert "file an issue" not in str(caught.value)


def test_nothing_is_said_of_gradients_where_none_are_computed() -> None:
    with pytest.raises(ImportRefusal) as caught:
        import_module(Model(lambda s, x: x + 1 if x.sum() > 0 else x.tanh()), (X,))
    assert "gradients" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_jacobians_that_are_exported_are_computed_at_every_call() -> None:
    need("2.13", "jacobians cannot be exported")
    model = Model(lambda s, x: torch.func.jvp(lambda y: y.tanh(), (x,), (x,))[1])
    assert torch.allclose(build(import_module(model, (X,)))(X + 1), model(X + 1))


def test_a_long_line_of_source_is_shortened() -> None:
    node = torch.fx.Graph().placeholder("x")
    node.meta["stack_trace"] = f'File "/model.py", line 7, in forward\n    return {" + ".join(["x"] * 99)}'
    assert source_line(node).startswith("model.py:7: return x + x")
    assert len(source_line(node)) <= len("model.py:7: ") + LONGEST_LINE


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_a_quantized_module_is_refused_with_advice_and_no_line_of_a_library() -> None:
    linear = dynamic.Linear(3, 2)
    with pytest.raises(ImportRefusal, match=r"cannot export the model: it holds packed weights .* quantized \(torch"):
        import_module(nn.Sequential(linear), (X,))


@pytest.mark.filterwarnings("ignore:`?torch.jit:DeprecationWarning")
def test_torchscript_is_refused_by_name() -> None:
    scripted = torch.jit.script(nn.Linear(3, 2))
    with pytest.raises(ImportRefusal, match=r"ScriptModule is .*; the model is TorchScript: use the"):
        import_module(scripted, (X,))
    with pytest.raises(ImportRefusal, match=r"; part 1 of the model is TorchScript: use the module that"):
        import_module(nn.Sequential(nn.ReLU(), scripted), (X,))


class Filling(nn.Module):
    def forward(self, x: Tensor, device: str = "cpu") -> Tensor:
        return x + torch.rand(3, device=device)


class Shifting(nn.Module):
    def forward(
        self,
        x: Tensor,
        without_gradients: Tensor | None = None,
        uncompiled: Tensor | None = None,
        check_tree: Tensor | None = None,
        check: Tensor | None = None,
    ) -> Tensor:
        return x + next(shift for shift in (without_gradients, uncompiled, check_tree, check) if shift is not None)


@pytest.mark.parametrize(
    ("module", "name", "given"),
    [
        (Filling(), "device", "cpu"),
        *((Shifting(), name, X) for name in ("without_gradients", "uncompiled", "check_tree")),
    ],
)
def test_an_argument_that_hides_a_name_of_the_code_that_is_written_is_refused(
    module: nn.Module, name: str, given: object
) -> None:
    with pytest.raises(ImportRefusal, match=rf"the argument '{name}' hides .* rename it, or leave it to its default"):
        import_module(module, (X,), {name: given})


def test_other_arguments_hide_nothing() -> None:
    import_module(Filling(), (X,))
    import_module(Shifting(), (X,), {"check": X})


def test_inputs_are_not_touched_by_a_refused_import() -> None:
    x = X.clone()
    with pytest.raises(ImportRefusal):
        import_module(Model(lambda s, x: x.add_(1) + x.sum().item()), (x,))
    assert torch.equal(x, X)
