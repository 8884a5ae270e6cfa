"""Preparation of an optimization: check and import the source, and set up the state that it needs from PyTorch.

Invariant: afterwards the model's state, the random generators and PyTorch's modes are as they were before.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from taso_py.backend import Program
from taso_py.backend.generators import may_draw_random, undo_random_draws
from taso_py.backend.weights import with_own_weights
from taso_py.backend.writes import Writes
from taso_py.checking.import_check import check_import
from taso_py.checking.preserve import preserve_attributes, preserve_state
from taso_py.frontend.hooks import hooks_set_aside
from taso_py.ir.text import print_graph
from taso_py.judging.expected import ExpectedOutputs
from taso_py.latency.contention import Watch
from taso_py.latency.environment import Environment
from taso_py.lock import optimization_lock
from taso_py.models.huggingface import adapt
from taso_py.models.importing import import_source
from taso_py.models.source import Source, clone_inference_tensors, describe_arguments
from taso_py.models.spec import SourceError
from taso_py.options import OptimizeError, Options
from taso_py.progress import Phases
from taso_py.saving.savable import check_savable, is_plain
from taso_py.unexpected import report_unexpected

AUTOCAST = (
    "optimize is called under torch.autocast, which would cast inside of its kernels too; call it outside, and put a "
    "model that is to run under autocast into a module that enters it in forward"
)
"""The error for a call under autocast."""
IN_TRAINING = (
    "the model is in training mode, and so is the result: it draws random numbers or writes to buffers; call eval() "
    "before optimizing for one that predicts"
)
"""The note on models with active dropout, or with batch normalization that uses the batch's statistics."""
PLAIN_CALLS = "the original program is timed as plain calls, without PyTorch's own checks of its arguments"
"""The note on exported programs."""


def source_of(module: Any, args: Any, kwargs: Any) -> Source:
    """Return the source for a user's module and example inputs, after checking their types.

    Raises:
        SourceError: one of them is of the wrong type.
    """
    if not isinstance(module, nn.Module | ExportedProgram):
        raise SourceError(f"a {type(module).__name__} is no model; give an nn.Module or an exported program")
    if isinstance(args, Mapping):
        raise SourceError("example_inputs are positional; give a dict of keyword inputs as example_kwargs")
    if isinstance(args, str) or not isinstance(args, Sequence | Tensor):
        raise SourceError(f"example_inputs must be a tensor or a tuple of inputs, not of type {type(args).__name__}")
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise SourceError(
            "example_kwargs must be a dict of inputs by their names; give positional ones as example_inputs"
        )
    if isinstance(args, Tensor):
        args = (args,)
    leaves = pytree.tree_leaves((args, kwargs))
    # An export takes none of NumPy's values but float64, which is a number of Python's too.
    foreign = [leaf for leaf in leaves if type(leaf).__module__ == "numpy" and not isinstance(leaf, float)]
    if foreign:
        raise SourceError(
            f"an example input is a numpy.{type(foreign[0]).__name__}; give a tensor (torch.as_tensor), or a number of "
            "Python's (.item())"
        )
    if isinstance(module, ExportedProgram) and not (args or kwargs) and module.example_inputs:
        args, kwargs = module.example_inputs
    name = type(module).__name__
    return Source(name, adapt(module) if isinstance(module, nn.Module) else module, tuple(args), dict(kwargs))


@dataclass(frozen=True)
class PreparedSource:
    """A source that was imported and checked."""

    source: Source
    program: Program
    options: Options
    phases: Phases
    notes: Sequence[str]
    """Notes for the user from before the search."""

    @cached_property
    def expected(self) -> ExpectedOutputs:
        """The outputs that whatever is built of the source is compared with."""
        return ExpectedOutputs(self.source, self.program, self.options.seed)


@contextmanager
def prepare(
    source: Source, options: Options, program: Program | None = None, *, saves: bool = False
) -> Generator[PreparedSource]:
    """Import and check a source; the optimization takes place within this context.

    Args:
        source: what to optimize.
        options: the options of the optimization.
        program: the source as a program, if it has been imported already.
        saves: whether the result is to be saved; if that is not certain, the unchanged program is saved on trial.

    Raises:
        TasoError: it cannot be optimized here.
    """
    phases, watch = Phases(shown=options.progress), Watch()
    # Tensors made in inference mode can neither be exported nor used where gradients are recorded.
    with (
        optimization_lock(),
        report_unexpected(f"optimizing {source.name}") as facts,
        torch.inference_mode(mode=False),
        torch.no_grad(),
        preserve_attributes(source.module),
        hooks_set_aside(source.module, source.args, source.kwargs) as hooks,
    ):
        facts |= {"options": options, "inputs": partial(describe_arguments, (source.args, source.kwargs))}
        source = replace(
            source, args=clone_inference_tensors(source.args), kwargs=clone_inference_tensors(source.kwargs)
        )
        with phases.phase("import", "the model, as a graph of operators"):
            program = program or with_own_weights(import_source(source))
        if Writes.of(program.graph).inputs:
            source = source.with_own_inputs()
        facts |= {"graph": partial(print_graph, program.graph), "device": partial(Environment.current, program.device)}
        _check_circumstances(program.device)
        with undo_random_draws(program), preserve_state(program, [source.callable()], (source.args, source.kwargs)):
            with phases.phase("check", "that the graph computes the same as the model"):
                checked = check_import(source, program, options.seed)
            notes = [*source.notes, *hooks, *_in_training(source, program), *_declared(source), *checked]
            if isinstance(source.module, ExportedProgram) and source.onnx is None:
                notes.append(PLAIN_CALLS)
            if saves and options.effective_effort.checks_saving and not is_plain(program):
                with phases.phase("check", "that results can be saved"):
                    check_savable(source, program)
            if phases.shown and program.device.type == "cpu":
                _warn_of_contention(phases, watch)
            yield PreparedSource(source=source, program=program, options=options, phases=phases, notes=notes)


def _check_circumstances(device: torch.device) -> None:
    """Check that the device can run the model and that autocast is off, so that timings are valid.

    Raises:
        OptimizeError: the device is ``meta``, or autocast is on.
    """
    if device.type == "meta":
        raise OptimizeError("the model or its inputs are on the meta device, which computes nothing; move them")
    if torch.is_autocast_enabled(device.type):
        raise OptimizeError(AUTOCAST)


def _in_training(source: Source, program: Program) -> Sequence[str]:
    """Return a note if the model is in training mode and that affects its results."""
    if not isinstance(source.module, nn.Module) or not any(part.training for part in source.module.modules()):
        return ()
    acts = may_draw_random(program) or bool(Writes.of(program.graph).buffers)
    return (IN_TRAINING,) if acts else ()


def _declared(source: Source) -> Sequence[str]:
    """Return a note if something was declared of inputs, which no call checks."""
    names = ", ".join(source.positive)
    return (f"the result is for calls in which {names} is positive throughout, as declared",) if names else ()


def _warn_of_contention(phases: Phases, watch: Watch) -> None:
    """Tell the user in advance that other programs will disturb the timing; the report says so afterwards."""
    now = watch.contention(spins=True)
    if not now.is_quiet:
        phases.say(f"note: {now.text}; timing will take longer and be less precise; {now.advice}")
