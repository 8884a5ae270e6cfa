"""Loops over rows, which export unrolls, each searched with the shipped rules at the default limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.programs import PROGRAMS, Computing
from fuzz.prices import ModelledCost
from taso_py.backend import UNLIMITED, build, fold
from taso_py.checking.regions import first_mismatch
from taso_py.frontend import import_module
from taso_py.frontend.program import Program
from taso_py.rules.lemma import LEMMA
from taso_py.search.backtracking import search
from taso_py.search.result import Candidate
from taso_py.search.trace import read_trace, replay, write_trace
from tests.driver.test_practice import Model, layer_norm, matcher, randn

PARTS: dict[str, nn.Module | Tensor] = {
    "a": nn.Linear(16, 8),
    "b": nn.Linear(16, 8, bias=False),
    "n": layer_norm(16),
}
RECURRENT: dict[str, nn.Module | Tensor] = {"a": nn.Linear(16, 8), "b": nn.Linear(8, 8)}


@dataclass(frozen=True)
class Loop:
    """A loop, and what it computes without one."""

    loop: Callable[..., Any]
    best: Callable[..., Any]
    shapes: Sequence[tuple[int, ...]]
    parts: dict[str, nn.Module | Tensor] = field(default_factory=dict[str, "nn.Module | Tensor"])


def _alike(count: int) -> dict[str, Loop]:
    rows = range(count)
    matrix, stack, columns = (count, 16), (count, 5, 16), (3, count, 16)
    return {
        "a product of each row": Loop(
            lambda m, x, w: torch.stack([row * w for row in x]), lambda m, x, w: x * w, (stack, stack[1:])
        ),
        "functions of each vector": Loop(
            lambda m, x: torch.stack([torch.exp(torch.sin(row)) for row in x]),
            lambda m, x: torch.exp(torch.sin(x)),
            (matrix,),
        ),
        "columns": Loop(
            lambda m, x: torch.cat([torch.sqrt(x[:, i : i + 1]) for i in rows], 1),
            lambda m, x: torch.sqrt(x),
            (columns,),
        ),
        "columns without their axis": Loop(
            lambda m, x: torch.stack([F.silu(x[:, i]) for i in rows], 1), lambda m, x: F.silu(x), (columns,)
        ),
        "a layer of each vector": Loop(
            lambda m, x: torch.stack([F.relu(m.a(row)) for row in x]), lambda m, x: F.relu(m.a(x)), (matrix,), PARTS
        ),
        "a layer of each matrix": Loop(
            lambda m, x: torch.stack([torch.softmax(m.b(row), -1) for row in x]),
            lambda m, x: torch.softmax(m.b(x), -1),
            (stack,),
            PARTS,
        ),
        "norms of each vector": Loop(
            lambda m, x: torch.stack([F.gelu(m.n(row)) for row in x]), lambda m, x: F.gelu(m.n(x)), (matrix,), PARTS
        ),
        "rows of two values": Loop(
            lambda m, x, y: torch.stack([a * torch.sigmoid(b) - a for a, b in zip(x, y, strict=True)]),
            lambda m, x, y: x * torch.sigmoid(y) - x,
            (stack, stack),
        ),
        "products of matrices": Loop(
            lambda m, x, y: torch.cat([x[i : i + 1] @ y[i : i + 1] for i in rows]),
            lambda m, x, y: x @ y,
            (stack, (count, 16, 6)),
        ),
        "groups of rows": Loop(
            lambda m, x: torch.cat([torch.tanh(part) for part in x.split(3)]),
            lambda m, x: torch.tanh(x),
            ((3 * count + 1, 4),),
        ),
        "some of the rows": Loop(
            lambda m, x: torch.stack([torch.exp(x[i]) for i in rows]),
            lambda m, x: torch.exp(x[:count]),
            ((count + 5, 4, 3),),
        ),
        "rows behind others": Loop(
            lambda m, x, y: torch.cat([y, *(torch.exp(x[i : i + 1]) for i in rows)]),
            lambda m, x, y: torch.cat([y, torch.exp(x)]),
            (stack, (2, 5, 16)),
        ),
    }


def _different(count: int) -> dict[str, Loop]:
    """Loops of which only some rows are alike, with the best form of these."""
    rows, matrix = range(count), (count, 16)
    half = count // 2
    return {
        "another order": Loop(
            lambda m, x: torch.cat([torch.exp(x[i : i + 1]) for i in reversed(rows)]),
            lambda m, x: torch.cat([torch.exp(x[i : i + 1]) for i in reversed(rows)]),
            (matrix,),
        ),
        "a row is missing": Loop(
            lambda m, x: torch.cat([torch.exp(x[i : i + 1]) for i in rows if i != half]),
            lambda m, x: torch.cat([torch.exp(x[:half]), torch.exp(x[half + 1 :])]),
            (matrix,),
        ),
        "a row comes twice": Loop(
            lambda m, x: torch.cat([torch.exp(x[i : i + 1]) for i in (*range(half), *range(half - 1, count))]),
            lambda m, x: torch.cat([torch.exp(x[:half]), torch.exp(x[half - 1 :])]),
            (matrix,),
        ),
        "a row has another factor": Loop(
            lambda m, x, v, w: torch.cat([x[i : i + 1] * (v if i < half else w) for i in rows]),
            lambda m, x, v, w: torch.cat([x[:half] * v, x[half:] * w]),
            (matrix, (16,), (16,)),
        ),
        "rows overlap": Loop(
            lambda m, x: torch.cat([torch.exp(x[i : i + 2]) for i in range(count - 1)]),
            lambda m, x: torch.cat([torch.exp(x[i : i + 2]) for i in range(count - 1)]),
            (matrix,),
        ),
        "joined along another axis": Loop(
            lambda m, x: torch.cat([torch.exp(x[i : i + 1]) for i in rows], 1),
            lambda m, x: torch.cat([torch.exp(x[i : i + 1]) for i in rows], 1),
            (matrix,),
        ),
        "every other row": Loop(
            lambda m, x: torch.cat([torch.exp(x[i : i + 1]) for i in range(0, count, 2)]),
            lambda m, x: torch.cat([torch.exp(x[i : i + 1]) for i in range(0, count, 2)]),
            (matrix,),
        ),
        "rows of two values in turns": Loop(
            lambda m, x, y: torch.cat([torch.exp((y if i % 2 else x)[i : i + 1]) for i in rows]),
            lambda m, x, y: torch.cat([torch.exp((y if i % 2 else x)[i : i + 1]) for i in rows]),
            (matrix, matrix),
        ),
        "rows that need those before": Loop(_running, _running, (matrix,)),
        "softmax across rows": Loop(
            lambda m, x: torch.cat([torch.softmax(x[i : i + 2], 0) for i in range(0, count, 2)]),
            lambda m, x: torch.cat([torch.softmax(x[i : i + 2], 0) for i in range(0, count, 2)]),
            (matrix,),
        ),
    }


def _running(m: Any, x: Tensor) -> Tensor:
    rows = [torch.tanh(x[0:1])]
    for i in range(1, len(x)):
        rows.append(torch.tanh(x[i : i + 1] + rows[-1]))
    return torch.cat(rows)


def _recurrent(count: int) -> dict[str, Loop]:
    """Loops in which each row needs those before, with the best form: what does not need them is done at once."""
    rows, images = range(count), (3, count, 16)

    def cell(m: Any, of_row: Tensor, h: Tensor) -> Tensor:
        return torch.tanh(of_row + m.b(h))

    def gated(m: Any, of_row: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f = (of_row + m.b(h)).chunk(2, -1)
        c = torch.sigmoid(f) * c + torch.tanh(i)
        return torch.sin(c), c

    def last(m: Any, of_rows: Sequence[Tensor], h: Tensor) -> Tensor:
        for row in of_rows:
            h = cell(m, row, h)
        return h

    def all_(m: Any, of_rows: Sequence[Tensor], h: Tensor) -> Tensor:
        states: list[Tensor] = []
        for row in of_rows:
            states.append(h := cell(m, row, h))
        return torch.stack(states)

    def long(m: Any, of_rows: Sequence[Tensor], h: Tensor, c: Tensor) -> Tensor:
        for row in of_rows:
            h, c = gated(m, row, h, c)
        return h

    return {
        "the last state": Loop(
            lambda m, x, h: last(m, [m.a(x[:, i]) for i in rows], h),
            lambda m, x, h: last(m, m.a(x).unbind(1), h),
            (images, (3, 8)),
            RECURRENT,
        ),
        "all states": Loop(
            lambda m, x, h: all_(m, [m.a(row) for row in x], h),
            lambda m, x, h: all_(m, m.a(x).unbind(), h),
            ((count, 3, 16), (3, 8)),
            RECURRENT,
        ),
        "backwards": Loop(
            lambda m, x, h: last(m, [m.a(x[i]) for i in reversed(rows)], h),
            lambda m, x, h: last(m, m.a(x).unbind()[::-1], h),
            ((count, 3, 16), (3, 8)),
            RECURRENT,
        ),
        "gates": Loop(
            lambda m, x, h, c: long(m, [m.a(x[:, i]) for i in rows], h, c),
            lambda m, x, h, c: long(m, m.a(x).unbind(1), h, c),
            (images, (3, 8), (3, 8)),
            {"a": nn.Linear(16, 16), "b": nn.Linear(8, 16)},
        ),
    }


def _searched(loop: Loop) -> tuple[Program, Candidate, Candidate]:
    """The program of a loop, what the search finds for it, and for what it computes without one."""
    inputs = [randn(*shape).abs() for shape in loop.shapes]
    programs = [fold(import_module(Model(function, loop.parts), inputs)) for function in (loop.loop, loop.best)]
    found, best = (search(program.graph, matcher(), ModelledCost(0)).best for program in programs)
    computed = build(fold(replace(programs[0], graph=found.graph), UNLIMITED))(*inputs)
    torch.testing.assert_close(computed, Model(loop.loop, loop.parts)(*inputs))
    return programs[0], found, best


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *((name, count) for name in _alike(2) for count in (2, 3, 9)),
        *((name, 64) for name in ("columns", "groups of rows")),
    ],
)
def test_rows_treated_alike_are_treated_at_once(name: str, count: int) -> None:
    program, found, best = _searched(_alike(count)[name])
    assert found.graph == best.graph
    trace = read_trace(write_trace(found.trace))
    assert replay(program.graph, trace) == replay(program.graph, trace, matcher().rules) == found.graph
    assert any(rule.proof == LEMMA for rule in trace.rules)
    assert first_mismatch(program.graph, trace, 0, torch.device("cpu")) is None


@pytest.mark.parametrize("name", _recurrent(2))
def test_layers_of_rows_that_a_recurrent_network_reads_are_one(name: str) -> None:
    program, found, best = _searched(_recurrent(9)[name])
    assert found.graph == best.graph
    trace = read_trace(write_trace(found.trace))
    assert replay(program.graph, trace) == replay(program.graph, trace, matcher().rules) == found.graph
    assert any(rule.proof == LEMMA for rule in trace.rules)
    assert first_mismatch(program.graph, trace, 0, torch.device("cpu")) is None


@pytest.mark.parametrize("name", _different(8))
def test_rows_that_differ_are_not(name: str) -> None:
    _, found, best = _searched(_different(8)[name])
    assert found.graph == best.graph


def test_the_program_of_rows_treated_alike_reaches_its_best_form() -> None:
    (program,) = (program for program in PROGRAMS if program.name == "rows treated alike")
    inputs = [torch.zeros(1).expand(*shape) for shape in program.shapes]
    found, best = (
        search(import_module(Computing(function), inputs).graph, matcher(), ModelledCost(0)).best.graph
        for function in (program.original, program.best)
    )
    assert found == best
