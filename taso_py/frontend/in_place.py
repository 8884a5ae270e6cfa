"""In-place calls of exported programs as calls that return new values, where nothing else can tell.

``relu_`` after a convolution is the usual case. PyTorch would trace the whole program again to be rid of it, which
takes longer than the export.

Invariant: a call is replaced only if it writes to a new tensor that nothing else reads, so that what it writes is seen
through its own result alone.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, fx
from torch._C import DispatchKey
from torch._ops import OpOverload
from torch.export import ExportedProgram

from taso_py.backend.schema import COMPARISONS, bind, is_trusted, out_of_place_form
from taso_py.backend.storage import allocates
from taso_py.backend.tracing import quiet

_TRUTHS = COMPARISONS | {"logical_and", "logical_or", "logical_xor", "logical_not"}
"""Functions that return truth values, and in place numbers of the type of what they write to."""


def out_of_place(exported: ExportedProgram) -> ExportedProgram:
    """Return a program with such in-place calls replaced; the same one, which is never changed, if there are none."""
    if not any(_new_form(node) for node in exported.graph.nodes):
        return exported
    with quiet():
        graph = copy.deepcopy(exported.graph)
        for before, node in zip(exported.graph.nodes, graph.nodes, strict=True):
            node.name = before.name  # the signature has it; a copy gets another one where Python has one like it
            node.target = _new_form(node) or node.target  # in order: a call may write to what another returns
        made = fx.GraphModule(exported.graph_module, graph)
        return exported._update(made, copy.deepcopy(exported.graph_signature))  # pyright: ignore[reportPrivateUsage]


def _new_form(node: fx.Node) -> OpOverload | None:
    """Return the overload that computes the result of an in-place call anew, if it may take the call's place."""
    target, written = node.target, node.args[0] if node.args else None
    if (
        node.op != "call_function"
        or not isinstance(target, OpOverload)
        or not is_trusted(target)
        or not isinstance(written, fx.Node)
    ):
        return None
    if target is torch.ops.aten.dropout_.default and not bind(target, node.args, node.kwargs)["train"]:
        return torch.ops.aten.dropout.default  # neither writes anything, and both return the operand
    form = out_of_place_form(target)
    if form is None or not _is_elementwise(form) or list(written.users) != [node] or not allocates(written):
        return None
    # Of several element types, a result in place has that of what is written to, which may not be that of a new one.
    types = set(map(_dtype, (node, *node.all_input_nodes)))
    is_one = len(types) == 1 and None not in types
    return form if is_one and (form.overloadpacket.__name__ not in _TRUTHS or types == {torch.bool}) else None


def _is_elementwise(form: OpOverload) -> bool:
    """Return whether an overload computes an elementwise function, by itself and not by parts."""
    is_elementwise = torch.Tag.pointwise in form.tags or form is torch.ops.aten.hardswish.default
    return is_elementwise and not form.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd)


def _dtype(node: fx.Node) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, Tensor) else None
