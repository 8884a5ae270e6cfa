from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from taso_py.ir.errors import TasoError
from taso_py.latency.environment import DeviceError
from taso_py.models.source import PUT_INTO_EVALUATION, Source, SourceError, load_source
from taso_py.models.spec import InputSpec

FACTORIES = """
    import torch
    from torch import nn

    class Scaled(nn.Module):
        def forward(self, x, *, scale):
            return x * scale

    class Both(nn.Module):
        def forward(self, x, y):
            return x * y

    class Several(nn.Module):
        def forward(self, *xs):
            return sum(xs)

    def both(): return Both()
    def several(): return Several()
    def bare(): return nn.Linear(3, 2)
    def positional(): return nn.Linear(3, 2), (torch.ones(5, 3),)
    def keywords(): return Scaled(), {"x": torch.ones(2), "scale": torch.tensor(3)}
    def raises(): raise ValueError("boom\\nand more")
    def exits(): raise SystemExit(3)
    def number(): return 7
    def tensor_input(): return nn.Linear(3, 2), torch.ones(3)
    def too_many(): return nn.Linear(3, 2), (torch.ones(3), torch.ones(3))
    def needs(width): return nn.Linear(width, width)
    def deferred():
        from sibling_of_models import WIDTH
        return nn.Linear(WIDTH, 1)
    made = nn.Linear(1, 1)
"""


@pytest.fixture
def models(tmp_path: Path) -> str:
    path = tmp_path / "models_under_test.py"
    path.write_text(textwrap.dedent(FACTORIES))
    (tmp_path / "sibling_of_models.py").write_text("WIDTH = 4\n")
    return str(path)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 3)

    def forward(self, x: torch.Tensor, *, tokens: torch.Tensor) -> torch.Tensor:
        return x + self.table(tokens)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    args, kwargs = (torch.ones(2, 3),), {"tokens": torch.tensor([0, 3])}
    shapes = {"x": {0: Dim("n")}, "tokens": {0: Dim("n")}}
    path = tmp_path_factory.mktemp("programs") / "two.pt2"
    torch.export.save(torch.export.export(TwoInputs().eval(), args, kwargs, dynamic_shapes=shapes), path)
    return str(path)


def error_of(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(SourceError) as caught:
        load_source(*args, **kwargs)
    message = str(caught.value)
    assert isinstance(caught.value, TasoError)
    assert len(message.splitlines()) == 1
    return message


def test_factory_with_specs(models: str) -> None:
    source = load_source(f"{models}:bare", ["5x3"], seed=1)
    assert source.name == f"{models}:bare"
    assert isinstance(source.module, nn.Linear)
    assert not source.module.training
    assert source.callable() is source.module
    assert source.module(*source.args, **source.kwargs).shape == (5, 2)


def test_factory_with_its_own_inputs(models: str) -> None:
    source = load_source(f"{models}:positional")
    assert torch.equal(source.args[0], torch.ones(5, 3))
    assert source.kwargs == {}


def test_specs_take_the_place_of_the_factorys_inputs(models: str) -> None:
    assert load_source(f"{models}:positional", ["1x3"]).args[0].shape == (1, 3)


@pytest.mark.parametrize("positive", [(), ("y",), ("x", "y")])
def test_inputs_that_are_declared_positive_are_drawn_so(models: str, positive: tuple[str, ...]) -> None:
    source = load_source(f"{models}:both", ["100", "100"], positive=positive)
    assert source.positive == positive
    assert [bool((x > 0).all()) for x in source.args] == [name in positive for name in ("x", "y")]


def test_inputs_that_one_parameter_stands_for_are_all_kept(models: str) -> None:
    assert len(load_source(f"{models}:several", ["4", "4"], positive=("xs_0",)).args) == 2


@pytest.mark.parametrize("positive", [(), ("x",)])
def test_inputs_of_a_program_that_are_declared_positive_are_drawn_so(program: str, positive: tuple[str, ...]) -> None:
    source = load_source(program, ["50x3", "50:int64"], positive=positive)
    assert bool((source.args[0] > 0).all()) == bool(positive)


def test_inputs_of_a_factory_that_are_declared_positive_stay_as_they_are(models: str) -> None:
    source = load_source(f"{models}:positional", positive=("input",))
    assert source.positive == ("input",)
    assert torch.equal(source.args[0], torch.ones(5, 3))


def test_keyword_inputs_are_kept_and_only_floats_are_cast(models: str) -> None:
    source = load_source(f"{models}:keywords", dtype=torch.float16)
    assert source.args == ()
    assert source.kwargs["x"].dtype == torch.float16
    assert source.kwargs["scale"].dtype == torch.int64


def test_the_seed_decides_weights_and_inputs(models: str) -> None:
    one, same, other = (load_source(f"{models}:bare", ["2x3"], seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.args[0], same.args[0])
    assert not torch.equal(one.args[0], other.args[0])
    modules = [source.module for source in (one, same, other) if isinstance(source.module, nn.Linear)]
    assert torch.equal(modules[0].weight, modules[1].weight)
    assert not torch.equal(modules[0].weight, modules[2].weight)


def test_dtype_casts_weights_and_inputs_but_not_a_stated_dtype(models: str) -> None:
    source = load_source(f"{models}:bare", ["2x3"], dtype=torch.float64)
    assert isinstance(source.module, nn.Module)
    assert {value.dtype for value in (source.args[0], *source.module.parameters())} == {torch.float64}
    assert load_source(f"{models}:bare", ["2x3:float16"], dtype=torch.float64).args[0].dtype == torch.float16


def test_imports_of_a_file_resolve_beside_it_even_late(models: str) -> None:
    path_before = list(sys.path)
    source = load_source(f"{models}:deferred", ["1x4"])
    assert isinstance(source.module, nn.Linear)
    assert sys.path == path_before


def test_a_module_may_stand_in_for_its_factory(models: str) -> None:
    assert isinstance(load_source(f"{models}:made", ["1x1"]).module, nn.Linear)


def test_dotted_module_is_found_from_the_working_directory(models: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(models).parent)
    assert load_source("models_under_test:positional").args[0].shape == (5, 3)


def test_zoo_model() -> None:
    source = load_source("zoo:nasrnn@3", dtype=torch.float64)
    assert [(tuple(value.shape), value.dtype) for value in source.args] == [((3, 512), torch.float64)] * 5
    assert load_source("zoo:nasrnn").args[0].shape == (1, 512)


@pytest.mark.usefixtures("zoo_libraries")
def test_transformers_model_from_a_factory_is_adapted(tmp_path: Path) -> None:
    path = tmp_path / "hugging.py"
    path.write_text(
        "from transformers import AutoModel, BertConfig\n"
        "def make():\n"
        "    return AutoModel.from_config(BertConfig(vocab_size=8, hidden_size=8, intermediate_size=8,"
        " num_hidden_layers=1, num_attention_heads=2))\n"
    )
    source = load_source(f"{path}:make", ["1x4:int64", "1x4:int64"])
    assert isinstance(source.module, nn.Module)
    output = source.module(*source.args)
    assert type(output) is dict
    assert output["last_hidden_state"].shape == (1, 4, 8)


def test_program_with_its_saved_inputs(program: str) -> None:
    source = load_source(program)
    assert isinstance(source.module, ExportedProgram)
    assert torch.equal(source.args[0], torch.ones(2, 3))
    assert torch.equal(source.kwargs["tokens"], torch.tensor([0, 3]))


def test_program_with_specs_of_another_dynamic_size(program: str) -> None:
    source = load_source(program, ["7x3", "7"])
    assert source.kwargs["tokens"].dtype == torch.int64
    assert source.callable()(*source.args, **source.kwargs).shape == (7, 3)


def test_program_refuses_what_it_was_not_exported_for(program: str) -> None:
    assert "takes 2 inputs (x, tokens), given 1" in error_of(program, ["2x3"])
    assert "input x of" in error_of(program, ["2x4", "2"])
    assert "is ?x3:float32" in error_of(program, ["2x4", "2"])
    assert "is ?:int64" in error_of(program, ["2x3", "2:float32"])
    assert "export the module in float16 instead" in error_of(program, dtype=torch.float16)
    assert load_source(program, dtype=torch.float32).args[0].dtype == torch.float32


def test_program_without_saved_inputs_asks_for_specs(tmp_path: Path) -> None:
    path = str(tmp_path / "bare.pt2")
    exported = torch.export.export(nn.Linear(3, 2).eval(), (torch.ones(1, 3),))
    exported.example_inputs = None
    torch.export.save(exported, path)
    assert "give one --input SPEC" in error_of(path)
    assert load_source(path, ["1x3"]).args[0].shape == (1, 3)


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x05\x06" + bytes(18)])
def test_unreadable_program(tmp_path: Path, content: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.pt2"
    path.write_bytes(content)
    assert "is not a readable exported program" in error_of(str(path))
    assert capfd.readouterr().err == ""


def test_truncated_program(tmp_path: Path, program: str) -> None:
    path = tmp_path / "half.pt2"
    path.write_bytes(Path(program).read_bytes()[:1000])
    assert "is not a readable exported program" in error_of(str(path))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("nothing", "'nothing' is not a model; give package.module:factory"),
        (":make", "is not a model"),
        ("here.py:", "is not a model"),
        ("missing.pt2", "there is no file missing.pt2"),
        ("missing.py:make", "there is no file missing.py"),
        ("no_such_package_here.models:make", "importing no_such_package_here.models raised ModuleNotFoundError"),
        ("zoo:resnet5", "did you mean resnet50"),
        ("zoo:resnet50@none", "a batch size is a whole number, as in zoo:resnet50@8"),
        ("zoo:resnet50@0", "a batch size is a whole number"),
        ("zoo:resnet50@", "a batch size is a whole number"),
    ],
)
def test_models_that_are_not_there(model: str, expected: str) -> None:
    assert expected in error_of(model)


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        ("bear", "has no 'bear'; did you mean bare"),
        ("unlike_anything", "has no 'unlike_anything'; name a function"),
        ("raises", "raises raised ValueError: boom"),
        ("exits", "exits raised SystemExit"),
        ("needs", "needs raised TypeError"),
        ("number", "returns int; return an nn.Module or (module, example_inputs)"),
        ("tensor_input", "example inputs of type Tensor; make them a tuple or a dict"),
        ("too_many", "takes (input), given 2"),
        ("bare", "takes (input), given 0"),
    ],
)
def test_factories_that_do_not_do(models: str, factory: str, expected: str) -> None:
    assert expected in error_of(f"{models}:{factory}")


def test_wrong_number_of_specs(models: str) -> None:
    assert "takes (input), given 2" in error_of(f"{models}:bare", ["2x3", "2x3"])


def test_file_that_does_not_import(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def make(:\n")
    assert "raised SyntaxError" in error_of(f"{path}:make")
    other = tmp_path / "readme.txt"
    other.write_text("")
    assert "is not a Python file" in error_of(f"{other}:make")


@pytest.mark.parametrize("spec", ["", "x", "1x", "x3", "1,3", "0x3", "1x-3", "1x3:", "1 x 3", ":int64"])
def test_spec_syntax(spec: str) -> None:
    with pytest.raises(SourceError, match="write it like 1x3x224x224 or 1x128:int64"):
        InputSpec.parse(spec)


def test_spec_of_unknown_dtype() -> None:
    with pytest.raises(SourceError, match=r"no known dtype 'int46'; did you mean .*int64"):
        InputSpec.parse("3:int46")


def test_random_inputs_of_each_kind() -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = InputSpec.parse("4x50:int64").random(torch.float32, generator)
    assert tokens.unique().tolist() == [0, 1]
    assert InputSpec.parse("9:bool").random(torch.float32, generator).dtype == torch.bool
    assert InputSpec.parse("2x3").random(torch.bfloat16, generator).dtype == torch.bfloat16
    assert InputSpec((2, 3)) == InputSpec.parse("2x3")


@pytest.mark.parametrize("name", ["bf16", "bfloat16"])
def test_a_dtype_has_a_short_name_too(name: str) -> None:
    assert load_source("zoo:nasrnn", dtype=name).args[0].dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["int8", "bool", "bf17", "complex64"])
def test_a_model_is_cast_to_floating_point_only(name: str) -> None:
    assert f"cannot be cast to '{name}'; choose one of fp16" in error_of("zoo:nasrnn", dtype=name)


@pytest.mark.parametrize(
    ("device", "problem"),
    [("teapot", "there is no device 'teapot'"), ("mps", "is not supported"), ("cuda:99", "not available|no GPU 99")],
)
def test_devices_that_are_not_here(device: str, problem: str) -> None:
    with pytest.raises(DeviceError, match=problem):
        load_source("zoo:nasrnn", device=device)


@pytest.mark.parametrize(
    ("model", "specs", "expected"),
    [("bare", ["9999999x9999999x9999"], "making inputs of 9999999x9999999x9999"), ("zoo", [], "making it")],
)
def test_what_no_memory_holds_is_one_line(models: str, model: str, specs: list[str], expected: str) -> None:
    text = "zoo:squeezenet1_1@999999999999" if model == "zoo" else f"{models}:{model}"
    with pytest.raises(SourceError, match=expected):
        load_source(text, specs)


def test_inputs_of_any_structure_keep_it(tmp_path: Path) -> None:
    path = tmp_path / "structured.py"
    path.write_text(
        "import torch, collections\n"
        "Pair = collections.namedtuple('Pair', 'x y')\n"
        "class Sum(torch.nn.Module):\n"
        "    def forward(self, pair): return pair.x + pair.y\n"
        "def model(): return Sum(), (Pair(torch.ones(2), torch.arange(2)),)\n"
    )
    source = load_source(f"{path}:model", dtype="fp64")
    (pair,) = source.args
    assert (pair.x.dtype, pair.y.dtype) == (torch.float64, torch.int64)
    assert source.callable()(pair).tolist() == [1.0, 2.0]


class Counting(nn.Module):
    """A sum with a constant, by way of a condition, that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = torch.ones(3)
        self.calls = nn.Buffer(torch.zeros(()))

    def forward(self, x: torch.Tensor, *, up: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return torch.cond(up.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,)) + self.offset + self.calls


def test_without_its_checks_a_saved_program_is_called_at_once() -> None:
    sizes = {"x": {0: torch.export.Dim("batch")}, "up": None}
    args, kwargs = (torch.zeros(2, 3),), {"up": torch.ones(1)}
    exported = torch.export.export(Counting().eval(), args, kwargs, dynamic_shapes=sizes)
    source = Source("counting", exported, args, kwargs)
    module = source.without_checks()
    assert not module._forward_pre_hooks
    assert not module._forward_hooks
    assert "_guards_fn" not in str(module.code)
    for count in (1.0, 2.0):
        assert torch.equal(module(*args, **kwargs), torch.full((2, 3), 2.0 + count))
    assert torch.equal(module(torch.zeros(5, 3), up=-torch.ones(1)), torch.full((5, 3), 3.0))
    eager = nn.Linear(3, 4)
    assert Source("eager", eager, ()).without_checks() is eager


def test_where_users_code_raises_is_said(models: str, tmp_path: Path) -> None:
    lines = Path(models).read_text().splitlines()
    where = next(number for number, line in enumerate(lines, 1) if "boom" in line)
    assert error_of(f"{models}:raises").endswith(f"raised ValueError: boom ({models}, line {where})")
    # In a library: the line of the user's that called it. The call itself has none.
    path = tmp_path / "inside.py"
    path.write_text("import torch\n\ndef make():\n    return torch.ones(2) @ torch.ones(3)\n")
    assert error_of(f"{path}:make").endswith(f"({path}, line 4)")
    assert "line" not in error_of(f"{models}:needs")


def test_a_model_in_training_mode_is_put_into_evaluation_mode_and_that_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "modes.py"
    path.write_text(
        "import torch\n\ndef training():\n    return torch.nn.Dropout(), (torch.ones(2),)\n"
        "\ndef evaluated():\n    return torch.nn.Dropout().eval(), (torch.ones(2),)\n"
    )
    noted, silent = load_source(f"{path}:training"), load_source(f"{path}:evaluated")
    assert isinstance(noted.module, nn.Module)
    assert not noted.module.training
    assert noted.notes == (PUT_INTO_EVALUATION,)
    assert silent.notes == ()
