"""TensorRT on NVIDIA GPUs, through Torch-TensorRT (https://docs.pytorch.org/TensorRT).

This module has not been run on a GPU; it follows Torch-TensorRT's documentation for ``torch.compile``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from taso_py.engines.cudagraph import clone_outputs
from taso_py.engines.engine import COMPILED_PRICES, Engine, Runner
from taso_py.ir.errors import first_line


class TensorRt(Engine):
    """TensorRT in the precision of the model; PyTorch computes the operators that it does not support."""

    name = "tensorrt"
    devices = ("cuda",)
    prices = COMPILED_PRICES
    is_compiler = True

    def absence(self, device: torch.device) -> str | None:
        if device.type != "cuda":
            return "TensorRT needs an NVIDIA GPU; use --runtime eager, onnxruntime, openvino or auto"
        try:
            importlib.import_module("torch_tensorrt")
        except ImportError as error:
            return f"tensorrt needs torch_tensorrt ({first_line(error)}); pip install torch-tensorrt"
        except Exception as error:  # for example, built for another version of CUDA
            return f"torch_tensorrt does not load here: {first_line(error)}"
        return None

    def _runner(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], resizable: bool) -> Runner:
        # Lower precisions would change the results.
        options: dict[str, Any] = {"use_explicit_typing": True, "use_python_runtime": False, "min_block_size": 1}
        dynamic = None if resizable else False
        compiled = torch.compile(module, backend="torch_tensorrt", dynamic=dynamic, options=options)

        def run(*args: Any, **kwargs: Any) -> Any:
            with torch.no_grad():
                return clone_outputs(compiled(*args, **kwargs))

        return run
