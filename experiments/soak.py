"""``python -m experiments.soak [--minutes M] [--threads N] [--out DIR]``: a server that runs for long.

Threads call a model behind ``torch.compile(backend="taso")`` with inputs of random sizes. Now and then new weights are
loaded into it, and now and then a new model takes its place. Every answer is compared with that of the model itself.
Written are ``soak.csv``, a line every few seconds, and ``soak.png``, the memory of the process over time.

Invariant: exit status 0 only if no call raised or gave another answer, and memory did not grow.
"""

from __future__ import annotations

import csv
import os
import random
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from taso_py.arguments import Parser
from taso_py.runtime.dynamo import taso

OPTIONS: dict[str, Any] = {"freeze": True, "race_seconds": 0.5, "time_limit": 2.0}
BATCHES = (1, 2, 3, 4)
RELOAD_S, DEPLOY_S = 5.0, 60.0
"""How often weights are loaded, and how often there is a new model, at most so many seconds apart."""
GROWTH, STEADY_MINUTES = 0.1, 10.0
"""How much more memory the last quarter of the time may take than the second, if it was not too short to tell."""
COLUMNS = ("seconds", "resident_mib", "calls", "reloads", "deployments", "failures")


class Model(nn.Module):
    """Convolutions, normalisation, attention over what they see, and two layers that share their input."""

    def __init__(self) -> None:
        """Draw the weights."""
        super().__init__()
        self.images = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3))
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.left, self.right = nn.Linear(32, 16), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of images."""
        tokens = self.images(x).flatten(2).transpose(1, 2)
        attended, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        pooled = attended.mean(1)
        return torch.relu(self.left(pooled)) * torch.sigmoid(self.right(pooled))


class Gate:
    """Lets many read, or one write; a writer who waits goes before readers who come later."""

    def __init__(self) -> None:
        """Nobody is inside."""
        self._changed, self._readers, self._writers = threading.Condition(), 0, 0

    @contextmanager
    def reading(self) -> Generator[None]:
        """Beside others that read."""
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
        """Alone; one thread writes."""
        with self._changed:
            self._writers += 1
            self._changed.wait_for(lambda: not self._readers)
        try:
            yield
        finally:
            with self._changed:
                self._writers -= 1
                self._changed.notify_all()


@dataclass
class Server:
    """The model that is served, and what became of the calls."""

    seed: int
    gate: Gate = field(default_factory=Gate)
    done: threading.Event = field(default_factory=threading.Event)
    failures: list[str] = field(default_factory=list[str])
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("calls", "reloads", "deployments"), 0))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Deploys the first model."""
        self.deploy()

    def deploy(self) -> None:
        """Puts a new model in the place of the one that is served."""
        with self.gate.writing():
            torch.compiler.reset()
            self.model = Model().eval()
            self.compiled: Any = torch.compile(self.model, backend=taso, dynamic=False, options=OPTIONS)
            self.counts["deployments"] += 1

    def reload(self) -> None:
        """Loads other weights into the model that is served."""
        fresh = Model().state_dict()
        with self.gate.writing():
            self.model.load_state_dict(fresh)
            self.counts["reloads"] += 1

    def serve(self, number: int) -> None:
        """Calls the model with random inputs until all is done."""
        draw, generator = random.Random(self.seed + number), torch.Generator().manual_seed(self.seed + number)
        while not self.done.is_set():
            x = torch.randn(draw.choice(BATCHES), 3, 12, 12, generator=generator)
            with self.gate.reading(), torch.no_grad():
                problem = self._problem(x)
            with self.lock:
                self.counts["calls"] += 1
                self.failures += [problem] if problem else []
            time.sleep(draw.expovariate(200))

    def _problem(self, x: Tensor) -> str:
        try:
            torch.testing.assert_close(self.compiled(x), self.model(x), rtol=1e-3, atol=1e-4)
        except Exception as error:  # whatever a call raises is what is looked for
            return f"{type(error).__name__}: {error}"
        return ""


def resident_mib() -> float:
    """The memory that the process has now, where the system tells (Linux); otherwise the most that it ever had."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def soak(seconds: float, threads: int, seed: int, every: float) -> tuple[list[dict[str, float]], list[str]]:
    """Serves for so long; returns a row of :data:`COLUMNS` for each moment, and what went wrong."""
    torch.manual_seed(seed)
    server, rows = Server(seed), list[dict[str, float]]()
    workers = [threading.Thread(target=server.serve, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    started = time.monotonic()
    reload_at, deploy_at = min(RELOAD_S, seconds / 8), min(DEPLOY_S, seconds / 4)
    reloaded = deployed = started
    try:
        while (now := time.monotonic()) - started < seconds:
            if now - deployed > deploy_at:
                server.deploy()
                deployed = now
            elif now - reloaded > reload_at:
                server.reload()
                reloaded = now
            rows.append(_row(server, now - started))
            server.done.wait(every)
    finally:
        server.done.set()
        for worker in workers:
            worker.join()
    return [*rows, _row(server, time.monotonic() - started)], server.failures


def _row(server: Server, seconds: float) -> dict[str, float]:
    found = {"seconds": round(seconds, 1), "resident_mib": round(resident_mib(), 1), **server.counts}
    return {**found, "failures": len(server.failures)}


def growth(rows: Sequence[dict[str, float]]) -> float:
    """By which share the last quarter takes more memory than the second."""
    sizes = [row["resident_mib"] for row in rows]
    quarter = max(1, len(sizes) // 4)
    return median(sizes[-quarter:]) / median(sizes[quarter : 2 * quarter] or sizes[:1]) - 1


def write(folder: Path, rows: Sequence[dict[str, float]]) -> None:
    """Writes the table and the plot."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "soak.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        table.writerows([row[name] for name in COLUMNS] for row in rows)
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot([row["seconds"] / 60 for row in rows], [row["resident_mib"] for row in rows])
    axes.set(xlabel="minutes", ylabel="resident memory, MiB", title=f"{rows[-1]['calls']:,.0f} calls")
    axes.set_ylim(bottom=0)
    figure.savefig(folder / "soak.png", dpi=150)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the soak; returns the exit status."""
    parser = Parser(prog="python -m experiments.soak", description="Serve a compiled model for long, in threads.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("build/soak"))
    parsed = parser.parse_args(arguments)
    seconds = 60 * parsed.minutes
    rows, failures = soak(seconds, parsed.threads, parsed.seed, every=min(5.0, seconds / 60))
    write(parsed.out, rows)
    more = growth(rows)
    last = rows[-1]
    print(
        f"{last['calls']:.0f} calls, {last['reloads']:.0f} reloads, {last['deployments']:.0f} models, "
        f"{len(failures)} failures; memory grew by {more:.1%} to {last['resident_mib']:.0f} MiB; see {parsed.out}"
    )
    for failure in dict.fromkeys(failures[:5]):
        print(failure, file=sys.stderr)
    grows = more > GROWTH and parsed.minutes >= STEADY_MINUTES
    return 1 if failures or grows else 0


if __name__ == "__main__":
    sys.exit(main())
