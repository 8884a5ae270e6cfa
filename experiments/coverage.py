"""Coverage: which parts of models people build the rules reach, and what is left over, the next vocabulary.

Each model of the corpus is imported. Of its operators that run, those outside the table are opaque, and no rule is
about them. The rules that lower the price are then applied, one by one, until none does; otherwise what they do away
with, such as batch normalization behind a convolution, would stand in all that is left over. Connected subgraphs of two
to five operators of the result are counted by form (:mod:`experiments.subgraphs`); a form is left over if no rule
touches any of its subgraphs in any model (:mod:`experiments.reach`). The unchanged graph is compiled by each engine for
whole graphs, so that the table says which models have such an engine at all.

Invariant: nothing is timed; the table depends on rules, corpus and libraries alone. A model that is refused is a row
like any other, with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import geometric_mean
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.coverage_corpus import CORPUS, FAMILIES, CorpusModel
from experiments.deployed import SESSIONS, engine_refusals
from experiments.drawing import name_rows
from experiments.harness import Experiment, Row, Settings
from experiments.reach import MOST_OPERATORS, FormTally, cheaper_forms, places, rewrite, tally_subgraphs
from experiments.subgraphs import operator_name
from taso_py.ir.errors import TasoError
from taso_py.ir.graph import Graph
from taso_py.ir.node import is_running
from taso_py.models.importing import import_source
from taso_py.ops.opaque import Opaque
from taso_py.rules.database import read_database
from taso_py.rules.match import Matcher

QUICK = ("squeezenet1_1", "ghostnet_050", "distilbert", "mamba", "vilt", "unet")
MODEL, FAMILY, TALLY = "model", "family", "tally"
ENGINES = "engines"
"""Column of the engines that take a model's unchanged graph."""
OPAQUE, LEFT, CHEAPER = "opaque operator", "untouched subgraph", "cheaper form known"
"""Kinds of rows; the tallies of models are added up and not shown."""
EVERYTHING = "all models"
MOST_OPAQUE, MOST_CHEAPER = 30, 15
MOST_LEFT: Mapping[int, int] = {2: 25, 3: 15, 4: 8, 5: 5}
"""Rows of forms that are left over, by number of operators."""
LEAST_OFTEN: Mapping[int, int] = {2: 1, 3: 1, 4: 2, 5: 2}
"""How often a model must have a form to count for it, by number of operators: large ones that it has once are many."""
NAMED = 4
"""Most opaque operators that a model's row names."""
SHOWN = 18
"""Most operators and forms in a panel of the figure."""


def _measure(name: str, settings: Settings) -> Sequence[Row]:
    return list(model_rows(CORPUS[name], Matcher(read_database()), settings.seed))


@torch.no_grad()
def model_rows(model: CorpusModel, matcher: Matcher, seed: int) -> Iterator[Row]:
    """Yield the row of a model, and, if it imports, what is to be added up over models."""
    about = {"kind": MODEL, "family": model.family, "name": model.name}
    try:
        program = import_source(model.source(seed))
    except TasoError as error:
        yield {**about, "imported": False, "reason": str(error)}
        return
    row, tally = graph_facts(program.graph, matcher)
    refusals = engine_refusals(program)
    taking = ", ".join(engine for engine in SESSIONS if engine not in refusals)
    yield {**about, "imported": True, **row, ENGINES: taking, "reason": "; ".join(refusals.values())}
    yield {**about, "kind": TALLY, **tally}


def graph_facts(graph: Graph, matcher: Matcher) -> tuple[Row, Row]:
    """Return the columns of a graph's row, and its numbers by operator and by form."""
    nodes = [node for node in graph.nodes if is_running(node)]
    opaque = Counter(operator_name(node) for node in nodes if isinstance(node.op, Opaque))
    reached, result = places(graph, matcher), rewrite(graph, matcher)
    tally = tally_subgraphs(result.best.graph, places(result.best.graph, matcher))
    touched = {node for place in reached for node in place.nodes}
    cheaper = {node for place in reached if place.is_cheaper for node in place.nodes}
    subgraphs, untouched = (sum(counts.total() for counts in table.values()) for table in (tally.all, tally.untouched))
    row = {
        "nodes": len(nodes),
        "in table": 1 - opaque.total() / len(nodes),
        "touched": len(touched) / len(nodes),
        "cheaper": len(cheaper) / len(nodes),
        "rewritten price": result.best.seconds / result.original.seconds,
        "subgraphs": subgraphs,
        "untouched": untouched / max(1, subgraphs),
        "opaque": ", ".join(f"{target} {count}" for target, count in opaque.most_common(NAMED)),
    }
    return row, {"operators": dict(opaque), "cheaper": dict(cheaper_forms(reached)), **_repeated_forms(tally)}


def _repeated_forms(tally: FormTally) -> Row:
    """Return how often there are touched and untouched subgraphs of the forms that count, by number of operators."""
    touched: dict[str, Mapping[str, int]] = {}
    untouched: dict[str, Mapping[str, int]] = {}
    for size, counts in tally.all.items():
        left = tally.untouched[size]
        counted = [form for form, count in counts.items() if count >= LEAST_OFTEN[size]]
        touched[str(size)] = {form: counts[form] - left[form] for form in counted if counts[form] > left[form]}
        untouched[str(size)] = {form: left[form] for form in counted if left[form]}
    return {"touched": touched, "untouched": untouched}


def arrange(rows: Sequence[Row]) -> Sequence[Row]:
    """Return the models' rows with a summary of each family behind them and of all, and then what is left over."""
    models = [row for row in rows if row["kind"] == MODEL]
    tallies = [row for row in rows if row["kind"] == TALLY]
    arranged: list[Row] = []
    for family in FAMILIES:
        of_family = [row for row in models if row["family"] == family]
        arranged += [*of_family, *([_summary(f"all {family}", family, of_family)] if of_family else [])]
    if models:
        arranged.append(_summary(EVERYTHING, "", models))
    return [*arranged, *_left_over(tallies)]


def _summary(name: str, family: str, models: Sequence[Row]) -> Row:
    """Return the row of several models: shares of all their nodes and subgraphs."""
    imported = [row for row in models if row["imported"]]
    summary: dict[str, Any] = {
        "kind": FAMILY,
        "family": family,
        "name": name,
        "imported": f"{len(imported)} of {len(models)}",
        ENGINES: ", ".join(f"{engine} {sum(engine in row[ENGINES] for row in imported)}" for engine in SESSIONS),
    }
    if imported:
        summary["rewritten price"] = geometric_mean([row["rewritten price"] for row in imported])
    for total, shares in (("nodes", ("in table", "touched", "cheaper")), ("subgraphs", ("untouched",))):
        whole = sum(row[total] for row in imported)
        summary[total] = whole
        summary |= {share: sum(row[share] * row[total] for row in imported) / max(1, whole) for share in shares}
    return summary


def _left_over(tallies: Sequence[Row]) -> Iterator[Row]:
    """Yield the most frequent opaque operators, forms that no rule touches, and forms that have a cheaper one."""
    yield from _most_frequent(OPAQUE, [tally["operators"] for tally in tallies], MOST_OPAQUE)
    for size, most in MOST_LEFT.items():
        touched, untouched = (
            [tally[name].get(str(size), {}) for tally in tallies] for name in ("touched", "untouched")
        )
        anywhere = set[str]().union(*touched)
        left = [{form: count for form, count in counts.items() if form not in anywhere} for counts in untouched]
        yield from _most_frequent(LEFT, left, most, {"operators": size})
    yield from _most_frequent(CHEAPER, [tally["cheaper"] for tally in tallies], MOST_CHEAPER)


def _most_frequent(
    kind: str, counts: Sequence[Mapping[str, int]], most: int, about: Mapping[str, Any] | None = None
) -> Iterator[Row]:
    """Yield a row for what most models have; of as many models, for what there is most of."""
    models = Counter(name for of_model in counts for name in of_model)
    total: Counter[str] = Counter()
    for of_model in counts:
        total.update(of_model)
    order = sorted(models, key=lambda name: (-models[name], -total[name], name))
    for name in order[:most]:
        yield {"kind": kind, "name": name, **(about or {}), "models": models[name], "count": total[name]}


def _headline(rows: Sequence[Row]) -> Sequence[str]:
    everything = next((row for row in rows if row["name"] == EVERYTHING), None)
    if everything is None:
        return []
    shares = (
        f"{everything['in table']:.1%} of their {everything['nodes']:,} operators are of the table, rules touch "
        f"{everything['touched']:.1%}, and for {everything['cheaper']:.1%} a cheaper form is known"
    )
    taken = f"engines for whole graphs take these unchanged: {everything[ENGINES]}"
    return [f"{everything['imported']} models are imported; {shares}; {taken}"]


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    families = [row for row in rows if row["kind"] == FAMILY]
    opaque = [row for row in rows if row["kind"] == OPAQUE][:SHOWN]
    left = sorted((row for row in rows if row["kind"] == LEFT), key=lambda row: (-row["models"], -row["count"]))
    panels = [(_draw_shares, families), (_draw_models, opaque), (_draw_models, left[:SHOWN])]
    drawn = [(draw, part) for draw, part in panels if part]
    figure.set_size_inches(10, sum(0.24 * len(part) + 1.2 for _, part in drawn))
    axes = figure.subplots(len(drawn), 1, squeeze=False, height_ratios=[len(part) + 4 for _, part in drawn])
    for (draw, part), panel in zip(drawn, axes[:, 0], strict=True):
        draw(panel, part)


def _draw_shares(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw for each family the shares of its operators, from those with a cheaper form to opaque ones."""
    parts = (
        ("a cheaper form is known", "0.25", "", lambda row: row["cheaper"]),
        ("touched by a rule", "0.6", "", lambda row: row["touched"] - row["cheaper"]),
        ("in the table, touched by none", "0.9", "", lambda row: row["in table"] - row["touched"]),
        ("opaque", "white", "////", lambda row: 1 - row["in table"]),
    )
    begin = [0.0] * len(rows)
    for label, colour, hatch, share in parts:
        widths = [100 * share(row) for row in rows]
        axes.barh(range(len(rows)), widths, left=begin, color=colour, hatch=hatch, edgecolor="0.2", label=label)
        begin = [before + width for before, width in zip(begin, widths, strict=True)]
    name_rows(axes, [f"{row.get('family') or row['name']} ({row['imported']})" for row in rows])
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of the operators that run, in percent (in parentheses: models imported)")
    axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=4, frameon=False, fontsize="small")


def _draw_models(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw in how many models operators or forms occur, with the number of times at the bars' ends."""
    bars = axes.barh(range(len(rows)), [row["models"] for row in rows], color="0.6", edgecolor="0.2")
    axes.bar_label(bars, [f"{row['count']:,}" for row in rows], padding=3, fontsize="x-small")
    name_rows(axes, [row["name"] for row in rows])
    axes.tick_params(axis="y", labelsize="small")
    axes.set_xlabel(f"models with this {rows[0]['kind']} (how often in all)")


EXPERIMENT = Experiment(
    "coverage",
    "Which parts of real models do the rules reach?",
    reading=(
        "of the `nodes` that run, those `in table` are operators of the table, those `touched` are matched by a rule "
        "that can be applied, with another node or at a gain, and for those `cheaper` one such step lowers the price "
        "on a modelled machine; `rewritten price` is what applying all such steps leaves of it (of several models the "
        "geometric mean); `engines` for whole graphs that take the unchanged graph, with the `reason` of those that do "
        f"not; of the result, `subgraphs` are connected ones of two to {MOST_OPERATORS} operators, "
        "`untouched` if no match lies in them; then, by the number of `models` that have them, come opaque operators, "
        "forms of such subgraphs that no rule touches anywhere (of four and five operators those that a model has "
        "at least twice), and forms of what is matched at a gain: in a form `a`, `b` are any values, `w` depends on "
        "weights only and `c` is a number"
    ),
    parts=lambda settings: settings.choose(QUICK, list(CORPUS)),
    measure=_measure,
    plot=_plot,
    arrange=arrange,
    headline=_headline,
    devices=("cpu",),
)
