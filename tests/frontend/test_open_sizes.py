"""Models of open sizes: imported once, they compute the original's bits at sizes that were never seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional

from taso_py.backend import build
from taso_py.backend.guard import ArgumentError
from taso_py.checking.roundtrip import difference
from taso_py.frontend import import_program
from taso_py.frontend.errors import ImportRefusal
from taso_py.frontend.reexport import open_shapes
from taso_py.ops.opaque import Opaque
from taso_py.saving.artifact import reimport, serialize
from tests.versions import need

BATCH, LENGTH = Dim("batch"), Dim("length", min=4, max=64)


class Block(nn.Module):
    """A transformer block that reshapes by the sizes of its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        def heads(y: Tensor) -> Tensor:
            return y.view(x.shape[0], x.shape[1], 2, 8).transpose(1, 2)

        y = self.norm(x)
        z = functional.scaled_dot_product_attention(heads(self.q(y)), heads(self.k(y)), heads(self.v(y)))
        return x + z.transpose(1, 2).reshape(x.shape)


class Image(nn.Module):
    """A convolutional network on images of open height and width."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return y.mean((2, 3)), y.permute(0, 2, 3, 1), y.flatten(1), x[:, :, 1:-1, ::2]


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def exported(module: nn.Module, shapes: Sequence[Sequence[int]], dims: Sequence[Any]) -> ExportedProgram:
    torch.manual_seed(0)
    spec = (tuple(dims),) if isinstance(module, Function) else tuple(dims)
    return torch.export.export(module.eval(), tuple(torch.randn(*shape) for shape in shapes), dynamic_shapes=spec)


SMALL: dict[str, Callable[..., Any]] = {
    "size as a number": lambda x: x.sum(1) / x.shape[1],
    "range": lambda x: torch.arange(x.shape[1]) + x.shape[0],
    "sizes multiplied": lambda x: x.reshape(x.shape[0] * x.shape[1]),
    "slice to a size": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
    "slice from the end": lambda x: x[:, :-1] * x[:, 1:],
    "last": lambda x: x[:, -1],
    "split": lambda x: x.new_ones(x.shape[0], 6).split(2, 1),
    "expanded": lambda x: x.sum(1, keepdim=True).expand(x.shape[0], x.shape[1]),
    "transposed": lambda x: x.t(),
    "stack": lambda x: torch.stack([x, -x], 1),
    "softmax": lambda x: functional.pad(x, (1, 2)).softmax(-1),
    "part of fixed size": lambda x: torch.cat([x, x], 1)[:2, :3],
    "one more axis": lambda x: (x[:, None] + 0, x.t()[None]),
    "outer": lambda x: x.unsqueeze(1) * x.unsqueeze(2),
    "mask": lambda x: x.masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1)[0] > 0, 0.0),
}


@pytest.mark.parametrize("name", SMALL)
def test_open_sizes_compute_the_same_at_others(name: str) -> None:
    module = Function(SMALL[name])
    program = import_program(exported(module, [(3, 7)], [{0: BATCH, 1: LENGTH}]))
    built = build(program)
    saved = build(reimport(serialize(built, program.example_inputs, {}, open_shapes(program))))
    with torch.no_grad():
        for shape in [(3, 7), (1, 4), (2, 64), (9, 5)]:
            for candidate in (built, saved):
                assert difference(module, candidate, (torch.randn(shape),)) == ""


@pytest.mark.parametrize(
    ("module", "dims", "shapes"),
    [
        (Block(), {0: BATCH, 1: LENGTH}, [(3, 10, 16), (1, 4, 16), (5, 64, 16)]),
        (
            Image(),
            {0: BATCH, 2: 8 * Dim("height", min=2), 3: 2 * Dim("width", min=4)},
            [(2, 3, 24, 20), (1, 3, 16, 12), (3, 3, 80, 98)],
        ),
    ],
    ids=["attention", "convolution"],
)
def test_models_of_open_sizes(module: nn.Module, dims: Any, shapes: list[tuple[int, ...]]) -> None:
    if isinstance(module, Image):
        need("2.13", "the guards of an export may be wrong")
    program = import_program(exported(module, shapes[:1], [dims]))
    assert not any(isinstance(node.op, Opaque) for node in program.graph.nodes)
    assert len(program.open) == len(dims)
    built = build(program)
    with torch.no_grad():
        for shape in shapes:
            assert difference(module, built, (torch.randn(shape),)) == ""


@pytest.mark.parametrize("shapes", [((7,), (3, 7)), ((3, 7), (7,))])
def test_operators_that_broadcast_in_python_are_in_the_table(shapes: tuple[tuple[int, ...], ...]) -> None:
    module = Function(lambda x, y: torch.addcmul(x, y, y + 1))
    dims = [{0: LENGTH} if len(shape) == 1 else {0: BATCH, 1: LENGTH} for shape in shapes]
    program = import_program(exported(module, shapes, dims))
    assert not any(isinstance(node.op, Opaque) for node in program.graph.nodes)
    args = tuple(torch.randn([2 * size for size in shape]) for shape in shapes)
    assert difference(module, build(program), args) == ""


def test_arguments_of_sizes_that_do_not_fit_are_refused() -> None:
    add = Function(lambda x, y: x @ y)
    height = Dim("height", min=2, max=9)
    built = build(import_program(exported(add, [(8, 3), (3, 4)], [{0: 2 * height, 1: BATCH}, {0: BATCH}])))
    assert built(torch.ones(18, 5), torch.ones(5, 4)).shape == (18, 4)
    for shapes, message in (
        (((7, 3), (3, 4)), r"args_0\.0 must be 6 \(2\*\(args_0\.0 // 2\)"),
        (((20, 3), (3, 4)), r"dimension args_0\.0 // 2 may be 2 to 9 in this module, not 10"),
        (((8, 0), (0, 4)), r"args_0\.1 may be 1 or more"),
        (((8, 3), (5, 4)), r"args_1\.0 must be 3 \(args_0\.1"),
        (((8, 3), (3, 5)), r"shape \[any, 4\]"),
        (((8, 3), (3,)), r"shape \[any, 4\]"),
    ):
        with pytest.raises(ArgumentError, match=message):
            built(*(torch.ones(shape) for shape in shapes))


def test_a_size_is_named_by_how_callers_find_it() -> None:
    height, width, depth = (Dim(name, min=2) for name in ("height", "width", "depth"))
    shapes, dims = [(6, 9), (12, 7)], [{0: height, 1: 2 * width + 1}, {0: 2 * height, 1: 2 * depth - 1}]
    program = import_program(exported(Function(lambda x, y: (x.sum(), y.sum())), shapes, dims))
    assert [size.name for size in program.open] == ["args_0.0", "(args_0.1 - 1) // 2", "(args_1.1 + 1) // 2"]
    assert str(program.graph.inputs[0].types[0].shape[1]) == "2*((args_0.1 - 1) // 2){4 in 2..}+1"


def test_the_example_may_have_another_size_than_the_export() -> None:
    program = exported(Function(torch.relu), [(4, 3)], [{0: BATCH}])
    (size,) = import_program(program, (torch.ones(11, 3),)).open
    assert (size.example, size.least, size.most) == (11, 1, None)


def test_a_size_beyond_polynomials_is_refused() -> None:
    def longest(x: Tensor) -> Tensor:
        size: Any = torch.sym_max(x.shape[0], x.shape[1])
        return x.new_zeros(size)

    program = exported(Function(longest), [(3, 7)], [{0: BATCH, 1: LENGTH}])
    with pytest.raises(ImportRefusal, match=r"sym_max computes an open size: .*; export with static sizes"):
        import_program(program)


class Ways(nn.Module):
    """A model that goes another way with large arguments, and fails with some."""

    def forward(self, x: Tensor) -> Tensor:
        torch._check(x.shape[0] != 6)
        return x + 1 if x.shape[0] * x.shape[1] < 100 else x + 2


def test_sizes_at_which_the_model_goes_another_way_are_refused() -> None:
    module = Ways()
    program = exported(module, [(3, 7)], [{0: Dim.AUTO, 1: Dim.AUTO}])
    built = build(import_program(program))
    again = build(reimport(serialize(built, (torch.randn(3, 7),), {}, open_shapes(import_program(program)))))
    for candidate in (built, again):
        for shape in [(3, 7), (7, 9), (2, 40)]:
            assert difference(module, candidate, (torch.randn(shape),)) == ""
        for shape in [(6, 7), (10, 10), (2, 60)]:
            with pytest.raises(AssertionError, match="Guard failed"):
                candidate(torch.randn(shape))
