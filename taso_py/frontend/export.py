"""From modules to exported programs in the form that the importer reads.

Invariant: whatever torch.export raises becomes one :class:`ImportRefusal` of one line, with the essential cause.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import fx, nn
from torch._ops import OpOverload
from torch.export import ExportedProgram

from taso_py.backend.schema import bind
from taso_py.frontend.errors import ImportRefusal
from taso_py.frontend.opaque import draws
from taso_py.frontend.source import refuse

_T = TypeVar("_T")


def export(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ExportedProgram:
    """Exports a module with static sizes.

    Raises:
        ImportRefusal: torch.export cannot.
    """
    return _guarded(lambda: torch.export.export(module, tuple(args), dict(kwargs)))


def functionalize(exported: ExportedProgram) -> ExportedProgram:
    """The program without writes, its high-level operators kept.

    Raises:
        ImportRefusal: it has no such form, or a random draw that nobody reads would get lost, and with it the state of
            the random generator.
    """
    functional = _guarded(lambda: exported.run_decompositions({}))
    before, after = random_draws(exported.graph), random_draws(functional.graph)
    if len(after) < len(before):
        lost = next((node for node in before if not node.users), before[-1])
        refuse(lost, "draws random numbers that nothing reads", "remove the draw, or use its result")
    return functional


def random_draws(graph: fx.Graph) -> list[fx.Node]:
    """The calls that draw random numbers."""
    found: list[fx.Node] = []
    for node in graph.nodes:
        overload = node.target
        if not isinstance(overload, OpOverload) or torch.Tag.nondeterministic_seeded not in overload.tags:
            continue
        if draws(bind(overload, node.args, node.kwargs).get):
            found.append(node)
    return found


@contextmanager
def quiet() -> Generator[None]:
    """Without the warnings that torch's own export code causes, which no user can act on; gradients off."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


def _guarded(action: Callable[[], _T]) -> _T:
    try:
        with quiet():
            return action()
    except (
        Exception
    ) as error:  # torch.export raises errors of dozens of types, RuntimeError and AssertionError included
        raise ImportRefusal(explain(error)) from error


_CAUSES: Sequence[tuple[str, str]] = (
    (
        r"DynamicCache|use_cache|past_key_values|Cache",
        "the model returns a key-value cache, which cannot be exported; pass use_cache=False, or wrap the model with "
        "taso_py.runtime.huggingface.adapt",
    ),
    (
        r"[Dd]ata.dependent|GuardOnDataDependentSymNode|[Uu]nbacked",
        "the model's control flow or a size depends on the data; use torch.where, masks or fixed sizes instead",
    ),
    (r"control.?flow", "the model's control flow depends on the data; use torch.where instead of if"),
)


def explain(error: Exception) -> str:
    """One line: the known cause behind an error of torch.export and what to do, or its first line."""
    text = str(error)
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    for pattern, cause in _CAUSES:
        if re.search(pattern, text):
            return f"cannot export the model: {cause} (torch.export: {first[:200]})"
    return f"cannot export the model ({type(error).__name__}: {first[:300]}); torch.export must accept it first"
