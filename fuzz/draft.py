"""A random model being written: source text, and the values that it computes on its example inputs.

Invariant: the text of a draft is valid Python that runs; calling the model on its inputs raises nothing.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from fuzz import control

_T = TypeVar("_T")

_FUZZ = SimpleNamespace(control=control)
GLOBALS = {"torch": torch, "nn": nn, "F": nn.functional, "math": math, "fuzz": _FUZZ}
"""Names that the text of a model may use."""
SPECIAL = "[0.0, -0.0, 1.0, -2.5, 1e-38, -1e-30, 1e30, float('inf'), -float('inf'), float('nan')]"
MOST_ELEMENTS = 4096
_MODULE = "fuzzed"
"""Name of the module of the model that was made last."""
LARGEST = 1e4
"""Values beyond this are not used further, unless a model is about special values."""

_TEMPLATE = """\
import math

import torch
import torch.nn.functional as F
from torch import nn
{imports}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        g = torch.Generator().manual_seed(0)
{state}
    def forward(self{arguments}):
{lines}
        return {result}


def model():
    g = torch.Generator().manual_seed(1)
    return Model().eval(), ({inputs})
"""


@dataclass(frozen=True)
class Case:
    """A finished model."""

    text: str
    """A Python file with a factory called ``model``."""
    is_smooth: bool
    """True if rounding changes its results little: no comparisons, random numbers, infinities or huge values."""
    kinds: frozenset[str] = frozenset()
    """Its kinds beyond ordinary operators."""

    def make(self) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Return the module and its example inputs, equal each time."""
        # PyTorch's compiler, which traces bodies of control flow, looks a function's module up by its name.
        sys.modules[_MODULE] = module = ModuleType(_MODULE)
        exec(compile(self.text, f"<{_MODULE}>", "exec"), vars(module))
        return module.model()


@dataclass
class Draft:
    """A model being written; templates of operators draw operands and attributes from it."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    is_special: bool = False
    """True if it computes with infinities, NaN and numbers near the ends of the range."""
    is_smooth: bool = True
    """True if small changes of values change results little."""
    lines: list[str] = field(default_factory=list[str])
    state: list[str] = field(default_factory=list[str])
    inputs: list[str] = field(default_factory=list[str])
    values: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Values of the names in scope."""
    buffers: set[str] = field(default_factory=set[str])
    """Names of those values that are buffers."""
    kinds: set[str] = field(default_factory=set[str])
    """Its kinds beyond ordinary operators."""
    imports: list[str] = field(default_factory=list[str])
    """Modules that the model imports."""

    def __post_init__(self) -> None:
        self._self = SimpleNamespace()
        self._generators = [torch.Generator().manual_seed(seed) for seed in (0, 1)]

    def integer(self, low: int, high: int) -> int:
        """Draw an integer between two, both included."""
        return self.draw(st.integers(low, high))

    def choice(self, options: Sequence[_T]) -> _T:
        """Draw one of several options."""
        return self.draw(st.sampled_from(options))

    def chance(self, one_in: int) -> bool:
        """Draw true once in ``one_in`` times."""
        return self.integer(1, one_in) == one_in

    def subset(self, options: Sequence[_T], least: int = 1) -> list[_T]:
        """Draw some of several options, in order."""
        marks = self.draw(st.lists(st.booleans(), min_size=len(options), max_size=len(options)))
        chosen = [option for option, mark in zip(options, marks, strict=True) if mark]
        return chosen if len(chosen) >= least else list(options[:least])

    def shape(self, least: int = 0, most: int = 4) -> tuple[int, ...]:
        """Draw a shape with a number of axes in this range; sizes differ, one is frequent, zero is rare."""
        sizes = (*(2, 3, 4, 5, 1, 6, 7, 8), *((0,) if self.chance(12) else ()))
        return tuple(self.choice(sizes) for _ in range(self.integer(least, most)))

    def add_input(self, expression: str) -> None:
        """Add an argument of the model; ``g`` is a generator of random numbers."""
        name = f"x{len(self.inputs)}"
        self.values[name] = eval(expression, {**GLOBALS, "g": self._generators[1]})
        self.inputs.append(expression)

    def weight(self, shape: Sequence[int], dtype: torch.dtype = torch.float32, *, positive: bool = False) -> str:
        """Add a parameter, or rarely a buffer, of a shape; return its name."""
        text = f"torch.randn({tuple(shape)}, generator=g).to({dtype})"
        text = f"{text}.abs() + 0.1" if positive else text
        return self.state_tensor(text, is_parameter=dtype.is_floating_point and not self.chance(4))

    def state_tensor(self, text: str, *, is_parameter: bool = False) -> str:
        """Add a buffer or parameter with the value of an expression; ``g`` is a generator of random numbers."""
        name = f"w{len(self.state)}"
        value = eval(text, {**GLOBALS, "g": self._generators[0]})
        if is_parameter:
            self.state.append(f"self.{name} = nn.Parameter({text})")
            value = nn.Parameter(value)
        else:
            self.state.append(f"self.register_buffer({name!r}, {text})")
        setattr(self._self, name, value)
        return f"self.{name}"

    def add_buffer(self, text: str) -> None:
        """Add a buffer with the value of an expression, and a line that gives it a name; ``g`` as above."""
        name = self.state_tensor(text)
        if self.assign(name):
            self.buffers.add(f"v{len(self.values) - 1}")

    def part(self, module: str, hook: str) -> str:
        """Add a submodule with a hook; return its name."""
        name = f"m{len(self.state)}"
        made: nn.Module = eval(module, GLOBALS)
        eval(f"made.{hook}", {**GLOBALS, "made": made})
        self.state += [f"self.{name} = {module}", f"self.{name}.{hook}"]
        setattr(self._self, name, made)
        return f"self.{name}"

    def tensor(self, name: str) -> Tensor:
        """Return the value of a name: of the model's state or computed."""
        return getattr(self._self, name[5:]) if name.startswith("self.") else self.values[name]

    def value(self, accepts: Callable[[Tensor], bool] = lambda value: value.is_floating_point()) -> str | None:
        """Draw a name whose value is accepted, preferring recent ones; None where there is none."""
        names = [name for name, value in self.values.items() if accepts(value)]
        return self.choice(names[::-1]) if names else None

    def assign(self, expression: str) -> bool:
        """Add a line that computes one value or several, unless PyTorch refuses it; return whether it was added."""
        found = self._evaluate(expression)
        results = list(found) if isinstance(found, tuple | list) else [found]
        if not results or not all(isinstance(result, Tensor) and self._fits(result) for result in results):
            return False
        names = [f"v{len(self.values) + place}" for place in range(len(results))]
        comma = "," if isinstance(found, tuple | list) and len(names) == 1 else ""
        self.lines.append(f"{', '.join(names)}{comma} = {expression}")
        self.values.update(zip(names, results, strict=True))
        return True

    def write(self, statement: str, *, assigns: bool = False) -> None:
        """Add a line that changes values in place, unless PyTorch refuses it or values become too large.

        Args:
            statement: the line.
            assigns: whether its result is a value too.
        """
        if any(value.requires_grad for value in self.values.values()):
            return  # a view of a weight may be among them, which writing would change for good
        # All are copied together to keep their relations: one may be a view of another one.
        before = copy.deepcopy(self.values)
        is_written = self.assign(statement) if assigns else self._evaluate(f"[{statement}]") is not None
        if not is_written or not all(map(self._fits, self.values.values())):
            self.values.clear()
            self.values.update(before)
            if is_written and assigns:
                self.lines.pop()
        elif not assigns:
            self.lines.append(statement)

    def case(self, result: str) -> Case:
        """Return the finished model with this result."""
        text = _TEMPLATE.format(
            state="".join(f"        {line}\n" for line in self.state),
            arguments="".join(f", x{place}" for place in range(len(self.inputs))),
            lines="\n".join(f"        {line}" for line in self.lines or ["pass"]),
            result=result,
            inputs="".join(f"{text}, " for text in self.inputs),
            imports="".join(f"\nimport {module}" for module in self.imports),
        )
        return Case(text, self.is_smooth and not self.is_special, frozenset(self.kinds))

    def _evaluate(self, expression: str) -> Any:
        try:
            with torch.no_grad():
                return eval(expression, {**GLOBALS, **self.values, "self": self._self})
        except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, OverflowError):
            return None

    def _fits(self, value: Tensor) -> bool:
        """Return whether a value may be used further."""
        if value.numel() > MOST_ELEMENTS:
            return False
        if value.is_complex() and value.numel():
            return bool(value.isfinite().all()) and float(value.detach().abs().max()) <= LARGEST
        if self.is_special or not value.is_floating_point() or value.numel() == 0:
            return True
        return bool(value.isfinite().all()) and float(value.detach().abs().max()) <= LARGEST
