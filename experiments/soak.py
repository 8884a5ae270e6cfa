"""``python -m experiments.soak [--minutes M] [--threads N] [--out DIR]``: a server that runs for long.

Threads call a model behind ``torch.compile(backend="taso")`` with inputs of random sizes. From time to time new weights
are loaded into it, or a new model replaces it. Every answer is compared with that of the model itself. Before the
threads start, some of the models are called at each size, so that they are optimized; all threads call the others at
once. The result of a search runs whether it is faster or not: while so many threads call, hardly any would be certainly
faster, and only captured graphs would be tested.

Written are ``soak.csv``, a line every few seconds, ``soak.png``, the memory of the process over time, and
``soak.json``, the circumstances; also after Ctrl-C.

Invariant: exit status 0 only if it ran to the end, no call raised, gave another answer or never came back, and memory
did not grow by more than the memory that ``torch.compile`` itself never releases.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

import torch
from torch import Tensor, nn

from experiments.harness import Settings
from experiments.running import circumstances_of
from experiments.table import write_csv
from taso_py.arguments import CommandParser
from taso_py.dynamo.backend import taso
from taso_py.files import replace_file
from taso_py.ir.errors import first_line
from taso_py.judging.timing import Ratio

OPTIONS: dict[str, Any] = {"freeze": True, "race_seconds": 0.5, "time_limit": 2.0}
SIZES = tuple((batch, side) for side in (10, 14) for batch in (1, 2, 4))
"""Images in a batch, and pixels in a row: fewer than PyTorch compiles a model for (``recompile_limit``)."""
WIDTHS, UNREHEARSED = (16, 32, 48), 24
"""Features of the models that are deployed; the last is called by all threads at once, without a call before."""
RELOAD_S, DEPLOY_S = 20.0, 60.0
"""Most seconds between random reloads of weights, and seconds between new models."""
STALL_S = 300.0
"""Seconds after which a call counts as one that never returns."""
GROWTH, STEADY_MINUTES = 0.1, 10.0
"""Greatest growth of memory from the second quarter of the time to the last, beyond the memory that ``torch.compile``
itself never releases (:func:`lost_by_compiling`), and the shortest run for which it is checked."""
COMPILED = 10
"""Number of models that are compiled to measure the latter."""
PROGRESS_S = 30.0
REHEARSAL = 0.25
"""Time of calls before the threads start, as a share of the threads' time."""
KEPT_FAILURES = 100
RESULTS, TRIED = Path("experiments/results/cpu"), Path("build/experiments/cpu")
"""Folders of long runs, and of those that are too short to judge memory."""
FAILED, INTERRUPTED = 1, 130
"""Exit statuses besides 0."""


class Model(nn.Module):
    """A model with convolutions, normalization, attention over their result, and two layers that share their input."""

    def __init__(self, width: int) -> None:
        """Draw the weights.

        Args:
            width: features, a multiple of 4.
        """
        super().__init__()
        self.width = width
        self.images = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, width, 3)
        )
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.left, self.right = nn.Linear(width, 16), nn.Linear(width, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of images."""
        tokens = self.images(x).flatten(2).transpose(1, 2)
        attended, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        pooled = attended.mean(1)
        return torch.relu(self.left(pooled)) * torch.sigmoid(self.right(pooled))


class StallError(RuntimeError):
    """A call that has not returned."""


class Gate:
    """A lock for many readers or one writer; a waiting writer precedes readers that come later."""

    def __init__(self) -> None:
        """Start without readers and writers."""
        self._changed, self._readers, self._writers = threading.Condition(), 0, 0

    @contextmanager
    def reading(self) -> Generator[None]:
        """Hold the lock beside other readers."""
        with self._changed:
            self._changed.wait_for(lambda: not self._writers)
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def writing(self) -> Generator[None]:
        """Hold the lock alone; there is one writing thread.

        Raises:
            StallError: a reader does not leave.
        """
        with self._changed:
            self._writers += 1
        try:
            with self._changed:
                if not self._changed.wait_for(lambda: not self._readers, STALL_S):
                    raise StallError(f"a call has not come back for {STALL_S:.0f} s")
            yield
        finally:  # also after an interrupt: readers would wait for ever
            with self._changed:
                self._writers -= 1
                self._changed.notify_all()


@dataclass
class Server:
    """The model that is served, and the results of calls."""

    seed: int
    gate: Gate = field(default_factory=Gate)
    done: threading.Event = field(default_factory=threading.Event)
    failures: list[str] = field(default_factory=list[str])
    """Problems, up to a limit on their number."""
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("calls", "reloads", "deployments", "captured", "failures"), 0)
    )
    slowest_s: float = 0.0
    """The longest call since the last sample."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    graphs: WeakSet[Any] = field(default_factory=WeakSet[Any])
    """Captured graphs that are still in use."""

    def __post_init__(self) -> None:
        """Deploy the first model."""
        self._draw = random.Random(self.seed)
        self.deploy(WIDTHS[0])

    def deploy(self, width: int | None = None) -> None:
        """Replace the model that is served by a new one of this width, or of a random one."""
        fresh = Model(width or self._draw.choice((*WIDTHS, UNREHEARSED))).eval()
        with self.gate.writing():
            torch.compiler.reset()
            self.model = fresh
            self.compiled: Any = torch.compile(fresh, backend=self._backend, dynamic=False, options=OPTIONS)
            self.counts["deployments"] += 1

    def _backend(self, graph: Any, examples: Any, **keywords: Any) -> Callable[..., Any]:
        compiled = taso(graph, examples, **keywords)
        self.counts["captured"] += 1
        if hasattr(compiled, "runs_result"):
            self.graphs.add(compiled)
        return compiled

    def reload(self) -> None:
        """Load other weights into the model that is served."""
        fresh = Model(self.model.width).state_dict()
        with self.gate.writing():
            self.model.load_state_dict(fresh)
            self.counts["reloads"] += 1

    def rehearse(self, seconds: float) -> None:
        """Deploy models that will come again, and call them at each size, for this many seconds."""
        until, generator = time.monotonic() + seconds, torch.Generator().manual_seed(self.seed)
        for width in WIDTHS:
            self.deploy(width)
            for size in SIZES:
                if time.monotonic() > until:
                    return
                self.call(size, generator)

    def serve(self, number: int) -> None:
        """Call the model with random inputs until the run is done."""
        draw = random.Random(self.seed + number)
        generator = torch.Generator().manual_seed(self.seed + number)
        while not self.done.is_set():
            self.call(draw.choice(SIZES), generator)
            time.sleep(draw.expovariate(200))

    def call(self, size: tuple[int, int], generator: torch.Generator) -> None:
        """Call the model with a random input of a size, and compare the answer."""
        batch, side = size
        x = torch.randn(batch, 3, side, side, generator=generator)
        with self.gate.reading(), torch.no_grad():
            started = time.monotonic()
            problem = self._problem(x)
            took = time.monotonic() - started
        with self.lock:
            self.counts["calls"] += 1
            self.slowest_s = max(self.slowest_s, took)
            if problem:
                self.fail(problem)

    def fail(self, problem: str) -> None:
        """Record a problem."""
        self.counts["failures"] += 1
        if len(self.failures) < KEPT_FAILURES:
            self.failures.append(problem)

    def _problem(self, x: Tensor) -> str:
        try:
            torch.testing.assert_close(self.compiled(x), self.model(x), rtol=1e-4, atol=1e-5)
        except Exception as error:  # any exception of a call is a problem to report
            return f"{type(error).__name__}: {first_line(error)}"
        return ""

    def row(self, seconds: float) -> dict[str, float]:
        """Return a sample of counts and memory."""
        with self.lock:
            slowest, self.slowest_s = self.slowest_s, 0.0
        graphs = list(self.graphs)
        return {
            "seconds": round(seconds, 1),
            "resident_mib": round(resident_mib(), 1),
            **self.counts,
            "graphs": len(graphs),
            "results": sum(graph.runs_result for graph in graphs),
            "slowest_s": round(slowest, 3),
        }


def resident_mib() -> float:
    """Return the resident memory of the process (Linux), or else the most that it ever had."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


@dataclass
class SoakResult:
    """The samples and failures of a run."""

    rows: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    """Samples in order."""
    failures: Sequence[str] = ()
    is_interrupted: bool = False

    @property
    def failed(self) -> int:
        """Number of calls that failed."""
        return int(self.rows[-1]["failures"]) if self.rows else 0

    def __str__(self) -> str:
        if not self.rows:
            return "nothing was called"
        last = self.rows[-1]
        return (
            f"{last['seconds'] / 60:.1f} min: {last['calls']:,.0f} calls, {last['reloads']:.0f} reloads, "
            f"{last['deployments']:.0f} models, {last['failures']:.0f} failures; {last['results']:.0f} of "
            f"{last['graphs']:.0f} graphs run a result; {last['resident_mib']:.0f} MiB"
        )


def soak(seconds: float, threads: int, seed: int, tell: Callable[[SoakResult], None]) -> SoakResult:
    """Serve for this long, or until an interrupt.

    Args:
        seconds: time for which the threads call.
        threads: number of threads that call at once.
        seed: seed of weights, inputs, and the times of events.
        tell: called from time to time with the result so far.
    """
    torch.manual_seed(seed)
    server, found = Server(seed), SoakResult()
    found.failures = server.failures
    workers = [threading.Thread(target=server.serve, args=(number,), daemon=True) for number in range(threads)]
    started = time.monotonic()
    try:
        server.rehearse(REHEARSAL * seconds)
        found.rows.append(server.row(0.0))
        tell(found)
        started = time.monotonic()
        for worker in workers:
            worker.start()
        _direct(server, found, started=started, end=started + seconds, tell=tell)
    except KeyboardInterrupt:
        found.is_interrupted = True
    except StallError as error:
        faulthandler.dump_traceback()
        server.fail(f"StallError: {error}")
    server.done.set()
    for worker in workers:
        if worker.ident is not None:
            worker.join(STALL_S / threads)
    found.rows.append(server.row(time.monotonic() - started))
    return found


def _direct(server: Server, found: SoakResult, started: float, end: float, tell: Callable[[SoakResult], None]) -> None:
    """Reload weights, deploy models and take samples until the end."""
    draw, seconds = random.Random(server.seed), end - started
    every = min(5.0, seconds / 60)
    reload_s, deploy_s = min(RELOAD_S, seconds / 8), min(DEPLOY_S, seconds / 4)
    told = deployed = time.monotonic()
    reload_at = deployed + draw.uniform(0, reload_s)
    while (now := time.monotonic()) < end:
        if now - deployed > deploy_s:
            server.deploy()
            deployed = now
        elif now > reload_at:
            server.reload()
            reload_at = now + draw.uniform(0, reload_s)
        found.rows.append(server.row(now - started))
        if now - told > PROGRESS_S:
            tell(found)
            told = now
        server.done.wait(every)


def growth(rows: Sequence[Mapping[str, float]], lost_mib: float = 0.0) -> float:
    """Return the share by which the last quarter takes more memory than the second.

    Args:
        rows: all samples.
        lost_mib: expected growth for each graph that was captured in between.
    """
    quarter = max(1, len(rows) // 4)
    second, last = rows[quarter : 2 * quarter] or rows[:1], rows[-quarter:]
    (size, captured), (size_then, captured_then) = (
        [median(row[column] for row in part) for column in ("resident_mib", "captured")] for part in (last, second)
    )
    return (size - lost_mib * (captured - captured_then)) / size_then - 1


def lost_by_compiling(models: int) -> float:
    """Return the MiB that ``torch.compile`` never releases of a graph, with its own backend that compiles nothing.

    Guards leave finalizers with objects of PyTorch that live as long as the process, and generated code stays in a
    cache of its lines; ``torch.compiler.reset`` releases neither (torch 2.13). Call it in a new process.
    """
    sizes: list[float] = []
    for _ in range(models):
        torch.compiler.reset()
        compiled = torch.compile(Model(WIDTHS[0]).eval(), backend="eager", dynamic=False)
        with torch.no_grad():
            for batch, side in SIZES:
                compiled(torch.zeros(batch, 3, side, side))
        gc.collect()
        sizes.append(resident_mib())
    settled = sizes[models // 2 :]
    return max(0.0, (settled[-1] - settled[0]) / (len(SIZES) * max(1, len(settled) - 1)))


def draw(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    """Draw the memory over time, with a mark where a model was deployed."""
    from matplotlib.figure import Figure  # not before: it takes memory itself

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot([row["seconds"] / 60 for row in rows], [row["resident_mib"] for row in rows], color="black")
    deployed = [row["seconds"] / 60 for before, row in pairwise(rows) if _deploys(before, row)]
    axes.plot(deployed, [0] * len(deployed), "|", color="gray", clip_on=False, label="a new model")
    last = rows[-1]
    title = f"{last['calls']:,.0f} calls, {last['failures']:,.0f} failures"
    axes.set(xlabel="minutes", ylabel="resident memory, MiB", title=title)
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=150)


def _deploys(before: Mapping[str, float], row: Mapping[str, float]) -> bool:
    return row["deployments"] > before["deployments"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak; return the exit status."""
    parser = CommandParser(
        prog="python -m experiments.soak", description="Serve a compiled model for long, in threads."
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, help=f"(default: {RESULTS}; {TRIED} for less than {STEADY_MINUTES:.0f} minutes)"
    )
    parsed = parser.parse_args(arguments)
    is_short = parsed.minutes < STEADY_MINUTES
    out: Path = parsed.out or (TRIED if is_short else RESULTS)
    out.mkdir(parents=True, exist_ok=True)
    facts: dict[str, Any] = {
        "question": "Does a server with threads, random sizes and reloads answer right, and is its memory flat?",
        **circumstances_of(Settings("cpu", is_short, out, parsed.seed)),
        "minutes": parsed.minutes,
        "threads": parsed.threads,
    }

    def tell(found: SoakResult) -> None:
        print(found, file=sys.stderr, flush=True)
        write_csv(out / "soak.csv", found.rows)

    # Decisions and latencies of another run would leave less to do here.
    with (
        tempfile.TemporaryDirectory() as cache,
        patch.dict(os.environ, {"TASO_PY_CACHE": cache}),
        patch.object(Ratio, "faster", True),
    ):
        found = soak(60 * parsed.minutes, parsed.threads, parsed.seed, tell)
    write_csv(out / "soak.csv", found.rows)
    draw(out / "soak.png", found.rows)
    lost_mib = 0.0
    if not is_short:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
            lost_mib = fresh.submit(lost_by_compiling, COMPILED).result()
    more, beyond = growth(found.rows), growth(found.rows, lost_mib)
    facts |= {**found.rows[-1], "lost_by_compiling_mib": lost_mib, "growth": more, "growth_beyond": beyond}
    facts |= {"interrupted": found.is_interrupted, "problems": found.failures}
    replace_file(out / "soak.json", json.dumps(facts, indent=2) + "\n")
    own = f"{beyond:+.1%} but for the {lost_mib:.2f} MiB that torch.compile keeps of each graph"
    print(f"{found}; the last quarter took {more:+.1%}, {own}; see {out}", flush=True)
    for failure in dict.fromkeys(found.failures[:5]):
        print(failure, file=sys.stderr)
    grows = beyond > GROWTH and not is_short
    return FAILED if found.failed or grows else INTERRUPTED if found.is_interrupted else 0


if __name__ == "__main__":
    # A termination signal is handled like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
