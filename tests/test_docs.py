"""The documentation is true: its code runs, its commands are ones that exist, and the site is built without a warning.

Python runs as it stands, a page in one namespace, and prints what the block after it shows. Commands that take seconds
run as well, on the page's own ``mine.py``, with less time to search and to race; of the others the real parser reads
the arguments. ``docs/own-operator.md`` is run by ``tests/generate/test_own_operator.py``.
"""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import taso_py
import verify
from taso_py.cli import main, parser
from taso_py.dynamo.backend import BackendOptions
from taso_py.ir.errors import TasoError
from taso_py.options import Options
from taso_py.rules.database import read_database
from taso_py.rules.text import write_rule

ROOT = Path(__file__).parents[1]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "examples/README.md",
    "experiments/README.md",
    "experiments/lessons.md",
    *sorted(f"docs/{p.name}" for p in ROOT.glob("docs/*.md")),
]
QUICK = {"optimize": ["--time-limit", "1", "--race-seconds", "0.2"], "profile": ["--seconds", "0.1"]}
FIRST = {"optimize": ["--runtime", "eager"]}
"""Options that those of a page override: the default builds for every engine, which tests/test_cli.py tries."""
FOREIGN = ("dask", "pip", "source")
"""Programs that are not ours to check."""
PROGRAMS = ("pytest", "ruff", "pyright", "python")
"""What pages may run from the environment."""


@dataclass(frozen=True, kw_only=True)
class QuickOptions(Options):
    """Options of a search and a race of about a second."""

    time_limit: float = 1.0
    race_seconds: float = 0.2


@dataclass(frozen=True)
class QuickBackendOptions(BackendOptions):
    """Options of the backend with limits as short."""

    time_limit: float = 1.0
    race_seconds: float = 0.2


def blocks(page: str) -> list[tuple[str, str]]:
    """The language and text of each fenced block of a page."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def has_exporters() -> bool:
    """Whether transformers is of a version whose exporters are known."""
    try:
        import_module("taso_py.huggingface.exporter")
    except (TasoError, ImportError):
        return False
    return True


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in, from which Python imports; searches and races are short."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("taso_py.driver.optimize.Options", QuickOptions)
    monkeypatch.setattr("taso_py.pipelines.parts.Options", QuickOptions)
    monkeypatch.setattr("taso_py.entries.optimize.Options", QuickOptions)
    monkeypatch.setattr("taso_py.entries.sizes.Options", QuickOptions)
    if has_exporters():
        monkeypatch.setattr("taso_py.huggingface.exporter.Options", QuickOptions)
    monkeypatch.setattr("taso_py.dynamo.backend.BackendOptions", QuickBackendOptions)
    torch.compiler.reset()
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.mark.usefixtures("taso_backend", "zoo_libraries")
@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_true(page: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": page}
    printed = ""
    if any("taso_py.huggingface" in text for _, text in blocks(page)) and not has_exporters():
        pytest.skip("needs the version of transformers whose exporters are known")
    for language, text in blocks(page):
        capsys.readouterr()
        if language == "python" and page != "docs/own-operator.md":
            run_python(text, folder, names)
        elif language == "text" and printed:
            assert text == printed
        elif language == "sh":
            for line in text.splitlines():
                run_command(shlex.split(line, comments=True), folder)
        elif language == "rules":
            check_rule(text)
        else:
            assert language in ("python", "text"), f"{page} has a block of unknown kind {language!r}"
        printed = capsys.readouterr().out if language == "python" else ""


def run_python(text: str, folder: Path, names: dict[str, Any]) -> None:
    if name := re.match(r"# (\w+\.py)\n", text):
        (folder / name[1]).write_text(text)
    else:
        exec(compile(text, names["__name__"], "exec", dont_inherit=True), names)


def run_command(words: list[str], folder: Path) -> None:
    program, *arguments = words
    if program.startswith(".venv/bin/"):
        program = program.removeprefix(".venv/bin/")
        assert program in PROGRAMS
    if program == "taso-py":
        parsed = parser().parse_args(arguments)
        uses = getattr(parsed, "model", None)
        if arguments[0] in ("rules", "latencies") or (uses == "mine.py:model" and (folder / "mine.py").exists()):
            command, *others = arguments
            assert main([command, *FIRST.get(command, []), *others, *QUICK.get(command, [])]) == 0
    elif program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        wanted = [word if "=" not in word else f"{word.partition('=')[0]} ?=" for word in arguments]
        assert all(re.search(rf"^{re.escape(word)}", makefile, re.MULTILINE) for word in wanted)
    elif program == "python":
        check_options(arguments)
    else:
        assert program in (*FOREIGN, *PROGRAMS) or (ROOT / program).exists()


def check_options(arguments: list[str]) -> None:
    """Whether a Python program exists and has the options that it is given; a line of Python is read only."""
    if arguments[0] == "-c":
        compile(arguments[1], "a line of a page", "exec")
        return
    if arguments[0] == "-m":
        is_package = (ROOT / arguments[1].replace(".", "/")).is_dir()
        run_module = import_module(f"{arguments[1]}.__main__" if is_package else arguments[1]).main
    else:
        run_module = partial(runpy.run_path, str(ROOT / arguments[0]), run_name="__main__")
    said = io.StringIO()
    asked = patch.object(sys, "argv", [arguments[0], "--help"])
    with asked, contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        run_module()
    words = re.findall(r"--[\w-]+", said.getvalue())
    assert [word for word in arguments if word.startswith("--") and word not in words] == []


def check_rule(text: str) -> None:
    """Whether a rule is shipped as it is shown, up to what is left out."""
    (rule,) = (rule for rule in read_database() if text.startswith(f"rule {rule.id}\n"))
    shown = [re.escape(part) for part in " ".join(text.split()).split("...")]
    assert re.match(".*".join(shown), " ".join(write_rule(rule).split()))


@pytest.mark.parametrize(
    "line",
    [
        "taso-py optimise zoo:nasrnn",
        "taso-py rules show rffff",
        "make nothing",
        "python examples/serve.py --many",
        "rm x",
    ],
)
def test_a_command_that_does_not_exist_is_found(line: str, folder: Path) -> None:
    with pytest.raises((AssertionError, SystemExit)):
        run_command(shlex.split(line), folder)


def absent(text: str) -> list[str]:
    """The files and folders of the code that a text names and that are not there."""
    named = re.findall(r"`((?:taso_py|verify)(?:/[\w.]+)*)`", text)
    return [path for path in named if not (ROOT / path).exists()]


def test_the_glossary_names_code_that_exists() -> None:
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    assert "`taso_py/ir/node.py`" in text
    assert absent(text) == []
    assert absent("a node: `taso_py/ir/nodes.py`, `verify`") == ["taso_py/ir/nodes.py"]


def test_a_rule_that_is_not_shipped_is_found() -> None:
    ((_, text),) = (block for block in blocks("README.md") if block[0] == "rules")
    with pytest.raises(AssertionError):
        check_rule(text.replace("start=E", "start=H"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # strict: warnings fail it
    assert built.returncode == 0, built.stderr
    return folder


def test_the_site_asks_no_other_server(site: Path) -> None:
    pages = sorted(site.glob("*.html"))
    assert len(pages) > len(PAGES)
    loaded = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?((?:https?:)?//[^\" >]+)")
    assert [(page.name, url) for page in pages for url in loaded.findall(page.read_text(encoding="utf-8"))] == []


def test_every_public_name_and_command_is_documented(site: Path) -> None:
    api = (site / "api.html").read_text(encoding="utf-8")
    for module in (taso_py, verify):
        assert [name for name in module.__all__ if f"{module.__name__}.{name}" not in api] == []
    commands = (site / "command-line.html").read_text(encoding="utf-8")
    assert [
        flag for flag in ("--race-seconds", "--second-opinion", "--resume", "--quick") if flag not in commands
    ] == []


def test_the_picture_shows_what_the_search_finds() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "picture.py"))["picture"]()
    assert drawn == (ROOT / "docs" / "picture.svg").read_text(encoding="utf-8")
    assert drawn.count(">before<") == drawn.count(">after<") == 1
