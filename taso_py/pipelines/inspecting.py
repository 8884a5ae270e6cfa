"""Where a pipeline spends its time: one real run, with the calls of every module timed.

    found = taso_py.inspect(pipeline, "a prompt", num_inference_steps=2)
    print(found)

Invariant: afterwards the modules have the hooks that they had before.
"""

from __future__ import annotations

import functools
import inspect as introspection
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from types import FunctionType
from typing import Any, TypeAlias

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from taso_py.ir.errors import TasoError
from taso_py.lock import optimization_lock
from taso_py.report.table import plain_table

DEPTH = 4
"""How many objects, lists or dicts deep modules are looked for."""
SHOWN = 0.02
"""Smallest share of the whole time for which a module is listed."""
Signature: TypeAlias = tuple[object, ...]
Hook: TypeAlias = Callable[..., None]


class PipelineError(TasoError):
    """Raised for an object that has no modules or cannot be called."""


@dataclass
class ModuleTiming:
    """The calls of one module in a run."""

    name: str
    """Its attribute path, such as ``unet.mid_block``; empty for a pipeline that is a module itself."""
    module: nn.Module
    calls: int = 0
    seconds: float = 0.0
    """Time of all calls, those of its own parts included."""
    signatures: set[Signature] = field(default_factory=set[Signature])
    """Shapes and element types of the tensors in its calls, and the other arguments' types."""

    @property
    def label(self) -> str:
        """The name to print."""
        return self.name or type(self.module).__name__


@dataclass(frozen=True)
class Inspection:
    """The modules of a pipeline with their times in one run."""

    call: Callable[[], Any]
    """Runs the pipeline as it was run."""
    seconds: float
    """Time of the run."""
    modules: Mapping[str, ModuleTiming]
    """By name; a module that has several names is listed under the first."""

    def share(self, name: str) -> float:
        """Return the share of the run's time that a module takes, its own parts included."""
        return self.modules[name].seconds / self.seconds if self.seconds else 0.0

    def children(self, name: str) -> list[str]:
        """Return the names of a module's direct parts, in order."""
        prefix = f"{name}." if name else ""
        below = (other for other in self.modules if other != name and other.startswith(prefix))
        return [other for other in below if "." not in other.removeprefix(prefix)]

    @property
    def roots(self) -> list[str]:
        """The names of the modules that are no parts of others."""
        return [name for name in self.modules if not any(other in self.modules for other in _prefixes(name))]

    def __str__(self) -> str:
        listed = [t for t in self.modules.values() if t.calls and self.share(t.name) >= SHOWN]
        rows = [
            (t.label, type(t.module).__name__, str(t.calls), f"{t.seconds * 1e3:.1f}", f"{self.share(t.name):.0%}")
            for t in listed
        ]
        header = ("module", "class", "calls", "ms", "share")
        table = text_table(header, rows, numbers=("calls", "ms", "share"))
        return "\n".join([table, f"the whole run: {self.seconds * 1e3:.1f} ms"])


def inspect(pipeline: Any, *args: Any, **kwargs: Any) -> Inspection:
    """Run a pipeline twice, the second time with every module's calls timed.

    Args:
        pipeline: an object with modules that can be called, a method of one (``model.generate``), or a function that
            uses such objects (``lambda: pipeline("a prompt")``).
        args: the positional arguments to call it with.
        kwargs: the keyword arguments to call it with.

    Raises:
        PipelineError: it has no modules or cannot be called. Its own errors are passed on.
    """
    if not callable(pipeline):
        raise PipelineError(
            f"a {type(pipeline).__name__} cannot be called; give one of its methods, or a function that uses it"
        )
    owner = getattr(pipeline, "__self__", pipeline)
    found = dict(_named_modules(owner))
    if not found:
        raise PipelineError(f"no nn.Module was found in this {type(owner).__name__}; give the object that holds it")
    timings = {name: ModuleTiming(name, module) for name, module in found.items()}
    call = functools.partial(pipeline, *args, **kwargs)
    with optimization_lock():
        call()  # models do more at their first call
        with _timed(timings):
            started = _now()
            call()
            seconds = _now() - started
    return Inspection(call, seconds, timings)


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[str]) -> str:
    """Return a table as text; see :func:`taso_py.report.table.plain_table`."""
    console = Console(width=10_000, color_system=None)
    with console.capture() as captured:
        console.print(plain_table(header, rows, numbers))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _named_modules(owner: Any) -> Iterator[tuple[str, nn.Module]]:
    """Yield all modules that an object holds, with their attribute paths, each once."""
    seen: set[int] = set()
    for root, module in _roots(owner, "", DEPTH, set()):
        for name, part in module.named_modules(prefix=root):
            if id(part) not in seen:
                seen.add(id(part))
                yield name, part


def _roots(value: Any, name: str, depth: int, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    """Yield the outermost modules among an object's attributes, items, or a function's variables."""
    if isinstance(value, nn.Module):
        yield name, value
    elif depth and id(value) not in seen:
        seen.add(id(value))
        for key, item in _items(value):
            yield from _roots(item, f"{name}.{key}" if name else key, depth - 1, seen)


def _items(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, functools.partial):
        return [("", value.func), *((str(i), item) for i, item in enumerate(value.args)), *value.keywords.items()]
    if isinstance(value, FunctionType):
        variables = introspection.getclosurevars(value)
        return [*variables.nonlocals.items(), *variables.globals.items()]
    if hasattr(value, "__self__"):
        return [("", value.__self__)]
    if isinstance(value, Mapping):
        return [(str(key), item) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [(str(place), item) for place, item in enumerate(value)]
    if isinstance(value, type | Tensor) or introspection.ismodule(value):
        return []
    return list(getattr(value, "__dict__", {}).items())


def _prefixes(name: str) -> Iterator[str]:
    """Yield the proper prefixes of an attribute path, the empty one included."""
    while name:
        name = name.rpartition(".")[0]
        yield name


@contextmanager
def _timed(timings: Mapping[str, ModuleTiming]) -> Generator[None]:
    """Time the calls of modules within the body."""
    with ExitStack() as stack:
        for timing in timings.values():
            before, after = _stopwatch(timing)
            stack.callback(timing.module.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(timing.module.register_forward_hook(after, always_call=True).remove)
        yield


def _stopwatch(timing: ModuleTiming) -> tuple[Hook, Hook]:
    """Return hooks to run before and after a module's calls; of calls within its calls, only the outermost count."""
    started: list[float] = []

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        if not started:
            timing.calls += 1
            timing.signatures.add(signature_of(args, kwargs))
        started.append(_now())

    def after(module: nn.Module, args: Any, result: Any) -> None:
        seconds = _now() - started.pop() if started else 0.0
        if not started:
            timing.seconds += seconds

    return before, after


def signature_of(args: Any, kwargs: Any) -> Signature:
    """Return shapes and element types of the tensors among arguments, and what is there in place of others."""
    leaves, structure = pytree.tree_flatten((args, kwargs))
    described = [
        (tuple(leaf.shape), leaf.dtype)
        if isinstance(leaf, Tensor)
        else leaf
        if isinstance(leaf, bool | int | float | str | None)
        else type(leaf)
        for leaf in leaves
    ]
    return (*described, str(structure))


def synchronize() -> None:
    """Wait until everything that was launched so far is done."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _now() -> float:
    synchronize()
    return perf_counter()
