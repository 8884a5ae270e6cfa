"""Collects the evidence that an optimization's page shows: the graph difference, profiles, output checks, the trace.

Invariant: both profiles are of runs in eager mode, the second one with the chosen kernels, even if the result runs in
another runtime.
"""

from __future__ import annotations

from taso_py.backend.plan import NO_PLAN
from taso_py.checking.compare import OutputComparison
from taso_py.driver.prepare import PreparedSource
from taso_py.judging.evaluation import EvaluationOutcome
from taso_py.profiling.profile import ProfileOptions, profile_modules
from taso_py.report.difference import difference
from taso_py.report.optimization_page import Evidence, OutputCheck
from taso_py.rules.substitution import Substitution
from taso_py.saving.folder import PAGE
from taso_py.search.trace import Trace, replay_bodies, replay_steps, write_trace


def gather_evidence(prepared: PreparedSource, outcome: EvaluationOutcome) -> Evidence:
    """Return the evidence for the page, in a phase of its own.

    Args:
        prepared: what was optimized, with how long to profile it.
        outcome: the outcome of the evaluation.
    """
    with prepared.phases.phase("page", f"{PAGE}, with the evidence"):
        return _evidence(prepared, outcome)


def _evidence(prepared: PreparedSource, outcome: EvaluationOutcome) -> Evidence:
    program, winner, trace, profiles = prepared.program, outcome.winner, outcome.winner.candidate.trace, None
    seconds, progress = prepared.options.effective_effort.profile_s, prepared.options.progress
    if seconds:
        options = ProfileOptions(seconds=seconds, isolates=False, progress=progress)  # the page does not show these
        before, after = (program, NO_PLAN), (winner.program, winner.plan)
        is_same = winner.candidate.graph is program.graph and winner.plan is NO_PLAN  # in another engine
        found = profile_modules(prepared.source, [before] if is_same else [before, after], options)
        profiles = found[0], found[-1]
    steps = tuple(replay_steps(program.graph, trace))
    bodies = replay_bodies(steps[-1][1] if steps else program.graph, trace)
    return Evidence(
        difference=difference(program.graph, steps),
        bodies=tuple(difference(one.body.graph, one.steps) for one in bodies),
        rules=_applied_rules(trace),
        profiles=profiles,
        outputs=tuple(map(_check, outcome.comparison.outputs)),
        trace=write_trace(trace),
    )


def _check(c: OutputComparison) -> OutputCheck:
    form = "as timed" if c.as_timed else "saved"
    return OutputCheck(
        form=form,
        output=c.output,
        inputs=c.inputs,
        error=c.error,
        original_error=c.original_error,
        allowed=c.allowed,
        passed=c.passed,
    )


def _applied_rules(trace: Trace) -> tuple[Substitution, ...]:
    """Return the rules of a trace in the order of application, then those that were not applied themselves."""
    order = {id_: place for place, id_ in enumerate(dict.fromkeys(trace.applied))}
    return tuple(sorted(trace.rules, key=lambda rule: order.get(rule.id, len(order))))
