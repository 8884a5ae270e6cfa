"""Rows of recurrent layers, which ONNX represents as one operator.

Invariant: if the weights are the model's own, their gates are put in ONNX's order when the model is written, not when
it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from taso_py.backend.onnx.row import OnnxOperand, OpaqueCall, OpaqueRow
from taso_py.backend.onnx.writer import OnnxValue, Writer


@dataclass(frozen=True)
class _Kind:
    """The parameters of a kind of recurrent layer."""

    name: str
    gates: tuple[int, ...]
    """For each gate in ONNX's order, its position in PyTorch's order."""
    states: int
    attributes: Mapping[str, object]


def _layer(kind: _Kind) -> OpaqueRow:
    def row(w: Writer, call: OpaqueCall) -> Sequence[OnnxValue]:
        arguments = call.arguments
        layers, directions = arguments["num_layers"], 2 if arguments["bidirectional"] else 1
        parameters: Sequence[OnnxOperand] = arguments["params"]
        each = 4 if arguments["has_biases"] else 2
        if len(parameters) != each * layers * directions:
            raise call.refuse("projects its state")
        if arguments["train"] and arguments["dropout"]:
            raise call.refuse("drops out at random")
        states, x = _states(call), call.operand("input").onnx
        x = w.op("Transpose", x, perm=[1, 0, 2]) if arguments["batch_first"] else x
        finals: list[list[OnnxValue]] = [[] for _ in range(kind.states)]
        for layer in range(layers):
            cells = [parameters[(layer * directions + direction) * each :][:each] for direction in range(directions)]
            every, *ends = _run(
                w,
                kind,
                x,
                cells=cells,
                states=[_of_layer(w, state, layer, layers=layers, directions=directions) for state in states],
            )
            x = _side_by_side(w, every, cells)
            for final, end in zip(finals, ends, strict=True):
                final.append(end)
        x = w.op("Transpose", x, perm=[1, 0, 2]) if arguments["batch_first"] else x
        return [x, *(final[0] if layers == 1 else w.op("Concat", *final, axis=0) for final in finals)]

    return row


def _states(call: OpaqueCall) -> Sequence[OnnxValue]:
    """Return the initial states: one, or two of an LSTM."""
    hx = call.arguments["hx"]
    return [state.onnx for state in hx] if isinstance(hx, list) else [call.operand("hx").onnx]


def _of_layer(w: Writer, state: OnnxValue, layer: int, layers: int, directions: int) -> OnnxValue:
    """Write the part of an initial state that belongs to a layer."""
    if layers == 1:
        return state
    bounds = [layer * directions], [(layer + 1) * directions], [0]
    return w.op("Slice", state, *map(w.integers, bounds))


def _run(
    w: Writer, kind: _Kind, x: OnnxValue, cells: Sequence[Sequence[OnnxOperand]], states: Sequence[OnnxValue]
) -> Sequence[OnnxValue]:
    """Write one layer, in one or both directions; return its outputs at all steps, and its last states."""
    hidden = cells[0][1].type.sizes[-1]
    weights = [_stacked(w, kind, [cell[place] for cell in cells]) for place in (0, 1)]
    biases = _joined_biases(w, kind, cells) if len(cells[0]) == 4 else None
    direction = "bidirectional" if len(cells) == 2 else "forward"
    given = dict(kind.attributes)
    if "activations" in given:
        given["activations"] = [given["activations"]] * len(cells)
    return w.ops(
        kind.name,
        1 + kind.states,
        x,
        *weights,
        biases,
        None,
        *states,
        hidden_size=hidden,
        direction=direction,
        **given,
    )


def _side_by_side(w: Writer, every: OnnxValue, cells: Sequence[Sequence[OnnxOperand]]) -> OnnxValue:
    """Write outputs of shape [step, direction, batch, hidden] as [step, batch, direction * hidden]."""
    if len(cells) == 1:
        return w.op("Squeeze", every, w.integers([1]))
    hidden = cells[0][1].type.sizes[-1]
    return w.op("Reshape", w.op("Transpose", every, perm=[0, 2, 1, 3]), w.integers([0, 0, 2 * hidden]))


def _stacked(w: Writer, kind: _Kind, parts: Sequence[OnnxOperand]) -> OnnxValue:
    """Stack a parameter of all directions along a new first axis, gates in ONNX's order."""
    held = [w.held(part.value) for part in parts]
    known = [tensor for tensor in held if tensor is not None]
    if len(known) == len(parts):
        keys = "+".join(part.onnx.name or "" for part in parts)
        name = f"{keys}.{kind.name}"
        return w.tensor(("recurrent", name), name, lambda: torch.stack([_reordered(kind, part) for part in known]))
    return w.op("Concat", *(w.op("Unsqueeze", _reorder(w, kind, part), w.integers([0])) for part in parts), axis=0)


def _reordered(kind: _Kind, tensor: Tensor) -> Tensor:
    gates = tensor.detach().chunk(len(kind.gates))
    return torch.cat([gates[place] for place in kind.gates])


def _reorder(w: Writer, kind: _Kind, part: OnnxOperand) -> OnnxValue:
    """Write the reordering of gates of a parameter that is computed at run time."""
    count = len(kind.gates)
    if count == 1:
        return part.onnx
    gates = w.ops("Split", count, part.onnx, axis=0, num_outputs=count)
    return w.op("Concat", *(gates[place] for place in kind.gates), axis=0)


def _joined_biases(w: Writer, kind: _Kind, cells: Sequence[Sequence[OnnxOperand]]) -> OnnxValue:
    held = [[w.held(part.value) for part in cell[2:]] for cell in cells]
    known = [[tensor for tensor in cell if tensor is not None] for cell in held]
    if all(len(cell) == 2 for cell in known):
        name = "+".join(part.onnx.name or "" for cell in cells for part in cell[2:]) + f".{kind.name}"
        joined = lambda: torch.stack([torch.cat([_reordered(kind, part) for part in cell]) for cell in known])  # noqa: E731
        return w.tensor(("recurrent", name), name, joined)
    of_input, of_state = (_stacked(w, kind, [cell[place] for cell in cells]) for place in (2, 3))
    return w.op("Concat", of_input, of_state, axis=1)


_KINDS: Mapping[str, _Kind] = {
    "lstm": _Kind("LSTM", (0, 3, 1, 2), 2, attributes={}),
    "gru": _Kind("GRU", (1, 0, 2), 1, attributes={"linear_before_reset": 1}),
    "rnn_tanh": _Kind("RNN", (0,), 1, attributes={"activations": "Tanh"}),
    "rnn_relu": _Kind("RNN", (0,), 1, attributes={"activations": "Relu"}),
}
ROWS: Mapping[str, OpaqueRow] = {f"aten.{name}.input": _layer(kind) for name, kind in _KINDS.items()}
"""The rows, by the name of the overload."""
