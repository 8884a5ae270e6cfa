"""A program goes to the device that is asked for, wherever it was saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from taso_py.models import program_file
from taso_py.models.program_file import load_program
from taso_py.models.source import at_size, load_source
from taso_py.models.spec import InputSpec, SourceError

CPU, META = torch.device("cpu"), torch.device("meta")
X = torch.ones(2, 3)


class Shifted(nn.Module):
    """A sum with a weight, with a constant, and with numbers that are made where the input is."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.constant = torch.full((3,), 2.0)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight + self.constant + torch.arange(3, device=x.device)


@pytest.fixture
def path(tmp_path: Path) -> str:
    found = tmp_path / "shifted.pt2"
    torch.export.save(torch.export.export(Shifted().eval(), (torch.ones(2, 3),)), found)
    return str(found)


def as_saved_elsewhere(program: ExportedProgram) -> ExportedProgram:
    """The program with its values on a GPU, as its graph has it; only tensors that hold something stay here."""
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor):
            with value.fake_mode:  # pyright: ignore[reportAttributeAccessIssue] - values of a graph are fake tensors
                node.meta["val"] = torch.empty(value.shape, dtype=value.dtype, device="cuda")
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": torch.device("cuda:0")}
    return program


def test_a_program_saved_on_a_gpu_runs_on_the_cpu(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = program_file._read
    monkeypatch.setattr(program_file, "_read", lambda path: as_saved_elsewhere(read(path)))
    program, args, kwargs = load_program(path, (), CPU, None, 0)
    values = [node.meta["val"] for node in program.graph.nodes]
    assert {value.device for value in values if isinstance(value, Tensor)} == {CPU}
    assert not [node for node in program.graph.nodes if str(node.kwargs.get("device", CPU)) != "cpu"]
    assert torch.equal(program.module()(*args, **kwargs), torch.tensor([[4.0, 5.0, 6.0]] * 2))


@pytest.mark.parametrize("specs", [(), (InputSpec((2, 3)),)])
def test_the_default_device_is_not_where_a_program_is_read(path: str, specs: tuple[InputSpec, ...]) -> None:
    torch.set_default_device("meta")
    try:
        program, args, kwargs = load_program(path, specs, CPU, None, 0)
        result = program.module()(*args, **kwargs)
    finally:
        torch.set_default_device(None)
    assert torch.equal(result, args[0] + torch.tensor([3.0, 4.0, 5.0]))


class Doubled(nn.Module):
    """A call of an operator that somebody registers."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.of_somebody.doubled(x) + 1


def test_an_operator_that_is_not_registered_is_named(tmp_path: Path) -> None:
    path = tmp_path / "doubled.pt2"
    with torch.library._scoped_library("of_somebody", "DEF") as library:
        library.define("doubled(Tensor x) -> Tensor")
        library.impl("doubled", lambda x: x * 2, "CompositeExplicitAutograd")
        torch.export.save(torch.export.export(Doubled(), (torch.ones(3),)), path)
    with pytest.raises(SourceError) as refused:
        load_program(str(path), (), CPU, None, 0)
    needed = "needs the operator of_somebody::doubled, which is not registered here"
    assert str(refused.value) == f"{path} {needed}; name a file.py:factory that imports it"


def test_advice_to_look_elsewhere_is_not_passed_on(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> ExportedProgram:
        raise RuntimeError("We ran into an error. Please check the warnings above for possible errors.")

    monkeypatch.setattr(torch.export, "load", fail)
    with pytest.raises(SourceError, match=r"is not a readable exported program \(RuntimeError\); save it again"):
        load_program(path, (), CPU, None, 0)


@pytest.mark.parametrize(("elsewhere", "moves"), [("weight", True), ("constant", True), ("", False)])
def test_what_is_elsewhere_is_moved(path: str, monkeypatch: pytest.MonkeyPatch, elsewhere: str, moves: bool) -> None:
    program = program_file._read(path)
    held = {"weight": program.state_dict, "constant": program.constants}.get(elsewhere, {})
    assert bool(held) == moves
    for name, value in held.items():
        assert isinstance(value, Tensor)
        held[name] = value.to(META)
    moved: list[str] = []
    monkeypatch.setattr(program_file, "_read", lambda _: program)
    monkeypatch.setattr(program_file, "move_to_device_pass", lambda _, location: moved.append(location) or program)
    assert load_program(path, (), CPU, None, 0)[0] is program
    assert moved == ["cpu"] * moves


class Scaled(nn.Module):
    """What is not a tensor is part of the program."""

    def forward(self, x: Tensor, y: Tensor | None = None, by: int = 2, *, z: Tensor) -> Tensor:
        return x * by + z if y is None else x * by + y


@pytest.mark.parametrize(("args", "takes"), [((X,), "x, z"), ((X, None, 3), "x, z"), ((X, X + 2, 3), "x, y, z")])
def test_specs_are_those_of_the_tensors(args: tuple[Any, ...], takes: str, tmp_path: Path) -> None:
    given, found = {"z": X + 1}, str(tmp_path / "scaled.pt2")
    torch.export.save(torch.export.export(Scaled().eval(), args, given), found)
    specs = [InputSpec((2, 3))] * len(takes.split(", "))
    program, made, named = load_program(found, specs, CPU, None, 0)
    assert [type(value) for value in made] == [type(value) for value in args]
    torch.testing.assert_close(program.module()(*made, **named), Scaled()(*made, **named))
    with pytest.raises(SourceError, match=rf"takes {len(specs)} inputs \({takes}\), given 4"):
        load_program(found, [InputSpec((2, 3))] * 4, CPU, None, 0)


OPEN = {"x": {0: torch.export.Dim.DYNAMIC}}


@pytest.mark.parametrize(
    ("open_sizes", "said"),
    [
        (None, "takes the sizes that it was exported for; export it with open sizes, or give the model itself"),
        (OPEN, "takes all sizes of its export, and so does its result; leave --sizes out, or give the model itself"),
    ],
)
def test_other_sizes_of_a_program_are_those_of_its_export(open_sizes: Any, said: str, tmp_path: Path) -> None:
    found = str(tmp_path / "shifted.pt2")
    torch.export.save(torch.export.export(Shifted().eval(), (X,), dynamic_shapes=open_sizes), found)
    with pytest.raises(SourceError, match=said):
        at_size(load_source(found), "4x3", 0)
