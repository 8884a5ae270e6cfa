"""An entry of the zoo: how a model and its example inputs are made.

Invariant: models and inputs depend only on the seed; making them does not change torch's global random state, and
downloads nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from taso_py.backend.generators import random_state_seeded
from taso_py.ir.errors import TasoError
from taso_py.models.zoo.libraries import require
from taso_py.models.zoo.weights import randomize_constants, settle_batch_norms

# Statistics need several values per channel, and the small variants' last layers have one per image.
_SETTLING_BATCH = {False: 2, True: 16}


class ZooError(TasoError):
    """Raised for a model that the zoo does not have, or whose library is not installed."""


@dataclass(frozen=True)
class ZooEntry:
    """A named model with random weights, in evaluation mode, and example inputs for it."""

    name: str
    """The name after ``zoo:`` on the command line."""

    library: str | None
    """The package that defines the model; ``None`` for the project's own."""

    build: Callable[[bool], nn.Module]
    """Builds the module; its argument asks for the small variant: fewer layers or channels where the library allows."""

    inputs: Callable[[bool, int], tuple[Tensor, ...]]
    """Makes the positional example inputs, for the small variant or not and for a batch size."""

    def make(self, seed: int = 0, *, batch: int = 1, small: bool = False) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Return the module and its example inputs, which depend only on the seed.

        Args:
            seed: seed of the weights, batch-norm statistics and inputs.
            batch: the leading size of every input.
            small: whether to make the variant for tests.

        Raises:
            ZooError: if the model's library is not installed or does not import.
        """
        if self.library is not None:
            try:
                require(self.library)
            except ImportError as error:
                reason = f"needs {self.library} ({error})"
                raise ZooError(f"zoo:{self.name} {reason}; run: pip install 'taso-py[zoo]'") from error
        with random_state_seeded(seed):
            module = self.build(small).eval()
            randomize_constants(module)
            settle_batch_norms(module, self.inputs(small, _SETTLING_BATCH[small]))
            return module, self.inputs(small, batch)


def images(size: int, small_size: int) -> Callable[[bool, int], tuple[Tensor, ...]]:
    """Return a function that makes example images: one normally distributed tensor ``[batch, 3, size, size]``."""

    def make(small: bool, batch: int) -> tuple[Tensor, ...]:
        side = small_size if small else size
        return (torch.randn(batch, 3, side, side),)

    return make
