"""Numbers that a captured graph takes and returns beside its tensors.

What varies from call to call, ``torch.compile`` captures as numbers that the graph takes: sizes of its tensors, and
what Python counts, such as the length of a cache with a sliding window, of which the graph computes the next one and
returns it. Sizes of tensors that the graph takes are read from these; on other numbers no tensor may depend.

Invariant: the two parts of a divided graph together return what it returned, and its tensors are computed from tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, fx

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
        """Return a graph divided.

        None if it takes no numbers that vary, a tensor depends on one that is no size of a tensor that it takes, or a
        number that it returns depends on tensors.
        """
        *nodes, output = graph.graph.nodes
        numbers = {node for node in nodes if isinstance(node.meta.get("example_value"), _NUMBERS)}
        inputs = [node for node in nodes if node.op == "placeholder"]
        results = output.args[0]
        if numbers.isdisjoint(inputs) or not isinstance(results, tuple | list):
            return None
        counted = _ancestors(numbers.intersection(filter(_is_node, results)))
        read = numbers & _ancestors(set(nodes) - numbers)
        sizes = {node: place for node in read.intersection(inputs) if (place := _shown(node, inputs)) is not None}
        if not counted <= numbers or not read.intersection(inputs) <= sizes.keys():
            return None
        given, returned = ([_places(of, numbers, among) for among in (False, True)] for of in (inputs, results))
        tensors = _part(graph, [node for node in nodes if node not in numbers or node in read], sizes, returned[0])
        taken = {node for node in numbers if node.op == "placeholder"}
        apart = _part(graph, [node for node in nodes if node in counted | taken], {}, returned[1])
        return cls(tensors, apart, (given[0], given[1]), (returned[0], returned[1]))

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


def _is_node(value: Any) -> bool:
    return isinstance(value, fx.Node)


def _ancestors(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Return nodes and all that they depend on."""
    found, stack = set[fx.Node](), list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += node.all_input_nodes
    return found


def _shown(number: fx.Node, inputs: Sequence[fx.Node]) -> tuple[fx.Node, int] | None:
    """Return the input, and the axis of it, whose size a number always is; None if there is none."""
    told = number.meta["example_value"]
    for node in inputs if isinstance(told, torch.SymInt) else ():
        value = node.meta.get("example_value")
        for axis, size in enumerate(value.shape if isinstance(value, Tensor) else ()):
            if isinstance(size, torch.SymInt) and size.node.expr == told.node.expr:
                return node, axis
    return None


def _places(values: Sequence[Any], numbers: Collection[fx.Node], among: bool) -> tuple[int, ...]:
    """Return the places of the values that are numbers, or of those that are not."""
    return tuple(place for place, value in enumerate(values) if (value in numbers) is among)


def _part(
    graph: fx.GraphModule,
    nodes: Sequence[fx.Node],
    sizes: Mapping[fx.Node, tuple[fx.Node, int]],
    returned: Sequence[int],
) -> fx.GraphModule:
    """Return the part of a graph that some nodes make up.

    Args:
        graph: the graph.
        nodes: the nodes.
        sizes: those of its inputs that are read as sizes of others, by input and axis.
        returned: the places of its results among those of the graph.
    """
    made, images = fx.Graph(), dict[fx.Node, fx.Node]()
    *_, output = graph.graph.nodes
    for node in nodes:
        if node.op == "placeholder" and node not in sizes:
            images[node] = made.node_copy(node, images.__getitem__)
    for node, (shown, axis) in sizes.items():
        images[node] = made.call_function(torch.ops.aten.sym_size.int, (images[shown], axis))
    for node in nodes:
        if node not in images:
            images[node] = made.node_copy(node, images.__getitem__)
    results = tuple(output.args[0][place] for place in returned)
    made.output(fx.map_arg(results, images.__getitem__)).meta = dict(output.meta)
    return fx.GraphModule(graph, made)
