"""Export of modules by torch.export, and conversion to the functional form that the importer reads.

Invariant: whatever torch.export raises becomes one :class:`ImportRefusal` of one line, with the essential cause.
"""

from __future__ import annotations

import contextlib
import re
import textwrap
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from taso_py.backend.bits import all_resolved
from taso_py.backend.schema import bind, overload_named
from taso_py.backend.tracing import draws_kept, quiet
from taso_py.frontend.decompose import decompose, is_functional
from taso_py.frontend.einsum import einsum
from taso_py.frontend.errors import ImportRefusal
from taso_py.frontend.higher_order import check_written_views
from taso_py.frontend.in_place import out_of_place
from taso_py.frontend.opaque import draws
from taso_py.frontend.reshaped_writes import check_expanded_writes, check_reshaped_writes
from taso_py.frontend.shared_operands import operands_apart
from taso_py.frontend.source import place_in_model, refuse

_T = TypeVar("_T")


def export(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Mapping[str, Any] | None = None
) -> ExportedProgram:
    """Export a module.

    Args:
        module: the module.
        args: positional example inputs.
        kwargs: keyword example inputs.
        shapes: the dimensions to leave open, as torch.export takes them (``dynamic_shapes``); all are fixed by default.

    Raises:
        ImportRefusal: torch.export cannot.
    """
    given, named = distinct_arguments(args, kwargs)
    try:
        dims = None if shapes is None else dict(shapes)
        return _with_refusal(lambda: torch.export.export(module, given, named, dynamic_shapes=dims))
    except ImportRefusal as error:
        # It accepts traced parts, but not scripted ones, which its message does not mention.
        scripted = [path for path, part in module.named_modules() if isinstance(part, torch.jit.ScriptModule)]
        if not scripted:
            raise
        what = f"part {scripted[0]} of the model" if scripted[0] else "the model"
        raise ImportRefusal(f"{error}; {what} is TorchScript: use the module that it was made from") from error


def distinct_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments such that no two are one tensor and none is a parameter or buffer.

    torch.export merges arguments that are one tensor into a single argument, the last, and an argument that is a
    parameter into that parameter: the program is wrong where they differ in a call, as with the query, key and value of
    an attention layer that was exported for one tensor in all three places. Conjugate views are resolved, as an
    optimized module does with its arguments.
    """
    return all_resolved(pytree.tree_map_only(Tensor, Tensor.detach, (tuple(args), dict(kwargs))))


_EINSUM = torch.ops.aten.einsum.default
_EXPOSED = (
    *("einsum.default", "tensordot.default", "inner.default", "linalg_multi_dot.default"),
    *("var.default", "var.dim", "std.default", "std.dim", "var_mean.dim", "std_mean.dim"),
    *("lstm_cell.default", "gru_cell.default", "rnn_tanh_cell.default", "rnn_relu_cell.default"),
    *("broadcast_tensors.default", "meshgrid.default", "meshgrid.indexing", "take_along_dim.default"),
)
"""Composite operators that are decomposed because their parts are in the table, or in that of an engine, and as fast
by themselves; all others stay whole."""


def functionalize(exported: ExportedProgram) -> ExportedProgram:
    """Return the program in functional form, its higher-order operators kept.

    Raises:
        ImportRefusal: it has no such form, or a random draw that nobody reads would get lost, and with it the state of
            the random generator.
    """
    check_written_views(exported.graph)
    check_reshaped_writes(exported)
    check_expanded_writes(exported.graph)
    exported = out_of_place(exported)
    graph = exported.graph
    _forget_derived_ranges(graph)
    if not random_draws(graph) and is_functional(exported, _decompositions()):
        return exported
    with (
        _dropout_as_alias(graph),
        _copies_alike(graph),
        _fallback_kernels_allowed(graph),
        operands_apart(exported.graph_module),
    ):
        functional = _with_refusal(lambda: decompose(exported, _decompositions()))
        before, after = random_draws(graph), random_draws(functional.graph)
    if len(after) < len(before):
        lost = next((node for node in before if not node.users), before[-1])
        refuse(lost, "draws random numbers that nothing reads", "remove the draw, or use its result")
    return functional


@contextlib.contextmanager
def _dropout_as_alias(graph: fx.Graph) -> Generator[None]:
    """Replace dropout that drops nothing by an alias of its operand while the body runs.

    Its schema says that the result is new, and PyTorch 2.13 decomposes it into a copy. But it is the operand itself: a
    write to one is a write to the other.
    """
    calls = [(node, node.args, node.kwargs) for node in graph.nodes if node.target is torch.ops.aten.dropout.default]
    changed: list[tuple[fx.Node, Any, Any]] = []
    try:
        for node, args, kwargs in calls:
            bound = bind(torch.ops.aten.dropout.default, args, kwargs)
            if not (bound["train"] and bound["p"]):
                changed.append((node, args, kwargs))
                node.target, node.args, node.kwargs = torch.ops.aten.alias.default, (bound["input"],), {}
        yield
    finally:
        for node, args, kwargs in changed:
            node.target, node.args, node.kwargs = torch.ops.aten.dropout.default, args, kwargs


@contextlib.contextmanager
def _copies_alike(graph: fx.Graph) -> Generator[None]:
    """Bring what is copied over a tensor to that tensor's type and sizes, in nodes of its own, while the body runs.

    PyTorch 2.13 drops the copy that a write to a buffer becomes, as if what is copied were the new content
    (``_remove_unnecessary_copy_op_pass`` of torch/export/exported_program.py).
    """
    changed: list[tuple[fx.Node, Any, list[fx.Node]]] = []
    try:
        for node in [node for node in graph.nodes if node.target is torch.ops.aten.copy_.default]:
            target, source = (operand.meta.get("val") for operand in node.args[:2])
            if not isinstance(target, Tensor) or not isinstance(source, Tensor):
                continue
            made: list[fx.Node] = []
            changed.append((node, node.args, made))
            with graph.inserting_before(node):
                if source.dtype is not target.dtype:
                    made.append(graph.call_function(torch.ops.aten.to.dtype, (node.args[1], target.dtype)))
                if source.shape != target.shape:
                    content = made[-1] if made else node.args[1]
                    made.append(graph.call_function(torch.ops.aten.expand_as.default, (content, node.args[0])))
            node.args = (node.args[0], made[-1] if made else node.args[1], *node.args[2:])
        yield
    finally:
        for node, args, made in changed:
            node.args = args
            for new in reversed(made):
                graph.erase_node(new)


def _forget_derived_ranges(graph: fx.Graph) -> None:
    """Drop ranges of compound expressions, such as four times a size: those of their symbols imply them.

    A program loaded from a file has them, and torch's decomposition then fails on an expression that is not a symbol.
    """
    mode = fake_mode_of(graph)
    if mode is not None and mode.shape_env is not None:
        ranges = mode.shape_env.var_to_range
        for expression in [key for key in ranges if not key.is_Symbol]:
            del ranges[expression]


@contextlib.contextmanager
def _fallback_kernels_allowed(graph: fx.Graph) -> Generator[None]:
    """Let operators without a fake implementation run on zeros to find the types of their results, as in an export.

    A program loaded from a file forbids it, and could not be decomposed where the one that was saved can.
    """
    mode = fake_mode_of(graph)
    if mode is None:
        yield
        return
    before, mode.allow_fallback_kernels = mode.allow_fallback_kernels, True
    try:
        yield
    finally:
        mode.allow_fallback_kernels = before


def fake_mode_of(graph: fx.Graph) -> FakeTensorMode | None:
    """Return the mode that all fake tensors of a program share; None if there are no tensors."""
    values = (node.meta.get("val") for node in graph.nodes)
    return next((value.fake_mode for value in values if isinstance(value, FakeTensor)), None)


@cache
def _decompositions() -> Mapping[Any, Any]:
    """Return decompositions of the exposed operators, mostly PyTorch's; its table of all takes a while to fill."""
    known = torch.export.default_decompositions()
    exposed = {overload: known[overload] for overload in (overload_named(f"aten.{name}") for name in _EXPOSED)}
    return {**exposed, _EINSUM: partial(einsum, otherwise=exposed[_EINSUM])}


def random_draws(graph: fx.Graph) -> list[fx.Node]:
    """Return the calls that draw random numbers."""
    found: list[fx.Node] = []
    for node in graph.nodes:
        overload = node.target
        if not isinstance(overload, OpOverload) or torch.Tag.nondeterministic_seeded not in overload.tags:
            continue
        if draws(bind(overload, node.args, node.kwargs).get):
            found.append(node)
    return found


def _with_refusal(action: Callable[[], _T]) -> _T:
    try:
        with quiet(), draws_kept():
            return action()
    except Exception as error:  # torch.export raises errors of dozens of types
        raise ImportRefusal(explain(error)) from error


_CAUSES: Sequence[tuple[str, str]] = (
    (
        r"DynamicCache|use_cache|past_key_values|Cache\b",
        "the model handles a key-value cache, which cannot be exported; pass use_cache=False, or wrap the model with "
        "taso_py.models.huggingface.adapt",
    ),
    (
        r"maximum recursion depth",
        "a list or dict among its attributes contains itself, or something is nested too deeply; take such attributes "
        "out of the model, or raise sys.setrecursionlimit",
    ),
    (
        r"is not functional",
        "a body of control flow writes to its operands; return the new content from it, and write that outside",
    ),
    (r"inference tensor", "a parameter or buffer was made in inference mode; make the model outside of it"),
    (
        r"expected compiled_fn to be GraphModule",
        "a buffer that the model writes to overlaps in memory with another tensor; clone one of them",
    ),
    (
        r"__obj_flatten__|PackedParams",
        "it holds packed weights or other objects of TorchScript, as quantized modules do; optimize it before it is "
        "quantized",
    ),
    (
        r"alias annotations",
        "a custom operator returns what it writes to; let it return nothing, or give it the tag torch.Tag.inplace or "
        "torch.Tag.out",
    ),
    (
        r"unresolved conjugated",
        "a conjugate view that is written to, or given as it is, is read as real numbers; call .resolve_conj() first",
    ),
    (
        "_detect_is_causal_mask",
        "torch.nn's transformers look at a mask's numbers to tell whether it is causal; say it beside the mask: "
        "is_causal=False (src_is_causal, tgt_is_causal) holds for any mask, True for a causal one",
    ),
    (
        r"[Dd]ata.?[Dd]ependent|[Uu]nbacked|control.?flow",
        "control flow or a size depends on the data; use torch.where, masks or fixed sizes instead",
    ),
)


def explain(error: Exception) -> str:
    """Return one line: the known cause behind an error of torch.export with advice, or the error's own first line."""
    text = str(error)
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
    first = textwrap.shorten(first, 200, placeholder=" ...")
    frames = traceback.extract_tb(error.__traceback__)
    at, called = place_in_model(frames), {frame.name for frame in frames}
    for pattern, cause in _CAUSES:
        if pattern in called or re.search(pattern, f"{type(error).__name__}: {text}"):
            return f"cannot export the model: {cause}{at} (torch.export: {first})"
    return f"cannot export the model{at}, torch.export says: {type(error).__name__}: {first}"
