"""Tests and proofs in worker processes: the order of results does not depend on their number.

Invariant: a task is a function of its item, the prover and the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from taso_py.executors import Pool
from taso_py.generate.settle import Settler
from taso_py.rules.verdict import Prover

_Item = TypeVar("_Item")
_Value = TypeVar("_Value")


class Workers:
    """Applies tasks to items in the processes of a pool."""

    def __init__(self, pool: Pool, prove: Prover, seed: int) -> None:
        """Prepare tasks.

        Args:
            pool: the pool that runs them.
            prove: the prover; other processes of the pool, if any, must be able to import it by name.
            seed: seed of random instances.
        """
        self._pool, self._prove, self._seed = pool, prove, seed

    def map(self, task: Callable[[Settler, _Item], _Value], items: Iterable[_Item], chunk: int = 1) -> Iterator[_Value]:
        """Yield the values of a task, a module-level function, for items, in order; sent ``chunk`` at a time."""
        return self._pool.map(partial(_run, task, self._prove, self._seed), items, chunk=chunk)


def _run(task: Callable[[Settler, Any], Any], prove: Prover, seed: int, item: Any) -> Any:
    return task(Settler(prove, seed), item)
