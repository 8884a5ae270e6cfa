"""Kinds of models beyond ordinary ones: complex numbers, operators that write, hooks, writes to state, control flow.

Each has a round of its own, in which lines of the kind are mixed with those of all other models.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fuzz.draft import Draft
from fuzz.flows import control_flow
from fuzz.operators import Template
from fuzz.writing import NAMESPACE
from taso_py.backend.schema import storage_of

COMPLEX, WRITING, HOOKS, CACHES, CONTROL, THREADS = "complex", "writing", "hooks", "caches", "control", "threads"
ROUNDS = ("plain", COMPLEX, "plain", WRITING, "plain", HOOKS, "plain", CACHES, "plain", CONTROL)
"""Kinds of the batches of a campaign, repeated in turns."""

FROM_REAL = (
    *("torch.complex({0}, {0} + 1)", "torch.polar(torch.ones_like({0}), {0})", "torch.fft.fft({0})"),
    *("torch.fft.rfft({0}, dim={1})", "torch.fft.rfft2({0})", "{0} * 1j", "torch.complex({0}, {0} * 0)"),
    *("torch.view_as_complex({0}.unflatten(-1, (-1, 2)).contiguous())", "{0}.to(torch.complex64)"),
    "torch.stft({0}.flatten(), 4, 2, window=torch.hann_window(4, dtype={0}.dtype), return_complex=True)",
)
"""Templates of complex results from a real value, with an axis."""
FROM_COMPLEX = (
    *("{0}.conj()", "{0}.conj()", "{0}.conj().mT", "{0}.conj().resolve_conj()", "{0}.conj().clone()", "{0}.mH"),
    *("{0}.mT.contiguous()", "{0}.conj().transpose({1}, -1).contiguous()", "torch.cat([{0}, {0}.conj()], {1})"),
    *("{0} * {0}.conj()", "{0} + {0}.conj()", "{0} * 2", "{0} * (1 - 2j)", "{0}.exp()", "{0} - 1", "{0}.detach()"),
    *("{0}.sum({1})", "{0}.mean({1}, keepdim=True)", "{0}.flatten()", "{0}[..., ::2]", "{0}.unsqueeze({1})"),
    *("{0} @ {0}.mH", "torch.fft.ifft({0})", "torch.fft.fftshift({0})", "{0}.to(torch.complex128)", "{0}.roll(1, {1})"),
)
"""Templates of complex results from a complex value, with an axis."""
TO_REAL = (
    *("{0}.real", "{0}.imag", "{0}.abs()", "torch.view_as_real({0}.resolve_conj())", "{0}.conj().imag"),
    *("torch.view_as_real({0}.conj().resolve_conj()).flatten(-2)", "{0}.conj().imag.resolve_neg()", "{0}.conj().real"),
    *("torch.fft.irfft({0}, dim={1})", "torch.view_as_real({0}.conj().clone())", "{0}.conj().imag.contiguous()"),
    *("torch.view_as_real({0}.conj().transpose({1}, -1).contiguous())", "(-{0}.conj().imag).relu()"),
)
"""Templates of real results from a complex value, with an axis."""
MODELS = (
    "torch.fft.fft(torch.fft.fft({0}, dim=-1), dim=-2).real",
    "torch.fft.irfft(torch.fft.rfft({0}, dim=-1) * {weight}, n={last}, dim=-1)",
    "torch.view_as_real(torch.view_as_complex({0}.unflatten(-1, (-1, 2)).contiguous()) * {turn}).flatten(-2)",
)
"""Templates over real values: a Fourier mixing layer, a Fourier operator, rotary embeddings by polar numbers."""
LAYOUTS = ("{0}", "{0}.conj()", "{0}.mT", "{0}.conj()[..., ::2]", "{0}.conj().imag", "{0}.mH")


def complex_input(draft: Draft) -> str:
    """Return a complex argument, or a real one that is a negative view."""
    text = f"torch.randn({draft.shape(2, 3)}, generator=g, dtype=torch.complex64)"
    return draft.choice(LAYOUTS).format(text)


def _complex(draft: Draft) -> str | None:
    if draft.chance(3):
        return _model(draft)
    wants_real = draft.chance(3)
    name = draft.value(lambda v: v.is_complex() != wants_real and (v.is_complex() or v.is_floating_point()))
    if name is None:
        return None
    value = draft.tensor(name)
    axis = draft.integer(-value.dim(), value.dim() - 1) if value.dim() else -1
    if value.is_complex() and draft.chance(4):
        weight = draft.state_tensor(f"torch.randn({tuple(value.shape)}, generator=g, dtype=torch.complex64).conj()")
        return f"{name} * {weight}"
    texts = FROM_REAL if wants_real else draft.choice((FROM_COMPLEX, TO_REAL))
    return draft.choice(texts).format(name, axis)


def _model(draft: Draft) -> str | None:
    name = draft.value(lambda v: v.dtype in (torch.float32, torch.float64) and v.dim() >= 2 and v.numel() > 0)
    if name is None:
        return None
    last = draft.tensor(name).shape[-1]
    text = draft.choice(MODELS)
    given: dict[str, object] = {"last": last}
    if "{weight}" in text:
        shape = (last // 2 + 1,)
        given["weight"] = draft.state_tensor(f"torch.randn({shape}, generator=g, dtype=torch.complex64)")
    if "{turn}" in text:
        given["turn"] = draft.state_tensor(f"torch.polar(torch.ones({last // 2}), torch.arange({last // 2}) / 3)")
    return text.format(name, **given)


def _part(draft: Draft, name: str) -> str:
    """Return a value, or a view of a part of it."""
    if not draft.tensor(name).dim():
        return name
    return draft.choice(("{0}", "{0}", "{0}[..., :1]", "{0}[0]", "{0}.mT", "{0}.view(-1)[1:]", "{0}[..., ::2]")).format(
        name
    )


def write_by_operator(draft: Draft) -> None:
    """Add a line that calls a custom operator that writes."""

    def is_computed(value: Tensor) -> bool:
        return value.is_floating_point() and not value.requires_grad

    names = [name for name, value in draft.values.items() if name.startswith("v") and is_computed(value)]
    if not names:
        return
    name, other = draft.choice(names), draft.choice(list(draft.values))
    part, operators = _part(draft, name), f"torch.ops.{NAMESPACE}"
    texts = (
        f"{operators}.scale({part}, 0.5)",
        f"{operators}.put({other}, {part})",
        f"{operators}.spread([{part}, {_part(draft, draft.choice(names))}], 0.25)",
        f"{operators}.exchange({part}, {_part(draft, draft.choice(names))})",
    )
    if draft.chance(4):
        draft.write(f"{operators}.tally({part}, {other})", assigns=True)
    else:
        draft.write(draft.choice(texts))


INTO_CACHES = (
    *("{0}.copy_({1})", "{0}.add_({1})", "{0}.mul_({1})", "{0}.sub_({0} * 0.5)", "{0}.zero_()", "{0}.relu_()"),
    *("{0}.fill_(2.0)", "{0}.copy_({0}.flip(-1))", "{0}.mul_({0})", "{0}.add_({1}.sum())", "{0}.clamp_(-1, 1)"),
    "{0}.index_copy_(-1, torch.tensor([0]), {0}[..., -1:] * 2)",
    "{0}.index_put_((torch.tensor([0, -1]),), {0}[:1] * 0.5)",
    "{0}.index_add_(-1, torch.tensor([0, 0]), ({0}[..., :1] * 1).expand(*{0}.shape[:-1], 2))",
    "{0}.scatter_(-1, torch.zeros_like({0}[..., :1], dtype=torch.int64), {0}[..., -1:] + 1)",
    "{0}.masked_fill_({0} > 1, 0.25)",
)
"""Templates of statements that write to an argument or buffer, or to a part of it, with another value."""


def write_to_state(draft: Draft) -> None:
    """Add a line that writes to an argument or to a buffer."""
    names = [name for name, value in draft.values.items() if _is_state(draft, name) and _is_writable(value)]
    if not names:
        return
    name = draft.choice(names)
    # What an operator does that reads what it writes to is left open.
    others = [other for other, value in draft.values.items() if storage_of(value) != storage_of(draft.values[name])]
    if others:
        draft.write(draft.choice(INTO_CACHES).format(_part(draft, name), draft.choice(others)))


def _is_state(draft: Draft, name: str) -> bool:
    return name.startswith("x") or name in draft.buffers


def _is_writable(value: Tensor) -> bool:
    """Return whether a value is real and has memory for each element; others are refused."""
    return value.is_floating_point() and 0 not in value.stride()


def _hooked(draft: Draft) -> str | None:
    """Return a call of a submodule that has a hook."""
    name = draft.value()
    if name is None:
        return None
    hook = draft.choice(
        (
            "register_forward_hook(lambda m, a, r: r * 2)",
            "register_forward_hook(lambda m, a, r: None)",
            "register_forward_pre_hook(lambda m, a: (a[0] + 1,))",
            "register_forward_hook(lambda m, a, k, r: r - 1, with_kwargs=True)",
        )
    )
    return f"{draft.part(draft.choice(('nn.Identity()', 'nn.Tanh()', 'nn.Hardswish()')), hook)}({name})"


def hook_model(draft: Draft) -> None:
    """Add a hook to the model itself, which observes its calls and changes nothing."""
    hooks = ("register_forward_hook(lambda m, a, r: None)", "register_forward_pre_hook(lambda m, a: None)")
    draft.state.append(f"self.{draft.choice(hooks)}")


KINDS: Mapping[str, Template] = {COMPLEX: _complex, HOOKS: _hooked, CONTROL: control_flow}
"""Templates of expressions by kind."""
