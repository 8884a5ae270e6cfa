"""Reading an ONNX model as a program, together with the original file in ONNX Runtime.

Invariant: any problem with the file or its inputs is reported as one `SourceError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from taso_py.backend.tracing import quiet
from taso_py.engines.session import FileModule, OnnxModel, SessionEngine
from taso_py.engines.table import ENGINES
from taso_py.frontend.onnx import OnnxFile, read_onnx
from taso_py.frontend.onnx.model import Argument, StepRefusal
from taso_py.ir.errors import TasoError, first_line
from taso_py.models.spec import InputSpec, SourceError

MOST_FORMS = 27
"""Most example inputs that a file is tried on, if it fails on the first."""


@dataclass(frozen=True)
class OriginalOnnx:
    """An ONNX model as the user gave it."""

    file: OnnxFile
    module: nn.Module
    """Runs the file in ONNX Runtime."""
    engine: str = "onnxruntime"
    """Name of the engine that runs it."""

    def renamed(self, model: bytes) -> bytes:
        """Return a result as an ONNX model whose inputs and outputs are named as in the original.

        Raises:
            SourceError: ONNX Runtime refuses the model with these names.
        """
        content = self.file.renamed(model)
        session = ENGINES[self.engine]
        assert isinstance(session, SessionEngine)
        session.compile(OnnxModel(content, tuple(argument.name for argument in self.file.inputs)))
        return content


def load_onnx(
    path: str, specs: Sequence[InputSpec], device: torch.device, dtype: torch.dtype | None, seed: int
) -> tuple[ExportedProgram, tuple[Tensor, ...], OriginalOnnx]:
    """Return the model as a program, its example inputs, and the original file.

    Args:
        path: path of the file.
        specs: the inputs in order; by default those that the model states, if it has no open sizes.
        device: the device to run on, which must be the CPU.
        dtype: must be None, since an ONNX model cannot be cast.
        seed: seed of the inputs.

    Raises:
        SourceError: the file cannot be read, or inputs do not fit it.
    """
    if device.type != "cpu":
        raise SourceError(f"{path} is optimized for ONNX Runtime on the CPU; use --device cpu")
    if dtype is not None:
        raise SourceError(f"{path} is an ONNX model, which cannot be cast; leave --dtype out, or convert the model")
    try:
        file = read_onnx(Path(path))
        engine = ENGINES["onnxruntime"]
        assert isinstance(engine, SessionEngine)
        reason = engine.absence(device)
        if reason is not None:
            raise SourceError(reason)
        names = tuple(argument.name for argument in file.inputs)
        original = FileModule(engine.compile(OnnxModel(file.content, names)))
        examples = _examples(path, file.inputs, specs, seed)
        with torch.no_grad():
            module, examples = _module(file, examples)
            original(*examples)
            with quiet():
                exported = torch.export.export(module, examples)
    except SourceError:
        raise
    except TasoError as error:
        said = str(error)
        raise SourceError(said if str(Path(path)) in said else f"{path}: {said}") from error
    except Exception as error:  # PyTorch and ONNX Runtime raise errors of many kinds
        raise SourceError(f"{path} cannot be run on these inputs: {first_line(error)}") from error
    return exported, examples, OriginalOnnx(file, original)


def _module(file: OnnxFile, drawn: tuple[Tensor, ...]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return the module of a file and example inputs that it computes.

    Those are the drawn ones if it does. A divisor must not be zero, though, nor an index into a single row be one: then
    some of the integers are ones or zeros.

    Raises:
        ImportRefusal: an operator is not supported, or fails on all such inputs.
    """
    forms = [_forms(tensor) for tensor in drawn]
    for examples in islice(product(*forms), MOST_FORMS):
        with suppress(StepRefusal):
            return file.module(examples), examples
    return file.module(drawn), drawn


def _forms(tensor: Tensor) -> tuple[Tensor, ...]:
    is_whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)
    return (tensor, torch.ones_like(tensor), torch.zeros_like(tensor)) if is_whole else (tensor,)


def _examples(path: str, arguments: Sequence[Argument], specs: Sequence[InputSpec], seed: int) -> tuple[Tensor, ...]:
    takes = " and ".join(f"{one.name} ({_text(one)})" for one in arguments) or "nothing"
    if specs and len(specs) != len(arguments):
        raise SourceError(f"{path} takes {takes}, given {len(specs)}; give one --input SPEC for each input")
    generator = torch.Generator().manual_seed(seed)
    tensors: list[Tensor] = []
    for place, argument in enumerate(arguments):
        sizes = tuple(size for size in argument.shape if isinstance(size, int))
        is_open = len(sizes) < len(argument.shape)
        if not specs and is_open:
            raise SourceError(f"{path} takes {takes}, with sizes left open; give one --input SPEC for each input")
        spec = specs[place] if specs else InputSpec(sizes)
        tensor = spec.random(argument.dtype, generator)
        if not _fits(tensor, argument):
            raise SourceError(f"input {argument.name} of {path} is {_text(argument)}; give that as its --input SPEC")
        tensors.append(tensor)
    return tuple(tensors)


def _fits(tensor: Tensor, argument: Argument) -> bool:
    """Return whether element type, rank and the stated sizes agree."""
    pairs = zip(tensor.shape, argument.shape, strict=False)
    same = tensor.dtype == argument.dtype and tensor.ndim == len(argument.shape)
    return same and all(not isinstance(wanted, int) or wanted == size for size, wanted in pairs)


def _text(argument: Argument) -> str:
    dtype = str(argument.dtype).removeprefix("torch.")
    return f"{'x'.join(map(str, argument.shape))}:{dtype}"
