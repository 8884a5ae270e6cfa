"""Numbers that a captured graph takes and returns beside its tensors.

What Python counts from call to call, such as the length of a cache with a sliding window, ``torch.compile`` captures as
a number that varies: the graph takes it, computes the next one, and returns that. No tensor depends on it.

Invariant: a graph is divided only if no tensor depends on its numbers; the two parts together return what it returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import fx

_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True)
class NumbersApart:
    """A captured graph in two parts: one of tensors and one of numbers."""

    tensors: fx.GraphModule
    numbers: fx.GraphModule
    given: tuple[tuple[int, ...], tuple[int, ...]]
    """The places of the inputs of each part among those of the whole graph."""
    returned: tuple[tuple[int, ...], tuple[int, ...]]
    """The places of the results of each part among those of the whole graph."""

    @classmethod
    def of(cls, graph: fx.GraphModule) -> Self | None:
        """Return a graph divided; None if it takes no numbers that vary, or a tensor depends on one."""
        *nodes, output = graph.graph.nodes
        numbers = {node for node in nodes if isinstance(node.meta.get("example_value"), _NUMBERS)}
        inputs = [node for node in nodes if node.op == "placeholder"]
        results = output.args[0]
        if numbers.isdisjoint(inputs) or not isinstance(results, tuple | list):
            return None
        for node in nodes:
            read = numbers.intersection(node.all_input_nodes)
            if len(read) != (len(node.all_input_nodes) if node in numbers else 0):
                return None
        given, returned = ([_places(of, numbers, among) for among in (False, True)] for of in (inputs, results))
        parts = [_part(graph, numbers, among=among) for among in (False, True)]
        return cls(parts[0], parts[1], (given[0], given[1]), (returned[0], returned[1]))

    def joined(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is called like the whole graph, and leaves the part of tensors to another one."""
        count = sum(map(len, self.returned))

        def call(*args: Any) -> Any:
            results: list[Any] = [None] * count
            for part, given, returned in zip((run, self.numbers.forward), self.given, self.returned, strict=True):
                for place, result in zip(returned, part(*[args[place] for place in given]), strict=True):
                    results[place] = result
            return tuple(results)

        return call


def _places(values: Sequence[Any], numbers: set[fx.Node], among: bool) -> tuple[int, ...]:
    """Return the places of the values that are numbers, or of those that are not."""
    return tuple(place for place, value in enumerate(values) if (value in numbers) is among)


def _part(graph: fx.GraphModule, numbers: set[fx.Node], *, among: bool) -> fx.GraphModule:
    """Return the part of a graph that is in some nodes, or outside of them."""
    made, images = fx.Graph(), dict[fx.Node, fx.Node]()
    *nodes, output = graph.graph.nodes
    for node in nodes:
        if (node in numbers) is among:
            images[node] = made.node_copy(node, images.__getitem__)
    results = [value for value in output.args[0] if (value in numbers) is among]
    made.output(fx.map_arg(tuple(results), images.__getitem__)).meta = dict(output.meta)
    return fx.GraphModule(graph, made)
