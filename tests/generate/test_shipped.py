"""The shipped files are what the generator writes, byte for byte, also when it was killed on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import substitutions
from taso_py.cli import main
from taso_py.generate.sets import SHIPPED, VOCABULARIES
from taso_py.rules.database import read_database

pytest.importorskip("egglog")
FOLDER = Path(substitutions.__file__).parent
QUICK = {
    ("scalars",),
    ("layout",),
    ("views",),
    ("formulas",),
    ("sigmoids",),
    ("identities",),
    ("signs",),
    ("cumulative",),
    ("batches",),
    ("groups",),
}
"""What takes at most a quarter of a minute to generate on a slow machine; the rest takes up to ten minutes."""
_SLOW = [pytest.mark.slow, pytest.mark.timeout(1200)]
"""Minutes of work, on a machine that may have other work to do; the limit is there for what hangs."""
GENERATED = [pytest.param(names, marks=[] if names in QUICK else _SLOW) for names in SHIPPED]


def _command(out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "taso_py.cli", "generate", "--out", str(out), *options]


def test_what_is_shipped_is_named_after_its_vocabularies() -> None:
    assert {"-".join(names) + ".rules" for names in SHIPPED} == {path.name for path in FOLDER.glob("*.rules")}
    assert {name for names in SHIPPED for name in names} <= set(VOCABULARIES)
    assert read_database()


@pytest.mark.parametrize("names", GENERATED, ids="-".join)
def test_what_is_shipped_is_what_is_generated(names: tuple[str, ...], tmp_path: Path) -> None:
    # In this process, since tests run side by side.
    assert main(["generate", "--out", str(tmp_path), "--jobs=1", *(f"--ops={name}" for name in names)]) == 0
    file = f"{'-'.join(names)}.rules"
    assert (tmp_path / file).read_bytes() == (FOLDER / file).read_bytes()


@pytest.mark.slow
def test_killed_in_each_phase_it_resumes_to_the_same_files(tmp_path: Path) -> None:
    options = ("--ops=scalars", "--max-ops=1", "--jobs=2")
    subprocess.run(_command(tmp_path / "whole", *options), check=True)
    for kind in ("test", "derive", "settle"):
        out = tmp_path / kind
        _kill_once(_command(out, *options), out / "scalars.journal", kind)
        subprocess.run(_command(out, *options, "--resume"), check=True)
        for name in ("scalars.rules", "MANIFEST.json"):
            assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), kind
        assert not list(out.glob("*.journal"))


def _kill_once(command: list[str], journal: Path, kind: str) -> None:
    """Starts a command and kills it when the journal has an entry of some kind."""
    with subprocess.Popen(command) as process:
        while process.poll() is None and not (journal.is_file() and f'["{kind} ' in journal.read_text()):
            time.sleep(0.02)
        assert process.poll() is None, "it was over before it could be killed"
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
