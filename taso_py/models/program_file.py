"""Reading an exported program from a ``.pt2`` file, with example inputs.

Invariant: example inputs made for a program have the shapes and dtypes that it was exported for.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.export.passes import move_to_device_pass

from taso_py.backend.tracing import tracing_lock
from taso_py.models.spec import InputSpec, SourceError

_Inputs = tuple[tuple[Any, ...], dict[str, Any]]
_UNKNOWN_CLASS = re.compile(r"Deserializing (\S+) in pytree is not registered")
_OPERATOR = re.compile(r"torch\.ops\.(\w+)\.(\w+)")
_SAYS_NOTHING = "Please check the warnings above"


def load_program(
    path: str, specs: Sequence[InputSpec], device: torch.device, dtype: torch.dtype | None, seed: int
) -> tuple[ExportedProgram, tuple[Any, ...], dict[str, Any]]:
    """Return the program, moved to the device, and its positional and keyword example inputs as they were saved.

    Args:
        path: path of the file.
        specs: the inputs that are tensors in order, keyword inputs last; by default the example inputs saved with the
            program.
        device: the device to move the program to.
        dtype: the expected floating-point type; checked only, since an exported program cannot be cast.
        seed: seed of inputs made for ``specs``.

    Raises:
        SourceError: if the file cannot be read, or if the specs or the dtype do not fit the program.
    """
    program = _read(path)
    expected = _user_inputs(program)
    present = {value.dtype for value in (*expected.values(), *program.state_dict.values()) if _is_floating(value)}
    if dtype is not None and present - {dtype}:
        raise SourceError(f"{path} computes in {_name(*present)}; export the module in {_name(dtype)} instead")
    args, kwargs = _make_inputs(path, program, expected, specs, seed) if specs else _saved_inputs(path, program)
    # Most programs are on the CPU already; these are returned as they were read.
    is_there = device.type == "cpu" and not _is_elsewhere(program, device)
    return program if is_there else move_to_device_pass(program, str(device)), args, kwargs


def _is_elsewhere(program: ExportedProgram, device: torch.device) -> bool:
    """Return whether a weight, a constant or an input is on a device of another kind."""
    inputs = (node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder")
    values = (*program.state_dict.values(), *program.constants.values(), *inputs)
    return any(isinstance(value, Tensor) and value.device.type != device.type for value in values)


def _read(path: str) -> ExportedProgram:
    if not Path(path).is_file():
        raise SourceError(f"there is no file {path}")
    reasons: list[str] = []
    try:
        # torch.export.load reads tensors to the default device before it moves them to the one that the file states.
        with tracing_lock(), _quiet(reasons), torch.device("cpu"):
            return torch.export.load(path)
    except Exception as error:  # the exception depends on where reading fails
        reasons.append(str(error))
        for unknown in filter(None, map(_UNKNOWN_CLASS.search, reasons)):
            advice = "export a module that returns tensors in plain tuples or dicts"
            raise SourceError(f"{path} returns a {unknown[1]}, which is not registered here; {advice}") from error
        operator = _unknown_operator(reasons)
        if operator is not None:
            advice = "which is not registered here; name a file.py:factory that imports it"
            raise SourceError(f"{path} needs the operator {operator}, {advice}") from error
        told = [line for reason in reasons if _SAYS_NOTHING not in reason for line in reason.strip().splitlines()[:1]]
        reason = told[0] if told else type(error).__name__
        raise SourceError(f"{path} is not a readable exported program ({reason}); save it again") from error


def _unknown_operator(reasons: Sequence[str]) -> str | None:
    """Return the first operator in the error messages that is not registered; None if all are."""
    for space, name in (found.groups() for reason in reasons for found in _OPERATOR.finditer(reason)):
        if not hasattr(getattr(torch.ops, space), name):
            return f"{space}::{name}"
    return None


@contextmanager
def _quiet(reasons: list[str]) -> Generator[None]:
    """Collect errors that torch logs while it tries one file format after the other, in place of their tracebacks."""
    thread = threading.get_ident()

    def collect(record: logging.LogRecord) -> bool:
        if record.thread != thread:
            return True
        if record.exc_info and record.exc_info[1] is not None:
            reasons.append(str(record.exc_info[1]))
        return False

    logger = logging.getLogger("torch.export")
    logger.addFilter(collect)
    try:
        yield
    finally:
        logger.removeFilter(collect)


def _user_inputs(program: ExportedProgram) -> dict[str, Any]:
    """Return the program's inputs by name, in order: fake tensors, or the values that are not tensors."""
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    kinds = program.graph_signature.input_specs
    return {spec.arg.name: values[spec.arg.name] for spec in kinds if spec.kind is InputKind.USER_INPUT}


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _saved_inputs(path: str, program: ExportedProgram) -> _Inputs:
    if program.example_inputs is None:
        raise SourceError(f"{path} was saved without example inputs; give one --input SPEC for each input")
    args, kwargs = program.example_inputs
    return tuple(args), {str(name): value for name, value in kwargs.items()}


def _make_inputs(
    path: str, program: ExportedProgram, expected: dict[str, Any], specs: Sequence[InputSpec], seed: int
) -> _Inputs:
    structure = program.call_spec.in_spec
    open_numbers = [name for name, value in expected.items() if isinstance(value, torch.SymInt | torch.SymFloat)]
    if open_numbers:
        raise SourceError(f"input {open_numbers[0]} of {path} is not a tensor; drop --input to use the saved inputs")
    taken = {name: value for name, value in expected.items() if isinstance(value, Tensor)}
    if len(specs) != len(taken) or structure is None:
        takes = f"{len(taken)} inputs ({', '.join(taken)})"
        raise SourceError(f"{path} takes {takes}, given {len(specs)}; give one --input SPEC for each")
    generator = torch.Generator().manual_seed(seed)
    made = dict(expected)  # what is no tensor is part of the program
    for (name, value), spec in zip(taken.items(), specs, strict=True):
        tensor = spec.random(value.dtype, generator)
        if not _fits(tensor, value):
            shape = "x".join("?" if size is None else str(size) for size in _fixed_sizes(value.shape))
            raise SourceError(f"input {name} of {path} is {shape}:{_name(value.dtype)}; give that as its --input SPEC")
        made[name] = tensor
    args, kwargs = structure.unflatten(list(made.values()))
    return tuple(args), dict(kwargs)


def _fits(tensor: Tensor, expected: Tensor) -> bool:
    """Return whether dtype, rank and the fixed sizes agree."""
    same = tensor.dtype == expected.dtype and tensor.dim() == expected.dim()
    return same and all(
        fixed in (None, size) for size, fixed in zip(tensor.shape, _fixed_sizes(expected.shape), strict=True)
    )


def _fixed_sizes(shape: Sequence[Any]) -> list[int | None]:
    """Return the sizes that the program was exported for, with ``None`` for dynamic ones."""
    return [size if isinstance(size, int) else None for size in shape]


def _name(*dtypes: torch.dtype) -> str:
    return ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
