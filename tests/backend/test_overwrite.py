"""Results in the place of dead operands: wherever they may be, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.nn import functional
from torch.utils import _pytree as pytree

from taso_py.backend import Plan, build, poison, storage
from taso_py.backend.storage import Storages, allocates
from taso_py.frontend import import_module

PLAN = Plan(overwrites=True)
X = torch.arange(12.0).reshape(3, 4) / 7 - 0.6
BUFFER = torch.ones(3, 4)


class Model(nn.Module):
    """A function of one tensor, with a weight and a buffer that may be written to."""

    def __init__(self, function: Callable[[Model, Tensor], object]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))
        self.state: Tensor
        self.register_buffer("state", BUFFER.clone())

    def forward(self, x: Tensor) -> object:
        return self.function(self, x)


def write(model: Model, x: Tensor) -> Tensor:
    y = x * 2
    model.state.copy_(y)
    return torch.tanh(y)


def in_place_calls(module: fx.GraphModule) -> list[str]:
    names = [str(node.target).split(".")[1] for node in module.graph.nodes if isinstance(node.target, OpOverload)]
    return [name for name in names if name.endswith("_") and name != "copy_"]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda _, x: torch.relu(torch.tanh(x)), ["relu_"]),
        # Not the input, a weight, or what is still read or returned.
        (lambda _, x: torch.relu(x), []),
        (lambda m, _: torch.relu(m.weight), []),
        (lambda _, x: (y := torch.tanh(x)) + torch.relu(y), ["add_"]),
        (lambda _, x: ((y := torch.tanh(x)), torch.relu(y)), []),
        # Of a product either operand, the second only if it has the result's type.
        (lambda _, x: x * torch.tanh(x), ["mul_"]),
        (lambda _, x: x - torch.tanh(x), []),
        # Products of complex numbers are rounded otherwise in place.
        (lambda _, x: torch.complex(x, x) * torch.polar(x, x + 1).exp(), []),
        (lambda _, x: torch.polar(x, x + 1).exp() * torch.complex(x, x), []),
        (lambda _, x: x * torch.tanh(x[:1]), []),
        (lambda _, x: torch.tanh(x) * torch.tanh(x[:1]), ["mul_"]),
        # Views: a reshape may be overwritten, and what it shows must be dead too.
        (lambda _, x: torch.relu(torch.tanh(x).reshape(12)), ["relu_"]),
        (lambda _, x: (y := torch.tanh(x)).reshape(2, 6).relu().sum() - y.sum(), ["sub_"]),
        (lambda _, x: ((y := torch.tanh(x)).sum(), torch.relu(y)), ["relu_"]),
        (lambda _, x: torch.relu(torch.tanh(x)[1:]), []),
        (lambda _, x: torch.relu(torch.tanh(x[:1]).expand(3, 4)), []),
        (lambda _, x: (y := torch.tanh(x)) + y.reshape(4, 3).t().reshape(3, 4), []),
        (lambda _, x: (y := torch.tanh(x)) * y, []),
        # Another type of element.
        (lambda _, x: torch.tanh(x) > 0, []),
        (lambda _, x: torch.relu(torch.tanh(x).double()), []),
        (lambda _, x: torch.relu(torch.split(torch.tanh(x), 2, 1)[0]), []),
        (write, []),
    ],
)
def test_what_is_overwritten(function: Callable[[Model, Tensor], object], expected: list[str]) -> None:
    model = Model(function).eval()
    program = import_module(model, (X,))
    plain, module = build(program), build(program, PLAN)
    assert in_place_calls(module) == expected
    with torch.no_grad():
        for candidate in (module, poison(build(program, PLAN))):
            x = X.clone()
            for found, wanted in zip(leaves(candidate(x)), leaves(plain(X)), strict=True):
                assert torch.equal(found, wanted)
                assert found.stride() == wanted.stride()
            assert torch.equal(x, X)
            assert all(torch.equal(a, b) for a, b in zip(candidate.parameters(), plain.parameters(), strict=True))
            assert all(torch.equal(a, b) for a, b in zip(candidate.buffers(), plain.buffers(), strict=True))


def leaves(result: object) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)  # pyright: ignore[reportArgumentType]


def test_reading_what_is_dead_would_show() -> None:
    module = poison(build(import_module(Model(lambda _, x: functional.gelu(torch.tanh(x)) + torch.exp(x)), (X,))))
    dead = next(node for node in module.graph.nodes if str(node.target).startswith("aten.tanh"))
    last = next(node for node in module.graph.nodes if str(node.target).startswith("aten.add"))
    with torch.no_grad():
        assert torch.isfinite(module(X)).all()
        last.args = (dead, last.args[1])
        module.recompile()
        assert torch.isnan(module(X)).all()


def test_elementwise_operators_return_new_storage() -> None:
    """What is taken to allocate does, for every elementwise operator that can be called with simple arguments."""
    called = 0
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            for dtype in (torch.float32, torch.int64, torch.bool):
                called += check(getattr(packet, overload), dtype)
    assert called > 300


def check(overload: OpOverload, dtype: torch.dtype) -> bool:
    """Calls an operator if it is taken to allocate, on operands that could be returned as they are."""
    node = fx.Graph().call_function(overload, ())
    if torch.Tag.pointwise not in overload.tags or not allocates(node):
        return False
    operands, arguments = [], []
    for argument in overload._schema.arguments:
        kind = str(argument.type)
        if kind == "Tensor":
            operands.append(torch.ones(2, 3, dtype=dtype))
            arguments.append(operands[-1])
        elif kind in ("number", "int", "float"):
            arguments.append(1)
        elif not argument.has_default_value():
            return False
        elif not argument.kwarg_only:
            arguments.append(argument.default_value)
    try:
        result = overload(*arguments)
    except (RuntimeError, TypeError, IndexError):
        return False
    for tensor in leaves(result) if isinstance(result, Tensor | tuple) else ():
        assert all(tensor.untyped_storage()._cdata != operand.untyped_storage()._cdata for operand in operands), (
            overload
        )
    return True


IMAGE, ROWS, ONE = torch.randn(2, 3, 4, 4), torch.randn(2, 3), torch.ones(3)
AS_IT_IS = {
    "conv2d": (IMAGE, torch.eye(3)[:, :, None, None]),
    "conv3d": (IMAGE[:, :, None], torch.eye(3)[:, :, None, None, None]),
    "conv_transpose2d": (IMAGE, torch.eye(3)[:, :, None, None]),
    "linear": (ROWS, torch.eye(3)),
    "matmul": (ROWS, torch.eye(3)),
    "mm": (ROWS, torch.eye(3)),
    "bmm": (ROWS[None], torch.eye(3)[None]),
    "addmm": (ROWS, torch.zeros(2, 1), torch.zeros(1, 3)),
    "baddbmm": (ROWS[None], torch.zeros(1, 2, 1), torch.zeros(1, 1, 3)),
    "linalg_vector_norm": (ROWS[:, :1], 1, [1], True),
    "_addmm_activation": (ONE, torch.zeros(2, 1), torch.zeros(1, 3)),
    "batch_norm": (IMAGE, None, None, torch.zeros(3), ONE, False, 0.0, 0.0, False),
    "layer_norm": (ROWS, [3]),
    "rms_norm": (ROWS, [3]),
    "group_norm": (IMAGE, 3),
    "softmax": (ROWS, 1),
    "_softmax": (ROWS, 1, False),
    "mean": (ROWS[:, :1], [1], True),
    "sum": (ROWS[:, :1], [1], True),
    "cat": ([ROWS],),
    "stack": ([ROWS],),
    "clone": (ROWS,),
    "embedding": (ROWS, torch.arange(2)),
    "index": (ROWS, [torch.arange(2)]),
    "index_select": (ROWS, 0, torch.arange(2)),
    "flip": (ROWS, []),
    "cumsum": (ROWS[:, :1], 1),
    "gather": (ROWS, 1, torch.arange(3).expand(2, 3)),
    "hardswish": (ROWS + 3,),
    "max_pool2d": (IMAGE, [1, 1]),
    "avg_pool2d": (IMAGE, [1, 1]),
    "adaptive_avg_pool2d": (IMAGE, [4, 4]),
    "upsample_nearest2d": (IMAGE, [4, 4]),
    "upsample_bilinear2d": (IMAGE, [4, 4], False),
    "scaled_dot_product_attention": (IMAGE, IMAGE, IMAGE),
}
"""Calls whose results could be operands as they are, or parts of them."""


def test_other_operators_that_allocate_return_new_storage() -> None:
    assert AS_IT_IS.keys() == storage._ALLOCATING
    for name, arguments in AS_IT_IS.items():
        given = {leaf.untyped_storage()._cdata for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, Tensor)}
        for result in leaves(getattr(torch.ops.aten, name)(*arguments)):
            assert result.untyped_storage()._cdata not in given, name


def test_unknown_calls_may_return_anything() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    new = graph.call_function(torch.ops.aten.tanh.default, (x,))
    unknown = graph.call_function(lambda value: value, (new,))
    graph.output(unknown)
    storages = Storages(graph)
    assert not storages.of(new).is_private
    assert storages.of(new) is storages.of(unknown)
