"""The table of engines, and the engines that a user's choice of a runtime stands for.

Invariant: every engine is in the table once, and states itself which devices it is for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from taso_py.engines.aot import AotInductor
from taso_py.engines.cudagraph import CudaGraph
from taso_py.engines.eager import Eager
from taso_py.engines.engine import Engine, EngineUnavailableError, Runner
from taso_py.engines.inductor import CAPTURED_FORMS, WHOLE_MODULE_FORMS, InductorAroundKernels
from taso_py.engines.names import AUTO, INDUCTOR
from taso_py.engines.session_table import SESSIONS
from taso_py.engines.tensorrt import TensorRt

AROUND_KERNELS = InductorAroundKernels()
"""The engine that compiles the operators between the kernels of a plan."""

ENGINES: Mapping[str, Engine] = {
    engine.name: engine
    for engine in (
        Eager(),
        *SESSIONS.values(),
        *WHOLE_MODULE_FORMS,
        AROUND_KERNELS,
        AotInductor(),
        CudaGraph(),
        *CAPTURED_FORMS,
        TensorRt(),
    )
}
"""Engines by name, in the order in which ``auto`` tries them: engines without compilation first, and captures last,
since a failed capture can disturb later timing."""


def engines_to_try(name: str, device: torch.device) -> tuple[Sequence[Engine], Sequence[str]]:
    """Return the engines that a choice stands for, and the reasons why others cannot be used.

    ``auto`` means all engines of this device, ``inductor`` all variants of Inductor there.

    Raises:
        EngineUnavailableError: the engine that the user names is not available on the device.
    """
    if name not in (AUTO, INDUCTOR):
        reason = ENGINES[name].absence(device)
        if reason is not None:
            raise EngineUnavailableError(reason)
        return [ENGINES[name]], []
    asked = [*WHOLE_MODULE_FORMS, AROUND_KERNELS, *CAPTURED_FORMS] if name == INDUCTOR else ENGINES.values()
    reasons = {engine: engine.absence(device) for engine in asked}
    # Engines for other kinds of device are left out silently.
    missing = [reason for engine, reason in reasons.items() if reason is not None and engine.suits(device)]
    return [engine for engine, reason in reasons.items() if reason is None], missing


def prepare(
    module: nn.Module, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], resizable: bool = False
) -> Runner:
    """Make a module ready to run in an engine of the table; see :meth:`Engine.prepare`.

    Raises:
        EngineUnavailableError: the engine cannot run this module here.
    """
    return ENGINES[name].prepare(module, args, kwargs, resizable)
