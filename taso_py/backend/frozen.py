"""Frozen modules: they compute no gradients, and asking for one is an error, never a wrong number.

Weights are folded, kernels of libraries have no derivatives, and results overwrite dead operands; so a built module
runs with gradients off, in every grad mode. If an argument requires gradients, so do the results, and a backward pass
that reaches them raises :class:`GradientError`. Frozen state cannot be pickled either.

Kernels cannot be compiled a second time, so a module that calls any runs uncompiled behind ``torch.compile``.

Invariant: values are those of a call under ``torch.no_grad()``; without an argument that requires gradients, the
results require none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, update_wrapper
from typing import Any, NoReturn, Self

import torch
import torch._C._dynamo.eval_frame
from torch import Tensor, fx
from torch.autograd import forward_ad
from torch.fx.graph import CodeGen, _PyTreeCodeGen  # pyright: ignore[reportPrivateUsage]
from torch.utils import _pytree as pytree

from taso_py.ir.errors import TasoError

_frames: Any = torch._C._dynamo.eval_frame


class FrozenError(TasoError):
    """An operation that a frozen module does not support."""


class GradientError(FrozenError):
    """A gradient is asked of a frozen module."""


NO_GRADIENTS = (
    "an optimized module is frozen and has no gradients; call the original module where an argument requires "
    "gradients, or detach the argument"
)
NO_TRACE = (
    "torch.jit.trace cannot express an optimized module, whose kernels hold weights packed for this machine; save it "
    "with optimize(..., output=FOLDER), or export it with torch.export"
)
NO_EXPORT = (
    "a module that another engine computes cannot be exported or traced; export the PyTorch program that "
    "optimize(..., output=FOLDER) saves beside it: torch.export.load(FOLDER/model.pt2)"
)
NO_CAST = (
    "an optimized module is for one element type and device, which its kernels' weights are packed for; optimize the "
    "model cast or moved instead"
)
NO_PICKLE = (
    "an optimized module cannot be pickled, since its kernels hold weights packed for this machine; save it with "
    "optimize(..., output=FOLDER) and read it with taso_py.load(FOLDER)"
)


KINDS = "kinds"
"""The ``meta`` key under which a built module says of which element types and devices its inputs and weights are, since
those that kernels pack or engines hold are none of its parameters and buffers."""
COMPILED_ALREADY = "an optimized module has its kernels already and is called as it is; leave fullgraph off around it"


def _called(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return run(*args, **kwargs)


def _hidden(function: Callable[..., Any], reason: str | None = None) -> Any:
    """Return a function that compilers call and do not trace, as ``torch.compiler.disable`` gives it.

    That function imports PyTorch's compiler, which takes as long as PyTorch itself. This one has the marks that the
    compiler looks for, and imports it when it is called.
    """
    if not hasattr(_frames, "set_code_exec_strategy"):
        return torch.compiler.disable(function, reason=reason)
    made = cache(lambda: torch.compiler.disable(function, reason=reason))

    def call(*args: Any, **kwargs: Any) -> Any:
        return made()(*args, **kwargs)

    update_wrapper(call, function)
    # Its own frame is not compiled either.
    skip, default = _frames._FrameAction.SKIP, _frames._FrameAction.DEFAULT
    _frames.set_code_exec_strategy(call.__code__, _frames._FrameExecStrategy(skip, default))
    marks = {"disable": True, "disable_msg": reason, "disable_recursive": True, "orig_callable": function}
    for name, value in {**marks, "wrapper_id": id(call)}.items():
        setattr(call, f"_torchdynamo_{name}", value)
    return call


uncompiled: Any = _hidden(_called, COMPILED_ALREADY)
"""Calls a function uncompiled, whatever compiles the caller: Inductor asserts that packed weights are constants, which
is only true under freezing (PyTorch 2.13)."""


def without_gradients(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function with gradients off; return its result, through which a backward pass to the arguments raises.

    So does one through arguments that the function has written to.

    An exported program cannot represent that error: in it, the result is a constant.

    Raises:
        GradientError: an argument has a tangent of forward-mode differentiation.
    """
    if torch.compiler.is_exporting():
        args, kwargs = pytree.tree_map_only(Tensor, Tensor.detach, (args, kwargs))
    tensors = _tensors(args) + _tensors(kwargs.values()) if kwargs else _tensors(args)
    differentiated = [tensor for tensor in tensors if tensor.requires_grad]
    if forward_ad._current_level >= 0 and any(map(_has_tangent, tensors)):  # pyright: ignore[reportPrivateUsage]
        raise GradientError(NO_GRADIENTS)
    versions = list(map(_version, tensors)) if differentiated else []
    # The context manager of this takes ten times as long.
    torch._C._set_grad_enabled(False)  # pyright: ignore[reportPrivateUsage]
    try:
        result = run(*args, **kwargs)
    finally:
        torch._C._set_grad_enabled(True)  # pyright: ignore[reportPrivateUsage]
    if not differentiated:
        return result
    written = [tensor for tensor, before in zip(tensors, versions, strict=True) if _version(tensor) != before]
    return _UNTRACED(result, differentiated, written)


def _tensors(arguments: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for argument in arguments:
        if isinstance(argument, Tensor):
            found.append(argument)
        elif argument is not None:
            found += [leaf for leaf in pytree.tree_leaves(argument) if isinstance(leaf, Tensor)]
    return found


def _has_tangent(tensor: Tensor) -> bool:
    return forward_ad.unpack_dual(tensor).tangent is not None


def _version(tensor: Tensor) -> int:
    """Return a number that every write to a tensor changes; tensors of inference mode have none."""
    return 0 if tensor.is_inference() else tensor._version


def _refusing(result: Any, arguments: list[Tensor], written: list[Tensor]) -> Any:
    """Return a result whose tensors require gradients and raise in a backward pass, except arguments among them.

    Arguments that were written to are made such tensors themselves.
    """
    for tensor in written:
        if tensor.is_floating_point() or tensor.is_complex():
            _RefusalInPlace.apply(tensor, *arguments)
    given = {id(argument) for argument in arguments}
    leaves, structure = pytree.tree_flatten(result)
    marked = {
        id(leaf): leaf
        for leaf in leaves
        if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex()) and id(leaf) not in given
    }
    if not marked:
        return result
    refusing = _Refusal.apply(len(marked), *marked.values(), *arguments)
    replaced = dict(zip(marked, refusing, strict=True))
    return pytree.tree_unflatten([replaced.get(id(leaf), leaf) for leaf in leaves], structure)


_UNTRACED: Any = _hidden(_refusing)
""":func:`_refusing`, hidden from compilers, which would trace its derivative and stop where it raises."""


class _Refusal(torch.autograd.Function):
    """Identity of the first ``count`` tensors that depends on the others and has a derivative that raises."""

    generate_vmap_rule = True

    @staticmethod
    def forward(count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        # Detached, they are no views made in here, which callers might not write to.
        return tuple(tensor.detach() for tensor in tensors[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        del ctx, inputs, output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> NoReturn:
        del ctx, gradients
        raise GradientError(NO_GRADIENTS)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        del ctx, tangents
        raise GradientError(NO_GRADIENTS)


class _RefusalInPlace(torch.autograd.Function):
    """Write of nothing to the first tensor, which depends on the others then and has a derivative that raises."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, *_: Tensor) -> Tensor:
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> NoReturn:
        del ctx, gradients
        raise GradientError(NO_GRADIENTS)


class FrozenModule(fx.GraphModule):
    """A graph module that can be copied but not pickled, since its code names functions of this process."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Apply casts and moves; refuse them unless they change nothing."""
        own = {(tensor.dtype, tensor.device) for tensor in (*self.parameters(), *self.buffers())}
        for dtype, device in own | self.meta.get(KINDS, set[Any]()):
            found = fn(torch.empty(0, dtype=dtype, device=device))
            if (found.dtype, found.device) != (dtype, device):
                raise FrozenError(NO_CAST)
        return super()._apply(fn, recurse)

    def _slow_forward(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse ``torch.jit.trace``, which calls this in place of ``forward`` and cannot represent packed weights."""
        if self.has_kernels:
            raise FrozenError(NO_TRACE)
        return super()._slow_forward(*args, **kwargs)

    @property
    def has_kernels(self) -> bool:
        """True if it calls kernels, which hold weights that are packed for this machine."""
        codegen = self.graph._codegen  # pyright: ignore[reportPrivateUsage]
        return isinstance(codegen, FrozenCodeGen) and codegen.has_kernels

    def __reduce__(self) -> NoReturn:
        raise FrozenError(NO_PICKLE)

    def __deepcopy__(self, memo: dict[int, Any]) -> fx.GraphModule:
        """Return a copy with its own tensors, except those that kernels have packed, which are never written to."""
        # Trees of arguments do not change, and copying them warns (PyTorch 2.13).
        specs = [vars(self)[name] for name in ("_in_spec", "_out_spec") if name in vars(self)]
        memo.update((id(spec), spec) for spec in specs)
        return super().__deepcopy__(memo)

    def __copy__(self) -> FrozenModule:
        """Return a module that shares this module's tensors."""
        copied = FrozenModule(self, self.graph, type(self).__name__)
        copied.meta = self.meta
        return copied


class FrozenRunner:
    """The compiled or captured form of a module, called like the module."""

    def __init__(self, run: Callable[..., Any]) -> None:
        """Wrap a function that computes the same as the module."""
        self._run = run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with gradients off."""
        if torch.compiler.is_dynamo_compiling():  # to the compiler that traces it
            return uncompiled(self, *args, **kwargs)
        if torch.is_grad_enabled():
            return without_gradients(self._run, *args, **kwargs)
        return self._run(*args, **kwargs)

    def __reduce__(self) -> NoReturn:
        raise FrozenError(NO_PICKLE)

    def __copy__(self) -> Self:
        """Return the runner itself, since it cannot be changed."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the runner itself; copies of one that writes to buffers share them."""
        return self


class KeywordCodeGen(_PyTreeCodeGen):
    """Code generator whose function takes the keyword arguments of the example by name only.

    PyTorch's takes them by position too, in the order of the example; the original may have another one, or further
    arguments in between.
    """

    @property
    def arguments(self) -> tuple[list[str], list[str]]:
        """The names of the arguments, and of those by keyword."""
        names, count = self.pytree_info.orig_args, self.pytree_info.in_spec.child(1).num_children
        return names[: len(names) - count], names[len(names) - count :]

    def head(self, maybe_return_annotation: str, *, expanded_def: bool) -> str:
        """Return the signature of the function."""
        given, keywords = self.arguments
        marked = [*given, *(["*", *keywords] if keywords else [])]
        return CodeGen.gen_fn_def(self, marked, maybe_return_annotation, expanded_def=expanded_def)

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, *, expanded_def: bool = False) -> str:
        """Return the head of the function: its signature, the flattening of arguments."""
        whole = super().gen_fn_def(free_vars, maybe_return_annotation, expanded_def=expanded_def)
        names = list(self.pytree_info.orig_args)
        bare = CodeGen.gen_fn_def(self, names, maybe_return_annotation, expanded_def=expanded_def)
        return self.head(maybe_return_annotation, expanded_def=expanded_def) + whole.removeprefix(bare)


class FrozenCodeGen(KeywordCodeGen):
    """Code generator whose code turns gradients off before anything else."""

    has_kernels = False
    """True if kernels are called, which are not compiled again."""
    is_flat = False
    """True if every argument is a leaf, so that no trees need be flattened, which takes 4 microseconds."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the code generator itself, which nothing changes; copying its trees of arguments would warn."""
        return self

    def additional_globals(self) -> list[tuple[str, Any]]:
        """Add the functions that the first lines of the code call to its globals."""
        own = [(without_gradients.__name__, without_gradients), ("uncompiled", uncompiled)]
        return [*super().additional_globals(), *own]

    def gen_var_bindings(self, fn_args: list[str], free_vars: list[str], expanded_def: bool) -> str:
        """Return the code that flattens the arguments into the graph's own names."""
        if not self.is_flat:
            return super().gen_var_bindings(fn_args, free_vars, expanded_def)
        names = [variable.split(":")[0].split("#")[0] for variable in free_vars]
        return f"{self._format_annotations(free_vars, expanded_def)}\n    {', '.join(names)}, = {', '.join(fn_args)},"

    def generate_output(self, output_args: Any, **given: Any) -> str:
        """Return the code that returns the results as a tree; a leaf or a tuple of leaves is returned directly."""
        spec, written = self.pytree_info.out_spec, given.get("repr_fn") or repr
        if spec is not None and spec.is_leaf():
            return f"return {written(output_args[0])}"
        if spec is not None and spec.type is tuple and all(child.is_leaf() for child in spec.children()):
            return f"return {written(tuple(output_args))}"
        return super().generate_output(output_args, **given)

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, *, expanded_def: bool = False) -> str:
        """Return the head of the function: its signature, the change of grad mode, the flattening of arguments."""
        whole = super().gen_fn_def(free_vars, maybe_return_annotation, expanded_def=expanded_def)
        head = self.head(maybe_return_annotation, expanded_def=expanded_def)
        given, keywords = self.arguments
        call = f"({', '.join(['self.forward', *given, *(f'{name}={name}' for name in keywords)])})"
        guard = f"\n    if torch.is_grad_enabled():\n        return {without_gradients.__name__}{call}"
        if self.has_kernels:
            guard = f"\n    if torch.compiler.is_dynamo_compiling():\n        return uncompiled{call}{guard}"
        return head + guard + whole.removeprefix(head)
