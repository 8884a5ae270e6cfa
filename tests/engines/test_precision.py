"""Element types in engines.

In OpenVINO casts that are there to round are refused, in control flow too; others are computed. ONNX Runtime keeps
double precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import map as map_
from torch._higher_order_ops import scan, while_loop

from taso_py.engines.engine import EngineUnavailableError
from tests.engines.sessions import NAMES, engine_named, program_of
from tests.round_trips import Model

X = torch.linspace(0.5, 2.0, 256).view(16, 16)
BACK = "a cast to f16 and back does not round$"
_mapped: Any = map_


def _branched(yes: Callable[..., Any], no: Callable[..., Any], *operands: Tensor) -> Any:
    return torch.cond(operands[0].sum() > 0, yes, no, operands)


def _carried(s: Any, x: Tensor) -> Any:
    """What a round has cast, the next one casts back."""
    return while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, (h.float() * 1.1).half()), (torch.tensor(0), x.half()))


def _moved(s: Any, x: Tensor) -> Tensor:
    return torch.cat([x.half().mT, -x.half().relu()]).unflatten(0, (4, -1)).amax(0).float()


ROUNDING: dict[str, Callable[[Any, Tensor], Any]] = {
    "there and back": lambda s, x: x.half().float(),
    "what is lost": lambda s, x: x - x.half().float(),
    "moved and selected": _moved,
    "integers": lambda s, x: (x.argmax(1) + 2048).half().float(),
    "also returned": lambda s, x: (x.half(), x.half().float()),
    "in a branch": lambda s, x: _branched(lambda y: y.half().float(), lambda y: y + 1, x),
    "given to a branch": lambda s, x: _branched(lambda y: y.float(), lambda y: y.float() + 1, x.half()),
    "in the other branch": lambda s, x: _branched(lambda y: y * 2, lambda y: y.half().float(), x),
    "cast behind a branch": lambda s, x: _branched(lambda y: y.half(), lambda y: (y + 1).half(), x).float(),
    "carried by a loop": _carried,
    "accumulated": lambda s, x: scan(lambda c, y: ((c.float() + y).half(), c + y), x[0].half() * 2, x),
    "of slices": lambda s, x: _mapped(lambda y, w: y.half().float() * w, x, x[0] * 2),
}
PLAIN: dict[str, Callable[[Any, Tensor], Any]] = {
    "computed there": lambda s, x: (x.half() * 3).float(),
    "returned": lambda s, x: x.half(),
    "returned by a branch": lambda s, x: _branched(lambda y: y.half(), lambda y: (y + 1).half(), x),
    "computed in a branch": lambda s, x: _branched(lambda y: (y.half() * 3).float(), lambda y: y + 1, x),
    "of halves": lambda s, x: x.half().float() if x.dtype is torch.float32 else x.float() + 1,
    "weights": lambda s, x: x @ s.weight.half().float(),
    "bfloat16": lambda s, x: x.bfloat16().float(),
}


@pytest.mark.parametrize("name", ROUNDING)
def test_casts_that_round_are_refused_where_they_would_not(name: str) -> None:
    with pytest.raises(EngineUnavailableError, match=f"^openvino cannot run this module: .*{BACK}"):
        engine_named("openvino").build(program_of(Model(ROUNDING[name]), [X]))


@pytest.mark.parametrize("name", PLAIN)
def test_other_casts_are_computed(name: str) -> None:
    original = Model(PLAIN[name], weight=nn.Parameter(X * 2))
    x = X.half() if name == "of halves" else X
    found, wanted = engine_named("openvino").build(program_of(original, [x]))(x), original(x)
    assert found.dtype is wanted.dtype
    # Halves are computed in float32, which rounds less.
    torch.testing.assert_close(found, wanted, rtol=0 if name == "bfloat16" else 2e-3, atol=0)


@pytest.mark.parametrize("name", ["there and back", "what is lost", "in a branch", "carried by a loop"])
def test_another_engine_rounds(name: str) -> None:
    original = Model(ROUNDING[name])
    engine = engine_named(next(name for name in NAMES if name != "openvino"))
    torch.testing.assert_close(engine.build(program_of(original, [X]))(X), original(X), rtol=0, atol=0)


@pytest.mark.parametrize(
    "function",
    [
        lambda s, x: 0.3 * (x @ x.mT),
        lambda s, x: nn.functional.scaled_dot_product_attention(x[None], x[None], x[None], scale=0.3),
    ],
)
def test_products_keep_double_precision(function: Callable[[Any, Tensor], Tensor]) -> None:
    """ONNX Runtime fuses factors into products in single precision."""
    model, x = Model(function), X.double()
    found = engine_named("onnxruntime").build(program_of(model, [x]))(x)
    torch.testing.assert_close(found, model(x), rtol=1e-14, atol=0)
