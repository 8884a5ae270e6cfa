"""Input specifications of the command line (SPEC), and the error for models that cannot be loaded.

Invariant: a parsed SPEC always yields a tensor.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches

import torch
from torch import Tensor

from taso_py.backend.random_tensors import integers, normal
from taso_py.ir.errors import TasoError

_SPEC = re.compile(r"(?P<shape>[1-9]\d*(x[1-9]\d*)*)(:(?P<dtype>\w+))?")
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    )
}
_SHORT = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}


class SourceError(TasoError):
    """Raised for a MODEL or SPEC that cannot be loaded."""


def parse_dtype(name: str) -> torch.dtype:
    """Return a floating-point type by its name in PyTorch or a short one: ``bfloat16`` or ``bf16``.

    Raises:
        SourceError: there is no such type, or it is not floating-point.
    """
    dtype = _DTYPES.get(_SHORT.get(name, name))
    if dtype is None or not dtype.is_floating_point:
        raise SourceError(f"a model cannot be cast to {name!r}; choose one of {', '.join(_SHORT)}")
    return dtype


@dataclass(frozen=True)
class InputSpec:
    """The shape of one input and, if stated, its dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None = None

    @classmethod
    def parse(cls, text: str) -> InputSpec:
        """Parse ``1x3x224x224`` or ``1x128:int64``.

        Raises:
            SourceError: if the text is not of that form, or the dtype is unknown.
        """
        match = _SPEC.fullmatch(text)
        if match is None:
            raise SourceError(f"input {text!r} is not SHAPE or SHAPE:DTYPE; write it like 1x3x224x224 or 1x128:int64")
        shape = tuple(int(size) for size in match["shape"].split("x"))
        name = match["dtype"]
        if name is None:
            return cls(shape)
        if name not in _DTYPES:
            close = get_close_matches(name, _DTYPES, n=3) or list(_DTYPES)
            raise SourceError(f"input {text!r} has no known dtype {name!r}; did you mean {', '.join(close)}?")
        return cls(shape, _DTYPES[name])

    def random(self, default: torch.dtype, generator: torch.Generator) -> Tensor:
        """Return a random tensor of this shape and the stated dtype, else ``default``.

        Floating-point values are normally distributed; integers are 0 or 1, which are valid for almost any index
        or mask.
        """
        dtype = self.dtype or default
        if dtype.is_floating_point or dtype.is_complex:
            return normal(self.shape, generator).to(dtype)
        return integers(2, self.shape, generator).to(dtype)
