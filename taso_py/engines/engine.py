"""Interface of engines.

Invariant: an engine that cannot run a program raises :class:`EngineUnavailableError` with the reason in one line.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self, TypeAlias

import torch
from torch import Tensor, nn

from taso_py.backend import NO_PLAN, ContractError, Plan, Program, build, build_around
from taso_py.backend.frozen import NO_EXPORT, NO_PICKLE, FrozenError, FrozenRunner
from taso_py.backend.outside import Checks
from taso_py.backend.storage import COMPUTES
from taso_py.backend.writes import is_write
from taso_py.ir.errors import InvariantError, TasoError, first_line
from taso_py.ir.graph import Graph
from taso_py.kernels.table import PLAIN
from taso_py.kernels.tile import Tile
from taso_py.ops.nested import with_pure_control_flow

Runner: TypeAlias = Callable[..., Any]
"""A callable with the signature of the original module."""
KERNEL_PRICES = "kernels"
"""Name of the prices of engines whose operators are PyTorch's kernels, called one by one."""
CAPTURED_PRICES = "captured kernels"
"""Name of the prices of engines that replay PyTorch's kernels from a CUDA graph, without launching each."""
COMPILED_PRICES = "compiled and captured kernels"
"""Name of the prices of engines that replay a CUDA graph of what a compiler made, which fuses elementwise operators."""
PYTORCH_PRICES = (KERNEL_PRICES, CAPTURED_PRICES, COMPILED_PRICES)
"""Names of the prices that are latencies of PyTorch's kernels."""


class EngineUnavailableError(TasoError):
    """Raised if this device or machine does not have an engine, or the engine cannot run a module."""


class CompiledGraph(nn.Module, ABC):
    """A graph that an engine has compiled: called with tensors, it returns dense ones that belong to the caller.

    It is immutable: a copy of it is itself.
    """

    @abstractmethod
    def forward(self, *tensors: Tensor) -> Sequence[Tensor]:
        """Compute the outputs from the inputs, both in the graph's order."""

    @staticmethod
    def of(module: nn.Module) -> CompiledGraph | None:
        """Return the compiled graph that a module was built around, or None."""
        found = getattr(module, COMPUTES, None)
        return found if isinstance(found, CompiledGraph) else None

    def __call__(self, *tensors: Tensor) -> Sequence[Tensor]:
        """Compute the outputs; refuse exports, which would read memory that tensors do not have."""
        if torch.compiler.is_exporting():
            raise FrozenError(NO_EXPORT)
        return self._call_impl(*tensors)

    def _slow_forward(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse ``torch.jit.trace``, which calls this in place of ``forward`` and would record no computation."""
        raise FrozenError(NO_EXPORT)

    def __copy__(self) -> Self:
        """Return the compiled graph itself, since it is immutable."""
        return self

    def __deepcopy__(self, _memo: dict[int, Any]) -> Self:
        """Return the compiled graph itself, since it is immutable."""
        return self

    def __reduce__(self) -> NoReturn:
        raise FrozenError(NO_PICKLE)


@dataclass(frozen=True)
class Built:
    """A program built for an engine."""

    module: nn.Module
    runner: Runner
    """Calls the module in the engine."""


class Engine(ABC):
    """A way to run modules."""

    name: str
    """The name that users choose it by."""
    devices: tuple[str, ...] = ("cpu", "cuda")
    """The kinds of device that it is for."""
    prices: str = KERNEL_PRICES
    """Name of the set of latencies that a search for this engine uses; engines with equal prices share a search."""
    tiles: tuple[Tile, ...] = PLAIN
    """Tiles whose kernels a plan may use."""
    is_compiler: bool = False
    """True if building takes up to a minute, so that only few graphs are built."""
    is_ahead_of_time: bool = False
    """True if it is a compiler whose result is a file, which ``auto`` tries at the highest effort only."""
    file: str = ""
    """The engine's own file in a saved result; empty if it has none."""
    beside: tuple[str, ...] = ()
    """Further files in a saved result that the engine reads along with its own."""
    has_own_threads: bool = False
    """True if it has its own thread pool, which must be idle while another engine is timed."""

    @property
    def is_captured(self) -> bool:
        """True if calls are launched together (CUDA graphs), so that launches cost the processor nothing."""
        return self.prices in (CAPTURED_PRICES, COMPILED_PRICES)

    @property
    def compiles_around_kernels(self) -> bool:
        """True if it is a compiler, not ahead of time, that keeps the kernels of a plan."""
        return self.is_compiler and not self.is_ahead_of_time and self.tiles != PLAIN

    def absence(self, device: torch.device) -> str | None:
        """Return why the engine is not available on a device, in one line; None if it is."""
        return None

    def suits(self, device: torch.device) -> bool:
        """Return whether the engine is for devices of this kind at all."""
        return device.type in self.devices

    def plan_for(self, plan: Plan) -> Plan:
        """Return a plan in the form that this engine uses."""
        return plan.compiled() if self.compiles_around_kernels else plan

    def build(self, program: Program, plan: Plan = NO_PLAN) -> nn.Module:
        """Build a program into a module for this engine; :meth:`prepare` makes it ready to run.

        Args:
            program: the program; parts that depend on weights only have been folded.
            plan: the kernels that compute it.

        Raises:
            EngineUnavailableError: the engine cannot run the program here.
        """
        return build(program, plan)

    def _check_effects(self, graph: Graph) -> None:
        """Check that a graph has no effects but writes and control flow without other effects.

        Raises:
            EngineUnavailableError: it has others.
        """
        if not all(map(is_write, with_pure_control_flow(graph).effects)):
            reason = "it checks values, draws random numbers, or has operators with effects of their own"
            raise EngineUnavailableError(f"{self.name} cannot run this module: {reason}")

    def build_around(self, program: Program, compiled: CompiledGraph, late: Graph | None = None) -> nn.Module:
        """Build a program into a module around its graph, which the engine has compiled; this includes its first call.

        Args:
            program: the program.
            compiled: the pure part of its graph (:func:`~taso_py.backend.division.divided`), compiled.
            late: makes what is written of what that returns; None if it returns whole contents.

        Raises:
            EngineUnavailableError: that call fails, or the module would not do for callers what the original does.
        """
        try:
            return build_around(program, compiled, late)
        except (ContractError, RuntimeError) as error:
            raise EngineUnavailableError(f"{self.name} cannot run this module: {first_line(error)}") from error

    def files(self, module: nn.Module) -> Mapping[str, bytes]:
        """Return the engine's own files of a module that it built, by name; empty if it has none."""
        return {}

    def restore(self, program: Program, folder: Path) -> nn.Module:
        """Load a module from the engine's own files in a folder.

        Args:
            program: the program that the files compute, which defines arguments and results.
            folder: the folder of the files.

        Raises:
            EngineUnavailableError: this machine does not have the engine, or it cannot read them.
            InvariantError: the engine has no files of its own.
        """
        raise InvariantError(f"{self.name} has no files of its own")

    def prepare(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], resizable: bool = False
    ) -> Runner:
        """Make a module ready to run; this includes its first call. One built around a compiled graph is ready.

        Args:
            module: the module to run.
            args: positional example inputs.
            kwargs: keyword example inputs.
            resizable: whether calls with inputs of other sizes will follow.

        Raises:
            EngineUnavailableError: the engine cannot run this module here; the message says why, in one line.
        """
        try:
            with torch.no_grad():
                if CompiledGraph.of(module) is not None:
                    module(*args, **kwargs)
                    return module
                checks = Checks.of(module)
                given, named = (args, kwargs) if checks is None else checks(args, kwargs)
                run = self._runner(module, given, named, resizable)
                runner = FrozenRunner(run if checks is None else checks.before(run))
                runner(*args, **kwargs)
        except (RuntimeError, ImportError, AssertionError, NotImplementedError) as error:
            raise EngineUnavailableError(f"{self.name} cannot run this module: {first_line(error)}") from error
        return runner

    @abstractmethod
    def _runner(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], resizable: bool) -> Runner: ...
