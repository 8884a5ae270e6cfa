"""Oracles of a program: its original and the program in float64, on inputs of one size or several.

Invariant: what original and reference write to is restored after each of their runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import nn

from taso_py.backend import Program
from taso_py.backend.input_cases import Arguments
from taso_py.checking.compare import Oracle, float64_reference
from taso_py.checking.preserve import preserve_state


def float64_oracles(
    program: Program, original: nn.Module, arguments: Arguments, *batches: Sequence[tuple[str, Arguments]]
) -> tuple[Sequence[Oracle], str]:
    """Return an oracle for each batch of input cases, all with one reference, and a note if that cannot be made.

    Args:
        program: the program that the original was imported as.
        original: the module whose outputs are expected; without a reference they count as exact.
        arguments: the example inputs, restored as well where the model writes to them.
        batches: names of inputs, with the inputs; a batch without any has no oracle.
    """
    reference, sums, note = float64_reference(program)
    modules = [original, *([] if reference is None else [reference])]
    keeping = partial(preserve_state, program, modules, arguments)
    return [Oracle.of(program, original, reference, cases, keeping, sums) for cases in batches if cases], note
