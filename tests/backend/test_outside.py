"""Work around compiled code: the checks of arguments that it does not make, and copies of results that it keeps."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from taso_py.backend import build, fold
from taso_py.backend.frozen import FrozenModule
from taso_py.backend.guard import ArgumentError
from taso_py.backend.outside import Checks, with_own_constants
from taso_py.frontend import import_module

X, CACHE = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])
CONJUGATE = torch.complex(torch.zeros(3), X).conj()


class Scaled(torch.nn.Module):
    """Writes to an argument, and takes others in a tree, by keyword, and as a number."""

    def forward(self, cache: Tensor, pair: tuple[Tensor, Tensor], *, scale: Tensor, shift: float = 0.0) -> Tensor:
        cache.mul_(2)
        return pair[0] * scale + pair[1] + (shift or 1.0)


def built(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> FrozenModule:
    found = build(fold(import_module(module.eval(), args, kwargs or {})))
    assert isinstance(found, FrozenModule)
    return found


@pytest.fixture(scope="module")
def checked() -> Callable[..., Any]:
    """Returns the arguments that compiled code of ``Scaled`` would be given."""
    module = built(Scaled(), (CACHE, (X, X)), {"scale": X, "shift": 0.0})
    checks = Checks.of(module)
    assert checks is not None
    return checks.before(lambda *args, **kwargs: (args, kwargs))


def test_arguments_are_passed_on_as_they_were_given(checked: Callable[..., Any]) -> None:
    args, kwargs = checked(CACHE, (X, -X), scale=X, shift=0.0)
    assert args[0] is CACHE, "it is written to"
    assert args[1][0] is X
    assert list(kwargs) == ["scale", "shift"]
    assert kwargs["scale"] is X


def test_compiled_code_is_given_no_bits(checked: Callable[..., Any]) -> None:
    args, kwargs = checked(CACHE, (X, CONJUGATE.imag), scale=CONJUGATE.imag, shift=0.0)
    assert CONJUGATE.imag.is_neg()
    for given in (args[1][1], kwargs["scale"]):
        assert not given.is_neg()
        assert torch.equal(given, -X)


@pytest.mark.parametrize(
    ("cache", "shift", "reason"),
    [
        (CONJUGATE.clone().conj().imag, 0.0, "a conjugate or negative view"),
        (torch.ones(1).expand(3), 0.0, "expanded"),
        (X, 0.0, "whose memory another argument shares"),
        (CACHE, -0.0, "built for the argument 0.0, not -0.0"),
        (CACHE[:2], 0.0, "shape"),
    ],
)
def test_arguments_that_a_compiler_would_take_are_refused(
    checked: Callable[..., Any], cache: Tensor, shift: float, reason: str
) -> None:
    with pytest.raises(ArgumentError, match=reason):
        checked(cache, (X, X), scale=X, shift=shift)


def test_models_that_were_not_built_have_no_checks() -> None:
    assert Checks.of(Scaled()) is None


class Constants(torch.nn.Module):
    """Returns a value of the argument, values of weights only, and a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(3.0))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        weight = self.weight
        return x * weight, weight * 3, (weight + 1)[None].expand(2, 3), (weight * 1j).conj(), weight


def test_results_that_are_made_of_weights_only_are_copies() -> None:
    module = built(Constants(), (X,))
    kept = module(X)
    run = with_own_constants(module, lambda _: kept)
    with torch.no_grad():
        results = run(X)
    own = [result.data_ptr() != constant.data_ptr() for result, constant in zip(results, kept, strict=True)]
    assert own == [False, True, True, True, False], "the model returns the weight itself"
    for result, constant in zip(results, kept, strict=True):
        assert torch.equal(result, constant)
        assert (result.stride(), result.is_conj()) == (constant.stride(), constant.is_conj())
    results[1].mul_(2)
    assert torch.equal(run(X)[1], torch.arange(3.0) * 3)


def test_a_module_whose_results_are_all_of_its_arguments_is_called_directly() -> None:
    def run(x: Tensor) -> Tensor:
        return x

    assert with_own_constants(built(torch.nn.Linear(3, 3), (X,)), run) is run
