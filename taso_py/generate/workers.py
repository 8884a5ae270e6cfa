"""Other processes that test and prove: the order of results does not depend on how many there are.

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
    """Applies tasks to items, wherever a pool has its processes."""

    def __init__(self, pool: Pool, prove: Prover, seed: int) -> None:
        """Prepares tasks.

        Args:
            pool: where they are done.
            prove: must be known to other processes by its name, if the pool has any.
            seed: of random instances.
        """
        self._pool, self._prove, self._seed = pool, prove, seed

    def map(self, task: Callable[[Settler, _Item], _Value], items: Iterable[_Item], chunk: int = 1) -> Iterator[_Value]:
        """The values of a task, a function of a module, for items, in their order; ``chunk`` of them go together."""
        return self._pool.map(partial(_run, task, self._prove, self._seed), items, chunk=chunk)


def _run(task: Callable[[Settler, Any], Any], prove: Prover, seed: int, item: Any) -> Any:
    return task(Settler(prove, seed), item)
