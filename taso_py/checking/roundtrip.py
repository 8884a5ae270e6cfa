"""``python -m taso_py.checking.roundtrip [--small] [NAME ...]``: models of the zoo to graphs and back, bit for bit.

Invariant: exit status 0 only if every output of every model is identical to the original's, strides included.
"""

from __future__ import annotations

import copy
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

from taso_py.arguments import CommandParser
from taso_py.backend import build
from taso_py.backend.bits import bits_of, resolved
from taso_py.backend.contract import observe
from taso_py.checking.compare import snapshot
from taso_py.frontend import Program, import_module
from taso_py.ir.errors import TasoError
from taso_py.models import zoo
from taso_py.models.zoo.entry import ZooEntry
from taso_py.ops.opaque import Opaque


@dataclass(frozen=True)
class RoundTrip:
    """Outcome of one model's round trip."""

    name: str
    identical: bool
    nodes: int
    opaque: Counter[str]
    """How often each opaque operator runs; static nodes, which are folded, are not counted."""
    seconds: float
    """Time of importing and building."""

    def __str__(self) -> str:
        verdict = "identical" if self.identical else "DIFFERENT"
        kinds = ", ".join(f"{name} x{count}" for name, count in self.opaque.most_common())
        counts = f"{self.nodes:5} nodes {self.opaque.total():3} opaque {self.seconds:6.1f} s"
        return f"{self.name:32} {verdict}  {counts}  {kinds}".rstrip()


def round_trip(entry: ZooEntry, *, small: bool = False, device: str = "cpu") -> RoundTrip:
    """Import and build a model, and compare the outputs on its example inputs.

    torch.export never uses the fused kernel of multi-head attention, so it is switched off for the original too.

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
    return RoundTrip(
        name=entry.name,
        identical=equal_outputs(expected, found),
        nodes=len(program.graph.nodes),
        opaque=opaque_kinds(program),
        seconds=seconds,
    )


class _Watched(TorchFunctionMode):
    """Function mode that changes nothing; PyTorch avoids its fused attention kernel while one is active."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def without_fused_attention() -> AbstractContextManager[Any]:
    """Keep multi-head attention in this thread from using its fused kernel."""
    return _Watched()


@dataclass(frozen=True)
class CallRecord:
    """Everything that the caller of a module can observe of one call."""

    structure: pytree.TreeSpec
    results: Sequence[Any]
    """Copies of the leaves of the result."""
    arguments: Sequence[Any]
    """The leaves of the arguments after the call."""
    buffers: Sequence[Tensor]
    """Copies of the original's buffers after the call."""
    random_state: Tensor
    """State of the generator after the call."""
    shared: frozenset[tuple[str, str]]
    """Results that share storage with each other and with arguments."""

    @property
    def values(self) -> Sequence[Any]:
        """All that the call may have computed: results, arguments and buffers."""
        return [*self.results, *self.arguments, *self.buffers]

    def difference(self, found: CallRecord, *, is_open: bool = False) -> str:
        """Describe how another record differs from this one, values last; empty if it does not."""
        problem = self.difference_beside_values(found)
        if problem:
            return problem
        for what, mine, yours in (
            ("results differ", self.results, found.results),
            ("arguments differ after the call", self.arguments, found.arguments),
            ("buffers differ after the call", self.buffers, found.buffers),
        ):
            if not equal_outputs(mine, yours, is_open):
                return f"the {what}"
        return ""

    def difference_beside_values(self, found: CallRecord) -> str:
        """Describe how another record differs in structure, random numbers or aliasing; empty if it does not."""
        if found.structure != self.structure:
            return "the results are in another structure"
        if not torch.equal(found.random_state, self.random_state):
            return "other random numbers are drawn"
        more = found.shared - self.shared
        return f"{' and '.join(min(more))} share memory" if more else ""


def record_call(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None, buffers: Mapping[str, Tensor]
) -> CallRecord:
    """Call a module with copies of arguments in the same memory layout.

    Args:
        module: the module.
        args: positional arguments.
        kwargs: keyword arguments.
        buffers: copies of the original's buffers before the call; what the module has not, it does not write to.
    """
    given = copy.deepcopy(pytree.tree_map_only(Tensor, Tensor.detach, (tuple(args), dict(kwargs or {}))))
    result, own = module(*given[0], **given[1]), dict(module.named_buffers())
    return CallRecord(
        structure=pytree.tree_structure(result),
        results=[*map(snapshot, pytree.tree_leaves(result))],
        arguments=pytree.tree_leaves(given),
        # How a buffer lies in the module, as a conjugate view or not, is not for its caller to see.
        buffers=[snapshot(resolved(own.get(name, before))) for name, before in buffers.items()],
        random_state=torch.get_rng_state(),
        shared=shared_storage(*given, result=result),
    )


def copied_buffers(module: nn.Module) -> Mapping[str, Tensor]:
    """Return copies of the buffers of a module by name."""
    return {name: snapshot(buffer) for name, buffer in module.named_buffers()}


def difference(
    original: nn.Module,
    built: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    is_open: bool = False,
) -> str:
    """Describe how a call of a built module differs from one of the original; empty if it does not.

    This compares the structure of the results, their bits and strides, the random numbers that are drawn, and aliasing:
    results must not share memory with each other or with arguments unless the original's do. Each is called with copies
    of the arguments, which must be equal afterwards, as must be the buffers. With open sizes, strides of axes of size 1
    are not compared: they are never used, and an export does not state them for all sizes.
    """
    start, buffers = torch.get_rng_state(), copied_buffers(original)
    expected = record_call(original, args, kwargs, buffers)
    torch.set_rng_state(start)
    return expected.difference(record_call(built, args, kwargs, buffers), is_open=is_open)


def shared_storage(args: Any, kwargs: Any, result: Any) -> frozenset[tuple[str, str]]:
    """Return which results share storage with each other and with arguments."""
    inputs = {str(i): leaf for i, leaf in enumerate(pytree.tree_leaves((args, kwargs))) if isinstance(leaf, Tensor)}
    outputs = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
    return observe(outputs, inputs, {}).shared


def equal_outputs(expected: Sequence[object], found: Sequence[object], is_open: bool = False) -> bool:
    """Return whether two lists of outputs are equal: types, shapes, strides and all bits but those of NaN and zero.

    Conjugate and negative views only equal others of their kind.

    Args:
        expected: outputs of the original.
        found: outputs to compare with them.
        is_open: whether to ignore strides of axes of size 1.
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
    """Return whether two tensors of one type are equal in all bits but those of NaN and the signs of zeros.

    The sign of a sum over padding alone depends on which of its kernels a library chooses.
    """
    if left.is_complex():
        left, right = torch.view_as_real(left.resolve_conj()), torch.view_as_real(right.resolve_conj())
    if not left.is_floating_point():
        return torch.equal(left, right)
    left, right = left.double(), right.double()
    return bool(((left == right) | (left.isnan() & right.isnan())).all())


def opaque_kinds(program: Program) -> Counter[str]:
    """Return how often a program runs each opaque operator."""
    nodes = [node for node in program.graph.nodes if not node.is_static]
    return Counter(node.op.target for node in nodes if isinstance(node.op, Opaque))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = CommandParser(
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
