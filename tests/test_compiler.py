"""PyTorch finds the backend by its name, and loads it in no time."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from taso_py.options import OptimizeError


def test_torch_finds_the_backend_by_its_name() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    group = "torch_dynamo_backends"
    (name, value), *others = project["entry-points"][group].items()
    assert (name, others) == ("taso", [])
    loaded = EntryPoint(name=name, value=value, group=group).load()
    with pytest.raises(OptimizeError, match="no option 'frieze'"):
        loaded(None, (), options={"frieze": True})


def test_who_has_used_the_package_has_the_backend_registered() -> None:
    script = """
import taso_py
taso_py.load
from torch._dynamo.backends import registry
from taso_py.compiler import register, taso
register()
assert registry.lookup_backend("taso") is taso
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_loading_the_backend_imports_nothing_heavy() -> None:
    script = "import sys, taso_py.compiler; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
