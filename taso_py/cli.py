"""The command line: argument parsing and wiring only.

Invariant: a user's mistake is one line on standard error and exit status 2. Results go to standard output (with
``--json`` one JSON document and nothing else), progress to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from taso_py.ir.errors import TasoError
from taso_py.rules.database import Section, read_database, write_database
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import write_rule
from taso_py.rules.verdict import Numerics, Outcome, Verdict

MODEL_HELP = """MODEL is one of
  package.module:factory    a function without arguments that returns a module, or (module, example inputs)
  path/to/file.py:factory   the same, from a file; it is your own code and is executed
  path/to/program.pt2       an exported program (torch.export.save)
  zoo:NAME                  a model of the zoo with random weights; 'zoo:?' lists them
SPEC is a shape, 1x3x224x224, optionally with an element type, 1x128:int64."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parsed = _parser().parse_args(arguments)
    try:
        return parsed.run(parsed)
    except TasoError as error:
        print(f"taso-py: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("taso-py: interrupted; what was finished has been kept", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, less) has gone: nothing is left to say, and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="taso-py",
        description="Superoptimize PyTorch models with proved substitutions and measured latencies.",
        epilog="Start with: taso-py optimize zoo:nasrnn --output out",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in (_add_optimize, _add_generate, _add_verify, _add_rules, _add_replay, _add_latencies):
        add(commands)
    return parser


def _command(commands: Any, name: str, run: Any, summary: str, **more: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=summary, formatter_class=argparse.RawDescriptionHelpFormatter, **more
    )
    parser.set_defaults(run=run)
    return parser


def _print_json(document: Any) -> None:
    print(json.dumps(document, indent=2, allow_nan=False))


# -- optimize and replay


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="what to optimize, see below")
    parser.add_argument("--input", metavar="SPEC", action="append", default=[], help="an example input; once per input")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--dtype", metavar="D", choices=("float32", "bfloat16", "float16", "float64"), help="cast to D")
    parser.add_argument("--seed", type=int, default=0, help="of weights, random inputs and the order of timing")


def _add_optimize(commands: Any) -> None:
    parser = _command(commands, "optimize", _optimize, "Rewrite a model into a faster one.", epilog=MODEL_HELP)
    _add_model(parser)
    parser.add_argument("--runtime", choices=("eager", "cudagraph", "inductor", "auto"), default="eager")
    parser.add_argument("--search", choices=("backtracking", "greedy"), default="backtracking")
    parser.add_argument(
        "--alpha", type=float, default=1.05, help="keep graphs within this factor of the best (%(default)s)"
    )
    parser.add_argument("--budget", metavar="N", type=int, default=2000, help="graphs to build at most (%(default)s)")
    parser.add_argument("--time-limit", metavar="S", type=float, default=60.0, help="seconds of search (%(default)s)")
    parser.add_argument(
        "--numerics",
        metavar="CLASS",
        choices=[numerics.name.lower().replace("_", "-") for numerics in Numerics],
        help="the most that results may differ: %(choices)s (default: zero-terms, reassociate in half precision)",
    )
    parser.add_argument(
        "--rules", metavar="PATH", type=Path, help="a rule file or folder (default: the shipped database)"
    )
    parser.add_argument("--output", metavar="DIR", type=Path, help="write model.pt2, plan, report and trace here")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON document")


def _numerics(name: str | None) -> Numerics | None:
    return None if name is None else Numerics[name.upper().replace("-", "_")]


def _optimize(parsed: argparse.Namespace) -> int:
    # Commands import what they need when they run: reading rules must not wait for torch.
    from taso_py.runtime.optimize import Options, optimize_source
    from taso_py.runtime.source import load_source

    options = Options(
        device=parsed.device,
        runtime=parsed.runtime,
        search=parsed.search,
        alpha=parsed.alpha,
        budget=parsed.budget,
        time_limit=parsed.time_limit,
        numerics=_numerics(parsed.numerics),
        seed=parsed.seed,
        progress=True,
    )
    rules = read_database(parsed.rules)
    source = load_source(parsed.model, parsed.input, device=parsed.device, dtype=parsed.dtype, seed=parsed.seed)
    optimized = optimize_source(source, options, rules, output=parsed.output)
    if parsed.json:
        _print_json(optimized.report.as_dict())
    else:
        Console().print(optimized.report)
    return 0


def _add_replay(commands: Any) -> None:
    parser = _command(
        commands, "replay", _replay, "Re-derive a result from the original and check every step.", epilog=MODEL_HELP
    )
    parser.add_argument("trace", metavar="TRACE", type=Path, help="a trace.rules file that optimize wrote")
    _add_model(parser)


def _replay(parsed: argparse.Namespace) -> int:
    from taso_py.runtime.replay import replay_trace
    from taso_py.runtime.source import load_source

    source = load_source(parsed.model, parsed.input, device=parsed.device, dtype=parsed.dtype, seed=parsed.seed)
    steps = replay_trace(parsed.trace, source)
    print(
        f"{steps} steps replayed; each rule matched and each region agrees in float64; the result is the recorded one"
    )
    return 0


# -- generate, verify, rules


def _add_generate(commands: Any) -> None:
    parser = _command(commands, "generate", _generate, "Enumerate, prove and write substitutions.")
    parser.add_argument(
        "--max-ops", metavar="N", type=int, help="operators a side at most (default: what each set says)"
    )
    parser.add_argument("--ops", metavar="SET", action="append", help="vocabulary; repeatable (default: those shipped)")
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("substitutions"), help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the values that terms are compared on")
    parser.add_argument("--json", action="store_true", help="print the run report as one JSON document")


def _generate(parsed: argparse.Namespace) -> int:
    from taso_py.generate.pipeline import Config, generate
    from taso_py.generate.widen import widened

    sets = {"vocabularies": tuple(parsed.ops)} if parsed.ops else {}
    config = Config(**sets, max_operators=parsed.max_ops, seed=parsed.seed)
    start = perf_counter()
    with _Phases() as phases:
        generation = generate(config, _check, phases)
        wide = widened(generation.rules, _check)
    report = generation.report
    facts = {
        "vocabularies": config.vocabularies,
        "max_operators": config.max_operators,
        "seed": config.seed,
        "terms": report.terms,
        "candidates": report.candidates,
        "outcomes": dict(sorted(report.outcomes.items())),
        "widened": len(wide),
    }
    write_database(parsed.out, [Section("-".join(config.vocabularies), [*generation.rules, *wide], facts)])
    seconds = perf_counter() - start
    if parsed.json:
        unproved = [{"rule": rule, "reason": reason} for rule, reason in report.unproved]
        _print_json(
            {**facts, "rules": len(generation.rules) + len(wide), "unproved": unproved, "seconds": round(seconds, 1)}
        )
    else:
        for name, value in facts.items():
            print(f"{name:<14} {value}")
        print(f"{len(generation.rules) + len(wide)} rules written to {parsed.out} in {seconds:.0f} s")
    return 0


class _Phases:
    """A progress bar that starts anew with each phase."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None

    def __enter__(self) -> _Phases:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, phase: str, done: int, total: int) -> None:
        if self._bar is None or self._bar.desc != phase:
            self.__exit__()
            self._bar = tqdm(total=total, leave=False)
            self._bar.desc = phase
        self._bar.update(done - self._bar.n)


def _add_verify(commands: Any) -> None:
    parser = _command(commands, "verify", _verify, "Prove every rule again; exit status 0 only if all are PROVED.")
    parser.add_argument(
        "files", metavar="FILE", type=Path, nargs="*", help="rule files (default: the shipped database)"
    )
    parser.add_argument("--jobs", metavar="J", type=int, default=os.cpu_count() or 1, help="processes (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the verdicts as one JSON document")


def _check(rule: Substitution) -> Verdict:
    from verify import check

    return check(rule)


def _verify(parsed: argparse.Namespace) -> int:
    rules = [rule for path in parsed.files or [None] for rule in read_database(path)]
    start = perf_counter()
    with ProcessPoolExecutor(parsed.jobs) as pool:
        verdicts = list(tqdm(pool.map(_check, rules, chunksize=4), total=len(rules), unit="rule", desc="verify"))
    seconds = perf_counter() - start
    counts = {outcome: sum(verdict.outcome is outcome for verdict in verdicts) for outcome in Outcome}
    failed = [(rule, v) for rule, v in zip(rules, verdicts, strict=True) if v.outcome is not Outcome.PROVED]
    if parsed.json:
        found = [{"id": rule.id, "outcome": v.outcome.value, "reason": v.reason} for rule, v in failed]
        _print_json({**{o.value: n for o, n in counts.items()}, "seconds": round(seconds, 3), "failed": found})
    else:
        for rule, verdict in failed:
            evidence = f" ({verdict.counterexample})" if verdict.counterexample else ""
            print(f"{verdict.outcome.value.upper()} {verdict.reason}{evidence}\n{write_rule(rule)}\n")
        print(", ".join(f"{number} {o.value}" for o, number in counts.items()) + f" in {seconds:.1f} s")
    return 1 if failed else 0


def _add_rules(commands: Any) -> None:
    parser = _command(commands, "rules", _rules, "Look at the substitution database.")
    parser.add_argument("action", choices=("list", "show", "stats"))
    parser.add_argument("id", metavar="ID", nargs="?", help="for show: a rule's identifier or its beginning")
    parser.add_argument(
        "--rules", metavar="PATH", type=Path, help="a rule file or folder (default: the shipped database)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _rules(parsed: argparse.Namespace) -> int:
    rules = read_database(parsed.rules)
    if parsed.action == "stats":
        return _rules_stats(rules, parsed.json)
    if parsed.action == "show":
        if not parsed.id:
            raise TasoError("rules show needs an identifier; 'taso-py rules list' prints them")
        rules = tuple(rule for rule in rules if rule.id.startswith(parsed.id))
        if not rules:
            raise TasoError(f"no rule has the identifier {parsed.id}; 'taso-py rules list' prints them")
    if parsed.json:
        _print_json([{"id": r.id, "text": write_rule(r), "numerics": r.numerics.name} for r in rules])
    elif parsed.action == "show":
        print("\n\n".join(map(write_rule, rules)))
    else:
        for rule in rules:
            print(f"{rule.id}  {rule.numerics.name:<11}  {' '.join(rule.statement.split())}")
    return 0


def _rules_stats(rules: Sequence[Substitution], as_json: bool) -> int:
    by_operators: dict[str, int] = {}
    by_numerics: dict[str, int] = {}
    for rule in rules:
        size = str(max(rule.size))
        by_operators[size] = by_operators.get(size, 0) + 1
        by_numerics[rule.numerics.name] = by_numerics.get(rule.numerics.name, 0) + 1
    macros = sum(rule.proof == "derived" for rule in rules)
    stats = {
        "total": len(rules),
        "base": len(rules) - macros,
        "macros": macros,
        "by_operators": dict(sorted(by_operators.items())),
        "by_numerics": dict(sorted(by_numerics.items())),
    }
    if as_json:
        _print_json(stats)
        return 0
    table = Table(box=None, show_header=False)
    for name, value in stats.items():
        text = ", ".join(f"{k}: {n}" for k, n in value.items()) if isinstance(value, dict) else str(value)
        table.add_row(name, text)
    Console().print(table)
    return 0


# -- latencies


def _add_latencies(commands: Any) -> None:
    parser = _command(commands, "latencies", _latencies, "Look at, move or forget the measured latencies.")
    parser.add_argument("action", choices=("list", "clear", "export", "import"))
    parser.add_argument(
        "file", metavar="FILE", type=Path, nargs="?", help="for export and import (default: stdout, stdin)"
    )


def _latencies(parsed: argparse.Namespace) -> int:
    from taso_py.cost.database import LatencyDatabase

    with LatencyDatabase() as database:
        if parsed.action == "list":
            for row in database.rows():
                print(f"{row.latency.median_s * 1e6:12.2f} us  {row.kernel}  {row.signature}")
            print(f"{len(database.rows())} latencies in {database.path}", file=sys.stderr)
        elif parsed.action == "clear":
            print(f"{database.clear()} latencies forgotten")
        elif parsed.action == "export":
            text = json.dumps(database.export(), indent=1) + "\n"
            _write_text(parsed.file, text)
        else:
            print(f"{database.merge(_read_json(parsed.file))} latencies added")
    return 0


def _write_text(path: Path | None, text: str) -> None:
    if path is None:
        sys.stdout.write(text)
        return
    try:
        path.write_text(text)
    except OSError as error:
        raise TasoError(f"cannot write {path}: {error.strerror}") from error


def _read_json(path: Path | None) -> Any:
    try:
        return json.loads(path.read_text() if path else sys.stdin.read())
    except OSError as error:
        raise TasoError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise TasoError(f"{path or 'standard input'} is not JSON: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
