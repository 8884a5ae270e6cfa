"""Generated pages of the documentation: the READMEs, the output of ``--help``, and docstrings.

A hook of MkDocs (see ``mkdocs.yml``). Invariant: nothing is written twice; a page that is generated here cannot
disagree with its source, and a link that leads nowhere fails the build.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import os
import posixpath
import re
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from taso_py import cli

ROOT = Path(__file__).parents[1]
SHARED = {
    "index.md": "README.md",
    "examples.md": "examples/README.md",
    "prover.md": "verify/README.md",
    "substitutions.md": "substitutions/README.md",
    "experiments.md": "experiments/README.md",
    "lessons.md": "experiments/lessons.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
"""Texts of the repository by the names of their pages."""
RESULTS = {
    f"results-{path.parent.name}.md": path.relative_to(ROOT).as_posix()
    for path in sorted(ROOT.glob("experiments/results/*/results.md"))
}
"""Results of experiments by the names of their pages, one for each machine."""
PAGES = {**SHARED, **RESULTS}
"""Files that are pages as they are, by the names of the pages."""
FIGURES = {
    path.relative_to(ROOT).as_posix(): f"results-{path.parent.name}/{path.name}"
    for path in sorted(ROOT.glob("experiments/results/*/*.png"))
}
"""Where the site has the figures of experiments, by their paths."""
COMMANDS: dict[str, tuple[str, ...]] = {
    "taso_py.cli": tuple(module.__name__.rsplit(".", 1)[1] for module in cli.COMMANDS),
    "fuzz.__main__": ("",),
    "verify.audit.survey": ("",),
    "verify.audit.mutations": ("",),
    "verify.audit.weakest": ("",),
    "verify.audit.edges": ("",),
    "experiments.__main__": ("",),
}
"""Modules with a ``main``, and their subcommands."""
MODULES = ("taso_py", "verify")
"""Modules whose public names, those in ``__all__``, the page on Python documents."""
WIDTH = 100
"""Characters in a line of code."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Give the results of each machine a place in the navigation."""
    before = next(place for place, section in enumerate(config["nav"]) if "Reference" in section)
    config["nav"].insert(before, {"Results": list(RESULTS)})
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Add the generated pages and the figures of experiments."""
    from mkdocs.structure.files import File

    texts = {page: (ROOT / path).read_text(encoding="utf-8") for page, path in PAGES.items()}
    for path, place in FIGURES.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    for page, text in {**texts, "command-line.md": command_line(), "api.md": api()}.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Turn links between files of the repository into links between pages."""
    del config, files
    return relinked(markdown, PAGES.get(page.file.src_uri, f"docs/{page.file.src_uri}"))


def relinked(markdown: str, path: str) -> str:
    """Return a text with its links as the site needs them; a file without a page is named and not linked."""
    pages = {source: page for page, source in PAGES.items()}

    def replace(match: re.Match[str]) -> str:
        image, text, link, anchor = match[1], match[2], match[3], match[4] or ""
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
        if target in pages:
            return f"[{text}]({pages[target]}{anchor})"
        if image and target in FIGURES:
            return f"![{text}]({FIGURES[target]})"
        if target.startswith("docs/"):
            return f"{image}[{text}]({target.removeprefix('docs/')}{anchor})"
        return text if not image and (ROOT / target).exists() else match[0]

    return LINK.sub(replace, markdown)


def command_line() -> str:
    """Return the page with the output of ``--help`` of every command."""
    parts = ["# The command line\n\nThe output of `--help`. A mistake is one line on standard error and status 2."]
    for module, commands in COMMANDS.items():
        main: Callable[[], object] = import_module(module).main
        for command in commands:
            said = help_of(main, command)
            title = said.split("usage: ", 1)[1].split(" [", 1)[0]
            parts.append(f"## {title}\n\n```text\n{said.strip()}\n```")
    return "\n\n".join(parts) + "\n"


def help_of(main: Callable[[], object], command: str = "") -> str:
    """Return the output of a command's ``--help``, as wide as a page."""
    said = io.StringIO()
    asked = patch.object(sys, "argv", ["", *command.split(), "--help"])
    wide = patch.dict(os.environ, {"COLUMNS": str(WIDTH)})
    with asked, wide, contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main()
    return said.getvalue()


def api() -> str:
    """Return the page with the public names and their docstrings."""
    parts = ["# Python\n\nNames that stay compatible from version to version. Everything else is for contributors."]
    for name in MODULES:
        module = import_module(name)
        parts.append(f"## {name}\n\n{_prose(inspect.getdoc(module) or '')}")
        parts += [_entry(module, public) for public in sorted(module.__all__, key=_is_class(module))]
    return "\n\n".join(parts) + "\n"


def _is_class(module: ModuleType) -> Callable[[str], tuple[bool, str]]:
    """Return a sort key that puts functions before classes."""
    return lambda name: (isinstance(getattr(module, name), type), name)


def _entry(module: ModuleType, name: str) -> str:
    thing = getattr(module, name)
    parts = [f"### {module.__name__}.{name}"]
    if isinstance(thing, type):
        parts.append(_prose(inspect.getdoc(thing) or ""))
        parts.append("\n".join(_members(thing)))
    else:
        taken = str(inspect.signature(thing)).replace("'", "")
        signature = taken if len(taken) < WIDTH else taken.replace("(", "(\n    ", 1).replace(", ", ",\n    ")
        parts += [f"```text\n{name}{signature}\n```", _prose(inspect.getdoc(thing) or "")]
    return "\n\n".join(parts)


def _members(cls: type) -> Iterator[str]:
    """Yield the fields of a class, or the members of an enumeration, each with its docstring; bases first."""
    bases = [base for base in cls.__mro__[1:] if base.__module__.startswith(("taso_py", "verify"))]
    for owner in [*reversed(bases), cls]:
        body = ast.parse(inspect.getsource(owner)).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, following in zip(body.body, [*body.body[1:], None], strict=True):
            about = f": {_prose(text)}" if (text := _text(following)) else ""
            if isinstance(statement, ast.AnnAssign):
                yield f"* `{_declaration(statement)}`{about or _help(owner, ast.unparse(statement.target))}"
            elif isinstance(statement, ast.Assign) and issubclass(cls, Enum):
                yield f"* `{ast.unparse(statement)}`{about}"
            elif isinstance(statement, ast.FunctionDef) and not statement.name.startswith("_"):
                about = _prose(ast.get_docstring(statement) or "")
                yield f"* `{statement.name}({ast.unparse(statement.args)})`: {about}"


def _declaration(statement: ast.AnnAssign) -> str:
    """Return a field's declaration; of one that is an option of the command line too, with its default alone."""
    match statement.value:
        case ast.Call(ast.Name("field"), keywords=[ast.keyword("default", default), *_]):
            return f"{ast.unparse(statement.target)}: {ast.unparse(statement.annotation)} = {ast.unparse(default)}"
        case _:
            return ast.unparse(statement)


def _help(cls: type, name: str) -> str:
    """Return what the help of the command line says of a field, if it is an option there."""
    option = getattr(cls, "__dataclass_fields__", {}).get(name)
    if option is None or "help" not in option.metadata:
        return ""
    choices = ", ".join(option.metadata["choices"] or ())
    return ": " + option.metadata["help"].replace(" (%(default)s)", "").replace("%(choices)s", choices)


def _text(statement: ast.stmt | None) -> str:
    """Return the text of a statement that is only a string, as docstrings of fields are; else nothing."""
    match statement:
        case ast.Expr(ast.Constant(str(text))):
            return text
        case _:
            return ""


def _prose(docstring: str) -> str:
    """Return a Google-style docstring as Markdown."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", docstring.replace("``", "`"))
    text = re.sub(r"\n\n((?: {4}.*\n?)+)", lambda block: f"\n\n```text\n{inspect.cleandoc(block[1])}\n```\n", text)
    lines: list[str] = []
    for line in text.splitlines():
        if re.fullmatch(r"(Args|Raises|Returns|Yields):", line):
            lines += [f"**{line[:-1].replace('Args', 'Arguments')}**", ""]
        elif item := re.match(r" {4}(\w+): (.*)", line):
            lines.append(f"* `{item[1]}`: {item[2]}")
        else:
            lines.append(line if line.startswith("```") else f"  {line.strip()}" if line.startswith(" ") else line)
    return "\n".join(lines)
