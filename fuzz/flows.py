"""Random control flow: conditions and loops with random bodies, also in each other."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fuzz.draft import Draft
from fuzz.operators import BINARY, UNARY

CALL = "fuzz.control"
MOST_DEPTH = 2
"""Most bodies around each other."""
_UNARY = tuple(text for text in UNARY if "float64" not in text and "half()" not in text)
"""Templates whose result has the type of the operand, as results of bodies have to."""


def control_flow(draft: Draft) -> str | None:
    """Return a call of control flow on a value, or on it and another one."""
    name = draft.value(lambda value: value.is_floating_point() and value.numel() > 0)
    return None if name is None else _flow(draft, name, draft.tensor(name), depth=0)


def _flow(draft: Draft, name: str, value: Tensor, depth: int) -> str:
    """Return a call that computes a tensor like a value; of several results, one inside of bodies."""
    kind = draft.integer(0, 4) if value.dim() else draft.integer(0, 1)
    if kind == 0:
        other = draft.value(lambda v: v.shape == value.shape and v.dtype == value.dtype) if depth == 0 else name
        yes, no = (_body(draft, ("a", "b"), value, depth) for _ in range(2))
        condition = _condition(draft, name, is_inside=depth > 0)
        return f"{CALL}.branch({condition}, lambda a, b: {yes}, lambda a, b: {no}, {name}, {other})"
    if kind == 1:
        goes_on = draft.choice(("i < {0}", "i < {0}", "(i < {0}) & (a.abs().sum() < 1e3)")).format(draft.integer(0, 4))
        body = _body(draft, ("a",), value, depth)
        # PyTorch 2.13 does not export a constant tensor that a body in a body makes.
        start = "torch.zeros((), dtype=torch.int64)" if depth else "torch.tensor(0)"
        call = f"{CALL}.repeat(lambda i, a: {goes_on}, lambda i, a: (i + 1, {body}), {start}, {name})"
        return f"{call}[1]" if depth else call
    part = value[0]
    if kind == 2:
        body, other = _body(draft, ("a", "b"), part, depth), draft.weight(part.shape, value.dtype)
        return f"{CALL}.each(lambda a, b: {body}, {name}, {other})"
    carried, result = (_body(draft, ("a", "b"), part, depth) for _ in range(2))
    # In memory of its own: an import drops copies of parts, and products round by how their operands are aligned.
    start = draft.choice(("torch.zeros_like({0}[0])", "{0}.amax(0)")).format(name)
    step = f"lambda a, b: ({carried}, {result})"
    call = f"{CALL}.accumulate({step}, {start}, {name}, reverse={draft.chance(3)})"
    return f"{call}[1]" if depth else call


def _condition(draft: Draft, name: str, *, is_inside: bool) -> str:
    """Return a condition: mostly on an argument, so that negated arguments take the other branch."""
    inputs = [given for given, value in draft.values.items() if given.startswith("x") and value.numel()]
    if is_inside or not inputs or draft.chance(4):
        return f"{name}.sum() > {draft.choice(('0', '0.5', '-1'))}"
    given = draft.choice(inputs)
    return f"{given}.any()" if not draft.tensor(given).is_floating_point() else f"{given}.sum() > 0"


def _body(draft: Draft, names: Sequence[str], value: Tensor, depth: int) -> str:
    """Return an expression over names of tensors like a value, with a result like it."""
    text = draft.choice(names)
    for _ in range(draft.integer(1, 3)):
        kind = draft.integer(0, 5)
        if kind == 0 and depth + 1 < MOST_DEPTH and value.numel():
            text = f"(lambda c: {_flow(draft, 'c', value, depth + 1)})({text})"
        elif kind == 1 and value.dim():
            size = value.shape[-1]
            text = f"F.linear({text}, {draft.weight((size, size), value.dtype)}, {draft.weight((size,), value.dtype)})"
        elif kind == 2:
            text = f"(lambda t: {draft.choice(BINARY).format('t', draft.choice(names))})({text})"
        else:
            text = f"(lambda t: {draft.choice(_UNARY).format('t')})({text})"
    return f"{CALL}.fresh({text})"
