"""Holds the arrows of the architecture: what each package may import, read from the sources without running them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath

import networkx as nx
import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("taso_py", "verify", "fuzz")

# What each part may import besides the standard library and itself: packages of taso_py, and what lies outside it.
# A part is a package, or a module with rights of its own; a file belongs to the nearest part around it.
ALLOWED: dict[str, tuple[str, str]] = {
    "taso_py/ir": ("", "networkx"),
    "taso_py/ops": ("ir", "networkx numpy"),
    "taso_py/rules": ("collector files ir ops", "numpy"),
    "taso_py/generate": ("files ir ops rules executors", "numpy egglog"),
    "taso_py/search": ("collector progress ir ops rules", "networkx numpy"),
    "taso_py/kernels": ("ir ops backend", "torch numpy"),
    "taso_py/latency": ("collector ir ops kernels backend progress", "torch numpy platformdirs"),
    "taso_py/cost": ("ir ops kernels backend latency progress", "torch networkx"),
    "taso_py/backend": ("ir ops", "torch"),
    "taso_py/backend/onnx": ("ir ops backend", "torch onnx onnx_ir"),
    "taso_py/backend/onnx_call.py": ("", "torch onnxruntime"),
    "taso_py/engines": (
        "files ir ops kernels latency cost backend frontend",
        "torch onnxruntime openvino torch_tensorrt",
    ),
    "taso_py/frontend": ("ir ops backend", "torch sympy"),
    "taso_py/frontend/onnx": ("ir backend frontend", "torch onnx onnx_ir"),
    "taso_py/report": ("ir ops rules", "jinja2 markupsafe networkx rich"),
    "taso_py/models": ("ir backend frontend engines latency", "torch"),
    "taso_py/models/zoo": ("ir backend models", "torch torchvision timm transformers"),
    "taso_py/checking": ("arguments documents ir ops rules search backend frontend models", "torch numpy"),
    "taso_py/saving": (
        "files ir ops kernels backend frontend engines report models checking",
        "torch onnxruntime safetensors",
    ),
    "taso_py/saving/triton.py": ("ir", "onnx"),
    "taso_py/judging": (
        "effort ir ops rules search kernels latency cost backend frontend engines progress models checking saving",
        "torch numpy",
    ),
    "taso_py/profiling": (
        "collector lock unexpected ir ops rules kernels latency cost backend frontend engines report progress models "
        "checking saving",
        "torch numpy rich",
    ),
    "taso_py/driver": (
        "options collector documents effort files lock unexpected ir ops rules search kernels latency cost "
        "backend frontend "
        "engines report progress models checking saving judging profiling",
        "torch",
    ),
    "taso_py/entries": (
        "options files lock unexpected ir rules search backend engines report models checking saving judging driver",
        "torch rich",
    ),
    "taso_py/huggingface": ("files ir engines entries models options saving", "torch transformers"),
    "taso_py/dynamo": (
        "collector options lock unexpected ir ops rules latency backend frontend engines report models checking saving "
        "driver",
        "torch",
    ),
    "taso_py/pipelines": (
        "options lock ir rules latency backend frontend engines report models checking judging driver dynamo",
        "torch rich",
    ),
    "taso_py/__init__.py": ("options compiler ir rules report saving driver entries pipelines", ""),
    "taso_py/cli.py": ("arguments commands ir unexpected", ""),
    "taso_py/__main__.py": ("cli", ""),
    "taso_py/commands": (
        "collector options engines executors ir ops rules generate search latency report progress models saving "
        "profiling driver effort entries",
        "verify numpy rich tqdm",
    ),
    "taso_py/arguments.py": ("", ""),
    "taso_py/documents.py": ("", ""),
    "taso_py/collector.py": ("", ""),
    "taso_py/compiler.py": ("dynamo", "torch"),
    "taso_py/effort.py": ("", ""),
    "taso_py/options.py": ("effort engines ir rules search", ""),
    "taso_py/lock.py": ("", ""),
    "taso_py/unexpected.py": ("latency files ir", ""),
    "taso_py/executors.py": ("ir", "distributed"),
    "taso_py/files.py": ("", ""),
    "taso_py/progress.py": ("", "tqdm"),
    "fuzz": (
        "options arguments executors ir ops rules search kernels latency cost backend frontend engines progress models "
        "checking saving judging driver",
        "verify torch hypothesis",
    ),
    "verify": ("ir ops rules", "z3 numpy rich"),
    "verify/witness.py": ("ir ops rules", "verify torch numpy"),
    "verify/audit/edges.py": ("arguments ir ops rules", "verify torch rich tqdm"),
    "verify/audit": ("arguments executors ir ops rules", "verify z3 numpy rich"),
}


def imports(source: str) -> Iterator[tuple[int, str]]:
    """The line and dotted name of each import; relative ones begin with a dot, names out of a package are resolved."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            names = [f"{base}.{alias.name}" for alias in node.names] if base == "taso_py" else [base]
            yield from ((node.lineno, name) for name in names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            yield from ((node.lineno, text) for text in texts if isinstance(text, str))


def violations(path: str, source: str) -> list[str]:
    """What the file at a path (from the root, with slashes) imports but may not."""
    ancestors = [path, *map(str, PurePosixPath(path).parents)]
    part = next((ancestor for ancestor in ancestors if ancestor in ALLOWED), None)
    if part is None:
        return [f"{path} is no part of the architecture; give its package a line in ALLOWED"]
    packages, outside = ALLOWED[part]
    allowed = {*(f"taso_py.{package}" for package in packages.split()), *outside.split(), part.replace("/", ".")}

    def may(name: str) -> bool:
        pieces = name.split(".")
        heads = {".".join(pieces[:count]) for count in range(1, len(pieces) + 1)}
        return pieces[0] in sys.stdlib_module_names or bool(heads & allowed)

    return [f"{path}:{line} imports {name}" for line, name in imports(source) if not may(name)]


def imported_files(tree: ast.AST, files: Collection[str]) -> Iterator[str]:
    """The files that a module imports as it is loaded; what functions import later makes no circle."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            base = node.module.replace(".", "/")
            for alias in node.names:
                names = (f"{base}/{alias.name}.py", f"{base}.py", f"{base}/__init__.py")
                yield from [name for name in names if name in files][:1]
        elif not isinstance(node, ast.FunctionDef | ast.If):
            yield from imported_files(node, files)


def circles(files: Mapping[str, str]) -> list[list[str]]:
    """Files, and packages, that import each other in a circle."""
    among_files = nx.DiGraph(
        [(path, other) for path, text in files.items() for other in imported_files(ast.parse(text), files)]
    )
    among_packages = nx.DiGraph([(part_of(path), part_of(other)) for path, other in among_files.edges])
    return [
        sorted(circle)
        for graph in (among_files, among_packages)
        for circle in nx.strongly_connected_components(graph)
        if len(circle) > 1
    ]


def part_of(path: str) -> str:
    """The package of a file, or the file itself where it lies in none."""
    parts = PurePosixPath(path).parts
    return "/".join(parts[:2]) if parts[0] == "taso_py" else parts[0]


def sources() -> list[str]:
    return sorted(path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", sources())
def test_imports_follow_the_arrows(path: str) -> None:
    assert violations(path, (ROOT / path).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("taso_py/ir/graph.py", "import numpy"),
        ("taso_py/ir/graph.py", "from taso_py.ops.table import TABLE"),
        ("taso_py/ir/graph.py", "from taso_py import ops"),
        ("taso_py/ir/graph.py", "import taso_py"),
        ("taso_py/ir/graph.py", "from ..ops import table"),
        ("taso_py/ops/table.py", "def late():\n    import torch.nn"),
        ("taso_py/rules/match.py", "from taso_py.search.backtracking import search"),
        ("taso_py/generate/enumerate.py", "from verify import prove"),
        ("taso_py/generate/enumerate.py", "from importlib import import_module\nimport_module('z3')"),
        ("taso_py/search/backtracking.py", "if True:\n    from torch import Tensor"),
        ("taso_py/search/backtracking.py", "from taso_py.cost.model import CostModel"),
        ("taso_py/search/backtracking.py", "import search"),
        ("taso_py/driver/optimize.py", "import verify"),
        ("taso_py/__init__.py", "from verify import prove"),
        ("verify/prover.py", "import torch"),
        ("verify/prover.py", "from taso_py.generate import pipeline"),
        ("verify/witness.py", "import z3"),
        ("taso_py/utils.py", "import os"),
    ],
)
def test_a_violation_is_reported(path: str, source: str) -> None:
    assert len(violations(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("taso_py/ir/graph.py", "import networkx as nx\nfrom taso_py.ir.node import Node\nimport collections.abc"),
        ("taso_py/rules/match.py", "from taso_py.ir import graph\nfrom taso_py.ops.table import TABLE"),
        ("taso_py/commands/verify.py", "from verify import prove\nfrom taso_py.models.source import load_source"),
        ("verify/prover.py", "import z3\nfrom verify.terms import Term\nfrom taso_py.rules.verdict import Verdict"),
        ("verify/witness.py", "import torch\nfrom verify.terms import Term"),
    ],
)
def test_what_the_arrows_allow_passes(path: str, source: str) -> None:
    assert violations(path, source) == []


def test_the_library_exports_few_names() -> None:
    tree = ast.parse((ROOT / "taso_py" / "__init__.py").read_text(encoding="utf-8"))
    exported = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert sum(map(len, exported)) <= 15


def test_nothing_imports_in_a_circle() -> None:
    assert circles({path: (ROOT / path).read_text(encoding="utf-8") for path in sources()}) == []


def test_a_circle_is_reported() -> None:
    late = "def f() -> None:\n    from taso_py.ops.table import TABLE"
    apart = {"taso_py/ops/table.py": "from taso_py.ir.node import Node", "taso_py/ir/node.py": late}
    assert circles(apart) == []
    files = {**apart, "taso_py/ir/node.py": "from taso_py.ops.table import TABLE"}
    assert circles(files) == [["taso_py/ir/node.py", "taso_py/ops/table.py"], ["taso_py/ir", "taso_py/ops"]]
    packages = {**apart, "taso_py/ir/graph.py": "from taso_py.ops import table"}
    assert circles(packages) == [["taso_py/ir", "taso_py/ops"]]


def test_the_driver_ties_few_modules() -> None:
    path = "taso_py/driver/optimize.py"
    ours = {name for _, name in imports((ROOT / path).read_text(encoding="utf-8")) if name.startswith("taso_py")}
    assert len(ours) <= 20
