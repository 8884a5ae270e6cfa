"""The description of a saved result, and its module where the compact form of its program is enough to build that.

Invariant: importing this module imports neither PyTorch's compiler nor the optimizer, so that a saved result loads in a
fraction of a second.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from taso_py.backend.build import build
from taso_py.backend.plan import NO_PLAN, Plan
from taso_py.backend.program import Program
from taso_py.backend.weights import tie
from taso_py.engines.engine import Engine, EngineUnavailableError
from taso_py.engines.names import ENGINE_NAMES
from taso_py.kernels.saved import restore as restore_kernels
from taso_py.saving.compact import COMPACT, CompactFormError, restore
from taso_py.saving.folder import ENTRIES, MODEL, PLAN, ArtifactError, check_digests, content_digest, file_digest
from taso_py.saving.weights_file import read_weights

_log = logging.getLogger(__name__)
VERSION = 5
"""Version of the format of ``plan.json``."""
CHECKED_BYTES = 64 << 20
"""Largest program file that is compared with its digest before its weights are mapped, which takes up to 0.1 s; a
larger one is read when it is first used, and only its size and directory are compared."""


@dataclass(frozen=True)
class WeightsPlace:
    """Where the weights of a program are that was saved without them."""

    file: str
    """The file, relative to the folder of the result."""
    program: str
    """The program's name in the file."""
    digest: str
    """The digest of the file."""


@dataclass(frozen=True)
class SavedResult:
    """A saved result: its program, and how that is computed."""

    folder: Path
    program: Path
    runtime: str
    files: Mapping[str, str]
    """The digests of the files in the folder."""
    threads: int | None
    """The number of threads that it was measured with; None on a GPU, or if unknown."""
    plan: Any
    """The plan as :func:`taso_py.kernels.saved.dump` returns it; None for plain ATen calls."""
    weights: WeightsPlace | None = None
    """Where its weights are, if its program was saved without them."""

    @property
    def other_threads(self) -> str | None:
        """A warning if PyTorch uses another number of threads than the result was measured with; else None."""
        here = torch.get_num_threads()
        if self.threads in (None, here):
            return None
        return (
            f"{self.folder} was measured with {self.threads} threads, and PyTorch uses {here} here, so that its "
            "kernels may not be the fastest; call torch.set_num_threads, or optimize the model again"
        )

    def warn_of_threads(self, stacklevel: int) -> None:
        """Warn if PyTorch uses another number of threads than it was measured with."""
        if self.other_threads is not None:
            warnings.warn(self.other_threads, stacklevel=stacklevel + 1)

    def plan_for(self, program: Program) -> Plan:
        """Return the plan for the program as it was imported here.

        Raises:
            ArtifactError: the plan is not for this program.
        """
        try:
            return restore_plan(self.plan, program)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            problem = f"{self.folder / PLAN} has no plan for {self.program.name}"
            raise ArtifactError(f"{problem}: {error!r}; optimize the model again") from error

    def read_weights(self) -> Mapping[str, Tensor]:
        """Read the weights that the program was saved without; none if it has them.

        Raises:
            ArtifactError: their file is damaged, or of another run.
        """
        place = self.weights
        return {} if place is None else read_weights(self.folder / place.file, place.digest)[place.program]

    def compact_program(self, weights: Mapping[str, Tensor]) -> Program | None:
        """Return the program as its compact form describes it; None if it has none, or one that does not fit.

        Nor is one returned if the program's file is damaged, as far as :data:`CHECKED_BYTES` lets that be seen.

        Args:
            weights: the tensors by name that the program was saved without; they are not copied.
        """
        digest = self.files.get(COMPACT)
        if digest is None:
            return None
        try:
            written = (self.folder / COMPACT).read_bytes()
            is_listed = content_digest(written) == digest
            if self.program.stat().st_size <= CHECKED_BYTES:
                is_listed = is_listed and file_digest(self.program) == self.files.get(self.program.name)
            return restore(json.loads(written), self.program, weights) if is_listed else None
        except (OSError, ValueError, CompactFormError):
            return None

    def module_of(
        self, program: Program, state: Mapping[str, Tensor], *, replaces_engine: bool = False
    ) -> fx.GraphModule:
        """Return a program of this result built by its plan.

        Args:
            program: the program.
            state: the tensors by key that the module reads and writes in place of state of its own.
            replaces_engine: true if another engine should run it, which is not here.

        Raises:
            ArtifactError: the plan is not for this program.
        """
        plan = self.plan_for(program)
        module = build(program, plan.eager() if replaces_engine else plan)
        tie(module, state)
        return module

    def module_in(self, engine: Engine, program: Program, state: Mapping[str, Tensor]) -> nn.Module:
        """Return a program of this result as its engine reads it from files of its own.

        If the engine is not here, or cannot read them, the module is one for PyTorch, and a warning says so.

        Args:
            engine: the engine, which has such files.
            program: the program.
            state: the tensors by key that the module reads and writes in place of state of its own.

        Raises:
            ArtifactError: a file is of another run or missing, or the plan is not for this program.
        """
        # Before they are read: an engine's own code may not survive damage.
        read = (engine.file, *engine.beside)
        check_digests(self.folder, {name: self.files.get(name, "") for name in read}, engine.file)
        needed = [name for name in engine.beside if name in self.files and (self.folder / engine.file).is_file()]
        missing = next((name for name in needed if not (self.folder / name).is_file()), None)
        if missing is not None:
            raise ArtifactError(f"{self.folder} lacks {missing}, which {engine.file} needs; optimize the model again")
        try:
            module = engine.restore(program, self.folder)
        except EngineUnavailableError as error:
            _log.warning("%s; %s is run by PyTorch instead", error, self.folder)
            return self.module_of(program, state, replaces_engine=True)
        tie(module, state)
        return module


def read(directory: str | os.PathLike[str]) -> SavedResult:
    """Read the description of a saved result from its folder.

    Raises:
        ArtifactError: the folder holds no saved result.
    """
    folder = Path(directory)
    try:
        saved = json.loads((folder / PLAN).read_text())
        version, runtime, program = saved["version"], saved["runtime"], folder / str(saved["model"])
        program.open("rb").close()
        files = dict(saved["files"]) if version == VERSION else {}
        weights = WeightsPlace(**saved["weights"]) if saved.get("weights") else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if (folder / ENTRIES).is_file():
            raise ArtifactError(
                f"{folder} holds several entry points, not one result; give the model itself"
            ) from error
        raise ArtifactError(f"{folder} holds no saved result: {error!r}; it needs {PLAN} and {MODEL}") from error
    if version != VERSION:
        raise ArtifactError(f"{folder / PLAN} is of version {version}, not {VERSION}; optimize the model again")
    if runtime not in ENGINE_NAMES:
        raise ArtifactError(
            f"{folder / PLAN} names the unknown runtime {runtime!r}; there are {', '.join(ENGINE_NAMES)}"
        )
    return SavedResult(
        folder=folder,
        program=program,
        runtime=runtime,
        files=files,
        threads=saved.get("threads") or None,
        plan=saved.get("plan"),
        weights=weights,
    )


def restore_plan(plan: Mapping[str, Any] | None, program: Program) -> Plan:
    """Return a plan in the form of ``plan.json`` for the program that the file was imported as."""
    return NO_PLAN if plan is None else restore_kernels(program.graph, plan, program.device)
