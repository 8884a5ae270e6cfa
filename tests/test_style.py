"""Holds what linters do not: sizes of files and functions, docstrings and their beginnings, class names, and words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTED = ("taso_py", "verify", "experiments", "examples", "docs")
NAMED = ("taso_py", "verify", "fuzz", "experiments")
FILE_LINES, FUNCTION_LINES = 500, 60

# The project speaks of itself: neither of the machine it was written on nor of who or what typed it.
FOREIGN = re.compile(
    r"(?<![\w.:/])/(home|root|work|Users|workspace)/\w"
    r"|\b(?:sub)?agents?\b|\bchat ?bot|\b(?:claude|chatgpt|copilot|anthropic|openai)\b"
    r"|\b(?:TODO|FIXME|XXX)\b|\b(?:issue|ticket) #?\d",
    re.IGNORECASE,
)
# A first line that begins so says what something is only to those who have read the module.
CROOKED = re.compile(r"(What|The same|That|Those|Of|Whose)\b")
TEXTS = (".cfg", ".md", ".py", ".rules", ".toml", ".txt", ".yml")


def oversized(path: str, source: str) -> Iterator[str]:
    """What in a Python source is longer than it may be."""
    lines = source.count("\n")
    if lines > FILE_LINES:
        yield f"{path} has {lines} lines"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            length = node.end_lineno - node.lineno + 1
            if length > FUNCTION_LINES:
                yield f"{path}:{node.lineno} {node.name} has {length} lines"


def undocumented(path: str, source: str) -> Iterator[str]:
    """The module, and its public functions and classes, without a docstring; a constant may have a comment instead."""
    tree = ast.parse(source)
    if ast.get_docstring(tree) is None:
        yield f"{path} has no docstring"
    for node in tree.body:
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if named and not node.name.startswith("_") and ast.get_docstring(node) is None:
            yield f"{path}:{node.lineno} {node.name} has no docstring"


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of the docstrings of the module, classes and functions, and of what is assigned."""
    for node in ast.walk(ast.parse(source)):
        body: list[ast.stmt] = getattr(node, "body", []) if isinstance(node, ast.Module | ast.stmt) else []
        has_own = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for before, statement in zip([None, *body], body, strict=False):
            if has_own if before is None else isinstance(before, ast.Assign | ast.AnnAssign):
                match statement:
                    case ast.Expr(ast.Constant(str(text))):
                        yield statement.lineno, text
                    case _:
                        pass


def crooked(path: str, source: str) -> Iterator[str]:
    """Docstrings that begin as none should."""
    for line, text in docstrings(source):
        if (match := CROOKED.match(text.lstrip())) is not None:
            yield f"{path}:{line} begins with {match[0]!r}"


def repeated_classes(sources: Mapping[str, str]) -> Iterator[str]:
    """Public names of classes that several files have."""
    found: dict[str, list[str]] = {}
    for path, source in sources.items():
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(path)
    yield from (f"{name} is in {', '.join(paths)}" for name, paths in found.items() if len(paths) > 1)


def foreign(path: str, text: str) -> Iterator[str]:
    """Words about something other than the project."""
    for number, line in enumerate(text.splitlines(), 1):
        match = FOREIGN.search(line)
        if match is not None:
            yield f"{path}:{number} mentions {match[0]!r}"


def texts(*folders: str) -> list[str]:
    """The text files of some folders, and all at the root."""
    files = [path for path in ROOT.iterdir() if path.is_file()]
    files += [path for folder in folders for path in (ROOT / folder).rglob("*")]
    return sorted(path.relative_to(ROOT).as_posix() for path in files if path.suffix in TEXTS)


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_files_and_functions_are_short() -> None:
    paths = [path for path in texts(*DOCUMENTED, "tests") if path.endswith(".py")]
    assert [finding for path in paths for finding in oversized(path, read(path))] == []


def test_public_names_have_docstrings() -> None:
    paths = [path for path in texts(*DOCUMENTED) if path.endswith(".py")]
    assert [finding for path in paths for finding in undocumented(path, read(path))] == []


def test_docstrings_begin_with_what_things_are() -> None:
    paths = [path for path in texts(*NAMED) if path.endswith(".py")]
    assert [finding for path in paths for finding in crooked(path, read(path))] == []


def test_public_classes_have_distinct_names() -> None:
    sources = {path: read(path) for path in texts(*NAMED) if path.endswith(".py")}
    assert list(repeated_classes(sources)) == []


def test_the_project_speaks_of_itself() -> None:
    paths = [path for path in texts(*DOCUMENTED, "tests", "substitutions") if path != "tests/test_style.py"]
    assert [finding for path in paths for finding in foreign(path, read(path))] == []


def test_length_is_reported() -> None:
    body = "    pass\n" * FUNCTION_LINES
    assert list(oversized("a.py", "def long():\n" + body)) == ["a.py:1 long has 61 lines"]
    assert list(oversized("a.py", "class A:\n  def long(self):\n" + body)) == ["a.py:2 long has 61 lines"]
    assert list(oversized("a.py", "def fits():\n" + body[9:])) == []
    assert list(oversized("a.py", "\n" * (FILE_LINES + 1))) == ["a.py has 501 lines"]


@pytest.mark.parametrize("statement", ["def f(): ...", "async def f(): ...", "class C: ..."])
def test_missing_docstring_is_reported(statement: str) -> None:
    assert len(list(undocumented("a.py", f'"""A module."""\n{statement}\n'))) == 1
    assert list(undocumented("a.py", '"""A module."""\ndef _f(): ...\ndef f():\n  """Does."""\n')) == []
    assert list(undocumented("a.py", "import os\n")) == ["a.py has no docstring"]


@pytest.mark.parametrize(
    "source",
    [
        '"""{} a module."""',
        'class C:\n    """{} a class."""',
        'def f():\n    """{} a function."""',
        'async def f():\n    """{} a function."""',
        'LIMIT = 1\n"""{} a constant."""',
        'class C:\n    x: int\n    """{} a field."""',
        'class C:\n    def __init__(self):\n        self.x = 1\n        """{} an attribute."""',
    ],
)
@pytest.mark.parametrize("word", ["What", "The same", "That", "Those", "Of", "Whose"])
def test_crooked_docstring_is_reported(source: str, word: str) -> None:
    assert len(list(crooked("a.py", source.format(word)))) == 1
    assert list(crooked("a.py", source.format("Return whatever is offered, the same as"))) == []


def test_docstrings_are_told_from_other_strings() -> None:
    assert list(crooked("a.py", 'f()\n"What is said."\ndef g():\n    x = "Of course"\n    return "That"')) == []


def test_repeated_class_is_reported() -> None:
    sources = {"a.py": "class Step: ...\nclass _Own: ...", "b.py": "class Step: ...\nclass _Own: ...\nclass Steps: ..."}
    assert list(repeated_classes(sources)) == ["Step is in a.py, b.py"]
    assert list(repeated_classes({"a.py": sources["a.py"]})) == []


@pytest.mark.parametrize("line", ["see /home/me/notes", "an Agent wrote it", "# TODO: later", "fixes issue #12"])
def test_foreign_word_is_reported(line: str) -> None:
    assert len(list(foreign("a.py", f"fine\n{line}\n"))) == 1
    assert list(foreign("a.py", "a todos reagent https://example.org/home/me a/work/b issue of size\n")) == []
