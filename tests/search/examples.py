"""What tests of the search share: a cost without measurements, rules, and graphs of several sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from math import prod
from pathlib import Path

import substitutions
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.ops.table import parse_graph
from taso_py.rules.database import read_database
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules

THREE = """rule x: float[..G,M,K], a: float[K,N], b: float[K,P], c: float[K,Q]
  source matmul(x, a), matmul(x, b), matmul(x, c)
  target t = matmul(x, concat(a, b, c){axis=-1}); slice(t){axis=-1, start=0, stop=N},
    slice(t){axis=-1, start=N, stop=N+P}, slice(t){axis=-1, start=N+P, stop=N+P+Q}"""
"""The rule "merge" below, of three products."""
RULES = {
    "merge": """rule x: float[..G,M,K], a: float[K,N], b: float[K,P]
      source matmul(x, a), matmul(x, b)
      target t = matmul(x, concat(a, b){axis=-1});
        slice(t){axis=-1, start=0, stop=N}, slice(t){axis=-1, start=N, stop=N+P}
      numerics REORDER""",
    "slices": """rule x: float[..G,N]
      source slice(slice(x){axis=-1, start=A, stop=B}){axis=-1, start=C, stop=D}
      target slice(x){axis=-1, start=A+C, stop=A+D}""",
    "join": """rule x: float[M,K], y: float[M,L], a: float[K,N], b: float[L,N]
      source add(matmul(x, a), matmul(y, b))
      target matmul(concat(x, y){axis=-1}, concat(a, b){axis=-2})
      numerics REASSOCIATE""",
    "stack": """rule x: float[M,K], y: float[N,K], a: float[K,P]
      source matmul(x, a), matmul(y, a)
      target t = matmul(concat(x, y){axis=-2}, a);
        slice(t){axis=-2, start=0, stop=M}, slice(t){axis=-2, start=M, stop=M+N}
      numerics REORDER""",
    "factor": """rule a: float[..B], b: float[..B], c: float[..B]
      source add(mul(a, b), mul(a, c)) target mul(a, add(b, c))
      numerics REASSOCIATE""",
    "expand": """rule a: float[..B], b: float[..B], c: float[..B]
      source mul(a, add(b, c)) target add(mul(a, b), mul(a, c))
      numerics REASSOCIATE""",
    "associate": """rule a: float[..B], b: float[..B], c: float[..B]
      source add(add(a, b), c) target add(a, add(b, c))
      numerics REASSOCIATE""",
    "idempotent": "rule a: float[..B] source relu(relu(a)) target relu(a)",
}


def read(*names: str) -> list[Substitution]:
    """Some of the rules above."""
    return [read_rules(RULES[name])[0] for name in names]


def shipped(*names: str) -> list[Substitution]:
    """The rules of some of the shipped files."""
    folder = Path(substitutions.__file__).parent
    return [rule for name in names for rule in read_database(folder / f"{name}.rules")]


@dataclass(frozen=True)
class Latency:
    """What the cost below knows of a graph."""

    seconds: float


class FakeCost:
    """A cost by hand: so much a call, and for products so much more a multiplication."""

    def __init__(self, calls: Mapping[str, float] | None = None) -> None:
        """Costs of a call by operator; 2 for all others."""
        self._calls = calls or {"matmul": 8.0, "slice": 1.0, "concat": 3.0}

    def graph_cost(self, graph: Graph) -> float:
        return sum(map(self.node_cost, graph.nodes))

    def estimate(self, graph: Graph) -> Latency:
        return Latency(self.graph_cost(graph))

    def for_part(self, whole: Latency, inputs: Mapping[Value, Value], outputs: Sequence[Value]) -> FakeCost:
        return self

    def revise(self, before: Latency, graph: Graph, images: Mapping[Node, Node], touched: Set[Node]) -> Latency:
        assert touched <= set(graph.nodes)
        return self.estimate(graph)

    def node_cost(self, node: Node) -> float:
        if node.is_static or not node.inputs:
            return 0.0
        work = prod(node.inputs[0].type.sizes) * node.types[0].sizes[-1] / 1e4 if node.op.name == "matmul" else 0.0
        return self._calls.get(node.op.name, 2.0) + work

    def value_bytes(self, value: Value) -> int:
        return 4 * prod(value.type.sizes)


def products(count: int) -> Graph:
    """Matrix products on one input."""
    lines = [f'w{i} = weight{{key="w{i}", type=f32[16,8]}} v{i} = relu(matmul(x, w{i}))' for i in range(count)]
    results = ", ".join(f"v{i}" for i in range(count))
    return parse_graph(f"graph(x: f32[1,16]) {{ {' '.join(lines)} return {results} }}")


def recurrent(steps: int, leaves: int = 4, size: int = 16) -> Graph:
    """A recurrent cell that adds products of an input and of the state, as NasRNN does, unrolled."""
    weights = [
        f'{letter}{i} = weight{{key="{letter}{i}", type=f32[{size},{size}]}}' for letter in "wu" for i in range(leaves)
    ]
    cells: list[str] = []
    for t in range(steps):
        cells += [f"l{i} = add(matmul(x{t}, w{i}), matmul(h, u{i}))" for i in range(leaves)]
        functions = ("relu", "sigmoid", "tanh", "exp")
        cells += [f"f{i} = {functions[i % 4]}(l{i})" for i in range(leaves)]
        cells += ["h = mul(f0, f1)", *(f"h = {'mul' if i % 2 else 'add'}(h, f{i})" for i in range(2, leaves))]
    inputs = ", ".join(f"x{t}: f32[1,{size}]" for t in range(steps))
    body = "\n".join([*weights, *cells])
    return parse_graph(f"graph({inputs}, h: f32[1,{size}]) {{ {body} return h }}")


def blocks(count: int, shared: bool = False) -> Graph:
    """Residual blocks that each merge products of one value; with weights of their own or the same for all."""
    lines: list[str] = []
    for b in range(count):
        for i in range(4):
            key = f"w{i}" if shared else f"w{b}.{i}"
            lines.append(f'w{i} = weight{{key="{key}", type=f32[8,8]}} m{i} = relu(relu(matmul(h{b}, w{i})))')
        lines.append(f"s = add(add(m0, m1), add(m2, m3)) h{b + 1} = add(tanh(s), h{b})")
    return parse_graph(f"graph(h0: f32[2,8]) {{ {' '.join(lines)} return h{count} }}")
