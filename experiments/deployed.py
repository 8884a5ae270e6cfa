"""Ways in which a model is deployed, each as a builder that a contest can send to a process of its own.

Invariant: every builder is a module-level function of plain data, and what it builds takes no arguments.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import taso_py
from taso_py.backend import UNLIMITED, Program, fold
from taso_py.backend.tensors import tensors_in
from taso_py.engines.engine import EngineUnavailableError
from taso_py.engines.session import OnnxModel, SessionEngine
from taso_py.engines.table import ENGINES
from taso_py.models.source import Source, load_source

SESSIONS = ("onnxruntime", "openvino")
"""The engines that take whole graphs."""
EXPORTED = "exported"

Call: TypeAlias = Callable[[], Any]
"""Computes a model once."""


def session_engine(name: str) -> SessionEngine:
    """Return the engine of this name, which takes whole graphs."""
    engine = ENGINES[name]
    assert isinstance(engine, SessionEngine), "all that take whole graphs are"
    return engine


def engine_refusals(program: Program) -> Mapping[str, str]:
    """Return why engines for whole graphs do not run a program, in one line each; without those that do."""
    found: dict[str, str] = {}
    folded = fold(program, UNLIMITED)
    for name in SESSIONS:
        try:
            session_engine(name).build(folded)
        except EngineUnavailableError as error:
            found[name] = str(error)
    return found


@cache
def source_of(model: str, seed: int) -> Source:
    """Return the model that a text names as on the command line, loaded once per process."""
    return load_source(model, seed=seed)


def eager(model: str, seed: int) -> Call:
    """Return the model itself."""
    source = source_of(model, seed)
    return source.call_of(copy.deepcopy(source.without_checks()))


@cache
def compiled(form: str, model: str, seed: int) -> Call:
    """Return the model in a form of Inductor, compiled once per process, which takes up to a minute."""
    source = source_of(model, seed)
    return source.call_of(ENGINES[form].prepare(source.callable(), source.args, source.kwargs))


def session(engine: str, path: Path, inputs: tuple[str, ...], model: str, seed: int) -> Call:
    """Return an ONNX file in an engine."""
    source = source_of(model, seed)
    made = session_engine(engine).compile(OnnxModel(path.read_bytes(), inputs))
    tensors = tensors_in(source.args, source.kwargs)
    return lambda: made(*tensors)


def saved(folder: Path, model: str, seed: int) -> Call:
    """Return a saved result, loaded."""
    return source_of(model, seed).call_of(taso_py.load(folder))
