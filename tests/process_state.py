"""The settings of the process that user code may depend on, and what changed them."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import config as inductor
from torch.fx import _symbolic_trace, traceback
from torch.utils import _device

_SWITCHES: tuple[Callable[[], Any], ...] = (
    torch.get_default_dtype,
    torch.get_default_device,
    torch.get_num_threads,
    torch.get_num_interop_threads,
    torch.is_grad_enabled,
    torch.is_inference_mode_enabled,
    torch.is_autocast_enabled,
    torch.is_autocast_cache_enabled,
    torch.are_deterministic_algorithms_enabled,
    torch.is_deterministic_algorithms_warn_only_enabled,
    torch.get_float32_matmul_precision,
    torch.is_anomaly_enabled,
    torch.backends.mha.get_fastpath_enabled,
    torch.backends.cuda.flash_sdp_enabled,
    torch.backends.cuda.math_sdp_enabled,
    torch.backends.cuda.mem_efficient_sdp_enabled,
    torch.compiler.is_compiling,
    torch.compiler.is_exporting,
    torch._C._len_torch_function_stack,
    torch._C._len_torch_dispatch_stack,
)


def process_state() -> dict[str, Any]:
    """What is set in the process now, by name."""
    found: dict[str, Any] = {
        "logging disabled": logging.root.manager.disable,
        "warning filters": list(warnings.filters),
        "showwarning": warnings.showwarning,
        "standard error": sys.stderr,
        "standard output": sys.stdout,
        "excepthook": sys.excepthook,
        "recursion limit": sys.getrecursionlimit(),
        "path": list(sys.path),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "collector": (gc.isenabled(), gc.get_threshold()),
        "tracing": (sys.gettrace(), sys.getprofile()),
        "interrupts": signal.getsignal(signal.SIGINT),
        "signal mask": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "random state": torch.get_rng_state().tolist(),
        "seed": torch.initial_seed(),
        "fp32 precision": [
            str(getattr(getattr(torch.backends.mkldnn, kernels), "fp32_precision", None))
            for kernels in ("matmul", "conv")
        ],
        "oneDNN": torch.backends.mkldnn.enabled,
        "module calls": (torch.nn.Module.__call__, torch.nn.Module.__getattr__),
        "fx traces": _symbolic_trace._is_fx_tracing_flag,
        "device": _device.CURRENT_DEVICE,
        "torch functions": (torch.compile, torch.compiler.is_exporting, traceback.annotate, traceback.set_current_meta),
        "Inductor": inductor.get_config_copy(),
        "threads": {thread.name for thread in threading.enumerate() if not thread.daemon},
    }
    for name, logger in _loggers().items():
        found[f"logger {name}"] = (logger.level, logger.disabled, logger.propagate, list(logger.filters))
        found[f"handlers {name}"] = [(handler, handler.level, list(handler.filters)) for handler in logger.handlers]
    return found | {switch.__name__: switch() for switch in _SWITCHES}


def _loggers() -> dict[str, logging.Logger]:
    known = {name: each for name, each in logging.root.manager.loggerDict.items() if isinstance(each, logging.Logger)}
    known.pop("torch.__trace", None)  # has a handler that takes itself away when torch.compile is used
    return {"root": logging.root, **known}


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What is otherwise than before; loggers that were made since are no setting."""
    return {name: (was, after.get(name)) for name, was in before.items() if after.get(name) != was}
