"""Work elsewhere gives what it gives here; processes are killed in the middle, and nothing is lost or tried forever."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fuzz import __main__ as fuzz
from taso_py import executors
from taso_py.cli import main
from taso_py.executors import HERE, ExecutorError, Pool, WorkerLostError, open_pool
from taso_py.generate.pipeline import Config, generate
from taso_py.rules.text import write_rules
from tests.tasks import deadly, square, wrong
from verify import prove
from verify.audit import mutations

ROOT = Path(__file__).parents[1]
RULES = ROOT / "substitutions" / "scalars.rules"
FEW = """
rule a: float[..A,B], b: float[C,B], c: float[D,B]
  source linear(a, b), linear(a, c)
  target t = linear(a, concat(b, c){axis=-2}); slice(t){axis=-1, start=0, stop=C}, slice(t){axis=-1, start=C, stop=C+D}
  numerics REORDER
rule a: float[A,B], b: float[B,C], c: float[C,D]
  source matmul(matmul(a, b), c)
  target matmul(a, matmul(b, c))
  numerics RANGE
rule a: float[..A] source relu(relu(a)) target relu(a)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a scheduler with three worker processes, which are started again when they die."""
    pytest.importorskip("distributed")
    folder = tmp_path_factory.mktemp("cluster")
    file, common = folder / "scheduler.json", ["--no-dashboard", "--scheduler-file", str(folder / "scheduler.json")]
    # The scheduler gives up on tasks at their first dead worker, so that it is for us to try them again.
    environment = {**os.environ, "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0", "OMP_NUM_THREADS": "1"}
    dask = [sys.executable, "-m", "dask"]
    started = [
        subprocess.Popen([*dask, *command, *common], cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
        for command in (
            # Both end by themselves if this process is killed.
            ["scheduler", "--host", "127.0.0.1", "--port", "0", "--idle-timeout", "120"],
            ["worker", "--nworkers", "3", "--nthreads", "1", "--death-timeout", "20", "--local-directory", str(folder)],
        )
    ]
    try:
        while not file.exists() or not file.read_text().endswith("}"):
            assert started[0].poll() is None
            time.sleep(0.1)
        yield json.loads(file.read_text())["address"].replace("tcp://", "dask://")
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait()


@pytest.fixture(params=["local", "cluster"])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    where = "local" if request.param == "local" else request.getfixturevalue("cluster")
    with open_pool(jobs=2, where=where) as opened:
        yield opened


def test_a_worker_that_is_killed_takes_nothing_with_it(pool: Pool) -> None:
    answers: list[tuple[int, int]] = []
    for answer in pool.map(square, range(150), chunk=2):
        answers.append(answer)
        if len(answers) == 20:
            os.kill(answer[1], signal.SIGKILL)
    assert [number for number, _ in answers] == [number * number for number in range(150)]
    killed = answers[19][1]
    assert all(process != killed for _, process in answers[-20:])


def test_a_task_that_kills_is_reported(pool: Pool) -> None:
    assert [*pool.map(deadly, range(12), chunk=3, lost=lambda number: -number)] == [*range(7), -7, *range(8, 12)]
    with pytest.raises(WorkerLostError, match="die repeatedly on one task, or are killed while it runs: 7"):
        list(pool.map(deadly, range(5, 9)))


def test_a_value_that_is_here_stays_though_its_worker_dies(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed import Client

    gather = Client._gather

    async def and_lost(client: Client, tasks: list[Any], **options: Any) -> Any:
        values = await gather(client, tasks, **options)
        for task in tasks:
            client._handle_lost_data(task.key)
        return values

    monkeypatch.setattr(Client, "_gather", and_lost)
    with open_pool(where=cluster) as opened:
        assert [*opened.map(deadly, range(5))] == [0, 1, 2, 3, 4]


def test_what_a_task_raises_is_raised_here(pool: Pool) -> None:
    answers = pool.map(wrong, range(6))
    assert [next(answers), next(answers), next(answers)] == [0, 1, 2]
    with pytest.raises(TimeoutError, match="three"):
        next(answers)


def test_a_generation_is_the_same_although_a_worker_is_killed(pool: Pool) -> None:
    pytest.importorskip("egglog")
    killed: list[int] = []

    def kill_once(phase: str, done: int, total: int) -> None:
        if phase == "test" and not killed and 3 * done > total:
            killed.append(next(pool.map(square, [0]))[1])
            os.kill(killed[0], signal.SIGKILL)

    config = Config(("scalars",), max_operators=1)
    here = generate(config, prove)
    there = generate(config, prove, kill_once, pool=pool)
    assert killed
    assert here.rules
    assert write_rules(there.rules) == write_rules(here.rules)
    assert there.report == here.report


def test_commands_say_the_same_from_a_cluster(cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = tmp_path / "few.rules"
    few.write_text(FEW)

    def answer(*arguments: str) -> dict[str, object]:
        assert main([*arguments, "--json"]) == 0
        return {name: value for name, value in json.loads(capsys.readouterr().out).items() if name != "seconds"}

    verify = ("verify", str(few))
    assert answer(*verify, "--executor", cluster) == answer(*verify, "--jobs", "1")
    mutants = [str(few), "--count", "6", "--seed", "3"]
    assert mutations.main(mutants) == 0
    here = capsys.readouterr().out
    assert mutations.main([*mutants, "--executor", cluster]) == 0
    assert capsys.readouterr().out == here


@pytest.mark.slow
def test_fuzzing_on_a_cluster(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["--count", "60", "--executor", cluster]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("60 models: ")
    assert " 0 failures" in printed


def test_any_executor_does() -> None:
    with ThreadPoolExecutor(3) as threads:
        assert [*Pool(lambda: threads).map(deadly, range(5))] == [*HERE.map(deadly, range(5))] == [0, 1, 2, 3, 4]


def test_workers_with_other_sources_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_pool(jobs=2) as pool:
        assert next(pool.map(deadly, [1])) == 1
        monkeypatch.setattr(executors, "fingerprint", lambda: "another")
        with pytest.raises(ExecutorError, match="has other versions of taso-py or of libraries than this one"):
            next(pool.map(deadly, [1]))


def test_no_client_is_left_that_a_later_one_would_wait_for() -> None:
    distributed = pytest.importorskip("distributed")
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(ExecutorError, match="no Dask scheduler answers"), open_pool(where="dask://127.0.0.1"):
            pass
        assert not any(type(thing) is distributed.Client for thing in gc.get_objects())
    finally:
        gc.enable()


@pytest.mark.parametrize("command", [main, mutations.main, fuzz.main])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--executor", "dask://127.0.0.1:9"], "no Dask scheduler answers at dask://127.0.0.1:9"),
        (["--executor", "dask://127.0.0.1"], "no Dask scheduler answers at dask://127.0.0.1"),
        (["--executor", "ray://somewhere"], "--executor must be local or dask://HOST:PORT"),
    ],
)
def test_an_executor_that_is_not_there_is_one_line_and_status_2(
    command: object,
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert callable(command)
    monkeypatch.setattr(executors, "CONNECTING_S", 0.5)
    words = ["verify", str(RULES)] if command is main else [str(RULES)] if command is mutations.main else []
    assert command([*words, *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.strip().splitlines()
    assert message in line
