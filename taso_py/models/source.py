"""Loading the MODEL and SPEC arguments of the command line: a module or exported program with example inputs.

Invariant: any mistake, in the arguments or in the code that they name, is reported as one `SourceError`.

MODEL is ``package.module:factory``, ``path/to/file.py:factory``, ``path/to/program.pt2``, ``path/to/model.onnx`` or
``zoo:NAME``. A factory takes no arguments and returns a module, or a module and its example inputs (a tuple, or a dict
of keyword inputs).
SPEC is a shape and, optionally, a dtype: ``1x3x224x224`` or ``1x128:int64``.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any, Self

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from taso_py.backend.generators import random_state_seeded
from taso_py.frontend.original import copy_arguments
from taso_py.ir.sign import Sign, with_sign
from taso_py.latency.environment import resolve_device
from taso_py.models import zoo
from taso_py.models.huggingface import adapt
from taso_py.models.onnx_file import OriginalOnnx, load_onnx
from taso_py.models.program_file import load_program
from taso_py.models.spec import InputSpec, SourceError, parse_dtype
from taso_py.models.zoo.libraries import declare_if_misfit

PUT_INTO_EVALUATION = (
    "the model came in training mode and was put into evaluation mode, as for prediction: dropout and batch statistics "
    "are off; call eval() in the factory to say so yourself"
)
"""Note on a factory that returns its model in training mode."""
OURS = str(Path(__file__).parents[1]) + os.sep
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
"""Folders of code that is not the user's."""
__all__ = ["Source", "SourceError", "at_size", "clone_inference_tensors", "importing_beside", "load_source"]


@dataclass(frozen=True)
class Source:
    """A model to optimize, on its device, in evaluation mode, with example inputs."""

    name: str
    """MODEL as the user wrote it."""

    module: nn.Module | ExportedProgram
    """A module, transformers' models already adapted, or the program of a ``.pt2`` file."""

    args: tuple[Any, ...]
    """Positional example inputs."""

    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Keyword example inputs."""

    notes: tuple[str, ...] = ()
    """Notes on changes to the model that the user may not expect, a line each."""

    onnx: OriginalOnnx | None = None
    """The ONNX file that the program was read from; results are compared with it and timed against it."""

    positive: tuple[str, ...] = ()
    """Names of inputs that are declared to have no elements but positive ones, in every call."""

    def callable(self) -> nn.Module:
        """Return a module that runs the source on inputs like its own."""
        if self.onnx is not None:
            return self.onnx.module
        return self.module if isinstance(self.module, nn.Module) else self.module.module()

    def without_checks(self) -> nn.Module:
        """Return such a module without the checks of arguments that PyTorch adds to a saved program.

        The checks take tens of microseconds; a small program without them would seem faster for that reason alone.
        """
        if isinstance(self.module, nn.Module):
            return self.module
        program = self.module.module(check_guards=False)
        return fx.GraphModule(program, program.graph)  # without its hooks, which make the checks

    def with_own_inputs(self) -> Self:
        """Return the source with copies of its example inputs, which a model may then write to."""
        args, kwargs = copy_arguments(self.args, self.kwargs)
        return replace(self, args=args, kwargs=kwargs)

    def call_of(self, runner: Callable[..., Any]) -> Callable[[], Any]:
        """Return a function that calls a runner with the example inputs."""
        return lambda: runner(*self.args, **self.kwargs)


def at_size(source: Source, text: str, seed: int) -> Source:
    """Return a source with random inputs of another size, of the types of its own.

    Args:
        source: the source.
        text: a SPEC for each input, separated by commas.
        seed: seed of the inputs.

    Raises:
        SourceError: the model does not take such inputs.
    """
    if not isinstance(source.module, nn.Module):
        raise SourceError(f"{source.name} {_sizes_of(source, source.module)}, or give the model itself")
    specs, examples = [InputSpec.parse(spec) for spec in text.split(",")], source.args
    if source.kwargs or len(specs) != len(examples) or not all(isinstance(example, Tensor) for example in examples):
        takes = f"{source.name} takes {len(examples) + len(source.kwargs)}"
        raise SourceError(
            f"{text!r} is {len(specs)} inputs, and {takes}, which must be tensors by position; separate them by commas"
        )
    generator = torch.Generator().manual_seed(seed)
    args = tuple(
        [
            spec.random(example.dtype, generator).to(example.device)
            for spec, example in zip(specs, examples, strict=True)
        ]
    )
    _check_call(source.name, source.module, args, {})
    return replace(source, args=args)


def _sizes_of(source: Source, program: ExportedProgram) -> str:
    """Return which sizes a program takes, and what to do for others."""
    if source.onnx is not None:
        return "is optimized for the sizes of its example inputs; give --input, once for each run"
    if program.range_constraints:
        return "takes all sizes of its export, and so does its result; leave --sizes out"
    return "takes the sizes that it was exported for; export it with open sizes"


def clone_inference_tensors(arguments: Any) -> Any:
    """Return arguments with tensors made in inference mode copied, since an export may not read those."""
    return pytree.tree_map_only(Tensor, lambda leaf: leaf.clone() if leaf.is_inference() else leaf, arguments)


def describe_arguments(arguments: Any) -> str:
    """Describe arguments: the shapes and types of tensors, the values of others."""

    def one(leaf: Any) -> str:
        if not isinstance(leaf, Tensor):
            return repr(leaf)
        strides = "" if leaf.layout is not torch.strided else f" strides {leaf.stride()}"
        return f"{leaf.dtype}{list(leaf.shape)}{strides} on {leaf.device}"

    return "\n".join(map(one, pytree.tree_leaves(arguments)))


def load_source(
    text: str,
    inputs: Sequence[str] = (),
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str | None = None,
    seed: int = 0,
    positive: Sequence[str] = (),
) -> Source:
    """Load the model that MODEL names.

    Args:
        text: MODEL.
        inputs: a SPEC for each input, in order, in place of the source's own example inputs.
        device: the device for the module and its inputs.
        dtype: the type, or its name, to cast floating-point weights and inputs to, except for inputs whose SPEC states
            a type; by default nothing is cast.
        seed: seed of a factory's random weights and of the inputs made for a SPEC.
        positive: names of inputs to declare positive; those made for a SPEC are made so.

    Raises:
        SourceError: if the source cannot be loaded or the inputs do not fit it.
        DeviceError: if the machine does not have the device.
    """
    source = _loaded(text, inputs, resolve_device(device), dtype, seed)
    drawn = _made_positive(source, positive) if inputs and positive else source.args
    return replace(source, positive=tuple(positive), args=drawn)


def _made_positive(source: Source, names: Sequence[str]) -> tuple[Any, ...]:
    """Return the positional inputs, of those with given names the magnitudes."""
    match source.module:
        case ExportedProgram(graph_signature=signature):
            own = tuple(signature.user_inputs)
        case module:
            known = _signature(module)
            own = () if known is None else tuple(known.parameters)
    named = zip_longest(source.args, own[: len(source.args)])  # one parameter may stand for several inputs
    return tuple([with_sign(value, Sign.POSITIVE) if name in names else value for value, name in named])


def _loaded(
    text: str, inputs: Sequence[str], target: torch.device, dtype: torch.dtype | str | None, seed: int
) -> Source:
    """Return the source of :func:`load_source`, nothing declared."""
    specs = [InputSpec.parse(spec) for spec in inputs]
    dtype = parse_dtype(dtype) if isinstance(dtype, str) else dtype
    if text.endswith(".onnx"):
        exported, examples, original = load_onnx(text, specs, target, dtype, seed)
        return Source(text, exported, examples, onnx=original)
    if text.endswith(".pt2"):
        program, args, kwargs = load_program(text, specs, target, dtype, seed)
        return Source(text, program, _place(args, target), _place(kwargs, target))
    module, examples = (_from_zoo if text.startswith("zoo:") else _from_factory)(text, seed)
    if specs:
        generator = torch.Generator().manual_seed(seed)
        with _blame(text, f"making inputs of {' and '.join(inputs)}"):
            examples = tuple(spec.random(dtype or torch.float32, generator) for spec in specs)
    args, kwargs = _split(text, examples)
    _check_call(text, module, args, kwargs)
    notes = (PUT_INTO_EVALUATION,) if module.training else ()
    with _blame(text, f"moving the model to {target}"):
        module = adapt(module.eval().to(device=target, dtype=dtype))
        cast = None if specs else dtype
        return Source(text, module, _place(args, target, cast), _place(kwargs, target, cast), notes)


def _from_zoo(text: str, seed: int) -> tuple[nn.Module, Any]:
    name, at, batch = text.removeprefix("zoo:").partition("@")
    if at and not (batch.isdecimal() and int(batch)):
        raise SourceError(f"{text}: a batch size is a whole number, as in zoo:{name}@8")
    with _blame(text, "making it"):
        try:
            return zoo.get(name).make(seed, batch=int(batch or 1))
        except zoo.ZooError as error:
            raise SourceError(str(error)) from error


def _from_factory(text: str, seed: int) -> tuple[nn.Module, Any]:
    """Return the module and, if the factory returns any, its example inputs."""
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name:
        raise SourceError(
            f"{text!r} is not a model; give package.module:factory, file.py:factory, x.pt2, x.onnx or zoo:NAME"
        )
    is_file = _is_file(place)
    declare_if_misfit()
    with importing_beside(text):
        with _blame(text, f"importing {place}"):
            home = _import_file(text, Path(place)) if is_file else importlib.import_module(place)
        try:
            factory = attrgetter(name)(home)
        except AttributeError as error:
            close = get_close_matches(name, vars(home), n=3)
            hint = f"; did you mean {', '.join(close)}?" if close else "; name a function of it that makes the model"
            raise SourceError(f"{place} has no {name!r}{hint}") from error
        with random_state_seeded(seed), _blame(text, name):
            made = factory if isinstance(factory, nn.Module) else factory()
    module, examples = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, nn.Module):
        kind = type(module).__name__
        raise SourceError(f"{text} returns {kind}; return an nn.Module or (module, example_inputs)")
    return module, examples


def _import_file(text: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise SourceError(f"there is no file {path}")
    name = f"taso_py_source_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SourceError(f"{text}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickle look the module up by name.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _is_file(place: str) -> bool:
    return place.endswith(".py") or os.sep in place


@contextmanager
def importing_beside(text: str) -> Generator[None]:
    """Import within the body as ``python file.py`` does, from the directory of the file in MODEL first.

    Loading a source does this by itself. Commands, which own the process, do it around the whole run, since a model may
    import when it is called.
    """
    place, is_factory, _ = text.rpartition(":")
    if not is_factory or text.startswith("zoo:"):
        yield
        return
    directory = Path(place).resolve().parent if _is_file(place) else Path.cwd()
    sys.path.insert(0, str(directory))
    try:
        yield
    finally:
        with suppress(ValueError):  # the imported code may have removed it
            sys.path.remove(str(directory))


@contextmanager
def _blame(text: str, action: str) -> Generator[None]:
    """Turn exceptions of the user's code into a `SourceError`."""
    try:
        yield
    except SourceError:
        raise
    except (Exception, SystemExit) as error:
        reason = (str(error).strip().splitlines() or ["no message"])[0]
        raise SourceError(f"{text}: {action} raised {type(error).__name__}: {reason}{_place_of(error)}") from error


def _place_of(error: BaseException) -> str:
    """Return where an error was raised: the line in the user's code, else in a library's."""
    if isinstance(error, SyntaxError):
        return ""  # its text says where
    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith((OURS, "<"))]
    own = [frame for frame in frames if not frame.filename.startswith(LIBRARIES)]
    last = (own or frames)[-1:]
    return "".join(f" ({frame.filename}, line {frame.lineno})" for frame in last)


def _split(text: str, examples: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return example inputs as positional and keyword inputs."""
    if examples is None:
        return (), {}
    if isinstance(examples, tuple):
        return examples, {}
    if isinstance(examples, Mapping):
        return (), {str(name): value for name, value in examples.items()}
    raise SourceError(f"{text} gives example inputs of type {type(examples).__name__}; make them a tuple or a dict")


def _signature(module: nn.Module) -> inspect.Signature | None:
    """Return the signature of ``forward``; a compiled one has none."""
    try:
        return inspect.signature(module.forward)
    except ValueError:
        return None


def _check_call(text: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Check that ``forward`` accepts these inputs.

    Raises:
        SourceError: if it does not; the message names its parameters.
    """
    signature = _signature(module)
    if signature is None:
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        takes = ", ".join(signature.parameters)
        advice = "give one --input SPEC for each input, or return (module, example_inputs)"
        raise SourceError(f"{text} takes ({takes}), given {len(args) + len(kwargs)} ({error}); {advice}") from error


def _place(value: Any, device: torch.device, dtype: torch.dtype | None = None) -> Any:
    """Return the inputs on the device, floating-point tensors cast to the dtype."""
    return pytree.tree_map_only(
        Tensor, lambda leaf: leaf.to(device=device, dtype=dtype if leaf.is_floating_point() else None), value
    )
