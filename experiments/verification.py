"""The prover on rules of known truth: verdicts, times, and agreement with other methods.

A class of rules is a file of ``tests/sound`` (true statements) and of ``tests/unsound`` (plausible false ones); the
shipped database is one more class. The index prover is compared with the witness, which refutes false rules, the
axiomatic second opinion (the method of Jia et al., SOSP 2019), and mutants of the true rules: none that the witness
refutes may be proved.

Invariant: times are processor time of one process, so that other work on the machine hardly shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import median

from matplotlib.figure import Figure

from experiments.drawing import name_rows
from experiments.harness import Experiment, Row, Settings
from taso_py.rules.database import SUFFIX, DatabaseError, read_database
from taso_py.rules.substitution import Substitution
from taso_py.rules.verdict import Outcome
from verify.audit.axiomatic import Opinion, second_opinion, shipped_axioms
from verify.audit.mutations import MutantTally, examine_all, mutants
from verify.audit.survey import Class, survey, survey_rules

TESTS = Path(__file__).parent.parent / "tests"
MUTANTS = {True: 40, False: 1250}
"""Number of mutants of each class, by whether the run is quick."""
ASKED = {True: 6, False: 1000}
"""Number of rules of each class for which the second opinion is asked, by whether the run is quick."""


SHIPPED = "shipped"


def _parts(_: Settings) -> Sequence[str]:
    names = sorted(path.name.removesuffix(SUFFIX) for path in (TESTS / "sound").glob(f"*{SUFFIX}"))
    if not names:
        raise DatabaseError(f"there are no rules of known truth in {TESTS}: run this in a clone of the repository")
    return [*names, SHIPPED]


def _measure(part: str, settings: Settings) -> Sequence[Row]:
    if part == SHIPPED:
        return [_row(survey_rules(SHIPPED, read_database()), Class(SHIPPED, ()), settings)]
    name = f"{part}{SUFFIX}"
    return [_row(survey(TESTS / "sound" / name), survey(TESTS / "unsound" / name, asks_witness=True), settings)]


def _row(true: Class, false: Class, settings: Settings) -> Row:
    proved = [result.rule for result in true.results if result.verdict.outcome is Outcome.PROVED]
    asked, agreeing = _opinions(proved[: ASKED[settings.quick]])
    tally = MutantTally.of(examine_all(settings.seed, mutants(proved, Random(settings.seed), MUTANTS[settings.quick])))
    milliseconds = [1e3 * result.seconds for result in true.results]
    return {
        "class": true.name,
        "true": len(true.results),
        "true_proved": true.count(Outcome.PROVED),
        "true_unknown": true.count(Outcome.UNKNOWN),
        "median_ms": median(milliseconds),
        "max_ms": max(milliseconds),
        "total_s": sum(milliseconds) / 1e3,
        "false": len(false.results),
        "false_refuted": false.count(Outcome.REFUTED),
        "false_unknown": false.count(Outcome.UNKNOWN),
        "false_proved": false.count(Outcome.PROVED),
        "opinions_asked": asked,
        "opinions_agreeing": agreeing,
        "mutants": tally.total,
        "mutants_refuted": tally.false,
        "mutants_proved": tally.proved,
        "mutants_undecided": tally.undecided + tally.untried,
        "mutants_proved_though_refuted": len(tally.wrong),
    }


def _opinions(rules: Sequence[Substitution]) -> tuple[int, int]:
    """Return the number of rules asked for a second opinion, and of those that follow from the shipped rules."""
    opinions = [second_opinion(rule, shipped_axioms(rule)).opinion for rule in rules]
    return len(opinions), opinions.count(Opinion.AGREES)


BARS = (
    ("true, proved", "true_proved", -0.2, "0.75", ""),
    ("true, unknown", "true_unknown", -0.2, "white", ""),
    ("false, refuted", "false_refuted", 0.2, "0.4", ""),
    ("false, unknown", "false_unknown", 0.2, "white", "////"),
)
"""Label, column, offset, colour and hatch; bars of one offset are stacked."""
SHARES = (
    ("second opinion agrees", "opinions_agreeing", "opinions_asked", "s"),
    ("mutants refuted", "mutants_refuted", "mutants", "^"),
    ("mutants proved, not refuted", "mutants_proved", "mutants", "v"),
)
"""Label, column, the column that it is a share of, and marker."""


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    verdicts, times, others = figure.subplots(1, 3, sharey=True)
    places = range(len(rows))
    lengths = {-0.2: [0] * len(rows), 0.2: [0] * len(rows)}
    for label, name, offset, color, hatch in BARS:
        counts, at = [row[name] for row in rows], [place + offset for place in places]
        verdicts.barh(at, counts, 0.4, lengths[offset], color=color, edgecolor="black", hatch=hatch, label=label)
        lengths[offset] = [a + b for a, b in zip(lengths[offset], counts, strict=True)]
    name_rows(verdicts, [row["class"] for row in rows])
    verdicts.set_xlabel("rules")
    times.scatter([row["median_ms"] for row in rows], places, color="black", label="median")
    times.scatter([row["max_ms"] for row in rows], places, facecolors="white", edgecolors="black", label="longest")
    times.set_xscale("log")
    times.set_xlabel("milliseconds a proof")
    for label, part, whole, marker in SHARES:
        values = [row[part] / max(1, row[whole]) for row in rows]
        others.scatter(values, places, color="black", facecolors="none", marker=marker, label=label)
    others.set_xlim(-0.05, 1.05)
    others.set_xlabel("share")
    for axes in (verdicts, times, others):
        axes.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False)


EXPERIMENT = Experiment(
    "verification",
    "What does the prover say of rules of known truth, and do others agree?",
    reading=(
        "one row a class of rules; of the true ones `true_unknown` should be few, of the false ones and of mutants "
        "that PyTorch refutes none may be proved; the second opinion agrees where a rule follows from the shipped ones "
        "by logic alone, and is silent otherwise, so its share says how much of the algebra first-order axioms reach"
    ),
    parts=_parts,
    measure=_measure,
    plot=_plot,
    devices=("cpu",),
)
