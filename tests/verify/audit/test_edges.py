"""Values that break a numerics class are found where it is understated, and nowhere else."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from taso_py.ir.graph import Graph
from taso_py.rules.text import read_rules
from verify.audit import edges
from verify.audit.edges import TYPES, breach, main
from verify.witness import Rejected, run_side

UNDERSTATED = {
    "associated": """rule a: float[M,K], b: float[K,N], c: float[N,P]
  source matmul(matmul(a, b), c) target matmul(a, matmul(b, c)) numerics REASSOCIATE""",
    "factored": """rule x: float[..A], y: float[..A], z: float[..A]
  source add(mul(x, y), mul(x, z)) target mul(x, add(y, z)) numerics REASSOCIATE""",
    "cancelling": """rule x: float[..A], y: float[..A]
  source sub(x, y) target sub(add(x, mul(constant{value=4095.0, dtype=float}, y)),
    mul(constant{value=4096.0, dtype=float}, y)) numerics REASSOCIATE""",
    "cancelling before a function": """rule x: float[..A], y: float[..A]
  source tanh(sub(x, y)) target tanh(sub(add(x, mul(constant{value=4095.0, dtype=float}, y)),
    mul(constant{value=4096.0, dtype=float}, y))) numerics REASSOCIATE""",
    "cancelling in a normalization": """rule x: float[M,N], y: float[M,N]
  source layer_norm(sub(x, y)){axes=1, eps=0.1}
  target layer_norm(sub(add(x, mul(constant{value=4095.0, dtype=float}, y)),
    mul(constant{value=4096.0, dtype=float}, y))){axes=1, eps=0.1} numerics REASSOCIATE""",
    "a tensor of numbers": """rule x: float[M,M], y: float[M,M]
  source matmul(matmul(x, diagonal_matrix(expand(constant{value=0.001, dtype=float}){shape=[M]})), y)
  target matmul(matmul(x, y), diagonal_matrix(expand(constant{value=0.001, dtype=float}){shape=[M]}))
  numerics ZERO_TERMS""",
    "sums of what is multiplied by little": """rule a: float[L,M], b: float[M,N], c: float[M,N]
  source add(matmul(a, b), matmul(a, c)) target matmul(a, add(b, c)) numerics REASSOCIATE""",
    "chosen by what is no number": """rule x: float[..A]
  source where(gt(x, constant{value=0.0, dtype=float}), x, constant{value=0.0, dtype=float}) target relu(x)
  numerics EXACT""",
    "the greater of what is no number": """rule x: float[..A], y: float[..A]
  source where(gt(x, y), x, y) target maximum(x, y) numerics EXACT""",
    "the opposite of what is no number": """rule x: float[..A], y: float[..A]
  source logical_not(gt(x, y)) target ge(y, x) numerics EXACT""",
    "an infinity that is masked": """rule c: bool[..A], x: float[..A]
  source where(c, x, constant{value=0.0, dtype=float})
  target mul(x, where(c, constant{value=1.0, dtype=float}, constant{value=0.0, dtype=float})) numerics EXACT""",
    "a number that is rounded as a tensor": """rule x: float[M]
  source mul(x, constant{value=0.1, dtype=float})
  target mul(x, expand(constant{value=0.1, dtype=float}){shape=[M]}) numerics EXACT""",
    "rounded otherwise": """rule x: float[..A], y: float[..A], z: float[..A]
  source add(add(x, y), z) target add(x, add(y, z)) numerics EXACT""",
}
HONEST = """rule x: float[..A], y: float[..A], z: float[..A]
  source add(add(x, y), z) target add(x, add(y, z)) numerics REORDER
rule x: float[..A], y: float[..A], z: float[..A]
  source mul(x, add(y, z)) target add(mul(x, y), mul(x, z)) numerics REASSOCIATE
rule x: float[..A], y: float[..A] source relu(add(x, y)) target relu(add(y, x)) numerics EXACT
rule x: float[..A], y: float[..A] source where(gt(x, y), x, y) target maximum(x, y) numerics ZERO_TERMS
rule c: bool[..A], x: float[..A], y: float[..A]
  source relu(where(c, x, y)) target where(c, relu(x), relu(y)) numerics EXACT
rule x: float[..A], y: float[..A] source logical_not(eq(x, y)) target ne(x, y) numerics EXACT
rule a: float[M,K], b: float[K,N], c: float[N,P]
  source matmul(matmul(a, b), c) target matmul(a, matmul(b, c)) numerics RANGE
rule a: float[A,B,C,D], b: float[B,1,1], c: float[B]
  source instance_norm(sub(a, b), c){eps=E} target instance_norm(a, c){eps=E} numerics ZERO_TERMS
rule a: float[M,N] source layer_norm(slice(a){axis=-2, start=1, stop=M}){axes=1, eps=E}
  target slice(layer_norm(a){axes=1, eps=E}){axis=-2, start=1, stop=M} numerics REORDER
rule a: float[M,M], b: float[M,N]
  source matmul(add(a, diagonal_matrix(expand(constant{value=1.0, dtype=float}){shape=[M]})), b)
  target add(matmul(a, b), b) numerics ZERO_TERMS
rule x: float[..A], y: float[..A] source tanh(add(x, y)) target tanh(add(y, x)) numerics REASSOCIATE"""


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, "f16") for name in UNDERSTATED),
        *((name, "f32") for name in ("associated", "cancelling", "rounded otherwise")),
    ],
)
def test_an_understated_class_is_found(name: str, dtype: str) -> None:
    (rule,) = read_rules(UNDERSTATED[name])
    found = breach(rule, dtype, trials=240)
    assert found is not None
    assert rule.id in str(found)


def test_two_zeros_that_are_both_nan_at_infinity_are_equal() -> None:
    (rule,) = read_rules(
        "rule x: float[..A] source sub(x, x) target mul(x, constant{value=0.0, dtype=float}) numerics EXACT"
    )
    assert breach(rule, "f32") is None


@pytest.mark.parametrize("dtype", TYPES)
def test_an_honest_class_is_not(dtype: str) -> None:
    assert [breach(rule, dtype) for rule in read_rules(HONEST)] == [None] * 11


def test_what_an_exact_class_says_of_a_function_is_not_refuted_by_a_library() -> None:
    """Whether oneDNN's ``gelu`` is NaN at infinity depends on how its operand lies in memory."""
    (rule,) = read_rules(
        """rule a: float[A,B,C] source slice(gelu(a)){axis=-2, start=D, stop=E}
        target gelu(slice(a){axis=-2, start=D, stop=E}) numerics EXACT"""
    )
    enabled = torch.backends.mkldnn.enabled
    assert [breach(rule, dtype, trials=96) for dtype in TYPES] == [None] * 4
    assert torch.backends.mkldnn.enabled == enabled


SHARED = """rule a: float[A,B*C,D,E], b: float[A,C,F,E], c: float[A,C,F,G]
  source attention(a, reshape(expand(reshape(b){shape=[A,C,1,F,E]}){shape=[A,C,B,F,E]}){shape=[A,B*C,F,E]},
    reshape(expand(reshape(c){shape=[A,C,1,F,G]}){shape=[A,C,B,F,G]}){shape=[A,B*C,F,G]})
  target reshape(attention(reshape(a){shape=[A,C,B*D,E]}, b, c)){shape=[A,B*C,D,G]} numerics REORDER"""


@pytest.mark.parametrize(("size", "is_found"), [(1e28, False), (1.0, True)])
def test_scores_that_overflow_are_out_of_range(size: float, is_found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused attention gives 0 for some rows whose scores are infinite, and NaN for others."""
    (rule,) = read_rules(SHARED)

    def spoilt(side: Graph, *rest: Any) -> list[Tensor]:
        value = math.nan if side.outputs[0].node.op.name == "reshape" else 0.0
        return [torch.full_like(output, value) for output in run_side(side, *rest)]

    def drawn(shape: tuple[int, ...], *_: object) -> Tensor:
        return torch.full(shape, size, dtype=torch.float64)

    monkeypatch.setattr(edges, "run_side", spoilt)
    monkeypatch.setattr(edges, "_FINITE", (drawn,))
    assert (breach(rule, "f32") is not None) == is_found


def test_what_is_tried_nowhere_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where PyTorch raises an error there is nothing to compare, and that is no green light."""

    def refused(*_: Any) -> list[Tensor]:
        raise Rejected("mixed element types")

    path = tmp_path / "untried.rules"
    path.write_text(UNDERSTATED["factored"])
    monkeypatch.setattr(edges, "run_side", refused)
    assert main([str(path), "--dtype", "f16"]) == 0
    told = r"r\w+ REASSOCIATE f16: not tried: mixed element types\n1 rules, 1 not tried, 0 breaches\n"
    assert re.fullmatch(told, capsys.readouterr().out)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    honest, understated = tmp_path / "honest.rules", tmp_path / "understated.rules"
    honest.write_text(HONEST)
    understated.write_text(UNDERSTATED["factored"])
    assert main([str(honest)]) == 0
    assert capsys.readouterr().out == "11 rules, 0 not tried, 0 breaches\n"
    assert main([str(understated), "--dtype", "f16", "--trials", "240"]) == 1
    assert "becomes" in capsys.readouterr().out
    assert main([str(tmp_path / "none.rules")]) == 2
    assert "error" in capsys.readouterr().err


@pytest.mark.slow
def test_the_database_breaks_no_promise() -> None:
    assert main([]) == 0
