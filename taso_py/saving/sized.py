"""One module for arguments of several sizes, each with a runner of its own.

Invariant: a call goes to the runner that was made for exactly the sizes of its tensors, or to the original.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from taso_py.backend.guard import ArgumentError

Shapes: TypeAlias = tuple[tuple[int, ...], ...]
"""The shapes of the tensors among the arguments of a call, in the order of their tree."""


def shapes_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Shapes:
    """Return the shapes of the tensors among arguments, those of keyword arguments in the order of their names."""
    if not kwargs and all(isinstance(argument, Tensor) for argument in args):
        return tuple([tuple(argument.shape) for argument in args])
    leaves = pytree.tree_leaves((args, dict(sorted(kwargs.items()))))
    return tuple([tuple(leaf.shape) for leaf in leaves if isinstance(leaf, Tensor)])


def text_of(shapes: Shapes) -> str:
    """Return shapes as a name: ``8x3x224x224``, those of several tensors joined by commas."""
    return ",".join("x".join(map(str, shape)) or "number" for shape in shapes) or "nothing"


class SizedModule(nn.Module):
    """A module for several sizes."""

    def __init__(
        self, runners: Mapping[Shapes, Callable[..., Any]], original: Callable[..., Any] | None = None
    ) -> None:
        """Join runners for several sizes.

        Args:
            runners: the runner for each.
            original: called with arguments of other sizes; None to refuse them.
        """
        super().__init__()
        self._runners = dict(runners)
        # The user's own model is no part of this module, which has evaluation mode and moves for itself.
        object.__setattr__(self, "_original", original)
        for place, runner in enumerate(self._runners.values()):
            if isinstance(runner, nn.Module):
                self.add_module(f"size_{place}", runner)
        self.eval()

    @property
    def sizes(self) -> tuple[str, ...]:
        """The sizes that it was made for."""
        return tuple(map(text_of, self._runners))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the runner for these sizes, or the original if it takes no such arguments.

        Raises:
            ArgumentError: there is none, and no original.
        """
        given = shapes_of(args, kwargs)
        original: Callable[..., Any] | None = vars(self)["_original"]
        runner = self._runners.get(given, original)
        if runner is None:
            raise ArgumentError(
                f"this module was built for arguments of sizes {' and '.join(self.sizes)}, not {text_of(given)}; "
                "optimize it for that size too"
            )
        try:
            return runner(*args, **kwargs)
        except (ArgumentError, TypeError):  # before anything is computed; Python's own for other keywords
            if original is None or runner is original:
                raise
        return original(*args, **kwargs)
