"""What becomes of models of open sizes: searched at the example's sizes, valid at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import taso_py
from taso_py.backend import Program, build, retype
from taso_py.checking.compare import Oracle
from taso_py.checking.resize import open_size_notes, other_sizes, resized_cases
from taso_py.checking.roundtrip import difference
from taso_py.cli import main
from taso_py.engines.engine import EngineUnavailableError
from taso_py.engines.table import prepare
from taso_py.frontend import import_program
from taso_py.ir.size import Open
from taso_py.rules.match import Matcher
from taso_py.rules.text import read_rules

SQUARE = "rule x: float[M,M] source permute(relu(x)){order=[-1,-2]} target relu(permute(x){order=[-1,-2]})"
ANY = SQUARE.replace("M,M", "M,N")


class Products(nn.Module):
    """Three linear layers on one argument, as wide as it is long in the example."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        a, b, c = (layer(x) for layer in self.layers)
        return a.relu() + b, c.relu().t(), x[index]


def exported() -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    rows = Dim("rows", max=100)
    shapes = ({0: rows}, {0: Dim("count")})
    return torch.export.export(Products().eval(), (torch.randn(8, 8), torch.arange(5)), dynamic_shapes=shapes)


@pytest.fixture(scope="module")
def program() -> Program:
    return import_program(exported())


def test_a_rule_that_holds_at_the_example_only_is_left_out(program: Program) -> None:
    for text, counts in ((SQUARE, (0, 1)), (ANY, (1, 1))):
        rules = read_rules(text)
        graphs = (program.graph, program.graph.at_example)
        assert tuple(len(Matcher(rules).matches(graph)) for graph in graphs) == counts
    (rule,) = read_rules(SQUARE)
    notes = open_size_notes(program, [rule])
    assert "x.0 (1..100, in the example 8), index.0 (1.., in the example 5)" in notes[0]
    assert notes[1] == f"1 rules fit the example's sizes but not all, and were left out: {rule.id}"
    assert len(open_size_notes(program, read_rules(ANY))) == 1


def test_other_sizes_are_in_range(program: Program) -> None:
    rows, count = program.open
    assert [tuple(sizes.values()) for sizes in other_sizes(program.open)] == [(1, 1), (17, 11), (11, 5), (8, 8)]
    assert list(other_sizes((rows, count))[0]) == [rows, count]
    assert other_sizes(()) == []
    full = (Open("a", example=8, least=1, most=8), Open("b", example=8, least=1, most=8))
    assert [tuple(sizes.values()) for sizes in other_sizes(full)] == [(1, 1), (8, 8)]


def test_arguments_of_other_sizes_are_such_that_the_original_takes_them(program: Program) -> None:
    original = exported().module()
    built, reference = build(program), build(retype(program))
    cases, notes = resized_cases(program, {"the model": original}, 0)
    # With one row the indices into eight are out of range.
    assert [name for name, _ in cases] == ["x.0=17, index.0=11", "x.0=11, index.0=5", "x.0=8, index.0=8"]
    (note,) = notes
    assert note.startswith(
        "not compared at x.0=1, index.0=1, which is in the export's range but refused by the model ("
    )
    assert Oracle(original, reference, cases).compare(built).passed
    (case, *_) = cases
    broken = Oracle(original, reference, [case]).compare(lambda *args: [value + 1 for value in built(*args)])
    assert not broken.passed

    def raising(*args: Tensor) -> object:
        raise ValueError("no\nmore")

    assert [o.problem for o in Oracle(original, reference, [case]).compare(raising).outputs] == ["raises no"]


def test_arguments_of_other_sizes_lie_in_memory_as_the_example_does() -> None:
    (dim,) = (Dim("channels"),)
    image = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    opened = torch.export.export(nn.ReLU(), (image,), dynamic_shapes=({1: dim},))
    program = import_program(opened)
    cases, _ = resized_cases(program, {}, 0)
    for _, (args, _) in cases:
        assert args[0].is_contiguous(memory_format=torch.channels_last)
        assert difference(opened.module(), build(program), args, is_open=True) == ""
    assert [args[0].shape[1] for _, (args, _) in cases] == [1, 7]


def test_arguments_of_other_sizes_are_expanded_where_the_example_is() -> None:
    example = torch.randn(2, 1, 4).expand(2, 3, 4)
    opened = torch.export.export(nn.ReLU(), (example,), dynamic_shapes=({1: Dim("rows"), 2: Dim("columns")},))
    cases, _ = resized_cases(import_program(opened), {}, 0)
    made = [args[0] for _, (args, _) in cases]
    assert all(x.stride(1) == 0 for x in made if x.shape[1] > 1)
    assert (2, 7, 9) in [tuple(x.shape) for x in made]


def test_a_captured_graph_cannot_be_resized() -> None:
    with pytest.raises(EngineUnavailableError, match="it has open sizes"):
        prepare(nn.Linear(2, 2), "cudagraph", (torch.ones(1, 2),), {}, resizable=True)


def test_a_program_of_open_sizes_is_optimized_saved_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TASO_PY_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    torch.export.save(exported(), "open.pt2")
    limits = ["--budget", "20", "--time-limit", "2", "--race-seconds", "0.1", "--runtime", "eager"]
    assert main(["optimize", "open.pt2", "--output", "out", *limits]) == 0
    assert "for all sizes x.0 (1..100" in " ".join(capsys.readouterr().out.split())
    assert main(["replay", "out/trace.rules", "open.pt2"]) == 0
    original, loaded = exported().module(), taso_py.load("out")
    with torch.no_grad():
        for rows, count in ((8, 5), (1, 3), (100, 20)):
            args = torch.randn(rows, 8), torch.randint(rows, (count,))
            for before, after in zip(original(*args), loaded(*args), strict=True):
                torch.testing.assert_close(before, after)
