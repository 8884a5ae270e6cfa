"""The interface of an engine, and what it makes of a program.

Invariant: an engine that cannot run a program says why in one line, as :class:`EngineUnavailableError`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from taso_py.backend import NO_PLAN, Plan, Program, build
from taso_py.backend.frozen import FrozenRunner
from taso_py.ir.errors import InvariantError, TasoError, first_line
from taso_py.kernels.table import PLAIN
from taso_py.kernels.tile import Tile

Runner: TypeAlias = Callable[..., Any]
"""Called like the original module."""
KERNEL_PRICES = "kernels"
"""The prices of engines whose operators are PyTorch's kernels, called one by one."""


class EngineUnavailableError(TasoError):
    """An engine that this device or machine does not have, or that cannot run a module."""


class Engine(ABC):
    """Where a module runs."""

    name: str
    """The name that users choose it by."""
    devices: tuple[str, ...] = ("cpu", "cuda")
    """The kinds of device that it is for."""
    prices: str = KERNEL_PRICES
    """The prices that a search for this engine asks for; engines with equal prices share a search."""
    tiles: tuple[Tile, ...] = PLAIN
    """The kernels that a plan may name."""
    is_compiler: bool = False
    """Whether building takes a while, up to a minute, so that few graphs are built."""
    is_captured: bool = False
    """Whether launching calls costs the processor nothing."""
    file: str = ""
    """The file of a saved result that the engine reads by itself; empty where it has no form of its own."""
    has_own_threads: bool = False
    """Whether it computes in a pool of threads of its own, which must not be awake while another engine is timed."""

    def absence(self, device: torch.device) -> str | None:
        """Return why the engine cannot be used on a device, in one line; None if it can."""
        return None

    def suits(self, device: torch.device) -> bool:
        """Whether it is for devices of this kind at all."""
        return device.type in self.devices

    def plan_for(self, plan: Plan) -> Plan:
        """Return a plan of kernels in the form in which this engine takes it."""
        return plan

    def build(self, program: Program, plan: Plan = NO_PLAN) -> nn.Module:
        """Return a program as a module for this engine, which :meth:`prepare` makes ready to run.

        Args:
            program: what to compute; parts that depend on weights only have been folded.
            plan: the kernels that compute it.

        Raises:
            EngineUnavailableError: the engine cannot run the program here.
        """
        return build(program, plan)

    def files(self, module: nn.Module) -> Mapping[str, bytes]:
        """Return the engine's own saved form of a module that it built, files by name; empty where it has none."""
        return {}

    def restore(self, program: Program, folder: Path) -> nn.Module:
        """Return a module from the engine's own files in a folder.

        Args:
            program: what the files compute, for how the module is called.
            folder: where they are.

        Raises:
            EngineUnavailableError: this machine does not have the engine, or it cannot read them.
            InvariantError: the engine has no form of its own.
        """
        raise InvariantError(f"{self.name} has no files of its own")

    def prepare(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], resizable: bool = False
    ) -> Runner:
        """Make a module ready to run; the first call has been made.

        Args:
            module: to run.
            args: positional example inputs.
            kwargs: keyword example inputs.
            resizable: whether calls with inputs of other sizes will follow.

        Raises:
            EngineUnavailableError: the engine cannot run this module here; the message says why, in one line.
        """
        try:
            with torch.no_grad():
                runner = FrozenRunner(self._prepared(module, args, kwargs, resizable))
                runner(*args, **kwargs)
        except (RuntimeError, ImportError, AssertionError, NotImplementedError) as error:
            raise EngineUnavailableError(f"{self.name} cannot run this module: {first_line(error)}") from error
        return runner

    @abstractmethod
    def _prepared(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], resizable: bool
    ) -> Runner: ...
