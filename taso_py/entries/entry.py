"""Entry points: ways to call one model, each with example inputs, and the state that they share.

Invariant: the programs of entry points share the memory that their model's tensors share, in copies of their own; a
buffer that one of them writes to is read anew by each call of all others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from taso_py.backend import Program
from taso_py.backend.schema import storage_of
from taso_py.backend.weights import with_own_weights
from taso_py.driver.prepare import source_of
from taso_py.ir.errors import TasoError
from taso_py.lock import optimization_lock
from taso_py.models.importing import import_source
from taso_py.models.source import Source, clone_inference_tensors
from taso_py.unexpected import report_unexpected


class EntryPointError(TasoError):
    """Raised for entry points that cannot be optimized together."""


@dataclass(frozen=True)
class EntryPoint:
    """A way to call a model, with example inputs."""

    called: nn.Module | ExportedProgram | Callable[..., Any]
    """A module in evaluation mode, a method of one, or an exported program, which brings its own inputs."""
    example_inputs: Sequence[Any] | Tensor = ()
    """Positional inputs; a single tensor may be given as it is."""
    example_kwargs: Mapping[str, Any] | None = None
    """Keyword inputs."""

    def source(self, name: str) -> Source:
        """Return the entry point as a source of its name.

        Raises:
            SourceError: model or inputs are of the wrong type.
        """
        called, owner = self.called, getattr(self.called, "__self__", None)
        if inspect.ismethod(called) and isinstance(owner, nn.Module):
            called = _Method(owner, called)
        given = {} if self.example_kwargs is None else self.example_kwargs
        return replace(source_of(called, self.example_inputs, given), name=name)


class _Method(nn.Module):
    """A module that calls a method of another one."""

    def __init__(self, owner: nn.Module, method: Callable[..., Any]) -> None:
        super().__init__()
        self.owner = owner
        self.forward = method  # the exported program takes its arguments
        self.train(owner.training)


def import_together(sources: Mapping[str, Source]) -> Mapping[str, Program]:
    """Import the entry points of one model as programs that share their weights, in copies of their own.

    Raises:
        TasoError: one cannot be imported, or writes to memory that another one reads as several tensors.
    """
    programs = {name: _imported(source) for name, source in sources.items()}
    written = {storage_of(tensor) for program in programs.values() for tensor in program.state.values()}
    for name, program in programs.items():
        live = {key for key, tensor in program.weights.items() if storage_of(tensor) in written}
        if live - program.state.keys():
            programs[name] = _imported(sources[name], live | program.state.keys())
        _check_alone(name, programs[name])
    copies: dict[int, Any] = {}
    return {name: with_own_weights(program, copies) for name, program in programs.items()}


def _imported(source: Source, live: Collection[str] = ()) -> Program:
    # Tensors made in inference mode can neither be exported nor used where gradients are recorded.
    with (
        optimization_lock(),
        report_unexpected(f"importing {source.name}"),
        torch.inference_mode(mode=False),
        torch.no_grad(),
    ):
        args, kwargs = clone_inference_tensors((source.args, source.kwargs))
        try:
            return import_source(replace(source, args=args, kwargs=kwargs), live)
        except TasoError as error:
            raise EntryPointError(f"entry point {source.name}: {error}") from error


def _check_alone(name: str, program: Program) -> None:
    """Check that no two buffers of a program are in the memory of one that is written to."""
    homes: dict[int, str] = {}
    for key, tensor in program.state.items():
        other = homes.setdefault(storage_of(tensor), key)
        if other != key:
            raise EntryPointError(
                f"entry point {name} holds memory that is written to as both {other} and {key}; make it one buffer"
            )
