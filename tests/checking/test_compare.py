"""Comparison with float64: what passes, and everything that must not."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from taso_py.backend.input_cases import input_cases, inputs_near
from taso_py.checking.compare import Comparison, Oracle

X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))


def _compare(candidate: Callable[[Tensor], Any], original: Callable[[Tensor], Any] = torch.exp) -> Comparison:
    return Oracle(original, original, input_cases((X,), {}, seed=0)).compare(candidate)


def test_the_same_function_passes_with_the_same_error() -> None:
    comparison = _compare(torch.exp)
    assert comparison.passed
    assert comparison.error == comparison.original_error < 1e-6
    assert {output.inputs for output in comparison.outputs} == {"example", "random x0.01", "random x1", "random x10"}


def test_another_rounding_passes() -> None:
    assert _compare(lambda x: torch.exp(x / 2).square()).passed


@pytest.mark.parametrize(
    ("candidate", "problem"),
    [
        (lambda x: torch.exp(x) * (1 + 1e-4), ""),
        (lambda x: torch.exp(x.half()).float(), ""),
        (lambda x: torch.where(x > 1, float("nan"), torch.exp(x)), "not finite"),
        (lambda x: torch.exp(x).double(), "dtype"),
        (lambda x: torch.exp(x)[:, :4], "shape"),
        (lambda x: torch.exp(x).t().contiguous().t(), "strides"),
        (lambda x: 3.0, "not a tensor"),
    ],
)
def test_what_differs_is_refused(candidate: Callable[[Tensor], Any], problem: str) -> None:
    comparison = _compare(candidate)
    assert not comparison.passed
    assert comparison.worst is not None
    assert problem in comparison.worst.problem


@pytest.mark.parametrize(("offset", "passes"), [(0.01, True), (0.1, False)])
def test_an_error_that_scatters_is_judged_by_the_originals_errors_nearby(offset: float, passes: bool) -> None:
    # The product is exact on these inputs, and rounded by up to 0.004 on their neighbours.
    x = torch.arange(1, 17) / 8
    oracle = Oracle(lambda x: torch.sin(x * 1e5), lambda x: torch.sin(x * 1e5), [("example", ((x,), {}))])
    comparison = oracle.compare(lambda x: torch.sin(x * 1e5 + offset))
    assert comparison.original_error < 1e-6
    assert comparison.passed == passes
    assert f"off by {comparison.error:.1e}, the limit is" in comparison.reason


def test_without_inputs_to_vary_the_originals_error_is_what_it_is() -> None:
    indices = torch.arange(4)
    cases = [("example", ((indices,), {}))]
    assert not Oracle(lambda i: i / 3, lambda i: i.double() / 3, cases).compare(lambda i: i / 3 + 1e-4).passed


def test_integers_must_be_equal_exactly() -> None:
    def original(x: Tensor) -> Tensor:
        return (x * 1000).long()

    assert _compare(original, original).passed
    assert not _compare(lambda x: original(x) + (x > 2).long(), original).passed


def test_inputs_vary_in_magnitude_and_integers_stay_valid() -> None:
    indices = torch.tensor([[3, 0], [2, 2]])
    cases = dict(input_cases((X.t(), indices), {"flag": True}, seed=0))
    assert cases["example"][0][0].data_ptr() == X.data_ptr()
    (small, shuffled), kwargs = cases["random x0.01"]
    assert small.abs().max() < 0.1 < cases["random x10"][0][0].abs().max()
    assert small.stride() == X.t().stride()
    assert sorted(shuffled.flatten().tolist()) == [0, 2, 2, 3]
    assert kwargs == {"flag": True}


@pytest.mark.parametrize("hidden", [-math.inf, torch.finfo(torch.float32).min])
def test_a_mask_stays_one(hidden: float) -> None:
    """Else nothing but the example would be compared: all that is random would be NaN."""
    mask = torch.full((3, 3), hidden).triu(1)

    def attention(x: Tensor, mask: Tensor) -> Tensor:
        return (x @ x.t() + mask).softmax(-1) @ x

    cases = input_cases((X[:3], mask), {}, seed=0)
    for name, ((_, varied), _) in cases[1:]:
        assert torch.equal(varied == hidden, mask == hidden)
        assert varied.tril().unique().numel() > 6, name
    oracle = Oracle(attention, attention, cases)
    assert oracle.compare(attention).passed
    assert not oracle.notes
    wrong = oracle.compare(lambda x, mask: attention(x, mask) + (x - X[:3]) * 1e-2)
    assert {output.inputs for output in wrong.outputs if not output.passed} == {name for name, _ in cases[1:]}


def test_inputs_that_are_nowhere_finite_stay_what_they_are() -> None:
    for number in (math.nan, math.inf):
        for _, ((varied,), _) in input_cases((torch.full((2, 2), number),), {}, seed=0):
            assert torch.equal(varied, torch.full((2, 2), number)) or varied.isnan().all()


def test_a_module_that_writes_to_its_inputs_does_not_disturb_the_others() -> None:
    assert _compare(lambda x: x.exp_()).passed


def _adding(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """A function that returns its state."""
    state = torch.zeros(4, 1, dtype=dtype)
    return lambda x: state.add_(x.sum(-1, keepdim=True)).expand(4, 3)


def test_an_oracle_is_asked_once_and_keeps_what_it_said() -> None:
    runs: list[str] = []
    original, reference = _adding(torch.float32), _adding(torch.float64)
    oracle = Oracle(lambda x: (runs.append("run"), original(x))[1], reference, input_cases((X,), {}, seed=0))
    # Each begins with no state, as the original did; what it adds up differs from case to case.
    assert oracle.compare(_adding(torch.float32)).passed
    assert oracle.compare(_adding(torch.float32)).passed
    assert len(runs) == 4
    assert not oracle.compare(original).passed


def test_inputs_that_the_original_does_not_take_are_left_out_with_a_note() -> None:
    table = torch.randn(6, 3)

    def looked_up(x: Tensor) -> Tensor:
        return table[x[:, 0].long()]

    x = torch.tensor([[0.0], [5.0], [3.0]])
    oracle = Oracle(looked_up, looked_up, input_cases((x,), {}, seed=0))
    comparison = oracle.compare(looked_up)
    assert comparison.passed
    assert "example" in {output.inputs for output in comparison.outputs}
    assert "random x10" not in {output.inputs for output in comparison.outputs}
    assert any("refuses random x10 inputs" in note for note in oracle.notes)
    assert not oracle.compare(lambda x: looked_up(x) + 1e-3).passed


def test_an_original_that_fails_on_the_example_is_no_original() -> None:
    def failing(x: Tensor) -> Tensor:
        raise IndexError("no")

    with pytest.raises(IndexError):
        _compare(torch.exp, failing)


@pytest.mark.parametrize("reference", [None, lambda x: torch.exp(x.float()).to_mkldnn().exp()])
def test_without_a_reference_the_original_is_compared_with(reference: Callable[[Tensor], Any] | None) -> None:
    oracle = Oracle(torch.exp, reference, input_cases((X,), {}, seed=0))
    assert oracle.compare(torch.exp).passed
    assert not oracle.compare(lambda x: torch.exp(x) * (1 + 1e-4)).passed
    assert bool(oracle.notes) == (reference is not None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("share", "passes"), [(0.0, True), (0.1, False), (0.4, False)])
def test_in_half_precision_few_roundings_are_allowed(dtype: torch.dtype, share: float, passes: bool) -> None:
    x = X.to(dtype)
    for reference in (torch.tanh, None):
        oracle = Oracle(torch.tanh, reference, [("example", ((x,), {}))])
        assert oracle.compare(lambda x: torch.tanh(x) * (1 - share)).passed == passes


def _masked(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, -torch.inf)


@pytest.mark.parametrize("instead", [0.0, torch.inf, torch.nan, -1e30])
def test_what_is_meant_to_be_infinite_is(instead: float) -> None:
    assert _compare(_masked, _masked).passed
    comparison = _compare(lambda x: torch.where(x > 0, x, instead), _masked)
    assert comparison.worst is not None
    assert comparison.worst.problem == "not infinite where the original is"


def test_what_overflows_only_in_the_original_may_be_anything() -> None:
    def original(x: Tensor) -> Tensor:
        return (x * 0 + 3e38) * 10 if x.dtype is torch.float32 else x * 0 + 3e39

    assert _compare(lambda x: x * 0, original).passed


def test_outputs_that_are_nowhere_finite_are_told() -> None:
    oracle = Oracle(lambda x: x / 0, None, input_cases((X,), {}, seed=0))
    assert oracle.compare(lambda x: x / 0).passed
    assert "the model returns no finite number for example inputs; they show no difference" in oracle.notes


def test_inputs_near_the_example_keep_signs_strides_and_what_hides() -> None:
    x, mask = X.t(), torch.tensor([0.0, float("-inf"), torch.finfo(torch.float32).min])
    ((scaled, hidden, zeros, order), kept) = inputs_near((x, mask, X * 0, torch.arange(9)), {"flag": True}, seed=0)
    ratio = scaled / x
    assert scaled.stride() == x.stride()
    assert bool(((ratio >= 0.5) & (ratio <= 2)).all())
    assert float(ratio.max() - ratio.min()) > 0.5
    assert torch.equal(hidden, mask)
    assert bool(zeros.any())
    assert sorted(order.tolist()) == list(range(9))
    assert kept == {"flag": True}
