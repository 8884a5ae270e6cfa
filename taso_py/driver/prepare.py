"""Preparation: the source checked and imported, and all that has to hold while it is optimized.

Invariant: nothing of an optimization is left behind in the model's state, in random generators or in PyTorch's modes.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from taso_py.backend import Program
from taso_py.backend.contract import may_draw_random, undo_random_draws
from taso_py.backend.weights import with_own_weights
from taso_py.backend.writes import is_write
from taso_py.checking.kept import state_kept
from taso_py.driver.result import OptimizeError, Options
from taso_py.frontend.hooks import hooks_set_aside
from taso_py.ir.text import print_graph
from taso_py.judging.trial import check_import
from taso_py.latency.contention import Watch
from taso_py.latency.environment import Environment
from taso_py.models.huggingface import adapt
from taso_py.models.importing import import_source
from taso_py.models.source import Source, described, usable
from taso_py.models.spec import SourceError
from taso_py.progress import Phases
from taso_py.saving.savable import check_savable
from taso_py.turn import in_turn
from taso_py.unexpected import reported

AUTOCAST = (
    "optimize is called under torch.autocast, which would cast inside of its kernels too; call it outside, and put a "
    "model that is to run under autocast into a module that enters it in forward"
)
"""Why autocast around it is refused."""
IN_TRAINING = (
    "the model is in training mode, and so is the result: it draws random numbers or writes to buffers; call eval() "
    "before optimizing for one that predicts"
)
"""What is noted of dropout that drops, and of batch normalisation that takes the batch's statistics."""
PLAIN_CALLS = "the original program is timed as plain calls, without PyTorch's own checks of its arguments"
"""What is noted of exported programs."""


def source_of(module: Any, args: Any, kwargs: Any) -> Source:
    """Return what is to be optimized, from arguments that a user may have mistaken.

    Raises:
        SourceError: they are none.
    """
    if not isinstance(module, nn.Module | ExportedProgram):
        raise SourceError(f"a {type(module).__name__} is no model; give an nn.Module or an exported program")
    if isinstance(args, Mapping):
        raise SourceError("example_inputs are positional; give a dict of keyword inputs as example_kwargs")
    if isinstance(args, str) or not isinstance(args, Sequence | Tensor):
        raise SourceError(f"example_inputs are a tensor or a tuple of inputs, not of type {type(args).__name__}")
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise SourceError("example_kwargs are a dict of inputs by their names; give positional ones as example_inputs")
    if isinstance(args, Tensor):
        args = (args,)
    if isinstance(module, ExportedProgram) and not (args or kwargs) and module.example_inputs:
        args, kwargs = module.example_inputs
    name = type(module).__name__
    return Source(name, adapt(module) if isinstance(module, nn.Module) else module, tuple(args), dict(kwargs))


@dataclass(frozen=True)
class Prepared:
    """A source that was imported and checked."""

    source: Source
    program: Program
    options: Options
    phases: Phases
    notes: Sequence[str]
    """What there is to tell before the search begins."""


@contextmanager
def prepared(
    source: Source, options: Options, program: Program | None = None, *, saves: bool = False
) -> Generator[Prepared]:
    """Import and check a source, for an optimization that takes place within.

    Args:
        source: what to optimize.
        options: how.
        program: the source as a program, if it was imported before.
        saves: whether the result is to be saved, as the program has to be then.

    Raises:
        TasoError: it cannot be optimized here.
    """
    phases, watch = Phases(shown=options.progress), Watch()
    # What is made in inference mode cannot be exported, nor be used where gradients are asked for.
    with (
        in_turn(),
        reported(f"optimizing {source.name}") as facts,
        torch.inference_mode(mode=False),
        torch.no_grad(),
        hooks_set_aside(source.module, source.args, source.kwargs) as hooks,
    ):
        facts |= {"options": options, "inputs": partial(described, (source.args, source.kwargs))}
        source = replace(source, args=usable(source.args), kwargs=usable(source.kwargs))
        with phases.phase("import", "the model, as a graph of operators"):
            program = program or with_own_weights(import_source(source))
        facts |= {"graph": partial(print_graph, program.graph), "device": partial(Environment.current, program.device)}
        _check_circumstances(program.device)
        with undo_random_draws(program), state_kept(program, [source.callable()]):
            with phases.phase("check", "that the graph computes what the model does"):
                checked = check_import(source, program, options.seed)
            notes = [*source.notes, *hooks, *_in_training(source, program), *checked]
            if isinstance(source.module, ExportedProgram) and source.onnx is None:
                notes.append(PLAIN_CALLS)
            if saves:
                check_savable(source, program)
            if phases.shown and program.device.type == "cpu":
                _warn_of_contention(phases, watch)
            yield Prepared(source, program, options, phases, notes)


def _check_circumstances(device: torch.device) -> None:
    """Makes sure that what is timed is what will run.

    Raises:
        OptimizeError: the device computes nothing, or autocast is on.
    """
    if device.type == "meta":
        raise OptimizeError("the model or its inputs are on the meta device, which computes nothing; move them")
    if torch.is_autocast_enabled(device.type):
        raise OptimizeError(AUTOCAST)


def _in_training(source: Source, program: Program) -> Sequence[str]:
    """What to tell of a model that nobody put into evaluation mode, where that may make a difference."""
    if not isinstance(source.module, nn.Module) or not any(part.training for part in source.module.modules()):
        return ()
    acts = may_draw_random(program) or any(map(is_write, program.graph.effects))
    return (IN_TRAINING,) if acts else ()


def _warn_of_contention(phases: Phases, watch: Watch) -> None:
    """Says before anything is timed that it will be disturbed; afterwards the report says what was."""
    now = watch.contention(spins=True)
    if not now.is_quiet:
        phases.say(f"note: {now.text}; timing takes longer then, and shows less; {now.advice}")
