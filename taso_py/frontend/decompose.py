"""Decomposition of exported programs that keeps all composite operators but a few whole.

PyTorch 2.13 registers every composite operator it knows (about five hundred) as one to preserve and undoes that
afterwards, which takes several times as long as decomposing a small program. Here only those that are called are
registered.

Invariant: a program comes out as :meth:`torch.export.ExportedProgram.run_decompositions` gives it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator, Iterator, Mapping, Set
from functools import cache
from typing import Any

import torch
import torch._export.utils
import torch.export.exported_program
from torch import fx
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator, OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

from taso_py.backend.schema import bind, is_mutable, may_draw, overload_named

_utils: Any = torch._export.utils
_programs: Any = torch.export.exported_program
_IS_KNOWN = hasattr(_programs, "_collect_all_valid_cia_ops") and hasattr(_utils, "_is_preservable_cia_op")
"""True if this PyTorch has the private functions that collect composite operators, which this module replaces."""
_USUALLY_CALLED = (
    "where.ScalarOther",
    "where.ScalarSelf",
    "_debug_has_internal_overlap.default",
    "matmul.default",
    "_scaled_dot_product_attention_math.default",
)
"""Composite operators that the decomposition of others calls in common models, as seen in PyTorch 2.13."""
EXPANDED = frozenset(
    {
        "aten.reshape.default",
        "aten.flatten.using_ints",
        "aten.unflatten.int",
        "aten.contiguous.default",
        "aten.dropout.default",
        "aten.batch_norm.default",
    }
)
"""Composite operators that PyTorch does not keep whole, though the importer reads them."""
_called_composites: set[OpOverload] = {
    operator
    for name in _USUALLY_CALLED
    if hasattr(torch.ops.aten, name.split(".")[0])
    and isinstance(operator := overload_named(f"aten.{name}"), OpOverload)
}
"""Composite operators that may be called during the decomposition of others; those that were are added."""


def decompose(exported: ExportedProgram, table: Mapping[Any, Any]) -> ExportedProgram:
    """Return the program in functional form, decomposed by this table only.

    Call it under :func:`taso_py.backend.tracing.quiet`. Where an operator is called that was not registered, which its
    table of dispatched calls shows, the program is decomposed again with that one registered too.
    """
    if not _IS_KNOWN:
        return exported.run_decompositions(dict(table))
    while True:
        kept = {
            *table,
            *_called_composites,
            *filter(_utils._is_preservable_cia_op, _called_operators(exported.graph_module)),
        }
        others = _composites() - kept
        for dispatched in map(_dispatch_table, others):
            dispatched.clear()
        try:
            with _known_composites(kept):
                functional = exported.run_decompositions(dict(table))
        except Exception:
            if not _record_called(others):
                raise
        else:
            if not _record_called(others):
                return functional


def is_functional(exported: ExportedProgram, table: Collection[Any]) -> bool:
    """Return whether a program can be imported as it is: in functional form, without calls that the table decomposes.

    Then :func:`decompose` would trace the same calls again, which takes as long as an export does. Left to it
    are control flow, and open sizes, which a file has as terms of each other where another trace gives them names.
    """
    outputs = exported.graph_signature.output_specs
    if not _IS_KNOWN or exported.range_constraints or any(spec.kind is not OutputKind.USER_OUTPUT for spec in outputs):
        return False
    nodes = [node for node in exported.graph.nodes if node.op not in ("placeholder", "output")]
    return all(node.op == "call_function" and _stays(node, table) for node in nodes)


def read_calls(graph: fx.Graph) -> list[fx.Node]:
    """Return the calls of a functional graph without those that nothing reads and that do nothing else."""
    unread: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "call_function" and unread.issuperset(node.users) and not _may_have_effect(node):
            unread.add(node)
    return [node for node in graph.nodes if node.op == "call_function" and node not in unread]


def _may_have_effect(node: fx.Node) -> bool:
    """Return whether a call may do more than to return its result, as those of others' operators may."""
    target: Any = node.target
    if isinstance(target, OpOverload):
        return may_draw(target) or node.is_impure()
    return isinstance(target, HigherOrderOperator)


def _stays(node: fx.Node, table: Collection[Any]) -> bool:
    """Return whether a call is imported as it is: one of an operator, or of Python's arithmetic on sizes."""
    target: Any = node.target
    if not isinstance(target, OpOverload):
        # Other functions mark where a transformation such as vmap begins and ends, which decomposition carries out.
        home, name = getattr(target, "__module__", ""), getattr(target, "__name__", "")
        return home in ("_operator", "math", "builtins") or (home == "torch" and name.startswith("sym_"))
    if target in table or is_mutable(target) or (not node.users and _may_have_effect(node)):
        return False
    if str(target) in EXPANDED:
        # In training, a batch norm writes to its statistics; a copy in another memory format has no row.
        return not bind(target, node.args, node.kwargs).get("training") and "memory_format" not in node.kwargs
    is_composite = target.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd)
    return not is_composite or _utils._is_preservable_cia_op(target)


def _record_called(operators: Collection[OpOverload]) -> bool:
    """Record the operators called since their dispatch tables were cleared; return whether there were any."""
    met = [operator for operator in operators if _dispatch_table(operator)]
    _called_composites.update(met)
    return bool(met)


def _dispatch_table(operator: Any) -> dict[Any, Any]:
    """Return an operator's table of dispatched calls, which is filled again after it was cleared."""
    return operator._dispatch_cache


def _called_operators(module: fx.GraphModule) -> Iterator[OpOverload]:
    """Yield the operators called in a module's graph and in the graphs nested in it."""
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            yield from {node.target for node in part.graph.nodes if isinstance(node.target, OpOverload)}


@cache
def _composites() -> Set[OpOverload]:
    """Return the composite operators that can be preserved; those declared later are found when they are called."""
    return frozenset(_utils._collect_all_valid_cia_ops())


@contextlib.contextmanager
def _known_composites(operators: Set[OpOverload]) -> Generator[None]:
    """Make PyTorch treat these as the only composite operators while the body runs."""
    before = _programs._collect_all_valid_cia_ops
    _programs._collect_all_valid_cia_ops = lambda: operators
    try:
        yield
    finally:
        _programs._collect_all_valid_cia_ops = before
