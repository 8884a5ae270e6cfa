"""Scaling of search and generation with the size of their input.

The search is given stacks of transformer blocks: all equal, which it searches once; equal but without that reuse; and
all of different widths, which cannot be reused. It is also given fewer rules, drawn at random, for one stack. The
generator is given a family of terms up to a number of operators, and with a number of its productions.

Each search has a process of its own and is run twice there: the first run measures unknown latencies, the second is
timed.

Invariant: times are processor time of one thread, and memory is beyond what the process had before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
from torch import Tensor, nn
from torch.nn.functional import gelu, softmax

from experiments.drawing import STYLES
from experiments.harness import Experiment, Row, Settings
from experiments.subject import peak_mib, priced
from taso_py.generate.candidates import collect, distinct
from taso_py.generate.enumerate import enumerate_terms
from taso_py.generate.sets import VOCABULARIES
from taso_py.generate.vocabulary import Family
from taso_py.models.source import Source
from taso_py.rules.database import read_database
from taso_py.rules.match import Matcher
from taso_py.rules.substitution import Substitution
from taso_py.search.backtracking import search
from taso_py.search.result import Limits

ALIKE, APART, DIFFERENT, RULES, OPERATORS, PRODUCTIONS = (
    *("blocks, alike", "blocks, alike, not reused", "blocks, different"),
    *("rules", "operators", "productions"),
)
"""Kinds of growing input."""
BLOCKS = {True: (1, 4, 16), False: (1, 2, 4, 8, 16, 32, 64, 96)}
SHARES = {True: (0.1, 1.0), False: (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)}
"""Shares of the database, by whether the run is quick."""
RULES_BLOCKS = 4
"""Blocks of the stack that is searched with fewer rules."""
FAMILIES = {True: ("core:transposes",), False: ("core:transposes", "core:matrices", "core:images", "core:kernels")}
QUARTERS = (0.25, 0.5, 0.75, 1.0)
"""Shares of a family's productions."""
TOKENS, WIDTH = 16, 64
SECONDS = {True: 10.0, False: 600.0}
"""Time limit of a search, so long in a full run that budgets decide."""


class Block(nn.Module):
    """A transformer block with its projections written out, as in models before any merging."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, width), nn.Linear(width, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Apply one block to ``[1, tokens, width]``."""
        y = self.first(x)
        scores = self.query(y) @ self.key(y).transpose(-1, -2) * WIDTH**-0.5
        x = x + self.out(softmax(scores, -1) @ self.value(y))
        return x + self.down(gelu(self.up(self.second(x))))


def stack(blocks: int, alike: bool, settings: Settings) -> Source:
    """Return a model of this many blocks, of one width or of as many different ones."""
    torch.manual_seed(settings.seed)
    widths = [2 * WIDTH + (0 if alike else 8 * number) for number in range(blocks)]
    module = nn.Sequential(*map(Block, widths)).eval().to(settings.device)
    return Source(f"{blocks} blocks", module, (torch.randn(1, TOKENS, WIDTH, device=settings.device),))


def _parts(settings: Settings) -> Sequence[str]:
    quick = settings.quick
    blocks = [f"{kind}: {count}" for kind in (ALIKE, APART, DIFFERENT) for count in BLOCKS[quick]]
    rules = [f"{RULES}: {share:g}" for share in SHARES[quick]]
    if settings.device != "cpu":
        return [*blocks, *rules]
    families = [f"{kind}: {family}" for kind in (OPERATORS, PRODUCTIONS) for family in FAMILIES[quick]]
    return [*blocks, *rules, *families]


def _measure(part: str, settings: Settings) -> Sequence[Row]:
    kind, _, size = part.rpartition(": ")
    if kind in (OPERATORS, PRODUCTIONS):
        return _measure_generation(kind, size, settings)
    if kind == RULES:
        rules = read_database()
        chosen = Random(settings.seed).sample(rules, round(float(size) * len(rules)))
        return [{"grows": kind, "size": len(chosen), **_measure_search(RULES_BLOCKS, True, settings, chosen)}]
    found = _measure_search(int(size), kind != DIFFERENT, settings, read_database(), reuse=kind != APART)
    return [{"grows": kind, "size": int(size), **found}]


def _measure_search(
    blocks: int, alike: bool, settings: Settings, rules: Sequence[Substitution], reuse: bool = True
) -> Row:
    """Return the measurements of the search of a stack."""
    torch.set_num_threads(1)
    limits = Limits(seconds=SECONDS[settings.quick], seed=settings.seed, reuse=reuse)
    with priced(stack(blocks, alike, settings)) as model:
        graph, matcher = model.imported.graph, Matcher(rules)
        before = peak_mib()
        search(graph, matcher, model.cost, limits)
        started = time.process_time()
        found = search(graph, matcher, model.cost, limits)
        return {
            "of": f"{blocks} blocks",
            "nodes": sum(not node.is_static for node in graph.nodes),
            "seconds": time.process_time() - started,
            "mib": peak_mib() - before,
            "made": found.built,
            "cost": found.best.seconds / found.original.seconds,
            "stop_reason": found.stop_reason.name.lower(),
        }


def _measure_generation(kind: str, key: str, settings: Settings) -> Sequence[Row]:
    """Enumerate and pair a family, up to each number of operators, or with ever more productions."""
    vocabulary, name = key.split(":")
    family = next(f for f in VOCABULARIES[vocabulary] if isinstance(f, Family) and f.name == name)
    if kind == OPERATORS:
        grown = [(count, replace(family, operators=count)) for count in range(1, family.operators + 1)]
    else:
        counts = sorted({max(1, round(share * len(family.productions))) for share in QUARTERS})
        grown = [(count, replace(family, productions=family.productions[:count])) for count in counts]
    rows: list[Row] = []
    for size, smaller in grown:
        # The first run of an operator is slower than all others.
        facts = min((_measure_enumeration(smaller, settings) for _ in range(2)), key=lambda facts: facts["seconds"])
        rows.append({"grows": kind, "size": size, "of": key, **facts})
    return rows


def _measure_enumeration(family: Family, settings: Settings) -> Row:
    before, started = peak_mib(), time.process_time()
    found = enumerate_terms(family, settings.seed)
    candidates = len(distinct(collect(found)))
    seconds = time.process_time() - started
    return {"seconds": seconds, "mib": peak_mib() - before, "made": sum(found.counts), "candidates": candidates}


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    figure.set_size_inches(10, 6.5)
    panels = figure.subplots(2, 3)
    blocks = (ALIKE, APART, DIFFERENT)
    _lines(panels[0][0], rows, blocks, "seconds", "blocks", "search: processor seconds")
    _lines(panels[0][1], rows, blocks, "mib", "blocks", "search: MiB beyond the start")
    _lines(panels[0][2], rows, (RULES,), "seconds", "rules", "search: processor seconds")
    _lines(panels[1][0], rows, (OPERATORS,), "seconds", "operators of a term at most", "generation: processor seconds")
    _lines(panels[1][1], rows, (OPERATORS,), "made", "operators of a term at most", "generation: terms")
    _lines(panels[1][2], rows, (PRODUCTIONS,), "seconds", "productions", "generation: processor seconds")


def _lines(axes: Axes, rows: Sequence[Row], kinds: Sequence[str], column: str, along: str, label: str) -> None:
    """Draw a line for each kind and subject."""
    subjects = dict.fromkeys(
        (row["grows"], row["of"] if len(kinds) == 1 else "") for row in rows if row["grows"] in kinds
    )
    for (kind, of), (line, mark) in zip(subjects, STYLES, strict=False):
        found = [row for row in rows if row["grows"] == kind and of in ("", row["of"])]
        sizes, values = [row["size"] for row in found], [row[column] for row in found]
        axes.plot(sizes, values, line, marker=mark, color="black", label=of or kind.removeprefix("blocks, "))
    axes.set_xlabel(along)
    axes.set_ylabel(label)
    # Memory may be zero, where a search needs no more than the process has.
    if column != "mib":
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if along in ("blocks", "rules"):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:.0f}")
    if subjects:
        axes.legend(fontsize="small")


EXPERIMENT = Experiment(
    "scaling",
    "How do search and generation grow with what they are given?",
    reading=(
        "`grows` says what grows and `size` how large it is; `made` counts the graphs that a search built or the terms "
        "that were evaluated; blocks that are alike should cost hardly more the more there are, and the others in "
        "proportion; `mib` is memory beyond what the process had before, and 0 where what it had was enough"
    ),
    parts=_parts,
    measure=_measure,
    plot=_plot,
    apart=True,
)
