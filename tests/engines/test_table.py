"""Engines: which ones a device has, and that a prepared module computes the same."""

import shutil
from collections.abc import Callable

import pytest
import torch

from fuzz.prices import InventedPrices
from taso_py.backend import Program, build, fold
from taso_py.backend.guard import ArgumentError
from taso_py.cost.choice import choose
from taso_py.engines.engine import EngineUnavailableError
from taso_py.engines.inductor import PACKS, packing
from taso_py.engines.names import AUTO, ENGINE_NAMES, RUNTIME_CHOICES
from taso_py.engines.table import ENGINES, engines_to_try, prepare
from taso_py.frontend import import_module, import_program
from taso_py.kernels.table import TRACED, TRACED_ON_GPU

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_the_names_that_need_no_torch_are_those_of_the_table() -> None:
    assert tuple(ENGINES) == ENGINE_NAMES
    assert set(RUNTIME_CHOICES) <= {AUTO, *ENGINE_NAMES}


def names_to_try(choice: str, device: torch.device) -> tuple[str, ...]:
    found, _ = engines_to_try(choice, device)
    return tuple(engine.name for engine in found)


def compiles(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that compiles with weights frozen, for which PyTorch uses much that it calls deprecated."""
    quiet = pytest.mark.filterwarnings("ignore")(test)
    return pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")(quiet)


def test_auto_stands_for_what_the_device_has() -> None:
    forms = ("inductor", "inductor-freezing", "inductor-max-autotune")
    sessions = tuple(name for name in ("onnxruntime", "openvino") if ENGINES[name].absence(CPU) is None)
    assert names_to_try("auto", CPU) == ("eager", *sessions, *forms, "inductor-kernels", "aot-inductor")
    assert names_to_try("inductor", CPU) == (*forms, "inductor-kernels")
    captured = ("inductor-cudagraph", "inductor-max-autotune-cudagraph", "inductor-kernels-cudagraph")
    assert names_to_try("inductor", CUDA) == (*forms, *captured)
    assert names_to_try("auto", CUDA)[:4] == ("eager", *forms)
    assert names_to_try("eager", CPU) == ("eager",)
    for name in ("cudagraph", *captured):
        with pytest.raises(EngineUnavailableError, match="need a GPU"):
            names_to_try(name, CPU)
    with pytest.raises(EngineUnavailableError, match="uses kernels of the CPU"):
        names_to_try("inductor-kernels", CUDA)


def test_eager_is_the_module_itself() -> None:
    module = torch.nn.Linear(3, 4)
    assert prepare(module, "eager", (torch.ones(2, 3),), {}) is module


def test_a_compiler_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> object:
        raise RuntimeError("no C++ compiler\nwith\nmany\nlines")

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(EngineUnavailableError, match=r"inductor cannot run this module: no C\+\+ compiler$"):
        prepare(torch.nn.Linear(3, 4), "inductor", (torch.ones(2, 3),), {})


@compiles
def test_frozen_weights_stay_as_they_were() -> None:
    module, x = torch.nn.Linear(3, 4), torch.ones(2, 3)
    prepared = {runtime: prepare(module, runtime, (x,), {}) for runtime in names_to_try("inductor", CPU)}
    before = module(x)
    with torch.no_grad():
        module.weight.add_(1)
    frozen = [runtime for runtime, runner in prepared.items() if torch.allclose(runner(x), before)]
    # Around the kernels of a plan nothing else is packed, and here there is no plan.
    assert frozen == ["inductor-freezing", "inductor-max-autotune"]


class TwoWeights(torch.nn.Module):
    """A linear layer whose weight is a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Parameter(torch.ones(4, 3)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.first + self.second)


@compiles
def test_what_is_computed_of_frozen_weights_stays_as_it_was() -> None:
    module, x = TwoWeights(), torch.ones(2, 3)
    prepared = {runtime: prepare(module, runtime, (x,), {}) for runtime in names_to_try("inductor", CPU)}
    before = module(x)
    with torch.no_grad():
        module.first.add_(1)
    frozen = [runtime for runtime, runner in prepared.items() if torch.allclose(runner(x), before)]
    assert frozen == ["inductor-freezing", "inductor-max-autotune", "inductor-kernels"]


@compiles
def test_weights_are_frozen_for_sizes_that_come_later_too() -> None:
    module = torch.nn.Linear(3, 4)
    runner = prepare(module, "inductor-freezing", (torch.ones(2, 3),), {}, resizable=True)
    first = runner(torch.ones(5, 3))
    with torch.no_grad():
        module.weight.add_(1)
    assert torch.allclose(runner(torch.ones(5, 3)), first)


@compiles
def test_weights_stay_frozen_in_inference_mode_and_with_other_threads() -> None:
    """PyTorch compiles again there, up to a limit for all layers of a class that were compiled in the process."""
    torch.compiler.reset()
    module, threads = torch.nn.Linear(3, 4), torch.get_num_threads()
    runner = prepare(module, "inductor-freezing", (torch.ones(2, 3),), {})
    first = runner(torch.ones(2, 3))

    def results() -> list[torch.Tensor]:
        torch.set_num_threads(threads)
        with torch.inference_mode():
            made = torch.ones(2, 3)
            inside = runner(made).clone()
        outside = runner(made).clone()
        torch.set_num_threads(threads + 1)
        return [inside, outside, runner(torch.ones(2, 3))]

    try:
        assert all(torch.allclose(found, first) for found in results())
        with torch.no_grad():
            module.weight.add_(1)
        assert all(torch.allclose(found, first) for found in results())
    finally:
        torch.set_num_threads(threads)


def test_what_is_compiled_first_does_not_decide_whether_weights_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config
    from torch._inductor.fx_passes import freezing_patterns

    registered: list[bool] = []
    monkeypatch.setattr(freezing_patterns, "lazy_init", lambda: registered.append(config.cpp.weight_prepack))
    with config.patch({PACKS: False}), packing(False):
        assert freezing_patterns.pass_patterns == []
    assert registered == [True]
    assert freezing_patterns.pass_patterns


def planned(program: Program) -> tuple[torch.nn.Module, set[str]]:
    """A module with kernels that a compiler is to leave alone, and their names."""
    plan = choose(program.graph, InventedPrices(2, fused=0.01, tiles=TRACED)).plan.compiled()
    return build(program, plan), {step.kernel.name for step in plan.steps.values() if step.kernel}


@compiles
@pytest.mark.parametrize("open_batch", [False, True])
def test_a_compiler_leaves_products_to_the_kernels_of_a_plan(open_batch: bool) -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten()]
    module = torch.nn.Sequential(*layers, torch.nn.Linear(8 * 36, 5), torch.nn.GELU()).eval()
    x = torch.randn(2, 3, 8, 8)
    sizes = ({0: torch.export.Dim.DYNAMIC},) if open_batch else None
    program = fold(import_program(torch.export.export(module, (x,), dynamic_shapes=sizes)))
    built, kernels = planned(program)
    assert kernels >= {"onednn.conv"}
    runner = prepare(built, "inductor-kernels", (x,), {}, resizable=open_batch)
    for given in (x, torch.randn(5, 3, 8, 8)) if open_batch else (x,):
        with torch.no_grad():
            assert torch.allclose(runner(given), module(given), atol=1e-5)


class Shifted(torch.nn.Module):
    """A linear layer with a sum that no kernel takes in: the other operand has another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 5, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + x.sum()


@compiles
def test_what_another_form_packs_is_not_looked_for_in_packed_products() -> None:
    torch.manual_seed(0)
    module, x = Shifted().eval(), torch.randn(4, 6)
    # It makes known to the compiler how it packs products, for the whole process.
    prepare(module, "inductor-freezing", (x,), {})
    built, kernels = planned(fold(import_program(torch.export.export(module, (x,)))))
    assert kernels == {"onednn.linear"}
    runner = prepare(built, "inductor-kernels", (x,), {})
    assert torch.allclose(runner(x), module(x), atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("runtime", ["cudagraph", "inductor-cudagraph"])
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_captured_graph_computes_the_same_on_other_inputs(runtime: str) -> None:
    module = torch.nn.Linear(3, 4).cuda()
    x = torch.ones(2, 3, device="cuda")
    replay = prepare(module, runtime, (x,), {})
    before = replay(x)
    assert torch.allclose(replay(2 * x), module(2 * x))
    assert torch.allclose(before, module(x))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_random_numbers_can_be_drawn_after_a_capture_that_failed() -> None:
    class Reads(torch.nn.Module):
        """Reads a number back, which a capture does not allow, after it has drawn some."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.rand_like(x).sum().item()

    with pytest.raises(EngineUnavailableError, match="cudagraph cannot run this module"):
        prepare(Reads(), "cudagraph", (torch.ones(2, 3, device="cuda"),), {})
    assert torch.rand(2, device="cuda").shape == (2,)


class Residual(torch.nn.Module):
    """Convolutions with and without a sum before their activation, and a linear layer with one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm, self.last = torch.nn.BatchNorm2d(8), torch.nn.Linear(8 * 36, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.second(torch.relu(self.first(x)))) + x)
        return torch.tanh(torch.relu(self.last(x.flatten(1)))) * 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_captured_compiler_leaves_products_to_the_kernels_of_a_plan(dtype: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    module = Residual().eval().to("cuda", dtype).requires_grad_(False)
    x = torch.randn(2, 8, 6, 6, device="cuda", dtype=dtype)
    program = fold(import_program(torch.export.export(module, (x,))))
    prices = InventedPrices(seed, fused=0.01, device=CUDA, tiles=TRACED_ON_GPU)
    plan = choose(program.graph, prices).plan
    assert {step.kernel.name for step in plan.steps.values() if step.kernel} >= {"cublaslt.linear"}
    engine = ENGINES["inductor-kernels-cudagraph"]
    runner = engine.prepare(engine.build(program, engine.plan_for(plan)), (x,), {})
    before, expected = runner(x), module(x)
    tolerance = 2e-2 if dtype is torch.float16 else 2e-3
    for given in (x, -x, 0.5 * x):
        assert torch.allclose(runner(given), module(given), atol=tolerance, rtol=tolerance)
    assert torch.allclose(before, expected, atol=tolerance, rtol=tolerance)
    assert not torch.allclose(before, module(-x), atol=tolerance, rtol=tolerance)


class Counted(torch.nn.Module):
    """Writes to an argument, and returns a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        counts.add_(x)
        return x * 2, (self.weight + 1).exp()


@compiles
@pytest.mark.parametrize("runtime", ["inductor", "inductor-freezing"])
def test_compiled_code_keeps_the_contract(runtime: str) -> None:
    x, counts = torch.ones(3), torch.zeros(3)
    runner = prepare(build(fold(import_module(Counted().eval(), (x, counts)))), runtime, (x, counts.clone()), {})
    with torch.no_grad():
        first = runner(x, counts)
        expected = [result.clone() for result in first]
        first[1].zero_()
        negative = torch.complex(x, x).conj().imag
        assert torch.equal(counts, x)
        assert torch.equal(runner(x, counts)[1], expected[1])
        assert torch.equal(runner(negative, counts)[0], -expected[0])
        for refused in (x, negative):
            with pytest.raises(ArgumentError, match="this module writes to counts"):
                runner(x, refused)
