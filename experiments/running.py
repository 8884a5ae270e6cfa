"""Running of an experiment part by part, so that neither an interruption nor a failure loses finished parts.

Parts are measured in worker processes, which have a session of their own: an interrupt from the keyboard reaches this
process only, which kills the running part and keeps all others. The rows of a part are in ``runs/NAME/PART.json``
before the next one begins, and are not measured again under the same settings in the same environment.

Invariant: a saved part ran from beginning to end, and is saved with its circumstances. Tables and figures of earlier
runs stay until there are rows to replace them.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib as mpl
from matplotlib.figure import Figure

from experiments.harness import Experiment, Row, Settings
from experiments.table import write_csv
from experiments.worker import LATE, Measured, Worker
from taso_py.files import replace_file
from taso_py.ir.errors import first_line
from taso_py.latency.environment import Environment

mpl.use("agg")

ROOT = Path(__file__).parent.parent
"""The repository."""

Tell: TypeAlias = Callable[[Experiment, str], None]
"""Called with every part when it begins."""


@dataclass
class ExperimentRun:
    """The finished and failed parts of an experiment."""

    parts: Sequence[str]
    done: dict[str, Measured] = field(default_factory=dict[str, Measured])
    failures: dict[str, str] = field(default_factory=dict[str, str])
    """Reasons by part, or by ``figure`` if it could not be drawn."""

    @property
    def missing(self) -> list[str]:
        """Parts that have not been run."""
        return [part for part in self.parts if part not in self.done and part not in self.failures]

    @property
    def is_new(self) -> bool:
        """True if nothing has been run."""
        return not self.done and not self.failures

    @property
    def is_complete(self) -> bool:
        """True if all parts are finished and nothing failed."""
        return not self.missing and not self.failures


def conduct(
    experiment: Experiment,
    settings: Settings,
    *,
    outcome: ExperimentRun | None = None,
    most: int | None = None,
    until: float | None = None,
    tell: Tell | None = None,
) -> tuple[Sequence[Row], ExperimentRun]:
    """Run the missing parts of an experiment and write ``NAME.csv``, ``NAME.png`` and ``NAME.json``.

    Where there is no row to write, those of an earlier run are left as they are.

    Args:
        experiment: the experiment.
        settings: the settings of the run.
        outcome: the parts that are done, by default the saved ones; new parts are added.
        most: the most parts to run.
        until: the time on the monotonic clock at which to stop; the running part is then abandoned.
        tell: called with every part when it begins.
    """
    outcome = finished_parts(experiment, settings) if outcome is None else outcome
    circumstances = circumstances_of(settings)
    try:
        with Worker() as worker:
            for part in outcome.missing[:most]:
                if until is None or time.monotonic() < until:
                    if tell is not None:
                        tell(experiment, part)
                    _measure(
                        experiment,
                        part,
                        settings,
                        worker=worker,
                        until=until,
                        circumstances=circumstances,
                        outcome=outcome,
                    )
    finally:
        rows = _write(experiment, settings, circumstances, outcome)
    return rows, outcome


def finished_parts(experiment: Experiment, settings: Settings) -> ExperimentRun:
    """Return the saved parts of an experiment that ran under the same settings in the same environment."""
    outcome, circumstances = ExperimentRun(experiment.parts(settings)), circumstances_of(settings)
    for part in outcome.parts:
        known = _load_part(part_path(settings, experiment.name, part), circumstances)
        if known is not None:
            outcome.done[part] = known
    return outcome


def part_path(settings: Settings, name: str, part: str) -> Path:
    """Return the file of a part's rows."""
    file = re.sub(r"[^\w.+-]+", "-", part)
    return settings.out / "runs" / name / f"{file}.json"


def _measure(
    experiment: Experiment,
    part: str,
    settings: Settings,
    worker: Worker,
    until: float | None,
    circumstances: Mapping[str, Any],
    outcome: ExperimentRun,
) -> None:
    """Measure one part and save its rows."""
    if experiment.apart:
        worker.end()
    found = worker.call(experiment.measure, part, settings, until)
    if found == LATE:
        return
    if isinstance(found, str):
        outcome.failures[part] = found
        return
    outcome.done[part] = {**circumstances, **found}
    path = part_path(settings, experiment.name, part)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(outcome.done[part], indent=1) + "\n")


def _load_part(path: Path, circumstances: Mapping[str, Any]) -> Measured | None:
    """Return the saved rows of a part if it ran under the same settings in the same environment, else None."""
    try:
        found: Measured = json.loads(path.read_text(encoding="utf-8"))
        same = all(found[name] == circumstances[name] for name in ("quick", "seed", "environment"))
        return found if same and isinstance(found["rows"], list) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def circumstances_of(settings: Settings) -> Mapping[str, Any]:
    """Return how and where a run was made."""
    return {
        "quick": settings.quick,
        "seed": settings.seed,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _commit(),
        "environment": Environment.current(settings.device).as_dict(),
    }


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git in the repository, and return how it ended.

    Raises:
        OSError: there is no git.
    """
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def _commit() -> str:
    """Return the commit that is checked out, and whether anything but results differs from it."""
    try:
        head = git("rev-parse", "HEAD").stdout.strip()
        changed = git("diff", "--quiet", "HEAD", "--", ":/", ":(exclude,top)experiments/results").returncode
    except OSError:
        return "unknown"
    return f"{head} with changes" if head and changed else head or "unknown"


def _write(
    experiment: Experiment, settings: Settings, circumstances: Mapping[str, Any], outcome: ExperimentRun
) -> Sequence[Row]:
    """Write the table, the figure, and how they were obtained; earlier ones stay until there are rows."""
    settings.out.mkdir(parents=True, exist_ok=True)
    base = settings.out / experiment.name
    found = [row for part in outcome.parts if part in outcome.done for row in outcome.done[part]["rows"]]
    has_earlier = base.with_suffix(".csv").exists() or (outcome.is_new and base.with_suffix(".json").exists())
    if not found and has_earlier:
        return []
    rows: Sequence[Row] = []
    if found:
        rows = experiment.arrange(found)
        write_csv(base.with_suffix(".csv"), rows)
        _draw(experiment, rows, base.with_suffix(".png"), outcome)
    done = outcome.done.values()
    facts = {
        "question": experiment.question,
        **circumstances,
        "commit": ", ".join(sorted({measured["commit"] for measured in done})) or circumstances["commit"],
        "date": max((measured["date"] for measured in done), default=circumstances["date"]),
        "parts": len(outcome.parts),
        "missing": outcome.missing,
        "failures": outcome.failures,
        **({"wall_s": sum(m["wall_s"] for m in done)} if all("wall_s" in m for m in done) else {}),
    }
    replace_file(base.with_suffix(".json"), json.dumps(facts, indent=2) + "\n")
    return rows


def _draw(experiment: Experiment, rows: Sequence[Row], path: Path, outcome: ExperimentRun) -> None:
    outcome.failures.pop("figure", None)  # of fewer rows
    figure = Figure(figsize=(9, 0.26 * len(rows) + 1.4), layout="constrained")
    try:
        experiment.plot(figure, rows)
        figure.savefig(path, dpi=150)
    except Exception as error:
        # The table exists all the same, and an earlier figure does not show it.
        path.unlink(missing_ok=True)
        traceback.print_exc()
        outcome.failures["figure"] = f"{type(error).__name__}: {first_line(error)}"
