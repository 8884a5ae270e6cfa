"""Built modules: callable as the original was, guarded, with the original's contract, on real and on fake tensors."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from taso_py.backend import build, build_around, fold
from taso_py.backend.guard import ArgumentError, check_fixed
from taso_py.backend.storage import COMPUTES
from taso_py.backend.weights import CONDITIONS, assemble, with_own_weights
from taso_py.checking.roundtrip import shared_storage
from taso_py.frontend import Program, import_module
from taso_py.ir.errors import InvariantError
from taso_py.ir.text import print_graph
from taso_py.ops.table import parse_graph
from taso_py.saving.artifact import reimport, serialize
from tests.round_trips import Model, round_trip

X = torch.arange(6.0).view(2, 3)


def rewritten(program: Program, text: str, **weights: Tensor) -> Program:
    return replace(program, graph=parse_graph(text), weights=weights)


def test_two_equal_outputs_do_not_share_memory() -> None:
    """They are one value of the graph, but were two tensors."""
    round_trip(Model(lambda s, x: (x + 1, x + 1)), X)
    round_trip(Model(lambda s, x: ((x + 1).expand(4, 2, 3), (x + 1).expand(4, 2, 3))), X)
    round_trip(Model(lambda s, x: ((x + 1).t(), (x + 1).t())), X)


def test_one_output_twice_shares_memory() -> None:
    module = build(import_module(Model(lambda s, x: ((y := x + 1), y)), (X,)))
    first, second = module(X)
    assert first.data_ptr() == second.data_ptr()


def test_copies_of_inputs_and_weights_stay_copies() -> None:
    round_trip(Model(lambda s, x: (x.clone(), x, s.w.clone(), s.w, x.t().clone()), w=torch.ones(3)), X)


def test_strides_are_restored_after_a_rewrite() -> None:
    program = import_module(Model(lambda s, x: (x + 1).t()), (X,))
    graph = (
        "graph(args_0: f32[2,3]) { c = constant{value=1.0, dtype=f32} return add(permute(args_0){order=[-1,-2]}, c) }"
    )
    found = build(rewritten(program, graph))(X)
    assert found.stride() == (1, 3)
    assert torch.equal(found, (X + 1).t())
    dense = """
        graph(args_0: f32[2,3]) {
          return contiguous(permute(add(args_0, constant{value=1.0, dtype=f32})){order=[-1,-2]})
        }"""
    found = build(rewritten(program, dense))(X)
    assert found.stride() == (1, 3)
    assert torch.equal(found, (X + 1).t())


def test_results_are_right_for_arguments_with_other_strides() -> None:
    """A view's strides follow those of the argument; only those of axes of size one are restored."""
    apart = torch.arange(6.0).view(2, 1, 3)[..., ::2]
    model = Model(lambda s, x: x[-1].unsqueeze(1))
    module = build(import_module(model, (apart,)))
    assert module(apart).stride() == model(apart).stride()
    exported = torch.export.export(module, (apart,), strict=False).module()
    for x in (apart, apart.contiguous(), apart.mT.contiguous().mT, torch.cat([apart, apart])[2:]):
        assert torch.equal(module(x), model(x))
        assert torch.equal(exported(x), model(x))


def test_what_is_read_by_strides_begins_where_the_argument_does() -> None:
    model = Model(lambda s, x: torch.as_strided(x, (3, 2), (1, 1)) * 2)
    module = build(import_module(model, (torch.arange(4.0),)))
    assert module(torch.arange(8.0)[4:]).tolist() == [[8, 10], [10, 12], [12, 14]]


def test_what_is_read_by_strides_lies_as_it_did() -> None:
    model = Model(lambda s, x, y: torch.as_strided(x, (3, 2), (1, 1)) * 2 + torch.as_strided(y @ y, (3, 2), (2, 1)))
    square = torch.arange(9.0).view(3, 3)
    module = build(import_module(model, (X, square)))
    apart = torch.arange(6.0).view(3, 2).t()
    for x in (X, X + 1, torch.cat([X, X])[2:]):
        for y in (square, square.t(), torch.cat([square, square], 1)[:, 3:]):
            assert torch.equal(module(x, y), model(x, y))
    for x in (apart, torch.cat([X, X], 1)[:, 3:]):
        with pytest.raises(ArgumentError, match="reads memory by strides, and was built for args_0 in row-major order"):
            module(x, square)
        assert torch.equal(module(x.contiguous(), square), model(x.contiguous(), square))
    again = build(reimport(serialize(module, (X, square), {})))
    with pytest.raises(ArgumentError, match="reads memory by strides"):
        again(apart, square)
    assert torch.equal(again(X, square), model(X, square))


def test_what_is_computed_of_an_argument_and_read_by_strides_lies_as_it_did() -> None:
    square, other = torch.arange(9.0).view(3, 3), torch.arange(9.0).view(3, 3).t()
    reads = Model(lambda s, x, y: torch.as_strided((x * 2).relu(), (3, 2), (1, 1)) + (y + 1).sum())
    for example, unlike, wanted in ((square, other, "in row-major order"), (other, square, r"with strides \[1, 3\]")):
        module = build(import_module(reads, (example, square)))
        for given in (example, example + 1):
            for y in (square, other):
                assert torch.equal(module(given, y), reads(given, y))
        with pytest.raises(ArgumentError, match=f"built for args_0 {wanted}; pass it so"):
            module(unlike, square)
    dense = Model(lambda s, x: torch.as_strided(x @ x, (3, 2), (1, 1)))
    module = build(import_module(dense, (square,)))
    assert all(torch.equal(module(x), dense(x)) for x in (square, other))


def test_what_is_written_to_buffers_has_no_history() -> None:
    """The copy of a module whose buffers had one could not be made, and it would grow with every call."""

    class Averaging(nn.Module):
        """Keeps a running mean of what a layer gives."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            result = self.layer(x)
            self.get_buffer("mean").mul_(0.9).add_(result.detach().mean(0))
            return result

    module = build(import_module(Averaging().eval(), (X,)))
    result = module(X.clone().requires_grad_())
    assert result.requires_grad
    assert not module.get_buffer("mean").requires_grad
    assert module.get_buffer("mean").abs().sum() > 0


def test_weights_of_its_own_are_as_tied_as_the_models() -> None:
    linear, other = nn.Linear(3, 3), nn.Linear(3, 3)
    other.bias = linear.bias
    program = import_module(nn.Sequential(linear, other).eval(), (X,))
    copies = with_own_weights(program).weights
    assert copies.keys() == program.weights.keys()
    assert all(torch.equal(copies[key], tensor) for key, tensor in program.weights.items())
    assert {t.data_ptr() for t in copies.values()}.isdisjoint(t.data_ptr() for t in program.weights.values())


def test_sharing_is_broken_after_a_rewrite() -> None:
    """A rewrite that proves an output equal to an input may not hand out the input."""
    program = import_module(Model(lambda s, x: x * 1.0), (X,))
    module = build(rewritten(program, "graph(args_0: f32[2,3]) { return args_0 }"))
    found = module(X)
    assert torch.equal(found, X)
    assert shared_storage((X,), {}, found) == frozenset()


def test_result_that_shows_a_write_is_kept_from_it() -> None:
    model = Model(lambda s, x: ((old := s.n.clone()), s.n.add_(1), old.view(-1), x + 1)[2:], n=torch.zeros(3))
    round_trip(model, X)


def test_arguments_are_checked() -> None:
    module = build(import_module(Model(lambda s, x, flag: x + torch.arange(3)), (X, True)))
    with pytest.raises(ArgumentError, match=r"args_0 of type torch\.float32 and shape \[2, 3\], not .* \[2, 1\]"):
        module(X[:, :1], True)
    with pytest.raises(ArgumentError, match=r"not torch\.float64"):
        module(X.double(), True)
    with pytest.raises(ArgumentError, match="built for the argument True, not False"):
        module(X, False)
    check_fixed(math.nan, math.nan)
    with pytest.raises(ArgumentError, match=r"built for the argument 0\.0, not -0\.0"):
        check_fixed(-0.0, 0.0)
    with pytest.raises(ArgumentError, match="built for the argument nan, not 1"):
        check_fixed(1.0, math.nan)
    with pytest.raises(ArgumentError, match="built for the argument True, not tensor"):
        module(X, torch.ones(2))
    assert torch.equal(module(X, True), X + torch.arange(3))


class Masked(nn.Module):
    """Two keywords, of which an example may give the second alone, or both the other way round."""

    def forward(self, x: Tensor, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        masked = x if mask is None else x * mask
        return masked if bias is None else masked + bias


def test_keyword_arguments_of_the_example_are_given_by_name_only() -> None:
    """By position the original would take another one."""
    for given in ({"bias": X}, {"bias": X, "mask": X}):
        module = build(import_module(Masked(), (X,), given))
        for order in (given, dict(reversed(given.items()))):
            again = {name: value + place for place, (name, value) in enumerate(order.items())}
            assert torch.equal(module(X, **again), Masked()(X, **again))
            assert torch.equal(module(x=X, **again), Masked()(X, **again))
        for others in ((X, *given.values()), (X, X + 1), (X,)):
            with pytest.raises(TypeError, match=r"positional argument|keyword-only argument"):
                module(*others)
    module = build(import_module(Masked(), (X, X, X)))
    assert torch.equal(module(X, bias=X, mask=X + 1), module(X, X + 1, X))
    grad = X.clone().requires_grad_()
    module = build(import_module(Masked(), (X,), {"bias": X}))
    assert torch.equal(module(grad, bias=X), 2 * X)


def test_the_structure_of_arguments_is_checked() -> None:
    """Flattening alone would take the elements that the example had, and leave out the others."""
    model = Model(lambda s, xs, named: sum(xs) * named["scale"])
    module = build(import_module(model, ([X, X], {"scale": X, "other": X})))
    assert torch.equal(module([X, X + 1], {"other": X, "scale": X + 2}), (2 * X + 1) * (X + 2))
    for xs, named, problem in (
        ([X, X, X], {"scale": X, "other": X}, "a sequence of 2 values here, not 3"),
        (X, {"scale": X, "other": X}, "a sequence of 2 values here, not 0"),
        ([X, X], {"scale": X}, "a dict with 'scale', 'other', not 'scale'"),
        ([X, X], {"scale": X, "other": X, "mask": X}, "not 'scale', 'other', 'mask'"),
        ([X, X], {"scale": None, "other": X}, "a tensor as args_1_scale, not NoneType"),
    ):
        with pytest.raises(ArgumentError, match=problem):
            module(xs, named)


def test_fx_nodes_name_their_graph_node() -> None:
    program = import_module(nn.Sequential(nn.Linear(3, 3), nn.ReLU()).eval(), (X,))
    digests = {node.meta["digest"] for node in build(program).graph.nodes if "digest" in node.meta}
    assert digests == {node.digest for node in program.graph.nodes if node.op.name in ("linear", "relu")}


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch copies its own deprecated class
def test_modules_can_be_copied() -> None:
    module = build(import_module(nn.Sequential(nn.Linear(3, 3), nn.ReLU()).eval(), (X,)))
    assert torch.equal(copy.deepcopy(module)(X), module(X))
    assert set(module.state_dict()) == {"0.weight", "0.bias"}


def test_meta_and_fake_tensors() -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 5)).eval()

    with torch.device("meta"):
        module, image = net(), torch.randn(2, 3, 6, 6)
    assert build(fold(import_module(module, (image,))))(image).shape == (2, 5)
    with FakeTensorMode():
        module, image = net(), torch.randn(2, 3, 6, 6)
        assert build(fold(import_module(module, (image,))))(image).shape == (2, 5)


def test_constants_as_outputs() -> None:
    program = import_module(Model(lambda s, x: x.sum()), (X,))
    module = build(rewritten(program, "graph(args_0: f32[2,3]) { return constant{value=2.5, dtype=f32} }"))
    assert module(X).item() == 2.5
    assert module(X).dtype is torch.float32


def test_names_that_a_graph_module_cannot_have() -> None:
    graph = parse_graph("""
        graph() {
          return weight{key="graph", type=f32[1]}, weight{key="a", type=f32[1]}, weight{key="a.b", type=f32[1]},
                 weight{key="a..c", type=f32[1]}, weight{key="training", type=f32[1]}, weight{key="d.e", type=f32[1]}
        }""")
    keys = ["graph", "a", "a.b", "a..c", "training", "d.e"]
    root, places = assemble(graph, {key: torch.ones(1) for key in keys}, {})
    assert {key: places[key] for key in ("a", "d.e")} == {"a": "a", "d.e": "d.e"}
    assert sorted(places.values()) == sorted(dict(root.named_buffers()))
    assert len(set(places.values())) == len(keys)


class _Computes(nn.Module):
    """Computes ``x * n`` after ``n += 1``, and what is written then."""

    def forward(self, x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        return x * (n + 1), n + 1


@pytest.mark.parametrize("name", [COMPUTES, CONDITIONS, "has_kernels", "recompile", "n"])
def test_state_may_have_the_names_of_own_parts(name: str) -> None:
    program = import_module(Model(lambda s, x: (s.n.add_(1), x * s.n)[1], n=torch.zeros(3)), (torch.ones(3),))
    graph = print_graph(program.graph).replace('key="n"', f'key="{name}"')
    state = {name: program.weights["n"]}
    named = replace(program, graph=parse_graph(graph), weights=state, state=state)
    for built in (build(named), build_around(named, _Computes())):
        assert [built(torch.ones(3)).tolist() for _ in range(2)] == [[1] * 3, [2] * 3]


def test_missing_weight_is_named() -> None:
    program = import_module(Model(lambda s, x: x + 1), (X,))
    graph = 'graph(args_0: f32[2,3]) { return add(args_0, weight{key="w", type=f32[3]}) }'
    with pytest.raises(InvariantError, match="names weight w of type"):
        build(rewritten(program, graph))
