"""Templates of the lines of random models, each drawing its operands and attributes from a draft.

A template returns an expression, or None where no value at hand suits it. Lines that PyTorch refuses are left out, so
that templates need not be exact about operands that fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from hypothesis import strategies as st
from torch import Tensor

from fuzz.draft import Draft

Template: TypeAlias = Callable[[Draft], str | None]

UNARY = (
    *("F.relu({0})", "torch.sigmoid({0})", "{0}.tanh()", "{0}.exp()", "F.silu({0})", "F.gelu({0})", "-{0}", "{0} ** 2"),
    *("F.gelu({0}, approximate='tanh')", "({0}.abs() + 0.1).rsqrt()", "1 / ({0}.abs() + 0.1)", "{0}.square()"),
    *("F.hardswish({0})", "F.hardsigmoid({0})", "{0}.clamp(-1, 1)", "{0}.abs()", "({0}.abs() + 0.1).sqrt()"),
    *("{0}.sin()", "torch.erf({0})", "F.leaky_relu({0})", "F.elu({0})", "F.dropout({0}, 0.5, False)", "{0}.log1p()"),
    *("torch.cat([{0}, {0}], 0).cos()", "{0}.repeat_interleave(2, -1).sin()", "{0}.cos()"),
    *("{0}.clone().relu_()", "({0} + 0).mul_(2)", "{0}.contiguous()", "{0}.clone()", "{0} * torch.sigmoid({0})"),
    *("0.5 * {0} * (1 + torch.tanh(math.sqrt(2 / math.pi) * ({0} + 0.044715 * {0} ** 3)))", "F.softplus({0})"),
    *("0.5 * {0} * (1 + torch.erf({0} / math.sqrt(2)))", "torch.zeros_like({0}) + {0}", "F.hardtanh({0})"),
    *("{0}.clamp(min=0)", "{0}.clamp_max(0.5)", "({0}.abs() + 0.1).log()", "torch.log(1 + torch.exp({0}))"),
    *("torch.maximum({0}, 0.2 * {0})", "F.relu({0}) - 0.3 * F.relu(-{0})", "{0}.clamp(min=-1).clamp(max=1)"),
    *(
        "{0}.to(torch.float64)",
        "torch.addcdiv({0}, {0}, {0}.abs() + 0.5)",
        "{0}.to(torch.bfloat16).to({0}.dtype)",
        "{0}.half().float()",
        "{0} - {0}",
    ),
    *("torch.where({0} > 0, {0}, 0.0)", "torch.where({0} <= 0, torch.zeros_like({0}), {0})"),
    *("torch.where({0} < 0, 0.1 * {0}, {0})", "torch.where({0} >= 0, {0}, -{0})", "{0}.masked_fill({0} < 0, 0)"),
    *("torch.where({0} > 1, 1.0, torch.where({0} < -1, -1.0, {0}))", "torch.where({0} > 0, {0}, {0}.exp() - 1)"),
)
"""Templates over a floating-point value of any shape."""
BINARY = (
    *("{0} + {1}", "{0} * {1}", "{0} - {1}", "{0} / ({1}.abs() + 0.5)", "torch.add({0}, {1}, alpha=2)"),
    *("torch.addcmul({0}, {1}, {1})", "torch.addcmul({1}, {0}, {1} + 1)", "{0} - {1} * 0.3", "{1} - {0} * {1}"),
    *("torch.sub({0}, {1}, alpha=0.3)", "{0} + {0} * {1}"),
    *(
        "torch.maximum({0}, {1})",
        "torch.minimum({0}, {1})",
        "torch.where({0} > {1}, {0}, {1})",
        "torch.where({0} <= {1}, {0}, {1})",
        "{0}.clamp(max={1})",
        "{0} * {1} + {1}",
        "({0} + {1}).relu()",
        "torch.lerp({0}, {1}, 0.3)",
    ),
)
"""Templates over two floating-point values that broadcast."""
JUMPS = (
    *("({0} > 0).to({0}.dtype) * {0}", "torch.where({0} > 0.5, {0}, {0} * 2)", "{0}.round()", "{0}.floor()"),
    *("{0}.sort(-1)[0]", "{0}.topk(1, -1)", "{0}.argmax(-1)", "{0} > {0}.mean()", "{0}.max(-1)", "{0}.int()"),
    *("{0}.masked_fill({0} < 0, 0.25)", "{0}.sign()", "{0}.isfinite()", "{0} == 0", "{0} != {0}", "{0} >= 0.5"),
    *("torch.where(({0} > 0) & ({0} < 1), {0}, 0)", "torch.where(({0} > 1) | ({0} <= 0), {0} * 2, F.relu({0}))"),
    *("F.relu(torch.where({0} > 0.5, -{0}, {0}))", "torch.where({0} == 0, 1, {0})", "torch.where(~({0} > 0), {0}, 2)"),
    *("torch.where({0} > 0, torch.where({0} > 0, {0}, 1), {0} + 1)", "{0}.masked_fill(~({0} > 0), -1e4).softmax(-1)"),
)
"""Templates over a floating-point value where a small change may change the result much."""
INTEGER = (
    *("{0} + 1", "{0} * 2", "{0} // 2", "{0}.float()", "{0} % 3", "{0}.sum()", "{0} / 2", "{0}.abs()", "{0} == 1"),
    *("{0}.to(torch.bool)", "{0}.flip(0)", "{0}.cumsum(-1)", "torch.bitwise_and({0}, 1)", "-{0}"),
)
BOOLEAN = (
    *("~{0}", "{0} & {0}", "{0}.float()", "{0}.any()", "{0}.all(-1)", "{0}.int() + 1", "{0}.logical_not()"),
    *("~({0} | ~{0})", "{0}.logical_or({0})", "torch.where({0}, 1.5, 0.5)", "torch.where({0}, ~{0}, {0})", "{0} ^ {0}"),
)
SCALARS = ("2", "0.5", "-1.0", "1", "0", "3", "0.1")


def _rank(least: int, most: int = 4) -> Callable[[Tensor], bool]:
    return lambda value: value.is_floating_point() and least <= value.dim() <= most


def _from_texts(texts: Sequence[str], accepts: Callable[[Tensor], bool]) -> Template:
    def template(draft: Draft) -> str | None:
        name = draft.value(accepts)
        return None if name is None else draft.choice(texts).format(name)

    return template


def _jump(draft: Draft) -> str | None:
    draft.is_smooth = False
    return _from_texts(JUMPS, _rank(0))(draft)


def _binary(draft: Draft) -> str | None:
    name = draft.value()
    if name is None:
        return None
    value = draft.tensor(name)
    kind = draft.integer(0, 3)
    if kind == 0:
        pair = [name, draft.choice(SCALARS)]
        texts = ("{0} + {1}", "{0} * {1}", "{0} - {1}", "{1} - {0}", "{1} * {0}", "{1} + {0}")
        return draft.choice(texts).format(*pair)
    if kind == 1:
        shape = [draft.choice((size, 1)) for size in value.shape][draft.integer(0, value.dim()) :]
        other = draft.weight(shape, value.dtype)
    else:
        other = draft.value(lambda other: other.is_floating_point() and _broadcast(value.shape, other.shape)) or name
    pair = [name, other] if draft.chance(2) else [other, name]
    return draft.choice(BINARY).format(*pair)


def _broadcast(left: Sequence[int], right: Sequence[int]) -> bool:
    pairs = zip(reversed(left), reversed(right), strict=False)
    return all(a == b or 1 in (a, b) for a, b in pairs)


def _product(draft: Draft) -> str | None:
    name = draft.value(_rank(1))
    if name is None:
        return None
    value = draft.tensor(name)
    last, out = value.shape[-1], draft.integer(1, 6)
    right = draft.value(lambda v: v.dtype == value.dtype and v.dim() >= 2 and v.shape[-2] == last)
    kind = draft.integer(0, 6)
    if kind == 0 and right:
        return f"{name} @ {right}"
    if kind == 1 and value.dim() >= 2:
        return f"{name} @ {name}.transpose(-1, -2)"
    if kind == 2:
        return f"{name} @ {draft.weight((last, out), value.dtype)}"
    if kind == 3 and value.dim() == 3:
        return f"torch.bmm({name}, {draft.weight((value.shape[0], last, out), value.dtype)})"
    if kind == 5 and value.dim() in (2, 3):
        return _added_product(draft, name)
    if kind == 4 and value.dim() == 2:
        bias, weight = draft.weight((out,), value.dtype), draft.weight((last, out), value.dtype)
        return f"torch.addmm({bias}, {name}, {weight})"
    bias = f", {draft.weight((out,), value.dtype)}" if draft.chance(2) else ""
    return f"F.linear({name}, {draft.weight((out, last), value.dtype)}{bias})"


def _added_product(draft: Draft, name: str) -> str:
    """Return a product of two matrices, or of as many of each, that is added to something, both with a factor."""
    value, out = draft.tensor(name), draft.integer(1, 6)
    weight = draft.weight((*value.shape[:-2], value.shape[-1], out), value.dtype)
    full = [draft.choice((size, 1)) for size in (*value.shape[:-1], out)]
    summand = draft.weight(full[draft.integer(0, len(full)) :], value.dtype)
    factors = f"beta={draft.choice((1, 0.5, -2))}, alpha={draft.choice((1, 0.3))}"
    added = f"{'torch.addmm' if value.dim() == 2 else 'torch.baddbmm'}({summand}, {name}, {weight}, {factors})"
    return draft.choice((added, f"F.softmax({added}, -1)"))


def _parallel_products(draft: Draft) -> str | None:
    """Return products that share an operand, or a sum of them: the subject of many rules."""
    name = draft.value(_rank(2))
    if name is None:
        return None
    value = draft.tensor(name)
    weights = [draft.weight((value.shape[-1], 3), value.dtype) for _ in range(draft.choice((2, 3, 3, 10)))]
    terms = [f"{name} @ {weight}" for weight in weights]
    return draft.choice((" + ".join(terms), f"torch.cat([{', '.join(terms)}], -1)", f"({', '.join(terms)})"))


def _loop(draft: Draft) -> str | None:
    """Return an unrolled loop over rows, in which each is treated alike, perhaps with a state from those before."""
    name = draft.value(_rank(2, 3))
    if name is None:
        return None
    value, size, kind = draft.tensor(name), draft.integer(1, 4), draft.integer(0, 5)
    places = [place % len(value) for place in range(draft.integer(2, 8))] if len(value) else []
    rows = [f"{name}[{place}]" if value.dim() == 3 else f"{name}[{place}:{place + 1}]" for place in places]
    gates = (1, 1, 3, 4, 1, 1)[kind]
    inward = draft.weight((gates * size, value.shape[-1]), value.dtype)
    if kind == 5:
        return f"torch.cat([torch.sigmoid(F.linear(row, {inward})) for row in ({', '.join(rows)},)])"
    onward = draft.weight((gates * size, size), value.dtype)
    state = start = draft.weight((value.shape[1] if value.dim() == 3 else 1, size), value.dtype)
    for row in rows:
        state = (
            f"torch.tanh(F.linear({row}, {inward}) + F.linear({state}, {onward}))",
            f"F.relu(F.linear({row}, {inward}) * {state})",
            f"torch.gru_cell({row}, {state}, {inward}, {onward})",
            f"torch.lstm_cell({row}, ({state}, {start}), {inward}, {onward})[0]",
            f"torch.rnn_tanh_cell({row}, {state}, {inward}, {onward})",
        )[kind]
    return state


def _members(draft: Draft) -> str | None:
    """Return layers that are alike, each with weights of its own, of one value, of its rows or of its columns."""
    name = draft.value(_rank(2, 3))
    if name is None or 0 in draft.tensor(name).shape:
        return None
    value, kind, size, count = draft.tensor(name), draft.integer(0, 3), draft.integer(1, 4), draft.integer(2, 6)
    wrap = draft.choice(("{}", "F.relu({})", "torch.tanh({})", "{} * 2 + 1"))
    has_bias, is_deep, is_scaled = draft.chance(2), draft.chance(2), draft.chance(4)
    terms: list[str] = []
    for number in range(count):
        row, column = number % len(value), number % value.shape[-1]
        read = (name, f"{name}[{row}:{row + 1}]", f"{name}[..., {column}:{column + 1}]", f"{name}[{row}]")[kind]
        term = f"F.linear({read}, {draft.weight((size, 1 if kind == 2 else value.shape[-1]), value.dtype)}"
        term = wrap.format(term + (f", {draft.weight((size,), value.dtype)})" if has_bias else ")"))
        term = f"F.linear({term}, {draft.weight((2, size), value.dtype)})" if is_deep else term
        terms.append(f"{term} * {draft.weight((1,), value.dtype)}" if is_scaled else term)
    joined = ", ".join(terms)
    return draft.choice(
        (
            " + ".join(terms),
            f"torch.stack([{joined}])",
            f"torch.cat([{joined}], -1)",
            f"torch.cat([{joined}])",
            f"({joined})",
        )
    )


def _image(draft: Draft, axes: int = 2) -> str | None:
    return draft.value(lambda v: v.is_floating_point() and v.dim() == 2 + axes and v.numel() > 0)


def _convolution(draft: Draft) -> str | None:
    axes = 1 if draft.chance(4) else 2
    name = _image(draft, axes)
    if name is None:
        return None
    value = draft.tensor(name)
    channels = value.shape[1]
    groups = draft.choice([g for g in range(1, channels + 1) if channels % g == 0])
    kernel = [draft.choice((1, 3, 2)) for _ in range(axes)]
    texts: list[str] = []
    is_apart, features, has_bias = draft.chance(4), draft.integer(1, 3), draft.chance(2)
    for _ in range(draft.integer(3, 4) if is_apart else draft.integer(1, 2)):
        out = groups * (features if is_apart else draft.integer(1, 3))
        weight = draft.weight((out, channels // groups, *kernel), value.dtype)
        is_biased = has_bias if is_apart else draft.chance(2)
        texts.append(f"{weight}, {draft.weight((out,), value.dtype)}" if is_biased else weight)
    window = f"stride={draft.integer(1, 2)}, padding={draft.integer(0, 2)}, dilation={draft.choice((1, 1, 2))}"
    images = [f"({name} * {number})" if is_apart else name for number in range(len(texts))]
    read = zip(images, texts, strict=True)
    terms = [f"F.conv{axes}d({image}, {text}, {window}, groups={groups})" for image, text in read]
    return (
        terms[0] if len(terms) == 1 else draft.choice((f"({', '.join(terms)})", f"torch.cat([{', '.join(terms)}], 1)"))
    )


def _pool(draft: Draft) -> str | None:
    name = _image(draft)
    kernel = draft.choice((2, 3, 1))
    stride, padding = draft.integer(1, 2), draft.integer(0, kernel // 2)
    texts = (
        "F.max_pool2d({0}, {1}, {2}, {3})",
        "F.avg_pool2d({0}, {1}, {2}, {3})",
        "F.avg_pool2d({0}, {1}, {2}, {3}, count_include_pad=False)",
        "F.max_pool2d({0}, {1}, {2}, {3}, ceil_mode=True)",
        "F.avg_pool2d({0}, {1}, {2}, {3}, ceil_mode=True)",
        "F.adaptive_avg_pool2d({0}, {1})",
        "F.max_pool2d({0}, {1}, {2}, {3}, return_indices=True)[0]",
        "F.interpolate({0}, scale_factor=2.0)",
        "F.interpolate({0}, scale_factor=({1}.0, {2}.0))",
        "F.interpolate({0}, scale_factor=1.5)",
        "F.interpolate({0}, scale_factor=2.0, mode='bilinear')",
        "F.interpolate({0}, scale_factor={1}.0, mode='bilinear', align_corners=True)",
        "F.pixel_shuffle({0}, {1})",
    )
    return None if name is None else draft.choice(texts).format(name, kernel, stride, padding)


def _pyramid(draft: Draft) -> str | None:
    """Return a convolution of an enlarged image, alone or joined with another, or an average of a scaled one."""
    name = _image(draft)
    if name is None:
        return None
    value = draft.tensor(name)
    batch, channels, rows, columns = value.shape
    factors = draft.integer(1, 3), draft.integer(1, 2)
    mode = draft.choice(("", ", mode='bilinear'", ", mode='bilinear', align_corners=True"))
    enlarged = f"F.interpolate({name}, scale_factor=({factors[0]}.0, {factors[1]}.0){mode})"
    other = draft.weight((batch, draft.integer(1, 3), factors[0] * rows, factors[1] * columns), value.dtype)
    kernel = draft.choice((1, 1, 3))
    joined = channels + draft.tensor(other).shape[1]
    vector = draft.weight((channels, 1, 1), value.dtype)
    weights = [draft.weight((2, count, kernel, kernel), value.dtype) for count in (channels, joined)]
    statistics = [draft.weight((2,), value.dtype) for _ in range(3)]
    stride, backwards = draft.integer(1, 3), draft.weight((channels, 2, kernel, kernel), value.dtype)
    volume = f"F.conv3d({name}[:, :, None], {weights[0]}[:, :, None], padding=(0, {kernel // 2}, {kernel // 2}))"
    transposed = f"F.conv_transpose2d({name}, {backwards}, None, {stride}, {kernel // 2}, {stride // 2})"
    return draft.choice(
        (
            f"F.batch_norm({transposed}, {statistics[0]}, {statistics[1]} ** 2 + 0.5, {statistics[2]})",
            f"F.batch_norm({volume}, {statistics[0]}, {statistics[1]} ** 2 + 0.5, {statistics[2]})",
            f"F.conv2d({enlarged}, {weights[0]}, padding={kernel // 2})",
            f"F.conv2d(torch.cat([{enlarged}, {other}], 1), {weights[1]}, padding={kernel // 2})",
            f"F.conv2d(torch.cat([{other}, {enlarged}], 1), {weights[1]})",
            f"F.relu({enlarged} * {vector})",
            f"F.adaptive_avg_pool2d({name} * {vector} + {vector}, 1)",
            f"F.avg_pool2d({name} + {vector}, 2)",
        )
    )


def _normalization(draft: Draft) -> str | None:
    name = draft.value(lambda v: v.is_floating_point() and v.dim() >= 2 and v.numel() > 0)
    if name is None:
        return None
    value = draft.tensor(name)
    last, channels = value.shape[-1], value.shape[1]
    kind = draft.integer(0, 7)
    if kind == 0:
        mean, var = draft.weight((channels,), value.dtype), draft.weight((channels,), value.dtype, positive=True)
        affine = f"{draft.weight((channels,), value.dtype)}, {draft.weight((channels,), value.dtype)}"
        return f"F.batch_norm({name}, {mean}, {var}, {affine if draft.chance(2) else 'None, None'}, False, 0.1, 1e-3)"
    if kind == 1:
        affine = f", {draft.weight((last,), value.dtype)}, {draft.weight((last,), value.dtype)}"
        return f"F.layer_norm({name}, ({last},){affine if draft.chance(2) else ''})"
    if kind == 3:
        groups = draft.choice([count for count in range(1, channels + 1) if channels % count == 0])
        affine = f", {draft.weight((channels,), value.dtype)}, {draft.weight((channels,), value.dtype)}"
        return f"F.group_norm({name}, {groups}{affine if draft.chance(2) else ''}, eps=1e-3)"
    if kind == 2:
        return f"F.rms_norm({name}, ({last},), {draft.weight((last,), value.dtype)}, 1e-3)"
    texts = (
        "F.softmax({0}, {1})",
        "F.log_softmax({0}, {1})",
        "{0} * torch.rsqrt({0}.pow(2).mean(-1, keepdim=True) + 1e-3)",
        "({0} - {0}.mean(-1, keepdim=True)) / torch.sqrt({0}.var(-1, unbiased=False, keepdim=True) + 1e-3)",
        "{0}.exp() / {0}.exp().sum({1}, keepdim=True)",
        "F.group_norm({0}, 1)",
        "F.instance_norm({0}, eps=1e-3)",
    )
    return draft.choice(texts).format(name, draft.integer(-value.dim(), value.dim() - 1))


def _attention(draft: Draft) -> str | None:
    name = draft.value(lambda v: v.is_floating_point() and v.dim() >= 3 and v.numel() > 0)
    if name is None:
        return None
    value = draft.tensor(name)
    rows = value.shape[-2]
    mask = draft.weight((rows, rows), value.dtype)
    texts = (
        "F.scaled_dot_product_attention({0}, {0}, {0} + 1)",
        "F.scaled_dot_product_attention({0}, {0} * 2, {0}, is_causal=True)",
        f"F.scaled_dot_product_attention({{0}}, {{0}}, {{0}}, {mask}, scale=0.3)",
        "F.softmax({0} @ {0}.transpose(-1, -2) * 0.5, -1) @ {0}",
        f"F.softmax({{0}} @ {{0}}.transpose(-1, -2) / 2 + {mask}, -1) @ {{0}}",
    )
    return draft.choice(texts).format(name)


def _reduction(draft: Draft) -> str | None:
    name = draft.value(lambda v: v.is_floating_point() and v.dim() >= 1 and v.numel() > 0)
    if name is None:
        return None
    axis, keep = draft.integer(-draft.tensor(name).dim(), draft.tensor(name).dim() - 1), draft.choice((True, False))
    texts = (
        *("{0}.sum({1}, keepdim={2})", "{0}.mean({1}, keepdim={2})", "{0}.amax({1}, keepdim={2})", "{0}.mean()"),
        *("{0}.cumsum({1})", "{0}.norm(dim={1}, keepdim={2})", "torch.var_mean({0}, {1}, correction=0)", "{0}.sum()"),
        *("{0}.norm(p=1, dim={1}, keepdim={2})", "F.normalize({0}, dim={1})", "{0}.norm()"),
        *("({0} * {0}).sum({1}, keepdim={2}).sqrt()", "{0} / ({0}.norm(dim={1}, keepdim=True) + 1e-3)"),
        *("{0}.logsumexp({1}, keepdim={2})", "{0}.amin({1}, keepdim={2})", "{0}.sum((0, -1), keepdim={2})"),
    )
    return draft.choice(texts).format(name, axis, keep)


def _view(draft: Draft) -> str | None:
    name = draft.value(lambda v: v.dim() >= 1)
    if name is None:
        return None
    shape = list(draft.tensor(name).shape)
    axis, other = (draft.integer(-len(shape), len(shape) - 1) for _ in range(2))
    order = draft.draw(st.permutations(range(len(shape))))
    start = draft.integer(0, max(0, shape[axis] - 1))
    stop = draft.integer(start + 1, max(start + 1, shape[axis]))
    cut = draft.integer(0, max(0, shape[axis]))
    # Of what is written to a piece of ``unsafe_split`` PyTorch does not say whether the whole shows it: it is a copy.
    texts = (
        *(f"{{0}}.permute({tuple(order)})", "{0}.transpose({1}, {2})", "{0}.flatten()", "{0}.unsqueeze({1})"),
        *("{0}.squeeze()", "{0}.flip([*{{{1}, {2}}}])", "{0}.roll(1, {1})", "{0}.unbind({1})"),
        *("{0}.chunk(2, {1})", "torch.unsafe_split({0}.clone(), 1, {1})", "{0}[None]"),
        *(f"{{0}}.narrow({{1}}, {start}, {stop - start})", f"{{0}}.split([{cut}, {shape[axis] - cut}], {{1}})"),
        *("{0}.select({1}, 0)", "{0}[..., ::2]", "{0}[-1]", f"{{0}}.reshape({_reshaped(draft, shape)})", "{0}.t()"),
        *(
            f"{{0}}.unsqueeze(0).expand(2, {', '.join('-1' for _ in shape)})",
            "F.pad({0}, (1, 2))",
            "F.pad({0}, (-1, 1))",
        ),
        *("F.pad({0}, (0, 1), value=2.0)", "{0}.repeat_interleave(2, {1})", "{0}.movedim({1}, {2})", "{0}.view(-1)"),
        *(
            "{0}.contiguous(memory_format=torch.channels_last)",
            "{0}.tile((2,))",
            "{0}.diagonal()",
            "torch.diag_embed({0})",
            "{0}.detach()",
        ),
    )
    return draft.choice(texts).format(name, axis, other)


def _reshaped(draft: Draft, shape: Sequence[int]) -> str:
    """Return the shape with neighbouring axes merged, or one split."""
    sizes = list(shape)
    if len(sizes) >= 2 and draft.chance(2):
        place = draft.integer(0, len(sizes) - 2)
        sizes[place : place + 2] = [sizes[place] * sizes[place + 1]]
    else:
        place = draft.integer(0, len(sizes) - 1)
        factors = [f for f in range(1, sizes[place] + 1) if sizes[place] % f == 0] or [1]
        factor = draft.choice(factors)
        sizes[place : place + 1] = [factor, sizes[place] // factor]
    return ", ".join(map(str, sizes))


def _join(draft: Draft) -> str | None:
    name = draft.value(lambda v: v.dim() >= 1)
    if name is None:
        return None
    value = draft.tensor(name)
    axis = draft.integer(0, value.dim() - 1)

    def suits(other: Tensor) -> bool:
        sizes = [*other.shape[:axis], *other.shape[axis + 1 :]]
        return other.dim() == value.dim() and sizes == [*value.shape[:axis], *value.shape[axis + 1 :]]

    names = [draft.value(suits) or name for _ in range(draft.integer(1, 2))]
    text = ", ".join([name, *names])
    return draft.choice((f"torch.cat([{text}], {axis})", f"torch.stack([{name}, {name}], {axis})"))


def _lookup(draft: Draft) -> str | None:
    name = draft.value(lambda v: v.dtype == torch.int64 and v.numel() > 0 and int(v.min()) >= 0 and int(v.max()) < 9)
    if name is None:
        return None
    table = draft.weight((9, draft.integer(1, 5)))
    return draft.choice(
        (
            f"F.embedding({name}, {table})",
            f"{table}[{name} - {draft.choice((0, 9))}]",
            f"{table}.index_select(0, {name}.flatten())",
            f"{table}.mT[:, {name}.int()]",
        )
    )


def _repeated(draft: Draft) -> str | None:
    """Return an expression that is in the model already: a common subexpression."""
    lines = [line for line in draft.lines if " = " in line and "_(" not in line]
    return draft.choice(lines).partition(" = ")[2] if lines else None


def _random(draft: Draft) -> str | None:
    texts = (
        "F.dropout({0}, 0.5, True)",
        "torch.rand_like({0}) + {0}",
        "{0} * torch.bernoulli(torch.full_like({0}, 0.5))",
    )
    draft.is_smooth = False
    return _from_texts(texts, _rank(0))(draft)


EXPRESSIONS: Mapping[str, tuple[int, Template]] = {
    "unary": (6, _from_texts(UNARY, _rank(0))),
    "binary": (6, _binary),
    "product": (4, _product),
    "parallel products": (3, _parallel_products),
    "loop": (2, _loop),
    "members": (2, _members),
    "convolution": (6, _convolution),
    "pool": (3, _pool),
    "pyramid": (2, _pyramid),
    "normalization": (4, _normalization),
    "attention": (2, _attention),
    "reduction": (3, _reduction),
    "view": (6, _view),
    "join": (3, _join),
    "lookup": (2, _lookup),
    "repeated": (1, _repeated),
    "integer": (1, _from_texts(INTEGER, lambda v: v.dtype in (torch.int64, torch.int32))),
    "boolean": (1, _from_texts(BOOLEAN, lambda v: v.dtype == torch.bool)),
    "jump": (1, _jump),
    "random": (1, _random),
}
"""Templates by name, each with its weight."""

WRITES = (
    *(
        "{0}.add_(1)",
        "{0}.mul_(0.5)",
        "{0}.relu_()",
        "{0}[..., :1].fill_(2.0)",
        "{0}.zero_()",
        "{0}[..., 0].fill_(1.0)",
    ),
    *("{0}.copy_({0} * 2)", "{0}.t_()", "{0}.clamp_(-1, 1)", "{0}.index_fill_(0, torch.tensor([0]), 3.0)"),
)
"""Statements that change a value in place."""
