"""From a module or an exported program to a :class:`~taso_py.backend.program.Program`.

Invariant: the program, built as it is, computes the original's bits and keeps the contract with its callers; a model
for which that is impossible is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
from taso_py.backend.generators import may_draw_random, own_draws_undone
from taso_py.backend.guard import why_not_writable
from taso_py.backend.identifiers import HIDING
from taso_py.backend.program import Contract, Fixed, Program, Signature
from taso_py.backend.tensors import tensor_type
from taso_py.backend.writes import Writes, write
from taso_py.frontend.decompose import read_calls
from taso_py.frontend.diagnosis import check_tensors, diagnosis
from taso_py.frontend.errors import ImportRefusal
from taso_py.frontend.export import export, fake_mode_of, functionalize
from taso_py.frontend.importer import Importer
from taso_py.frontend.original import OriginalRun, copy_arguments, run_original
from taso_py.frontend.sizes import OpenSizeError, Sizes
from taso_py.frontend.snapshot import Snapshot
from taso_py.frontend.source import type_of
from taso_py.frontend.state import ProgramState, find_state
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make
from taso_py.ir.operator import Input, Weight
from taso_py.ir.sign import Sign
from taso_py.ir.size import Dim, at_example


def import_module(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    live: Collection[str] = (),
    shapes: Mapping[str, Any] | None = None,
    positive: Collection[str] = (),
) -> Program:
    """Import a module as it behaves on example inputs.

    Args:
        module: it is exported as it is, so put it in evaluation mode first unless you want its training behaviour.
        args: positional example inputs; their shapes, types and strides become the program's.
        kwargs: keyword example inputs.
        live: names of buffers that other entry points of the model write to; they are read anew by each call.
        shapes: the dimensions to leave open, as torch.export takes them; all are fixed by default.
        positive: names of inputs whose elements are greater than zero, now and in every call.

    Raises:
        ImportRefusal: the model cannot be imported faithfully.
    """
    named: Mapping[str, Any] = kwargs or {}
    check_tensors(module, args, named)
    args, named = all_resolved(tuple(args)), all_resolved(dict(named))
    with own_draws_undone() as draws:
        run = run_original(module, args, named)
        before = Snapshot(module)
        try:
            exported = export(module, args, named, shapes)
            functional = functionalize(exported)
        except ImportRefusal as error:
            seen = diagnosis(module, *copy_arguments(args, named))
            raise ImportRefusal(seen or str(error)) from error
        finally:
            # Tracing writes to tensors that it treats as constants, and leaves traced values in attributes.
            before.restore()
        program = _import(exported, functional, run, live, positive)
        draws.possible = may_draw_random(program)
    return program


def import_program(
    exported: ExportedProgram,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    live: Collection[str] = (),
    positive: Collection[str] = (),
) -> Program:
    """Import an exported program.

    Args:
        exported: the program; it is not changed.
        args: positional example inputs, of the shapes and types it was exported for; by default those it has.
        kwargs: keyword example inputs.
        live: names of buffers that other entry points of the model write to; they are read anew by each call.
        positive: names of inputs whose elements are greater than zero, now and in every call.

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
    with own_draws_undone() as draws:
        run = run_original(module, args or (), kwargs or {})
        program = _import(exported, functionalize(exported), run, live, positive)
        draws.possible = may_draw_random(program)
    return program


def _tensor_results(run: OriginalRun, signature: Signature) -> list[Any]:
    """Return those results of the original run that correspond to outputs of the graph."""
    there, exported = len(run.results), len(signature.outputs)
    if there != exported:
        raise ImportRefusal(
            f"the model returns {there} values, and {exported} while it is exported; let it return the same in both"
        )
    return [r for r, leaf in zip(run.results, signature.outputs, strict=True) if isinstance(leaf, int)]


def _import(
    exported: ExportedProgram,
    functional: ExportedProgram,
    run: OriginalRun,
    live: Collection[str],
    positive: Collection[str],
) -> Program:
    """Import an export and its functional form, given a run of the original."""
    state = find_state(functional, live)
    mode, device = _mode_and_device(functional.graph)
    importer = Importer(Sizes(mode), device)
    arguments = run.arguments(_in_spec(functional))
    signs = _signs(functional, arguments, positive)
    inputs = _leaves(functional, state, importer, arguments, signs)
    for node in read_calls(functional.graph):
        importer.call(node)
    outputs, places = _outputs(functional, state, importer)
    signature = _signature(functional, inputs, places)
    graph = Graph(tuple(leaf for leaf in inputs if isinstance(leaf, Node)), outputs, tuple(importer.effects))
    keys = {node.op.key for node in graph.nodes if isinstance(node.op, Weight)}
    examples = {leaf: tensor for leaf, tensor in zip(signature.inputs, arguments, strict=True) if isinstance(leaf, str)}
    _check_writes(Writes.of(graph).inputs, examples, run)
    unseen = next((name for name in run.mutated if state.keys.get(name) not in state.written), None)
    if unseen is not None:
        raise ImportRefusal(
            f"the model writes to its {unseen}, which its export does not show; write to it by PyTorch's own operators"
        )
    returned = _tensor_results(run, signature)
    _check_shapes(outputs, returned)
    return Program(
        graph=graph,
        weights={key: state.tensor(key) for key in state.tensors if key in keys},
        parameters={key: flag for key, flag in state.parameters.items() if key in keys},
        state={key: state.tensors[key] for key in state.tensors if key in state.written & keys},
        signature=signature,
        contract=_with_general_strides(observe(returned, examples, state.tensors), outputs, importer),
        example_inputs=tuple(
            before
            for leaf, before in zip(signature.inputs, run.arguments_before(_in_spec(functional)), strict=True)
            if isinstance(leaf, str)
        ),
        device=importer.device,
        variants=importer.variants,
        provenance=importer.provenance,
        conditions=_conditions(exported) if importer.sizes.any else None,
    )


def _conditions(exported: ExportedProgram) -> nn.Module | None:
    """Return the module that checks an export's assumptions on open sizes beyond their ranges, or None."""
    return getattr(exported.module(), "_guards_fn", None)


def _mode_and_device(graph: fx.Graph) -> tuple[FakeTensorMode, torch.device]:
    """Return the mode of the program's fake tensors and its device: the first one that is not the CPU, if any."""
    fakes = [node.meta["val"] for node in graph.nodes if isinstance(node.meta.get("val"), FakeTensor)]
    mode = fake_mode_of(graph) or FakeTensorMode()
    devices = [fake.device for fake in fakes]
    return mode, next((device for device in devices if device.type != "cpu"), torch.device("cpu"))


def _leaves(
    functional: ExportedProgram,
    state: ProgramState,
    importer: Importer,
    arguments: Sequence[Any],
    signs: Mapping[str, Sign],
) -> list[Node | Fixed]:
    """Import the placeholders and return the leaves of the user's arguments.

    Raises:
        ImportRefusal: an input is neither a tensor nor a plain value, or has open sizes that cannot be expressed.
    """
    placeholders = {node.name: node for node in functional.graph.nodes if node.op == "placeholder"}
    inputs: list[Node | Fixed] = []
    written = set(functional.graph_signature.user_inputs_to_mutate.values())
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
            name = spec.arg.name
            inputs.append(importer.leaf(node, Input(name, type_, name in written, signs.get(name, Sign.ANY))))
        else:
            key = state.keys[str(spec.target)]
            leaf = Weight(key, type_, mutable=key in state.written)
            importer.leaf(node, leaf, is_memory=spec.target in state.views)
    return inputs


def _given_tensors(functional: ExportedProgram, arguments: Sequence[Any]) -> dict[str, Tensor]:
    """Return the tensors among the user's arguments, by the names of the program's inputs."""
    specs = [spec for spec in functional.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    return {
        spec.arg.name: argument
        for spec, argument in zip(specs, arguments, strict=True)
        if isinstance(spec.arg, TensorArgument) and isinstance(argument, Tensor)
    }


def _signs(functional: ExportedProgram, arguments: Sequence[Any], positive: Collection[str]) -> dict[str, Sign]:
    """Return the signs of the inputs that are declared to be positive.

    Raises:
        ImportRefusal: there is no such input, or an element of its example is not positive, or the model writes to it.
    """
    given = _given_tensors(functional, arguments)
    for name in positive:
        if name not in given:
            raise ImportRefusal(f"there is no tensor {name!r} among the inputs to be positive: {', '.join(given)}")
        if not bool((given[name] > 0).all()):
            raise ImportRefusal(f"input {name} was declared positive, and its example has elements that are not")
        if name in functional.graph_signature.user_inputs_to_mutate.values():
            raise ImportRefusal(f"input {name} was declared positive, and the model writes to it")
    return dict.fromkeys(positive, Sign.POSITIVE)


def _declare_sizes(
    functional: ExportedProgram, placeholders: Mapping[str, fx.Node], sizes: Sizes, arguments: Sequence[Any]
) -> None:
    """Record the open sizes that the user's arguments show."""
    try:
        for name, tensor in _given_tensors(functional, arguments).items():
            shape = placeholders[name].meta["val"].shape
            sizes.declare(name, shape, tensor.shape, functional.range_constraints)
    except OpenSizeError as error:
        raise ImportRefusal(f"{error}; export with static sizes") from error


def _outputs(
    functional: ExportedProgram, state: ProgramState, importer: Importer
) -> tuple[tuple[Value, ...], tuple[int | Fixed, ...]]:
    """Return the graph's outputs and their positions among the leaves of the result; writes become effects.

    Raises:
        ImportRefusal: the program writes to its parameters.
    """
    nodes = {node.name: node for node in functional.graph.nodes}
    outputs: list[Value] = []
    places: list[int | Fixed] = []
    for spec in functional.graph_signature.output_specs:
        if spec.kind is OutputKind.BUFFER_MUTATION:
            key = state.keys[str(spec.target)]
            buffer = make(Weight(key, tensor_type(state.tensors[key]), mutable=True)).value
            importer.effect(*write(buffer, importer.env[nodes[spec.arg.name]]))
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            argument = importer.env[nodes[str(spec.target)]]
            if not isinstance(argument.node.op, Input):
                raise ImportRefusal(
                    f"the model writes to its input {spec.target}, a conjugate or negative view; pass a plain tensor"
                )
            importer.effect(*write(argument, importer.env[nodes[spec.arg.name]]))
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


def _with_general_strides(contract: Contract, outputs: Sequence[Value], importer: Importer) -> Contract:
    """Return a contract observed on the example inputs, with outputs' strides in terms of the open sizes.

    Raises:
        ImportRefusal: they cannot be expressed.
    """
    strides: list[tuple[Dim, ...]] = []
    for index, (value, seen) in enumerate(zip(outputs, contract.strides, strict=True)):
        # A value of fixed sizes may be a view of one with open sizes, and have its strides.
        wanted = importer.sizes.strides(importer.layouts[value]) if importer.sizes.any else seen
        if wanted is None or not _same_strides(value.type.sizes, wanted, seen):
            if value.type.open:
                raise ImportRefusal(
                    f"output {index} has strides that cannot be expressed by open sizes; export with static sizes"
                )
            wanted = seen
        strides.append(wanted)
    return replace(contract, strides=tuple(strides))


def _same_strides(sizes: Sequence[int], wanted: Sequence[Dim], seen: Sequence[Dim]) -> bool:
    """Return whether strides, at the example sizes, are those observed; axes of size 1 do not count."""
    places = zip(map(at_example, wanted), seen, sizes, strict=True)
    return all(size == 1 or expected == found for expected, found, size in places)


def _check_writes(known: Sequence[str], examples: Mapping[str, Tensor], run: OriginalRun) -> None:
    """Check that a run wrote to the inputs that the graph writes to only, and that no other input shows it.

    Raises:
        ImportRefusal: it did not, or another does.
    """
    unseen = next((name for name, tensor in examples.items() if name not in known and run.wrote_to(tensor)), None)
    if unseen is not None:
        # Where an operator's schema does not declare that it writes to its operand, the export shows no write.
        raise ImportRefusal(
            f"the model writes to its input {unseen}, which its export does not show; write to it by PyTorch's own "
            "operators"
        )
    others = [tensor for name, tensor in examples.items() if name not in known]
    reason = why_not_writable({name: examples[name] for name in known}, others)
    if reason is not None:
        raise ImportRefusal(f"the model writes to its input {reason}")


def _check_shapes(outputs: Sequence[Value], returned: Sequence[Any]) -> None:
    """Check that results of the run have the shapes that the export says.

    A model may tell that it is exported, and PyTorch may derive a wrong shape (that of an LSTM's states in 2.11).

    Raises:
        ImportRefusal: one has another shape.
    """
    for index, (value, result) in enumerate(zip(outputs, returned, strict=True)):
        if isinstance(result, Tensor) and tuple(result.shape) != tuple(value.type.sizes):
            raise ImportRefusal(
                f"output {index} has the shape {list(result.shape)}, and {list(value.type.sizes)} where it is exported "
                f"(PyTorch {torch.__version__}); let it be the same in both, or try a newer PyTorch"
            )


def _explain_write(kind: OutputKind, target: str | None) -> str:
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
    return Signature(
        in_spec, call.out_spec, argument_names=tuple(argument_names), inputs=tuple(map(_leaf, inputs)), outputs=places
    )


def _in_spec(functional: ExportedProgram) -> TreeSpec:
    in_spec = functional.call_spec.in_spec
    assert in_spec is not None
    return in_spec


def _leaf(leaf: Node | Fixed) -> str | Fixed:
    if isinstance(leaf, Fixed):
        return leaf
    assert isinstance(leaf.op, Input)
    return leaf.op.key
