"""Time to load a saved result in one way; run by path in a process of its own, in which nothing else is imported.

Prints one JSON object: seconds to import what the way needs, to load, and of the first and the tenth call.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

CALLS = 10


def _import_torch(threads: int) -> Any:
    import torch

    torch.set_num_threads(threads)
    return torch


def _torch_alone(folder: Path, threads: int) -> tuple[float, Any]:
    _import_torch(threads)
    return time.perf_counter(), None


def _taso_py(folder: Path, threads: int) -> tuple[float, Any]:
    _import_torch(threads)
    from taso_py.saving.loading import load

    return time.perf_counter(), load(folder)


def _torch_export(folder: Path, threads: int) -> tuple[float, Any]:
    torch = _import_torch(threads)
    return time.perf_counter(), torch.export.load(folder / "model.pt2").module()


def _onnxruntime(folder: Path, threads: int) -> tuple[float, Any]:
    import onnxruntime

    imported = time.perf_counter()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return imported, lambda *args: session.run(None, dict(zip(names, args, strict=True)))


def _openvino(folder: Path, threads: int) -> tuple[float, Any]:
    import openvino

    imported = time.perf_counter()
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(folder / "model.onnx", "CPU", settings)
    return imported, lambda *args: compiled(list(args))


WAYS: Mapping[str, Callable[[Path, int], tuple[float, Any]]] = {
    "torch": _torch_alone,
    "taso_py": _taso_py,
    "torch_export": _torch_export,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}


def _call_seconds(run: Any, folder: Path, *, takes_tensors: bool) -> list[float]:
    import numpy as np

    with np.load(folder / "inputs.npz") as given:
        args: list[Any] = [given[name] for name in given.files]
    if takes_tensors:
        import torch

        args = [torch.from_numpy(array) for array in args]
        torch.set_grad_enabled(False)
    seconds: list[float] = []
    for _ in range(CALLS):
        start = time.perf_counter()
        run(*args)
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    """Run the command: ``python loading_child.py WAY FOLDER THREADS``."""
    way, folder, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    start = time.perf_counter()
    imported, run = WAYS[way](folder, threads)
    loaded = time.perf_counter()
    calls = [] if run is None else _call_seconds(run, folder, takes_tensors=way in ("taso_py", "torch_export"))
    said = {"import_s": imported - start, "load_s": loaded - imported, "calls_s": calls}
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
