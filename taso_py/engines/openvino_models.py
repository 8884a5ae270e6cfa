"""OpenVINO models, with changes that keep OpenVINO 2026.4 from computing something else.

Constants that it would compute at run time: it folds what it can evaluate without a device. Its CPU plugin computes the
rest once, when a model is compiled, and then lets a later operator write its result over that:
``conv(constant, constant) + x`` with a view or a conversion of layout before the sum adds ``x`` once more in each run.
Bias is such a sum, so that no folding of our graph prevents it.

Magnitudes of vectors: its rule that moves ``abs`` before a concatenation of vectors changes the concatenation also for
its other readers, and for who called the model if it is a result.

Softplus: where it is less than 2e-6, OpenVINO may give a number as much below 0.

Invariant: a model that was read computes nothing of constants alone, but for random numbers and control flow; and has,
also in bodies of control flow, no ``abs`` of a vector, and of softplus magnitudes only.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_LEFT = frozenset({"Constant", "Result", "RandomUniform", "Multinomial", "ReadValue", "If", "Loop", "TensorIterator"})
"""Types of operators that are not computed beforehand, though they may read constants only or nothing."""
_BODIES = {"If": ("get_then_body", "get_else_body"), "Loop": ("get_function",), "TensorIterator": ("get_function",)}
"""Methods of control flow that return its bodies."""


def read_model(core: Any, content: bytes | Path, settings: Mapping[str, Any]) -> Any:
    """Return the OpenVINO model of an ONNX model or a file, with these changes.

    Args:
        core: an OpenVINO runtime.
        content: the ONNX model, or the path of a file that OpenVINO reads.
        settings: settings with which constants are computed.
    """
    model = core.read_model(content)
    take_apart(model)
    return prepared(core, model, settings)


def take_apart(model: Any) -> None:
    """Change operators of a model, and of bodies of its control flow, that OpenVINO would take for others.

    Each ``abs`` of a vector becomes one of a matrix of one row, and of each softplus the magnitude is taken.
    """
    ops: Any = importlib.import_module("openvino.opset13")
    for node in model.get_ordered_ops():
        kind, result = node.get_type_name(), node.output(0)
        for body in _BODIES.get(kind, ()):
            take_apart(getattr(node, body)())
        readers = result.get_target_inputs()
        if kind == "Abs" and result.get_partial_shape().rank.to_string() == "1":
            axis = ops.constant(0)
            node.input(0).replace_source_output(ops.unsqueeze(node.input_value(0), axis).output(0))
            _pass_on(result, readers, ops.squeeze(node, axis).output(0))
        elif kind == "SoftPlus" and any(reader.get_node().get_type_name() != "Abs" for reader in readers):
            _pass_on(result, readers, ops.abs(node).output(0))
    model.validate_nodes_and_infer_types()


def _pass_on(result: Any, readers: Iterable[Any], made: Any) -> None:
    """Let what was made of a result take its place for readers, and for who called the model if it is returned."""
    for reader in readers:
        reader.replace_source_output(made)
    names = result.get_names()
    result.set_names(set())
    made.set_names(names)  # results are known by them


def prepared(core: Any, model: Any, settings: Mapping[str, Any]) -> Any:
    """Return a model with constants in the places of what its CPU plugin would compute of them; itself if that is none.

    Args:
        core: an OpenVINO runtime.
        model: the model; it stays as it is.
        settings: settings with which constants are computed.
    """
    if not of_constants(model):
        return model
    folded = _folded(model)
    found = of_constants(folded)
    values = [
        output
        for node in found.values()
        for output in node.outputs()
        if any(_name(reader) not in found for reader in output.get_target_inputs())
    ]
    if not values:
        return model
    readers = [[one for one in output.get_target_inputs() if _name(one) not in found] for output in values]
    openvino: Any = importlib.import_module("openvino")  # its stubs have another Model
    computed = core.compile_model(openvino.Model(values, [], "constants"), "CPU", dict(settings))
    request = computed.create_infer_request()
    request.infer()
    for place, (value, places) in enumerate(zip(values, readers, strict=True)):
        constant = openvino.op.Constant(request.get_output_tensor(place)).output(0)
        constant.set_names(value.get_names())  # results are known by them
        for reader in places:
            reader.replace_source_output(constant)
    folded.validate_nodes_and_infer_types()
    return folded


def of_constants(model: Any) -> Mapping[str, Any]:
    """Return the operators of a model that read constants only, and what is computed of them, by name."""
    static: set[str] = set()
    found: dict[str, Any] = {}
    for node in model.get_ordered_ops():
        kind, sources = node.get_type_name(), [value.get_node().get_name() for value in node.input_values()]
        if kind not in _LEFT and sources and static.issuperset(sources):
            found[node.get_name()] = node
        if kind == "Constant" or node.get_name() in found:
            static.add(node.get_name())
    return found


def _folded(model: Any) -> Any:
    """Return a copy of a model in which OpenVINO has folded what it can; the two share constants."""
    from openvino.passes import ConstantFolding, Manager

    copy, passes = model.clone(), Manager()
    passes.register_pass(ConstantFolding())
    passes.run_passes(copy)
    return copy


def _name(reader: Any) -> str:
    """Return the name of the operator that reads a value."""
    return reader.get_node().get_name()
