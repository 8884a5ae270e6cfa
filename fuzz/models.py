"""Random models as a strategy of hypothesis, which also minimizes failing ones.

MacIver and Donaldson, Test-Case Reduction via Test-Case Generation: Insights from the Hypothesis Reducer, ECOOP 2020.
"""

from __future__ import annotations

from hypothesis import strategies as st

from fuzz import control, writing
from fuzz.draft import SPECIAL, Case, Draft
from fuzz.excerpts import add_excerpt
from fuzz.kinds import (
    CACHES,
    COMPLEX,
    CONTROL,
    HOOKS,
    KINDS,
    WRITING,
    complex_input,
    hook_model,
    write_by_operator,
    write_to_state,
)
from fuzz.operators import EXPRESSIONS, WRITES

MOST_INPUTS, MOST_LINES = 3, 12
EXCERPT = "the source of a rule"
_TEMPLATES = tuple(name for name, (weight, _) in EXPRESSIONS.items() for _ in range(weight))
# Where a failing model is minimized, earlier names are tried first.
_NAMES = (*_TEMPLATES, *(EXCERPT,) * (len(_TEMPLATES) // 3))
_LAYOUTS = ("{0}", "{0}", "{0}", "{0}.mT", "{0}[..., ::2]", "{0}.expand(2, *{0}.shape)", "{0}.movedim(0, -1)")


@st.composite
def models(draw: st.DrawFn, kind: str = "plain") -> Case:
    """Draw random models that PyTorch can run, with lines of a kind among others."""
    draft = Draft(draw)
    draft.is_special = kind == "plain" and draft.chance(6)
    draft.add_input(_input(draft))
    # Zero ends a sequence, so that the rest can be cut off when a failing model is minimized.
    while len(draft.inputs) < MOST_INPUTS and draft.integer(0, 2):
        draft.add_input(complex_input(draft) if kind == COMPLEX and draft.chance(2) else _input(draft))
    if kind in (WRITING, CONTROL):
        draft.imports.append((writing if kind == WRITING else control).__name__)
    if kind == HOOKS and draft.chance(2):
        draft.kinds.add(kind)
        hook_model(draft)
    while len(draft.lines) < MOST_LINES and draft.integer(0, 12):
        if kind == "plain" or draft.chance(2):
            _add_line(draft)
        else:
            _add_line_of(draft, kind)
    return draft.case(_result(draft))


def _input(draft: Draft) -> str:
    kind = draft.integer(0, 9)
    if kind == 0:
        return f"torch.randint(0, 9, {draft.shape(0, 3)}, generator=g)"
    if kind == 1:
        return f"torch.rand({draft.shape(0, 3)}, generator=g) > 0.5"
    dtype = draft.choice(("float32",) * 8 + ("float64", "bfloat16", "float16"))
    shape = draft.shape(4, 4) if kind < 5 else draft.shape()
    if draft.is_special:
        text = f"torch.tensor({SPECIAL})[torch.randint(0, 10, {shape}, generator=g)].to(torch.{dtype})"
    else:
        scale = draft.choice(("", "", "", " * 0", " * 10", " * 0.01"))
        text = f"(torch.randn({shape}, generator=g){scale}).to(torch.{dtype})"
    layout = draft.choice(_LAYOUTS)
    return text if len(shape) < 2 or layout == "{0}" else _laid_out(text, layout)


def _laid_out(text: str, layout: str) -> str:
    return f"(lambda x: {layout.format('x')})({text})"


def _add_line(draft: Draft) -> None:
    computed = [name for name in draft.values if name.startswith("v") and draft.values[name].is_floating_point()]
    if computed and draft.chance(15):
        draft.write(draft.choice(WRITES).format(draft.choice(computed)))
        return
    name = draft.choice(_NAMES)
    if name == EXCERPT:
        add_excerpt(draft)
        return
    expression = EXPRESSIONS[name][1](draft)
    if expression is not None:
        draft.assign(expression)


def _add_line_of(draft: Draft, kind: str) -> None:
    """Add a line of a kind, if one fits."""
    if kind == CACHES and draft.chance(4):
        draft.add_buffer(f"torch.randn({draft.shape()}, generator=g)")
    before = len(draft.lines)
    if kind == WRITING:
        write_by_operator(draft)
    elif kind == CACHES or (kind == CONTROL and draft.chance(4)):
        write_to_state(draft)
    else:
        expression = KINDS[kind](draft)
        if expression is not None:
            draft.assign(expression)
    if len(draft.lines) > before:
        draft.kinds.add(kind)


def _result(draft: Draft) -> str:
    """Return the model's result as text: several values, in some structure, the last among them."""
    names = list(draft.values)
    chosen = [*draft.subset(names, 0), names[-1]]
    if draft.chance(4):
        chosen.append(draft.choice(names))
    return draft.choice(("{0}", "({1},)", "[{1}]", "({{'a': {0}}}, [{1}])")).format(chosen[-1], ", ".join(chosen))
