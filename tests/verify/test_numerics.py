"""The classes of rules whose class does not follow from the proof alone; the others are in tests/sound."""

from __future__ import annotations

import pytest
import torch

from taso_py.ir.traits import Rounding
from taso_py.ops.base import TensorOperator
from taso_py.ops.elementwise import Cast
from taso_py.ops.table import DEFINED
from taso_py.rules.text import read_rules
from taso_py.rules.verdict import Numerics
from verify import prove
from verify.laws import ProofLevel
from verify.numerics import classify
from verify.witness import compute

MATRICES = "rule a: float[..B,M,K], b: float[..B,K,N], c: float[..B,M,1]\n"
VECTORS = "rule x: float[..B,M], y: float[..B,M], z: float[..B,M]\n"
PARTS = "rule x: float[M,N], y: float[M,N]\n"
WHOLE = "concat(slice(x){axis=-1, start=0, stop=A}, slice(x){axis=-1, start=A, stop=N}){axis=-1}"
"""The whole of ``x``, in two parts."""
IMAGE = "rule x: float[N,C,H,W], w: float[O,C,3,3]\n"
CASES = {
    "the same product, moved": (
        MATRICES + "source slice(relu(matmul(a, b))){axis=-1, start=S, stop=T}\n"
        "target relu(slice(matmul(a, b)){axis=-1, start=S, stop=T})",
        Numerics.EXACT,
    ),
    "a product of other shape": (
        MATRICES + "source slice(matmul(a, b)){axis=-1, start=S, stop=T}\n"
        "target matmul(a, slice(b){axis=-1, start=S, stop=T})",
        Numerics.REORDER,
    ),
    "a scale at the other operand": (
        MATRICES + "source matmul(mul(a, constant{value=C, dtype=float}), b)\n"
        "target matmul(a, mul(b, constant{value=C, dtype=float}))",
        Numerics.RANGE,
    ),
    "a scale of rows leaves": (
        MATRICES + "source matmul(mul(a, c), b)\n target mul(matmul(a, b), c)",
        Numerics.RANGE,
    ),
    "an average comes after a convolution": (
        "rule a: float[A,B,C,D], b: float[E,B,1,1]\n"
        "source conv2d(avg_pool2d(a){kernel=[F,G], stride=[F,G]}, b)\n"
        "target avg_pool2d(conv2d(a, b)){kernel=[F,G], stride=[F,G]}",
        Numerics.RANGE,
    ),
    "the other operand is doubled": (
        MATRICES + "source matmul(add(a, a), b)\n target matmul(a, add(b, b))",
        Numerics.RANGE,
    ),
    "a scale that stays": (
        MATRICES + "source mul(matmul(a, b), add(c, c))\n target add(mul(matmul(a, b), c), mul(matmul(a, b), c))",
        Numerics.REASSOCIATE,
    ),
    "the same layer on rows that is a truth value": (
        "rule x: f32[M,K], w: f32[K,N]\n source slice(cast(matmul(x, w)){dtype=i64}){axis=-2, start=S, stop=T}\n"
        "target cast(matmul(slice(x){axis=-2, start=S, stop=T}, w)){dtype=i64}",
        Numerics.RANGE,
    ),
    "a bias beyond masked attention": (
        "rule q: float[..B,L,E], k: float[..B,S,E], v: float[..B,S,F], m: float[L,S], b: float[F]\n"
        "source attention(q, k, add(v, b), m){scale=C}\n target add(attention(q, k, v, m){scale=C}, b)",
        Numerics.MASK,
    ),
    "a weight enters a norm that multiplies it first": (
        "rule a: float[A,B,C,D], b: float[B,1,1]\n source mul(instance_norm(a){eps=E}, b)\n"
        "target instance_norm(a, reshape(b){shape=[B]}){eps=E}",
        Numerics.RANGE,
    ),
    "a window of a volume without what is padded": (
        "rule x: float[N,C,1,H,W], w: float[O,C,3,K,L]\n source conv3d(x, w){padding=[1,0,0]}\n"
        "target conv3d(x, slice(w){axis=-3, start=1, stop=2})",
        Numerics.ZERO_TERMS,
    ),
    "adding up like terms": (
        "rule x: float[M]\n source add(x, x)\n target mul(x, constant{value=2.0, dtype=float})",
        Numerics.REASSOCIATE,
    ),
    "like terms cancel": (
        "rule x: float[M], y: float[M]\n source sub(add(add(x, y), y), y)\n target add(x, y)",
        Numerics.REASSOCIATE,
    ),
    "like terms inside a maximum": (
        "rule x: float[M,N], y: float[M,N]\n source max(y){axes=[-1]}, relu(x)\n"
        "target max(sub(add(x, y), x)){axes=[-1]}, relu(x)",
        Numerics.RANGE,
    ),
    "a factor that may be infinite leaves relu with a maximum": (
        "rule x: float[M,N], y: float[M,1]\n source relu(mul(relu(y), max(x){axes=[-1], keepdim=true}))\n"
        "target mul(relu(y), max(relu(x)){axes=[-1], keepdim=true})",
        Numerics.REASSOCIATE,
    ),
    "two leaves relu with a maximum": (
        "rule x: float[M,N]\n source relu(mul(max(x){axes=[-1]}, constant{value=2.0, dtype=float}))\n"
        "target mul(max(relu(x)){axes=[-1]}, constant{value=2.0, dtype=float})",
        Numerics.REORDER,
    ),
    "terms that cancel part by part": (
        f"{PARTS} source add(y, sub({WHOLE}, x)), relu(x)\n target y, relu(x)",
        Numerics.REASSOCIATE,
    ),
    "terms that cancel part by part inside a relu": (
        f"{PARTS} source relu(add(y, sub({WHOLE}, x))), relu(x)\n target relu(y), relu(x)",
        Numerics.REASSOCIATE,
    ),
    "terms that are added up part by part": (
        f"{PARTS} source add({WHOLE}, x)\n target mul(x, constant{{value=2.0, dtype=float}})",
        Numerics.REASSOCIATE,
    ),
    "parts beside each other": (
        f"{PARTS} source add(add({WHOLE}, y), exp(y))\n target add(x, add(y, exp(y)))",
        Numerics.REORDER,
    ),
    "a product with zero": (
        "rule x: float[M]\n source mul(x, constant{value=0.0, dtype=float})\n target sub(x, x)",
        Numerics.RANGE,
    ),
    "a sum that is split": (
        "rule x: float[M,K], y: float[M,L]\n source sum(concat(x, y){axis=-1}){axes=[-1]}\n"
        "target add(sum(x){axes=[-1]}, sum(y){axes=[-1]})",
        Numerics.REORDER,
    ),
    "padding by hand": (
        IMAGE + "source conv2d(pad(x){widths=[[1,1],[1,1]]}, w)\n target conv2d(x, w){padding=[1,1]}",
        Numerics.ZERO_TERMS,
    ),
    "padding that is only moved": (
        IMAGE + "source relu(pad(x){widths=[[1,1],[1,1]]})\n target pad(relu(x)){widths=[[1,1],[1,1]]}",
        Numerics.EXACT,
    ),
    "a mask on both sides": (
        "rule q: float[..B,L,E], k: float[..B,S,E], v: float[..B,S,F], w: float[..B,S,F], m: float[L,S]\n"
        "source add(attention(q, k, v, m){scale=C}, attention(q, k, w, m){scale=C})\n"
        "target attention(q, k, add(v, w), m){scale=C}",
        Numerics.MASK,  # whether a row that it removes stays zero is not looked at
    ),
    "a product of others first": (
        VECTORS + "source mul(mul(x, y), z)\n target mul(mul(x, z), y)",
        Numerics.RANGE,
    ),
    "one of its products, known from another output": (
        VECTORS + "source relu(mul(mul(x, y), z)), mul(x, z)\ntarget t = mul(mul(x, z), y); relu(t), mul(x, z)",
        Numerics.RANGE,
    ),
    "a product known from another output": (
        VECTORS + "source mul(mul(x, y), z), mul(y, z)\ntarget t = mul(y, z); mul(x, t), t",
        Numerics.RANGE,
    ),
    "outputs exchanged": (
        "rule a: float[M,K], s: float[1,1], b: float[K,N]\nsource matmul(mul(a, s), b), mul(matmul(a, b), s)\n"
        "target mul(matmul(a, b), s), matmul(mul(a, s), b)",
        Numerics.RANGE,
    ),
    "sums before averages": (
        "rule x: float[M,N]\nsource sum(mean(x){axes=[-1]}){axes=[-1]}\ntarget mean(sum(x){axes=[-2]}){axes=[-1]}",
        Numerics.RANGE,
    ),
    "averages before sums": (
        "rule x: float[M,N]\nsource mean(sum(x){axes=[-2]}){axes=[-1]}\ntarget sum(mean(x){axes=[-1]}){axes=[-1]}",
        Numerics.REASSOCIATE,
    ),
    "matrices of one row and one column, associated": (
        "rule a: float[M,1], s: float[1,1], b: float[1,N]\nsource matmul(matmul(a, s), b)\n"
        "target matmul(a, matmul(s, b))",
        Numerics.RANGE,
    ),
    "numbers whose product overflows": (
        "rule x: float[M]\nsource mul(mul(x, constant{value=512.0, dtype=float}), constant{value=512.0, dtype=float})\n"
        "target mul(x, constant{value=262144.0, dtype=float})",
        Numerics.RANGE,
    ),
    "numbers whose product vanishes": (
        "rule x: float[M]\n"
        "source mul(mul(x, constant{value=0.0009765625, dtype=float}), constant{value=0.0009765625, dtype=float})\n"
        "target mul(x, constant{value=9.5367431640625e-07, dtype=float})",
        Numerics.RANGE,
    ),
    "squares factored, one of them copied": (
        PARTS + "source sub(mul(x, contiguous(x)), mul(y, contiguous(y)))\ntarget mul(sub(x, y), add(x, y))",
        Numerics.RANGE,
    ),
    "large terms that cancel": (
        VECTORS + "source sub(x, y)\ntarget sub(add(x, mul(constant{value=4095.0, dtype=float}, y)), "
        "mul(constant{value=4096.0, dtype=float}, y))",
        Numerics.RANGE,
    ),
    "a zero that is computed": (
        VECTORS + "source add(x, mul(constant{value=0.0, dtype=float}, y))\ntarget add(x, sub(y, y))",
        Numerics.RANGE,
    ),
    "a number beside a tensor of it": (
        PARTS + "source mul(x, expand(constant{value=0.1, dtype=float}){shape=[M,N]})\n"
        "target mul(x, constant{value=0.1, dtype=float})",
        Numerics.REASSOCIATE,
    ),
    "a quotient of a number beside one of a tensor of it": (
        PARTS + "source div(expand(constant{value=99.9, dtype=float}){shape=[M,N]}, x)\n"
        "target div(constant{value=99.9, dtype=float}, x)",
        Numerics.RANGE,
    ),
    "two factors exchanged": (
        VECTORS + "source mul(mul(x, y), z)\n target mul(z, mul(y, x))",
        Numerics.EXACT,
    ),
    "a product beside others that move": (
        VECTORS + "source add(add(mul(mul(x, y), z), x), y)\n target add(add(x, y), mul(mul(x, y), z))",
        Numerics.REORDER,
    ),
    "the quotient of a product": (
        VECTORS + "source div(mul(x, y), z)\n target mul(x, div(y, z))",
        Numerics.RANGE,
    ),
    "the product with a quotient": (
        VECTORS + "source mul(x, div(y, z))\n target div(mul(x, y), z)",
        Numerics.RANGE,
    ),
    "divisors multiplied first": (
        VECTORS + "source div(div(x, y), z)\n target div(x, mul(y, z))",
        Numerics.RANGE,
    ),
    "a number and two factors": (
        VECTORS + "source mul(mul(x, constant{value=C, dtype=float}), y)\n"
        "target mul(mul(x, y), constant{value=C, dtype=float})",
        Numerics.RANGE,
    ),
    "one is no factor": (
        VECTORS + "source mul(mul(x, y), constant{value=1.0, dtype=float})\n"
        "target mul(mul(x, constant{value=1.0, dtype=float}), y)",
        Numerics.REORDER,
    ),
    "a product of three distributed": (
        VECTORS + "source mul(mul(add(x, y), z), z)\n target add(mul(mul(x, z), z), mul(mul(y, z), z))",
        Numerics.REASSOCIATE,
    ),
    "a product of three distributed, others first": (
        VECTORS + "source mul(mul(add(x, y), z), z)\n target add(mul(x, mul(z, z)), mul(y, mul(z, z)))",
        Numerics.RANGE,
    ),
    "scales of rows and columns exchanged": (
        "rule x: float[M,K], y: float[K], z: float[K], w: float[K,N]\n"
        "source matmul(mul(x, y), mul(w, reshape(z){shape=[K,1]}))\n"
        "target matmul(mul(x, z), mul(w, reshape(y){shape=[K,1]}))",
        Numerics.RANGE,
    ),
    "the same tensor, read at two places": (
        "rule x: float[N,N], y: float[N,N]\n"
        "source relu(mul(mul(x, y), permute(x){order=[-1,-2]}))\n"
        "target relu(mul(mul(permute(x){order=[-1,-2]}, y), x))",
        Numerics.RANGE,
    ),
    "products of scaled rows, side by side": (
        "rule x: float[L,M], y: float[M], w: float[M,N], v: float[M,N]\n"
        "source matmul(mul(x, y), w), matmul(mul(x, y), v)\n"
        "target t = matmul(mul(x, y), concat(w, v){axis=-1});"
        " slice(t){axis=-1, start=0, stop=N}, slice(t){axis=-1, start=N, stop=N+N}",
        Numerics.REORDER,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_class(name: str) -> None:
    text, expected = CASES[name]
    verdict = prove(read_rules(text)[0])
    assert verdict.numerics is expected, verdict.reason


def test_a_product_that_is_grouped_anew_overflows_in_half_precision() -> None:
    x, y, z = (torch.tensor(number, dtype=torch.float16) for number in (300.0, 1 / 256, 300.0))
    assert torch.isfinite(x * y * z)
    assert torch.isinf(x * z * y)


def test_factors_that_are_too_many_to_tell_are_one_each() -> None:
    sums = [f"add(a{number}, b{number})" for number in range(12)]
    names = ", ".join(f"{letter}{number}: float[N]" for number in range(12) for letter in "ab")
    left, right = sums[0], sums[-1]
    for one, other in zip(sums[1:], sums[-2::-1], strict=True):
        left, right = f"mul({left}, {one})", f"mul({right}, {other})"
    (rule,) = read_rules(f"rule {names} source {left} target {right}")
    assert classify(rule, ProofLevel.TERMS) is Numerics.RANGE


FUNCTIONS = [
    op
    for op in DEFINED.values()
    if op.is_elementwise and op.arity == (1, 1) and not (op.is_movement or op.reads_truth or op is Cast)
]


@pytest.mark.parametrize("op", FUNCTIONS, ids=lambda op: op.name)
def test_a_function_that_rounds_is_not_just_a_sum_in_another_order(op: type[TensorOperator]) -> None:
    written = f"rule x: float[M]\n source {op.name}(x)\n target mul(x, constant{{value=0.5, dtype=float}})\n"
    x = torch.linspace(0.1, 9.0, 4096)
    single, double = (compute(op(), [x.to(dtype)]).double() for dtype in (torch.float32, torch.float64))
    found = classify(read_rules(written)[0], ProofLevel.TERMS)
    assert found >= Numerics.REASSOCIATE or not bool((single != double).any())
    assert (found is Numerics.REORDER) == (op.rounding is Rounding.NEVER)
