"""Conversion of graphs to ``torch.fx.GraphModule``: ATen calls or the kernels of a plan, called as the original was.

Invariant: the module computes the graph, effects in order, writes to buffers and inputs last; called on the example
inputs it keeps the original's contract. It never writes to the program's own weights.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.fx.graph import _PyTreeInfo  # pyright: ignore[reportPrivateUsage]

from taso_py.backend.contract import ContractError, input_keys, keep_contract, outputs_of_repeated_arguments
from taso_py.backend.direct import call_directly
from taso_py.backend.division import divided
from taso_py.backend.fold import evaluate
from taso_py.backend.frozen import KINDS, FrozenCodeGen, FrozenModule
from taso_py.backend.guard import check_fixed, check_layout, check_tensor, check_tree, check_writable
from taso_py.backend.inplace import write_in_place
from taso_py.backend.lowering import Caller, lower, materialize, register_modules
from taso_py.backend.overwrite import OVERWRITING, TYPE, overwrite_dead
from taso_py.backend.plan import NO_PLAN, Format, Kernel, Packs, Plan, PlanStep, is_formatted, laid_out
from taso_py.backend.program import Fixed, Program, Signature
from taso_py.backend.sizes import SizeWriter, resolving
from taso_py.backend.storage import COMPUTES, KERNEL
from taso_py.backend.tensors import TORCH_DTYPES
from taso_py.backend.weights import CONDITIONS, STATE, assemble, attach
from taso_py.backend.writes import Writes, is_write, may_show_writes, ordered_writes, state_of
from taso_py.ir.errors import InvariantError
from taso_py.ir.graph import Graph, topological
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Constant, Input, Operator, Weight
from taso_py.ops.contraction import Linear, Matmul
from taso_py.ops.opaque import Opaque
from taso_py.ops.selection import Take

aten = torch.ops.aten

PACKED_BYTES = "packed_bytes"
"""The ``meta`` key under which a built module says how many bytes of weights its kernels have packed."""
_READS_MEMORY = "aten.as_strided.default"
_ALWAYS_DENSE = (Linear, Matmul, Take)
"""Operators that lay out their results in row-major order, whatever the layout of their operands."""


def build(program: Program, plan: Plan = NO_PLAN) -> fx.GraphModule:
    """Return the module that computes a program's graph.

    Args:
        program: the program.
        plan: its kernels pack their weights now, and weights that only they read are not stored twice.

    Returns:
        A module in evaluation mode that takes the arguments the original took and returns the same tree. It is frozen
        (:mod:`taso_py.backend.frozen`). Each fx node of a graph node has that node's digest in ``meta["digest"]``.
    """
    root, places = assemble(program.graph, program.weights, program.parameters)
    writer = _Writer(program, plan, root, places=places)
    writer.write(program.graph)
    write_in_place(writer.graph)
    if plan.overwrites:
        overwrite_dead(writer.graph)
    if writer.has_kernels:
        writer.forget_gradients()
    module = FrozenModule(root, writer.graph, "Optimized")
    module.meta[PACKED_BYTES] = writer.packs.nbytes
    module.meta[STATE] = {key: places[key] for key in state_of(program.graph)}
    module.meta[KINDS] = _kinds(program)
    for place in writer.packed.values():
        module.register_buffer(place, module.get_buffer(place), persistent=False)
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    own = {key: state[place] for key, place in places.items() if place in state}
    keep_contract(module, program, own, writer.size)
    if plan.direct:
        call_directly(module.graph)
    return _called_as(program.signature, module, has_kernels=writer.has_kernels)


def build_around(program: Program, computes: nn.Module, late: Graph | None = None) -> fx.GraphModule:
    """Return the module that calls another one for a program's outputs, and is itself called as the original was.

    Args:
        program: gives the result's signature, conditions on sizes and contract.
        computes: computes the pure part of the program's graph (:func:`~taso_py.backend.division.divided`): called
            with the inputs in order, returns the outputs in order, in storage of their own.
        late: makes what is written of what it returns, as :func:`~taso_py.backend.division.divided` has it; None if it
            returns whole contents.

    Raises:
        InvariantError: the graph has other effects than writes and control flow without effects of its own, which the
            module would omit.
        ContractError: an output is a view of an argument that other calls may give in another memory layout, or
            ``late`` makes something else than what is written.
    """
    division = divided(program.graph, whole=True)
    graph = division.graph
    if outputs_of_repeated_arguments(program):
        raise ContractError("it returns a view of an argument whose elements share memory")
    if not all(map(is_write, graph.effects)):
        raise InvariantError("a graph with effects cannot be computed by one call")
    state = Graph((), tuple(node.value for node in state_of(graph).values()))
    root, places = assemble(state, program.weights, program.parameters)
    root.add_module(COMPUTES, computes)
    writer = _Writer(program, NO_PLAN, root, places=places)
    writer.write_around(graph, division.late if late is None else late)
    write_in_place(writer.graph)
    module = FrozenModule(root, writer.graph, "Optimized")
    module.meta[PACKED_BYTES] = 0
    module.meta[STATE] = places
    module.meta[KINDS] = _kinds(program)
    keep_contract(module, program, {key: module.get_buffer(place) for key, place in places.items()}, writer.size)
    return _called_as(program.signature, module)


def _kinds(program: Program) -> set[tuple[torch.dtype, torch.device]]:
    """Return the element types and devices of a program's inputs and weights."""
    return {(tensor.dtype, tensor.device) for tensor in (*program.example_inputs, *program.weights.values())}


def _read_by_strides(graph: Graph) -> Sequence[Value]:
    """Return the inputs on whose layout it depends what calls read by strides: of them, or of what is computed of them.

    Most operators lay out their results as their operands are.
    """
    waiting = [
        node.inputs[0] for node in graph.nodes if isinstance(node.op, Opaque) and node.op.target == _READS_MEMORY
    ]
    found = dict.fromkeys(waiting)
    while waiting:
        value = waiting.pop()
        if not isinstance(value.node.op, _ALWAYS_DENSE):
            waiting += [operand for operand in value.node.inputs if operand not in found]
            found.update(dict.fromkeys(value.node.inputs))
    return [value for value in found if isinstance(value.node.op, Input)]


def _called_as(signature: Signature, module: fx.GraphModule, *, has_kernels: bool = False) -> fx.GraphModule:
    """Return a module with flat arguments and results, made to take and give the trees of a signature."""
    codegen = _codegen(signature)
    codegen.has_kernels = has_kernels
    module.graph.set_codegen(codegen)
    module.graph.lint()
    module.recompile()
    return module.eval()


class _Writer:
    """Writer of a graph's calls into an fx graph with flat arguments and results."""

    def __init__(self, program: Program, plan: Plan, root: nn.Module, places: Mapping[str, str]) -> None:
        self.graph = fx.Graph()
        self._program = program
        self._plan = plan
        self._inside = {node for step in plan.steps.values() if step.kernel for node in step.kernel.nodes[:-1]}
        self._root, self._places = root, places
        self.packs = Packs()
        self.packed: dict[Tensor, str] = {}
        """Attribute names of packed weights, which are not part of the module's state."""
        self.has_kernels = False
        """True if kernels are called that no compiler can trace."""
        self._values: dict[Value, fx.Node] = {}
        self._gives: dict[Value, Format] = {}
        self._converted: dict[Value, fx.Node] = {}
        self._fixed: dict[fx.Node, Fixed] = {}
        self.size = SizeWriter(self.graph)
        """Writer of the computations of open sizes."""

    def write(self, graph: Graph) -> None:
        """Write the whole graph; the results are the leaves of the original's result."""
        self._placeholders(graph)
        writes = [node for node in graph.effects if is_write(node)]
        contents = [node.inputs[1] for node in writes]
        first = [node for node in graph.effects if not is_write(node)]
        for node in topological([*first, *(value.node for value in (*contents, *graph.outputs))]):
            self._node(node)
        # Returned and written values must be as they were before the writes.
        kept = {value: self._kept(value, bool(writes)) for value in (*contents, *graph.outputs)}
        returned = [kept[value] for value in graph.outputs]
        self._write_leaves(writes, [kept[content] for content in contents], returned)
        self._erase_unread([*kept.values(), *returned])
        self._return(returned)

    def _write_leaves(self, writes: Sequence[Node], contents: Sequence[fx.Node], returned: list[fx.Node]) -> None:
        """Write new contents to leaves; those that the original returns take the place of what is returned."""
        for node, content in zip(writes, contents, strict=True):
            leaf, made = node.inputs
            self._node(leaf.node)
            # State has no history: gradients would lead back through all calls so far.
            state = self._call(node, aten.detach.default, content)
            written = self._call(node, aten.copy_.default, self._values[leaf], state)
            for index, value in enumerate(self._program.graph.outputs):
                if value == made and self._is_returned(leaf.node.op, index):
                    returned[index] = written

    def _is_returned(self, leaf: Operator, output: int) -> bool:
        """Return whether the original returns a leaf that it has written to as an output, rather than a copy."""
        kind = "input" if isinstance(leaf, Input) else "weight"
        shared = self._program.contract.shared
        return isinstance(leaf, Input | Weight) and (f"output {output}", f"{kind} {leaf.key}") in shared

    def forget_gradients(self) -> None:
        """Make an exported program treat arguments and weights as constants: kernels have no derivatives."""
        self._root.requires_grad_(False)
        for node in self.graph.nodes:
            if node.target is check_tensor:
                node.args = (*node.args, True)

    def write_around(self, graph: Graph, late: Graph) -> None:
        """Write one call of the submodule ``COMPUTES``, which returns all outputs, and then the writes."""
        self._placeholders(graph)
        state = state_of(graph).values()
        for node in state:
            self._node(node)
        results = self.graph.call_module(COMPUTES, tuple(self._values[node.value] for node in (*graph.inputs, *state)))
        writes = ordered_writes(graph)
        leaves, given = late.inputs[: len(writes)], late.inputs[len(writes) :]
        if [node.types for node in leaves] != [write.types for write in writes]:
            raise ContractError("what is written is not what its files say")
        count = len(graph.outputs)
        made = [self._call(None, operator.getitem, results, place) for place in range(count + len(given))]
        returned = made[:count]
        self._values.update(
            {node.value: self._values[write.inputs[0]] for node, write in zip(leaves, writes, strict=True)}
        )
        for node, result in zip(given, made[count:], strict=True):
            self._values[node.value] = result
            result.meta[TYPE] = node.types[0]
        for node in late.nodes:
            self._node(node)
        self._write_leaves(writes, [self._values[content] for content in late.outputs], returned)
        self._erase_unread(returned)
        self._return(returned)

    def _return(self, outputs: Sequence[fx.Node]) -> None:
        """Write the return: the leaves of the original's result, some of which are not tensors."""
        leaves = self._program.signature.outputs
        self.graph.output([leaf.value if isinstance(leaf, Fixed) else outputs[leaf] for leaf in leaves])

    def _placeholders(self, graph: Graph) -> None:
        inputs = {node.op.key: node for node in graph.inputs if isinstance(node.op, Input)}
        for index, leaf in enumerate(self._program.signature.inputs):
            if not isinstance(leaf, Fixed):
                node = inputs[leaf]
                self._values[node.value] = self.graph.placeholder(leaf)
                self._values[node.value].meta[TYPE] = node.types[0]
            else:
                self._fixed[self.graph.placeholder(f"fixed_{index}")] = leaf
        given = {key: self._values[node.value] for key, node in inputs.items()}
        for key, node in inputs.items():
            type_ = node.types[0]
            fixed = tuple(size if isinstance(size, int) else None for size in type_.shape)
            arguments = (self._values[node.value], key, fixed, TORCH_DTYPES[type_.dtype])
            self._values[node.value] = self.graph.call_function(check_tensor, arguments)
            self._values[node.value].meta[TYPE] = type_
        self._check_writes(graph, given)
        self._check_layouts(graph)
        self.size.declare(graph, {node: self._values[node.value] for node in inputs.values()})
        for placeholder, leaf in self._fixed.items():
            self.graph.call_function(check_fixed, (placeholder, leaf.value))
        if self._program.conditions is not None:
            self._root.add_module(CONDITIONS, self._program.conditions)
            self.graph.call_module(CONDITIONS, tuple(node for node in self.graph.nodes if node.op == "placeholder"))

    def _check_writes(self, graph: Graph, given: Mapping[str, fx.Node]) -> None:
        """Write the check of what the module writes to, given the arguments by key, as they are passed."""
        writes = Writes.of(graph)
        if not writes or not given:
            return
        written = {key: given[key] for key in writes.inputs}
        others = [placeholder for key, placeholder in given.items() if key not in written]
        leaves = {key: node for key, node in state_of(graph).items() if key in writes.buffers}
        for node in leaves.values():
            self._node(node)
        state = {key: self._values[node.value] for key, node in leaves.items()}
        self.graph.call_function(check_writable, (written, others, state))

    def _check_layouts(self, graph: Graph) -> None:
        """Write the checks of the arguments on whose layout it depends what is read by strides."""
        examples = dict(zip(input_keys(self._program), self._program.example_inputs, strict=True))
        for value in _read_by_strides(graph):
            key, strides = cast(Input, value.node.op).key, None
            if not examples[key].is_contiguous():
                if value.type.open:
                    continue
                strides = tuple(examples[key].stride())
            self.graph.call_function(check_layout, (self._values[value], key, strides))

    def _node(self, node: Node) -> None:
        if node in self._inside or isinstance(node.op, Input) or (node.types and node.outputs[0] in self._values):
            return
        if isinstance(node.op, Weight):
            self._values[node.value] = self.graph.get_attr(self._places[node.op.key])
            self._values[node.value].meta[TYPE] = node.types[0]
        elif not isinstance(node.op, Constant):
            step = self._plan.step(node)
            if step.kernel is None:
                operands = [self._read(value, step.reads) for value in node.inputs]
                variant = self._program.variants.get(node.digest, 0)
                results = lower(self._caller(node), node, operands, device=self._program.device, variant=variant)
            else:
                results = self._kernel(step.kernel, node, step)
            for value, result in zip(node.outputs, results, strict=True):
                self._values[value] = result
                result.meta[TYPE] = value.type
            self._gives.update((value, step.gives) for value in node.outputs if is_formatted(value))

    def _kernel(self, kernel: Kernel, node: Node, step: PlanStep) -> list[fx.Node]:
        """Write the call of a kernel that computes the outputs of a node."""
        program = self._program
        bound = kernel.bind([evaluate(value, program.weights, program.device) for value in kernel.statics], self.packs)
        operands = [self._read(value, step.reads) for value in kernel.operands]
        if self._plan.traced:
            result = self._call(node, bound.target, *operands, *map(self._packed, bound.rest))
        else:
            self.has_kernels = True
            result = self._call(node, bound.function, *operands)
            if step.reads is step.gives:
                result.meta[OVERWRITING] = bound.overwriting_function
        result.meta[KERNEL] = kernel.name
        if len(node.types) == 1:
            return [result]
        return [self._call(node, operator.getitem, result, index) for index in range(len(node.types))]

    def _packed(self, argument: object) -> object:
        """Return a kernel argument for the fx graph: tensors become buffers of the module."""
        if not isinstance(argument, Tensor):
            return argument
        if argument not in self.packed:
            # A compiler lays out an expanded constant at each call.
            is_expanded = not argument.is_mkldnn and not aten.is_non_overlapping_and_dense(argument)
            self.packed[argument] = attach(self._root, argument.contiguous() if is_expanded else argument)
        return self.graph.get_attr(self.packed[argument])

    def _read(self, value: Value, format_: Format) -> fx.Node | None:
        """Return the fx node of an operand in the memory format that its reader needs; None for a constant."""
        if not is_formatted(value) or self._gives.get(value, Format.DENSE) is format_:
            return self._values.get(value)
        if value not in self._converted:
            self._converted[value] = laid_out(self._caller(None), value, self._values[value], format_)
            self._converted[value].meta[TYPE] = value.type
        return self._converted[value]

    def _caller(self, node: Node | None) -> Caller:
        return resolving(lambda target, *args, **keywords: self._call(node, target, *args, **keywords), self.size)

    def _call(self, node: Node | None, target: Any, *arguments: Any, **keywords: Any) -> fx.Node:
        written = self.graph.call_function(target, *register_modules(self._root, (arguments, keywords), self.graph))
        if node is not None:
            written.meta["digest"] = node.digest
        return written

    def _kept(self, value: Value, is_written_to: bool) -> fx.Node:
        """Return the fx node to return for a value: a copy if a later write to a buffer might change it."""
        if isinstance(value.node.op, Constant):
            return materialize(self._caller(value.node), value.node.op, self._program.device)
        if is_written_to and may_show_writes(value):
            return self._call(value.node, aten.clone.default, self._values[value])
        return cast(fx.Node, self._read(value, Format.DENSE))

    def _erase_unread(self, kept: Collection[fx.Node]) -> None:
        """Erase weights and tuple accesses that nothing reads."""
        for node in reversed(self.graph.nodes):
            if (node.target is operator.getitem or node.op == "get_attr") and not node.users and node not in kept:
                self.graph.erase_node(node)


class _CheckedCodeGen(FrozenCodeGen):
    """Code generator whose code checks the structure of the arguments before it flattens them."""

    def additional_globals(self) -> list[tuple[str, Any]]:
        """Add the checking function to the globals of the code."""
        return [*super().additional_globals(), (check_tree.__name__, check_tree)]

    def gen_var_bindings(self, fn_args: list[str], free_vars: list[str], expanded_def: bool) -> str:
        """Return the code that flattens the arguments, preceded by the check of their structure."""
        flattening = super().gen_var_bindings(fn_args, free_vars, expanded_def)
        given = flattening.partition("fx_pytree.tree_flatten_spec(")[2]
        return f"\n    {check_tree.__name__}({given}{flattening}"


def _codegen(signature: Signature) -> FrozenCodeGen:
    """Return the code generator for the original's trees; Python itself checks arguments that are all leaves."""
    spec = signature.in_spec
    is_flat = all(leaf.is_leaf() for child in spec.children() for leaf in child.children())
    kind = FrozenCodeGen if is_flat else _CheckedCodeGen
    codegen = kind(_PyTreeInfo(list(signature.argument_names), spec, signature.out_spec))
    codegen.is_flat = is_flat
    return codegen
