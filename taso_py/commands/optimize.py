"""``taso-py optimize``: rewrite a model into a faster one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from taso_py.collector import collector_paused
from taso_py.commands.common import (
    LATENCIES_KEPT,
    MODEL_HELP,
    add_model,
    add_option,
    add_search,
    answer,
    command,
    search_options,
    some_path,
)

if TYPE_CHECKING:
    from taso_py.entries.sizes import SizesReport
    from taso_py.models.source import Source
    from taso_py.options import Options
    from taso_py.report.optimization import Report


def add(commands: Any) -> None:
    """Add the subcommand to the parser."""
    summary = "Rewrite a model into a faster one."
    parser = command(commands, "optimize", _optimize, summary, kept=LATENCIES_KEPT, epilog=MODEL_HELP)
    add_model(parser)
    add_option(parser, "runtime", default=None)
    add_search(parser)
    parser.add_argument(
        "--trace", metavar="FILE", type=some_path, help="apply the steps of this trace.rules file in place of a search"
    )
    add_option(parser, "race_seconds")
    parser.add_argument(
        "--sizes",
        metavar="SPECS",
        action="append",
        default=[],
        help="inputs of another size, as 8x3x224x224, for which the model is optimized too, in the same result; once "
        "for each size, with commas between the inputs of a model that has several",
    )
    parser.add_argument("--output", metavar="DIR", type=some_path, help="write model.pt2, plan, report and trace here")
    parser.add_argument(
        "--emit",
        metavar="FORMS",
        default="pt2",
        help="formats to write, separated by commas: pt2, onnx, aot, code, triton (%(default)s); aot is compiled for "
        "this kind of processor by AOTInductor, code is readable Python, triton a model repository for Triton "
        "Inference Server",
    )
    parser.add_argument("--json", action="store_true", help="print the report as one JSON document")


def _optimize(parsed: argparse.Namespace) -> int:
    with collector_paused():  # what is imported stays
        from taso_py.driver.optimize import optimize_source
        from taso_py.driver.replay import load_trace
        from taso_py.driver.searches import rules_for
        from taso_py.engines.names import AUTO
        from taso_py.options import OptimizeError, Options
        from taso_py.saving.emit import check_forms

    forms = tuple(parsed.emit.split(","))
    if parsed.output is None and forms != ("pt2",):
        raise OptimizeError("--emit needs a folder to write to; add --output DIR")
    check_forms(forms)
    if parsed.sizes and (forms != ("pt2",) or parsed.trace is not None or parsed.rules is not None):
        raise OptimizeError("--sizes goes with none of --emit, --trace and --rules; optimize each size for itself")
    runtime = parsed.runtime or ("onnxruntime" if parsed.model.endswith(".onnx") else AUTO)
    options = Options(runtime=runtime, race_seconds=parsed.race_seconds, **search_options(parsed))
    if parsed.sizes:
        return answer(parsed, lambda source: _of_sizes(source, parsed, options))
    rules = rules_for(options, parsed.rules)
    trace = None if parsed.trace is None else load_trace(parsed.trace)

    def report(source: Source) -> Report:
        return optimize_source(source, options, rules, output=parsed.output, forms=forms, trace=trace).report

    return answer(parsed, report)


def _of_sizes(source: Source, parsed: argparse.Namespace, options: Options) -> SizesReport:
    from taso_py.entries.sizes import optimize_sources
    from taso_py.models.source import at_size

    sources = [source, *[at_size(source, text, parsed.seed) for text in parsed.sizes]]
    return optimize_sources(sources, options, parsed.output).report
