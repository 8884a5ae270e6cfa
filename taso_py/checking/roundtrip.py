"""``python -m taso_py.checking.roundtrip [--small] [NAME ...]``: models of the zoo to graphs and back, bit for bit.

Invariant: exit status 0 only if every output of every model is identical to the original's, strides included.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from taso_py.arguments import Parser
from taso_py.backend import build
from taso_py.backend.bits import bits_of
from taso_py.backend.contract import observe
from taso_py.frontend import Program, import_module
from taso_py.ir.errors import TasoError
from taso_py.models import zoo
from taso_py.models.zoo.entry import ZooEntry
from taso_py.ops.opaque import Opaque


@dataclass(frozen=True)
class RoundTrip:
    """What became of one model."""

    name: str
    identical: bool
    nodes: int
    opaque: Counter[str]
    """How often each operator outside the table runs: static nodes, which fold away, are not counted."""
    seconds: float
    """Of importing and building."""

    def __str__(self) -> str:
        verdict = "identical" if self.identical else "DIFFERENT"
        kinds = ", ".join(f"{name} x{count}" for name, count in self.opaque.most_common())
        counts = f"{self.nodes:5} nodes {self.opaque.total():3} opaque {self.seconds:6.1f} s"
        return f"{self.name:32} {verdict}  {counts}  {kinds}".rstrip()


def round_trip(entry: ZooEntry, *, small: bool = False, device: str = "cpu") -> RoundTrip:
    """Imports and builds a model, and compares the outputs on its example inputs.

    torch.export never takes the fused path that multi-head attention has outside of it, so the original does not here.

    Raises:
        TasoError: the model cannot be made or imported.
    """
    module, args = entry.make(small=small)
    module, args = module.to(device), tuple(tensor.to(device) for tensor in args)
    with torch.no_grad():
        with without_fused_attention():
            expected = pytree.tree_leaves(module(*args))
        start = time.perf_counter()
        program = import_module(module, args)
        built = build(program)
        seconds = time.perf_counter() - start
        found = pytree.tree_leaves(built(*args))
    return RoundTrip(entry.name, same(expected, found), len(program.graph.nodes), opaque_kinds(program), seconds)


class _Watched(TorchFunctionMode):
    """Calls what it is asked to; PyTorch's fused operators are not used beside such a mode."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def without_fused_attention() -> AbstractContextManager[Any]:
    """Multi-head attention does not take its fused path meanwhile, in this thread."""
    return _Watched()


def difference(
    original: nn.Module,
    built: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    is_open: bool = False,
) -> str:
    """How a call of a built module differs from one of the original; empty if it does not.

    Compared are the tree of results, their bits and strides, the random numbers that are drawn, and which results share
    memory with each other and with the arguments: none may that did not before. Where sizes are open, the strides of
    axes of size 1 are not compared: they place no element, and an export does not say what they are at all sizes.
    """
    kwargs = kwargs or {}
    start = torch.get_rng_state()
    expected = original(*args, **kwargs)
    after = torch.get_rng_state()
    torch.set_rng_state(start)
    found = built(*args, **kwargs)
    if pytree.tree_structure(found) != pytree.tree_structure(expected):
        return "the results are in another structure"
    if not same(pytree.tree_leaves(expected), pytree.tree_leaves(found), is_open):
        return "the results differ"
    if not torch.equal(torch.get_rng_state(), after):
        return "other random numbers are drawn"
    more = sharing(args, kwargs, found) - sharing(args, kwargs, expected)
    return f"{' and '.join(min(more))} share memory" if more else ""


def sharing(args: Any, kwargs: Any, result: Any) -> frozenset[tuple[str, str]]:
    """Which results share storage with each other and with arguments."""
    inputs = {str(i): leaf for i, leaf in enumerate(pytree.tree_leaves((args, kwargs))) if isinstance(leaf, Tensor)}
    outputs = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
    return observe(outputs, inputs, {}).shared


def same(expected: Sequence[object], found: Sequence[object], is_open: bool = False) -> bool:
    """Whether two lists of outputs are equal: tensors in type, shape, strides and every bit but those of NaN and zero.

    Conjugate and negative views equal others of their kind only.

    Args:
        expected: a list.
        found: the other one.
        is_open: whether strides of axes of size 1 do not count.
    """
    if len(expected) != len(found):
        return False
    for left, right in zip(expected, found, strict=True):
        if isinstance(left, Tensor) and isinstance(right, Tensor):
            if left.dtype is not right.dtype or left.shape != right.shape or bits_of(left) != bits_of(right):
                return False
            places = zip(left.stride(), right.stride(), left.shape, strict=True)
            if any(one != other for one, other, size in places if not (is_open and size == 1)):
                return False
            if not _are_bits_equal(left, right):
                return False
        elif left != right:
            return False
    return True


def _are_bits_equal(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors of one type are equal in every bit but those of NaN and the signs of zeros.

    What a library adds up where padding is all there is may be zero of either sign, whichever of its kernels it takes.
    """
    if left.is_complex():
        left, right = torch.view_as_real(left.resolve_conj()), torch.view_as_real(right.resolve_conj())
    if not left.is_floating_point():
        return torch.equal(left, right)
    left, right = left.double(), right.double()
    return bool(((left == right) | (left.isnan() & right.isnan())).all())


def opaque_kinds(program: Program) -> Counter[str]:
    """How often a program runs each operator outside the table."""
    nodes = [node for node in program.graph.nodes if not node.is_static]
    return Counter(node.op.target for node in nodes if isinstance(node.op, Opaque))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = Parser(
        prog="python -m taso_py.checking.roundtrip", description="Put models through a graph and compare bit for bit."
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="models of the zoo; all by default")
    parser.add_argument("--small", action="store_true", help="the small variants")
    options = parser.parse_args(arguments)
    failed = False
    for name in options.names or zoo.names():
        try:
            result = round_trip(zoo.get(name), small=options.small)
            failed |= not result.identical
            line = str(result)
        except TasoError as error:
            failed = True
            line = f"{name:32} REFUSED    {error}"
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True, warn_only=True)
    sys.exit(main())
