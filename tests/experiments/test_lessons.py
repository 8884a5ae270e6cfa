"""Holds the form of ``experiments/lessons.md``: six chapters of short lessons, each with a file that follows it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "experiments" / "lessons.md").read_text(encoding="utf-8")
CHAPTERS = [
    "Measuring latencies",
    "Kernels and formats",
    "Rules and search",
    "Against other engines",
    "Correctness",
    "Tried and not kept",
]
MOST_WORDS = 40
PATH = re.compile(r"`([\w./-]+/[\w.-]+\.\w+)`$")


def lessons(text: str) -> list[str]:
    """Return the items of the lists of a text, each in one line."""
    return [" ".join(item.split()) for item in re.findall(r"^\* (.*(?:\n  .*)*)", text, re.MULTILINE)]


def faults(lesson: str) -> Iterator[str]:
    """What is wrong with the form of a lesson."""
    if len(lesson.split()) > MOST_WORDS:
        yield f"{len(lesson.split())} words"
    if not re.match(r"\*\*[^*]+\.\*\* \S", lesson):
        yield "no claim"
    if not re.search(r"\d", lesson):
        yield "no figure"
    path = PATH.search(lesson)
    if path is None or not (ROOT / path[1]).is_file():
        yield "no file"


def test_there_are_six_chapters() -> None:
    assert re.findall(r"^## (.+)$", TEXT, re.MULTILINE) == CHAPTERS


def test_every_lesson_is_short_and_names_a_file() -> None:
    found = lessons(TEXT)
    assert len(found) == TEXT.count("\n* ")
    assert [(lesson, fault) for lesson in found for fault in faults(lesson)] == []


@pytest.mark.parametrize(
    ("lesson", "fault"),
    [
        ("**A claim.** " + "word " * MOST_WORDS + "1 `verify/prover.py`", "44 words"),
        ("A claim, of 1. `verify/prover.py`", "no claim"),
        ("**A claim.** Evidence. `verify/prover.py`", "no figure"),
        ("**A claim.** By 5%. `verify/no_such_module.py`", "no file"),
        ("**A claim.** By 5%.", "no file"),
    ],
)
def test_a_lesson_of_another_form_is_found(lesson: str, fault: str) -> None:
    assert list(faults(lesson)) == [fault]


def test_a_lesson_without_fault_has_none() -> None:
    assert lessons("* **A claim.** By 5%\n  (EPYC). `verify/prover.py`\n") == [
        "**A claim.** By 5% (EPYC). `verify/prover.py`"
    ]
    assert list(faults("**A claim.** By 5% (EPYC). `verify/prover.py`")) == []
