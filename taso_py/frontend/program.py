"""From a module or an exported program to a :class:`~taso_py.backend.program.Program`.

Invariant: the program, built as it is, computes the original's bits and keeps the contract with its callers; a model
for which that cannot be had is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from torch.utils._pytree import TreeSpec

from taso_py.backend.bits import all_resolved
from taso_py.backend.contract import observe
from taso_py.backend.program import Contract, Fixed, Program, Signature
from taso_py.backend.tensors import tensor_type
from taso_py.backend.writes import write
from taso_py.frontend.diagnosis import check_tensors, diagnosis
from taso_py.frontend.errors import ImportRefusal
from taso_py.frontend.export import export, fake_mode_of, functionalize
from taso_py.frontend.importer import Importer
from taso_py.frontend.original import OriginalRun, run_original
from taso_py.frontend.sizes import OpenSizeError, Sizes
from taso_py.frontend.snapshot import Snapshot
from taso_py.frontend.source import type_of
from taso_py.frontend.state import State, find_state
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make
from taso_py.ir.operator import Input, Weight
from taso_py.ir.size import Dim, at_example

HIDING = frozenset({"NoneType", "device", "fx_pytree", "inf", "nan", "pytree", "torch"})
"""What code that torch.fx writes calls by name (``_custom_builtins`` of torch/fx/graph.py); an argument called so hides
it there, in exported programs of PyTorch's own too."""


def import_module(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Program:
    """Imports a module as it behaves on example inputs.

    Args:
        module: it is exported as it is, so put it in evaluation mode first unless you want its training behaviour.
        args: positional example inputs; their shapes, types and strides become the program's.
        kwargs: keyword example inputs.

    Raises:
        ImportRefusal: the model cannot be imported faithfully.
    """
    named: Mapping[str, Any] = kwargs or {}
    check_tensors(module, args, named)
    args, named = all_resolved(tuple(args)), all_resolved(dict(named))
    run = run_original(module, args, named)
    before = Snapshot(module)
    try:
        exported = export(module, args, named)
        functional = functionalize(exported)
    except ImportRefusal as error:
        seen = diagnosis(module, args, named)
        raise ImportRefusal(seen or str(error)) from error
    finally:
        # Tracing writes to tensors that are constants to it, and leaves what it traced in attributes.
        before.restore()
    return _import(exported, functional, run)


def import_program(
    exported: ExportedProgram, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
) -> Program:
    """Imports an exported program.

    Args:
        exported: the program; it is not changed.
        args: positional example inputs, of the shapes and types it was exported for; by default those it has.
        kwargs: keyword example inputs.

    Raises:
        ImportRefusal: it cannot be imported faithfully.
    """
    if args is None and kwargs is None:
        if exported.example_inputs is None:
            raise ImportRefusal(
                "the exported program has no example inputs; pass some of the shapes it was exported for"
            )
        args, kwargs = exported.example_inputs
    module = exported.module()
    run = run_original(module, args or (), kwargs or {})
    return _import(exported, functionalize(exported), run)


def _returned(run: OriginalRun, signature: Signature) -> list[Any]:
    """What the original returned for the outputs of the graph."""
    there, exported = len(run.results), len(signature.outputs)
    if there != exported:
        raise ImportRefusal(
            f"the model returns {there} values, and {exported} while it is exported; let it return the same in both"
        )
    return [r for r, leaf in zip(run.results, signature.outputs, strict=True) if isinstance(leaf, int)]


def _import(exported: ExportedProgram, functional: ExportedProgram, run: OriginalRun) -> Program:
    """The program of an export and its form without writes, given a run of the original."""
    state = find_state(functional)
    mode, device = _mode_and_device(functional.graph)
    importer = Importer(Sizes(mode), device)
    arguments = run.arguments(_in_spec(functional))
    inputs = _leaves(functional, state, importer, arguments)
    for node in functional.graph.nodes:
        if node.op == "call_function":
            importer.call(node)
    outputs, places = _outputs(functional, state, importer)
    signature = _signature(functional, inputs, places)
    graph = Graph(tuple(leaf for leaf in inputs if isinstance(leaf, Node)), outputs, tuple(importer.effects))
    keys = {node.op.key for node in graph.nodes if isinstance(node.op, Weight)}
    examples = {leaf: tensor for leaf, tensor in zip(signature.inputs, arguments, strict=True) if isinstance(leaf, str)}
    # Where the schema of what writes to an input says nothing of it, the export shows no write either.
    written = next((name for name, tensor in examples.items() if run.wrote_to(tensor)), None)
    if written is not None:
        raise ImportRefusal(_explain_write(OutputKind.USER_INPUT_MUTATION, written))
    unseen = next((name for name in run.developed if state.keys.get(name) not in state.written), None)
    if unseen is not None:
        raise ImportRefusal(
            f"the model writes to its {unseen}, which its export does not show; write to it by PyTorch's own operators"
        )
    returned = _returned(run, signature)
    return Program(
        graph=graph,
        weights={key: state.tensor(key) for key in state.tensors if key in keys},
        parameters={key: flag for key, flag in state.parameters.items() if key in keys},
        signature=signature,
        contract=_at_all_sizes(observe(returned, examples, state.tensors), outputs, importer),
        example_inputs=tuple(examples.values()),
        device=importer.device,
        variants=importer.variants,
        provenance=importer.provenance,
        conditions=_conditions(exported) if importer.sizes.any else None,
    )


def _conditions(exported: ExportedProgram) -> nn.Module | None:
    """What the export assumed of open sizes beyond their ranges; torch has it in the module that it makes only."""
    return getattr(exported.module(), "_guards_fn", None)


def _mode_and_device(graph: fx.Graph) -> tuple[FakeTensorMode, torch.device]:
    """The mode of the program's fake tensors, and the device that it computes on: that of the first that is not CPU."""
    fakes = [node.meta["val"] for node in graph.nodes if isinstance(node.meta.get("val"), FakeTensor)]
    mode = fake_mode_of(graph) or FakeTensorMode()
    devices = [fake.device for fake in fakes]
    return mode, next((device for device in devices if device.type != "cpu"), torch.device("cpu"))


def _leaves(
    functional: ExportedProgram, state: State, importer: Importer, arguments: Sequence[Any]
) -> list[Node | Fixed]:
    """Imports the placeholders; returns the leaves of the user's arguments.

    Raises:
        ImportRefusal: an input is neither a tensor nor a plain value, or has open sizes of which there is no form.
    """
    placeholders = {node.name: node for node in functional.graph.nodes if node.op == "placeholder"}
    inputs: list[Node | Fixed] = []
    _declare_sizes(functional, placeholders, importer.sizes, arguments)
    for spec in functional.graph_signature.input_specs:
        if isinstance(spec.arg, ConstantArgument):
            inputs.append(Fixed(spec.arg.value))
            continue
        if not isinstance(spec.arg, TensorArgument):
            raise ImportRefusal(f"input {spec.arg.name} is neither a tensor nor a plain value; pass tensors")
        node = placeholders[spec.arg.name]
        type_ = type_of(node, node.meta["val"], importer.sizes)
        if spec.kind is InputKind.USER_INPUT:
            inputs.append(importer.leaf(node, Input(spec.arg.name, type_)))
        else:
            key = state.keys[str(spec.target)]
            leaf = Weight(key, type_, mutable=key in state.written)
            importer.leaf(node, leaf, is_memory=spec.target in state.views)
    return inputs


def _declare_sizes(
    functional: ExportedProgram, placeholders: Mapping[str, fx.Node], sizes: Sizes, arguments: Sequence[Any]
) -> None:
    """Takes note of the open sizes that the user's arguments show."""
    specs = [s for s in functional.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]
    try:
        for spec, argument in zip(specs, arguments, strict=True):
            if isinstance(spec.arg, TensorArgument) and isinstance(argument, Tensor):
                shape = placeholders[spec.arg.name].meta["val"].shape
                sizes.declare(spec.arg.name, shape, argument.shape, functional.range_constraints)
    except OpenSizeError as error:
        raise ImportRefusal(f"{error}; export with static sizes") from error


def _outputs(
    functional: ExportedProgram, state: State, importer: Importer
) -> tuple[tuple[Value, ...], tuple[int | Fixed, ...]]:
    """The graph's outputs, and where they are among the leaves of the result; writes to buffers become effects.

    Raises:
        ImportRefusal: the program writes to its inputs or parameters.
    """
    nodes = {node.name: node for node in functional.graph.nodes}
    outputs: list[Value] = []
    places: list[int | Fixed] = []
    for spec in functional.graph_signature.output_specs:
        if spec.kind is OutputKind.BUFFER_MUTATION:
            key = state.keys[str(spec.target)]
            buffer = make(Weight(key, tensor_type(state.tensors[key]), mutable=True)).value
            importer.effect(*write(buffer, importer.env[nodes[spec.arg.name]]))
        elif spec.kind is not OutputKind.USER_OUTPUT:
            raise ImportRefusal(_explain_write(spec.kind, spec.target))
        elif isinstance(spec.arg, ConstantArgument):
            places.append(Fixed(spec.arg.value))
        else:
            value = importer.env.get(nodes[spec.arg.name])
            if not isinstance(value, Value):
                raise ImportRefusal(f"output {spec.arg.name} is a number read from a tensor; return the tensor instead")
            places.append(len(outputs))
            outputs.append(value)
    return tuple(outputs), tuple(places)


def _at_all_sizes(contract: Contract, outputs: Sequence[Value], importer: Importer) -> Contract:
    """A contract observed on the example inputs, with the strides that outputs of open sizes have in general.

    Raises:
        ImportRefusal: they cannot be told.
    """
    strides: list[tuple[Dim, ...]] = []
    for index, (value, seen) in enumerate(zip(outputs, contract.strides, strict=True)):
        # A value of fixed sizes may be a part of one of open sizes, and lie as that does.
        wanted = importer.sizes.strides(importer.layouts[value]) if importer.sizes.any else seen
        if wanted is None or not _lie_alike(value.type.sizes, wanted, seen):
            if value.type.open:
                raise ImportRefusal(f"output {index} has strides that open sizes do not tell; export with static sizes")
            wanted = seen
        strides.append(wanted)
    return replace(contract, strides=tuple(strides))


def _lie_alike(sizes: Sequence[int], wanted: Sequence[Dim], seen: Sequence[Dim]) -> bool:
    """Whether strides are in the example what was seen there; those of axes of size 1 place no element."""
    places = zip(map(at_example, wanted), seen, sizes, strict=True)
    return all(size == 1 or expected == found for expected, found, size in places)


def _explain_write(kind: OutputKind, target: str | None) -> str:
    if kind is OutputKind.USER_INPUT_MUTATION:
        return f"the model writes to its input {target}; clone the input in the model before writing to it"
    if kind is OutputKind.PARAMETER_MUTATION:
        return f"the model writes to its parameter {target}; make it a buffer"
    return f"the program has an output of kind {kind.name.lower()}; export the model for inference"


def _signature(
    functional: ExportedProgram, inputs: Sequence[Node | Fixed], places: tuple[int | Fixed, ...]
) -> Signature:
    call = functional.call_spec
    assert call.out_spec is not None
    names = functional.module_call_graph[0].signature
    in_spec = _in_spec(functional)
    argument_names = names.forward_arg_names if names is not None else None
    if argument_names is None:
        positional, keywords = in_spec.child(0), in_spec.child(1)
        argument_names = [*(f"arg_{index}" for index in range(positional.num_children)), *keywords.context]
    for name in HIDING.intersection(argument_names):
        raise ImportRefusal(
            f"the argument {name!r} hides a name that exported programs need; rename it, or leave it to its default"
        )
    return Signature(in_spec, call.out_spec, tuple(argument_names), tuple(map(_leaf, inputs)), places)


def _in_spec(functional: ExportedProgram) -> TreeSpec:
    in_spec = functional.call_spec.in_spec
    assert in_spec is not None
    return in_spec


def _leaf(leaf: Node | Fixed) -> str | Fixed:
    if isinstance(leaf, Fixed):
        return leaf
    assert isinstance(leaf.op, Input)
    return leaf.op.key
