"""Opaque nodes: calls outside the table, kept as they are, with the effects that their schema declares.

Invariant: only operators known to be pure are interned. Random and unknown operators carry a token and are effects:
they happen in order, once each, whether or not their results are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from taso_py.backend.schema import is_mutable, is_trusted, may_draw, result_count
from taso_py.backend.tensors import TensorError, encode
from taso_py.frontend.call import AtenCall
from taso_py.frontend.source import refuse
from taso_py.ir.node import Value
from taso_py.ir.operator import AttributeValue, Ref
from taso_py.ir.size import Poly
from taso_py.ops.opaque import Opaque

_TRAINING_FLAGS = ("train", "training")
_DROPOUT_RATES = ("dropout_p", "dropout")


def is_pure(call: AtenCall) -> bool:
    """Return whether a call is deterministic and free of effects, by the operator's schema and tags."""
    overload = call.overload
    if not is_trusted(overload) or not result_count(overload):
        return False
    return not may_draw(overload) or not draws(call.arguments.get)


def draws(argument: Callable[[str], Any]) -> bool:
    """Return whether a call of an operator that may draw random numbers does draw.

    ``argument`` looks an argument up by name, or returns None.
    """
    if any(argument(flag) is False for flag in _TRAINING_FLAGS):
        return False
    rates = [argument(rate) for rate in _DROPOUT_RATES]
    return not any(rate == 0 for rate in rates if rate is not None)


class Template:
    """The arguments of a call as an opaque operator stores them, and the values that they refer to."""

    def __init__(self, fx_node: fx.Node, env: Callable[[fx.Node], Any]) -> None:
        """Start with no inputs; ``env`` gives the value of an operand."""
        self.inputs: list[Value] = []
        self._node, self._env = fx_node, env

    def __call__(self, argument: Any) -> AttributeValue:
        """Return an argument in the form that an operator stores.

        Raises:
            ImportRefusal: it has no form in the graph.
        """
        try:
            return encode(self._reference(argument))
        except TensorError as error:
            refuse(self._node, f"cannot be imported: {error}", "replace the operator")

    def refer(self, value: Value) -> Ref:
        """Add a value to the inputs and return the reference to it."""
        self.inputs.append(value)
        return Ref(len(self.inputs) - 1)

    def _reference(self, argument: Any) -> Any:
        if isinstance(argument, list | tuple):
            return [self._reference(item) for item in argument]
        if not isinstance(argument, fx.Node):
            return argument
        value = self._env(argument)
        if isinstance(value, int | Poly):
            return value
        if not isinstance(value, Value):
            refuse(self._node, "takes a number that depends on the data", "keep the computation in tensors")
        return self.refer(value)


def opaque_call(fx_node: fx.Node, call: AtenCall, env: Callable[[fx.Node], Any]) -> tuple[Opaque, list[Value]]:
    """Return the opaque operator of a call and its inputs, arguments as they were given.

    Raises:
        ImportRefusal: the operator writes to its arguments, or an argument has no form in the graph.
    """
    if is_mutable(call.overload):
        refuse(fx_node, "writes to its arguments", "use the form of the operator that returns a new tensor")
    template = Template(fx_node, env)
    arguments = tuple(map(template, fx_node.args))
    keywords = tuple((name, template(argument)) for name, argument in fx_node.kwargs.items())
    return Opaque(str(call.overload), arguments, call.types, keywords=keywords, is_pure=is_pure(call)), template.inputs
