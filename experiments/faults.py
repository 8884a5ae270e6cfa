"""Faults: what the user sees when things go wrong, and what remains.

Every fault is provoked in a process of its own, with a cache of its own, on a small model; afterwards the same folder
and cache are used again without the fault.

Invariant: a fault *held* if the process ended with the right exit status and message, or continued with a correct
result, and the next run was not affected.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from experiments.drawing import name_rows
from experiments.harness import Experiment, Row, Settings

_MODEL = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(48, 48) for _ in range(3))

    def forward(self, x):
        a, b, c = (layer(x).relu() for layer in self.layers)
        return a * b + a * c

def model():
    return Model().eval(), (torch.randn(4, 48, generator=torch.Generator().manual_seed(1)),)
"""
_FALSE_RULE = """
rule a: float[..B], b: float[..B], c: float[..B]
  source add(mul(a, b), mul(a, c))
  target mul(a, mul(b, c))
  numerics REASSOCIATE
"""
_LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))
from taso_py.cli import main
sys.exit(main())
"""
"""The command line with a limit on file sizes, which fails as a full disk does."""
_KERNEL = """
import sys, torch
from taso_py.backend.plan import BoundKernel
from taso_py.kernels.tile import Cover, DENSE, Tile
from taso_py.ops.contraction import Linear

def covers(node, device):
    if isinstance(node.op, Linear):
        shape = node.types[0].sizes
        def bind(statics, packs):
            def kernel(x):
                {body}
            return BoundKernel("faulty", kernel)
        yield Cover("faulty", (node,), node.inputs[:1], (DENSE,), node.inputs[1:], binder=bind, text="faulty")

from taso_py.engines.eager import Eager
Eager.tiles = (*Eager.tiles, Tile("faulty", covers))
from taso_py.cli import main
sys.exit(main())
"""
"""The command line with an additional, faulty kernel for linear layers."""


@dataclass(frozen=True)
class Ran:
    """The result of a process."""

    status: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Last line for the user, progress bars apart."""
        lines = [line for line in self.err.replace("\r", "\n").splitlines() if line.strip() and "%|" not in line]
        return lines[-1].strip() if lines else ""


@contextmanager
def interruptible_children() -> Generator[None]:
    """Let processes that are started in the block be interrupted.

    A shell makes background processes ignore interrupts, and children inherit that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass(frozen=True)
class Bench:
    """A folder with a model, an output folder and a cache."""

    root: Path

    @property
    def out(self) -> Path:
        """Folder of the results."""
        return self.root / "out"

    @property
    def database(self) -> Path:
        """File of the latencies."""
        return self.root / "cache" / "latencies.sqlite"

    def arguments(self, *more: str) -> list[str]:
        """Return the arguments of an optimization of the model."""
        return [
            "optimize",
            f"{self.root / 'mine.py'}:model",
            "--time-limit",
            "3",
            "--race-seconds",
            "1",
            "--json",
            *more,
        ]

    def start(self, arguments: Sequence[str], script: str = "", **environment: str) -> subprocess.Popen[str]:
        """Start the command line, or a script in its place."""
        command = ["-c", script] if script else ["-m", "taso_py.cli"]
        given = {**os.environ, "TASO_PY_CACHE": str(self.root / "cache"), **environment}
        with interruptible_children():
            return subprocess.Popen(
                [sys.executable, *command, *arguments],
                env=given,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )

    def run(self, arguments: Sequence[str], script: str = "", **environment: str) -> Ran:
        """Run the command line, or a script in its place."""
        return wait_for(self.start(arguments, script, **environment))

    def works(self) -> bool:
        """Return whether a run without a fault saves a result that loads, and the latencies can be read."""
        ran = self.run(self.arguments("--output", str(self.out)))
        script = "import sys, torch, taso_py; taso_py.load(sys.argv[1])(torch.randn(4, 48))"
        loads = self.run([str(self.out)], script).status == 0
        return ran.status == 0 and loads and self.run(["latencies", "list"]).status == 0


def wait_for(process: subprocess.Popen[str]) -> Ran:
    """Wait for a process."""
    out, err = process.communicate(timeout=600)
    return Ran(process.returncode, out, err)


Verdict = tuple[bool, str]
"""True if the fault held, and the message that the user saw."""


def _is_right(ran: Ran) -> bool:
    """Return whether a report was printed, and its result passed the comparison."""
    try:
        return ran.status == 0 and bool(json.loads(ran.out)["comparison_passed"])
    except (ValueError, KeyError):
        return False


def _check_refusal(ran: Ran, *words: str) -> Verdict:
    """Check for one line with certain words, exit status 2, and no traceback."""
    held = ran.status == 2 and all(word in ran.said for word in words) and "Traceback" not in ran.err
    return held, ran.said


def _check_success(ran: Ran) -> Verdict:
    return _is_right(ran) and "Traceback" not in ran.err, ran.said or "nothing: the result is right"


def _no_output_folder(bench: Bench) -> Verdict:
    return _check_refusal(bench.run(bench.arguments("--output", str(bench.root / "mine.py" / "out"))), "cannot write")


def _no_cache_folder(bench: Bench) -> Verdict:
    return _check_success(bench.run(bench.arguments(), TASO_PY_CACHE=str(bench.root / "mine.py" / "cache")))


def _full_disk(bench: Bench) -> Verdict:
    ran = bench.run(bench.arguments("--output", str(bench.out)), _LIMITED.format(size=30_000))
    held, said = _check_refusal(ran, "cannot write")
    return held and not (bench.out / "model.pt2").exists(), said


def _full_disk_for_latencies(bench: Bench) -> Verdict:
    return _check_success(bench.run(bench.arguments(), _LIMITED.format(size=8_192)))


def _damaged_latencies(bench: Bench) -> Verdict:
    bench.database.parent.mkdir()
    bench.database.write_bytes(b"SQLite format 3\0" + b"damaged" * 999)
    return _check_success(bench.run(bench.arguments()))


def _foreign_latencies(bench: Bench) -> Verdict:
    import sqlite3

    bench.database.parent.mkdir()
    with sqlite3.connect(bench.database) as connection:
        connection.execute("create table recipes (name text)")
    return _check_success(bench.run(bench.arguments()))


def _edited_rule(bench: Bench) -> Verdict:
    rules = bench.root / "rules"
    shutil.copytree(Path(__file__).parent.parent / "substitutions", rules)
    path = min(rules.glob("*.rules"))
    path.write_text(path.read_text().replace("relu", "tanh", 1))
    return _check_refusal(bench.run(bench.arguments("--rules", str(rules))), "was changed after its rules were proved")


def _false_rule(bench: Bench) -> Verdict:
    path = bench.root / "false.rules"
    path.write_text(_FALSE_RULE)
    verified = bench.run(["verify", str(path)])
    ran = bench.run(bench.arguments("--rules", str(path)))
    held = verified.status == 1 and _is_right(ran) and json.loads(ran.out)["applied"] == []
    return held, "; ".join(json.loads(ran.out)["notes"]) if ran.status == 0 else ran.said


def _damaged_manifest(bench: Bench) -> Verdict:
    rules = bench.root / "rules"
    shutil.copytree(Path(__file__).parent.parent / "substitutions", rules)
    (rules / "MANIFEST.json").write_text("{")
    return _check_refusal(bench.run(bench.arguments("--rules", str(rules))), "MANIFEST.json is damaged")


def _damaged_program(bench: Bench) -> Verdict:
    bench.run(bench.arguments("--output", str(bench.out)))
    path = bench.out / "model.pt2"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return _check_refusal(bench.run(["optimize", str(path)]), "model.pt2")


def _edited_trace(bench: Bench) -> Verdict:
    bench.run(bench.arguments("--output", str(bench.out)))
    path = bench.out / "trace.rules"
    text = path.read_text()
    path.write_text(text.replace(text.split()[1], "0" * 32, 1))
    ran = bench.run(["replay", str(path), f"{bench.root / 'mine.py'}:model"])
    return _check_refusal(ran, "the trace is of another graph")


def _kernel(body: str) -> Callable[[Bench], Verdict]:
    def provoke(bench: Bench) -> Verdict:
        ran = bench.run(bench.arguments(), _KERNEL.format(body=body))
        held, said = _check_success(ran)
        return held and "faulty" not in json.loads(ran.out)["kernels"], said

    return provoke


def _interrupt_after(after: float) -> Callable[[Bench], Verdict]:
    def provoke(bench: Bench) -> Verdict:
        process = bench.start(bench.arguments("--output", str(bench.out)))
        time.sleep(after)
        process.send_signal(signal.SIGINT)
        ran = wait_for(process)
        said = ran.said if ran.status else "nothing: the best so far"
        return "Traceback" not in ran.err and (ran.status == 130 or _is_right(ran)), said

    return provoke


def _kill_after(after: float) -> Callable[[Bench], Verdict]:
    def provoke(bench: Bench) -> Verdict:
        process = bench.start(bench.arguments("--output", str(bench.out)))
        time.sleep(after)
        process.kill()
        wait_for(process)
        return True, "nothing"

    return provoke


def _two_at_once(bench: Bench) -> Verdict:
    processes = [bench.start(bench.arguments("--output", str(bench.out))) for _ in range(2)]
    ran = [wait_for(process) for process in processes]
    return all(map(_is_right, ran)), ran[1].said or "nothing: both results are right"


FAULTS: Mapping[str, Callable[[Bench], Verdict]] = {
    "output folder cannot be made": _no_output_folder,
    "cache folder cannot be made": _no_cache_folder,
    "disk full when saving": _full_disk,
    "disk full for latencies": _full_disk_for_latencies,
    "latency database damaged": _damaged_latencies,
    "latency database of something else": _foreign_latencies,
    "shipped rule edited by hand": _edited_rule,
    "false rule of one's own": _false_rule,
    "manifest damaged": _damaged_manifest,
    "program damaged": _damaged_program,
    "trace edited by hand": _edited_trace,
    "kernel raises": _kernel("raise RuntimeError('no such primitive')"),
    "kernel runs out of memory": _kernel("raise torch.OutOfMemoryError('out of memory')"),
    "kernel returns NaN": _kernel("return torch.full(shape, float('nan'))"),
    "kernel returns numbers that are wrong": _kernel("return torch.ones(shape)"),
    "two runs at once": _two_at_once,
    **{f"Ctrl-C after {after} s": _interrupt_after(after) for after in (3, 6, 9, 12)},
    **{f"kill -9 after {after} s": _kill_after(after) for after in (3, 6, 9, 12, 15)},
}
"""Functions that provoke the faults; the times fall into importing, measuring, searching and timing."""
QUICK = ("output folder cannot be made", "latency database damaged", "kernel returns NaN", "Ctrl-C after 6 s")


def _measure(name: str, _: Settings) -> Sequence[Row]:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        (bench.root / "mine.py").write_text(_MODEL)
        held, said = FAULTS[name](bench)
        works = bench.works()
        return [{"fault": name, "held": held, "next_run_works": works, "seen": said.replace(folder, "...")}]


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    axes = figure.subplots()
    for place, row in enumerate(rows):
        for column, key in enumerate(("held", "next_run_works")):
            axes.text(column, place, "yes" if row[key] else "NO", ha="center", va="center")
    axes.set_xticks([0, 1], ["held", "next run works"])
    name_rows(axes, [row["fault"] for row in rows])
    axes.set_xlim(-0.5, 1.5)


EXPERIMENT = Experiment(
    "faults",
    "What does the user see when things go wrong, and what remains?",
    reading="`held` and `next_run_works` must be yes everywhere; `seen` is the line that the user gets",
    parts=lambda settings: settings.choose(QUICK, tuple(FAULTS)),
    measure=_measure,
    plot=_plot,
    devices=("cpu",),
)
