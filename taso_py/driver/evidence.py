"""What a report rests on, gathered for its page.

Invariant: both profiles are of runs in eager mode, the second with the kernels that were chosen, whatever runtime the
result is for.
"""

from __future__ import annotations

from taso_py.backend import Program
from taso_py.backend.plan import NO_PLAN
from taso_py.checking.compare import OutputComparison
from taso_py.judging.trial import Judgement
from taso_py.models.source import Source
from taso_py.profiling.profile import ProfileOptions, profile_modules
from taso_py.report.difference import difference
from taso_py.report.optimization_page import Evidence, OutputCheck
from taso_py.rules.substitution import Substitution
from taso_py.search.trace import Trace, replay_steps, write_trace

PROFILE_SECONDS = 3.0
"""Of timed runs for the two profiles together."""


def gather(source: Source, program: Program, judgement: Judgement, *, progress: bool = False) -> Evidence:
    """The evidence for the page.

    Args:
        source: what was optimized.
        program: its program.
        judgement: the winner.
        progress: whether to show bars.
    """
    options = ProfileOptions(seconds=PROFILE_SECONDS, progress=progress)
    winner, trace = judgement.winner, judgement.winner.candidate.trace
    before, after = profile_modules(source, [(program, NO_PLAN), (winner.program, winner.plan)], options)
    return Evidence(
        difference=difference(program.graph, replay_steps(program.graph, trace)),
        rules=_used(trace),
        profiles=(before, after),
        outputs=tuple(map(_check, judgement.comparison.outputs)),
        trace=write_trace(trace),
    )


def _check(c: OutputComparison) -> OutputCheck:
    form = "as timed" if c.as_timed else "saved"
    return OutputCheck(form, c.output, c.inputs, c.error, c.original_error, c.allowed, c.passed)


def _used(trace: Trace) -> tuple[Substitution, ...]:
    order = list(dict.fromkeys(trace.applied))
    return tuple(sorted(trace.rules, key=lambda rule: order.index(rule.id)))
