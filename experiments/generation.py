"""Enumeration and candidates: number of terms by operators, speed, and outcomes of candidates.

A family is a set of variables and operators that are enumerated together; a vocabulary has several. A term is counted
when it is evaluated. Candidates are pairs of terms that agree on samples, up to names and the order of commutative
operands. The outcomes of the shipped files' candidates are in ``substitutions/MANIFEST.json``, which the columns of the
last rows repeat.

Invariant: times are processor time of one process, so that other work on the machine hardly shows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import zip_longest
from typing import Any

from matplotlib.figure import Figure

from experiments.drawing import name_rows
from experiments.harness import Experiment, Row, Settings
from taso_py.generate.candidates import collect, distinct
from taso_py.generate.enumerate import enumerate_terms
from taso_py.generate.sets import VOCABULARIES
from taso_py.generate.vocabulary import Family
from taso_py.rules.database import MANIFEST

QUICK = ("core", "scalars")
PUBLISHED: Row = {
    "vocabulary": "published (Jia et al., SOSP 2019)",
    "before_renaming": 28744,
    "candidates": 17346,
    "rules": 743,
}
"""Published figures of another generator, up to four operators: candidates, up to names, and after pruning."""
LEVELS = range(1, 8)
"""Numbers of operators."""


SHIPPED = "shipped"
"""The part that reads the outcomes of the shipped files' candidates."""


def _parts(settings: Settings) -> Sequence[str]:
    return [*(":".join(key) for key in _families() if key[0] in QUICK or not settings.quick), SHIPPED]


def _families() -> Mapping[tuple[str, str], Family]:
    """Return all families by the names of vocabulary and family."""
    return {
        (vocabulary, family.name): family
        for vocabulary, members in VOCABULARIES.items()
        for family in members
        if isinstance(family, Family)
    }


def _measure(part: str, settings: Settings) -> Sequence[Row]:
    if part == SHIPPED:
        return [*_shipped(), PUBLISHED]
    vocabulary, name = part.split(":")
    return [_family(vocabulary, _families()[vocabulary, name], settings.seed)]


def _family(vocabulary: str, family: Family, seed: int) -> Row:
    start = time.process_time()
    found = enumerate_terms(family, seed)
    enumerated = time.process_time() - start
    candidates = len(distinct(collect(found)))
    levels = {f"terms_{level}": count for level, count in zip_longest(LEVELS, found.counts, fillvalue="")}
    return {
        "vocabulary": vocabulary,
        "family": family.name,
        **levels,
        "seconds": enumerated,
        "terms_per_s": sum(found.counts) / enumerated,
        "candidates": candidates,
        "pairing_seconds": time.process_time() - start - enumerated,
    }


def _shipped() -> Sequence[Row]:
    """Return the outcomes of the candidates of each shipped file."""
    manifest: Mapping[str, Any] = json.loads((files("substitutions") / MANIFEST).read_text(encoding="utf-8"))
    return [
        {
            "vocabulary": name,
            "candidates": facts["candidates"],
            "false": _count(facts, "false", "does not hold"),
            "derivable": _count(facts, "deriv", "an instance"),
            "unproved": _count(facts, "unproved"),
            "rules": facts["rules"],
        }
        for name, facts in manifest["files"].items()
    ]


def _count(facts: Mapping[str, Any], *beginnings: str) -> int:
    """Return the number of directions of candidates whose outcome begins with one of these words."""
    return sum(count for outcome, count in facts["outcomes"].items() if outcome.startswith(beginnings))


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    families = [row for row in rows if "terms_1" in row]
    figure.set_size_inches(9, 0.21 * len(families) + 1)
    axes = figure.subplots()
    for place, row in enumerate(families):
        counts = {level: row[f"terms_{level}"] for level in LEVELS if row.get(f"terms_{level}")}
        axes.plot(list(counts.values()), [place] * len(counts), color="0.75", linewidth=0.8)
        for level, count in counts.items():
            axes.scatter(count, place, marker=f"${level}$", color="black", s=30, linewidths=0.3, zorder=3)
    name_rows(axes, [f"{row['vocabulary']}: {row['family']}" for row in families])
    axes.set_xscale("log")
    axes.set_xlabel("terms evaluated that have as many operators as the digit says (log scale)")


EXPERIMENT = Experiment(
    "generation",
    "How many terms are there, how fast are they enumerated, and what comes of them?",
    reading=(
        "one row a family of terms with the terms evaluated at each number of operators, then one a shipped file with "
        "what its candidates came to, and what was published of another generator; `unproved` pass every test and were "
        "not proved"
    ),
    parts=_parts,
    measure=_measure,
    plot=_plot,
    devices=("cpu",),
)
