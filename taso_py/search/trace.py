"""Traces: the substitutions that led from a graph to its result, and where each was applied.

    trace 0f3a... {
      step r3f2a91c0d4e5(x=61d0...88, a=0b7c...12.0) at [9a41..., 77fe...] -> 5c1d...
      body 1 of e09b... from 44aa... {
        step r3f2a91c0d4e5(x=9e21...7f, a=1f00...3a.0) at [6b1c..., 20d8...] -> 8f3e...
      } -> 7720...
    }
    rule r3f2a91c0d4e5 ...

Nodes are named by their digests. Steps in bodies of control flow come last: ``body 1`` is the second body of a node,
with a graph of its own. The rules follow in the grammar of :mod:`taso_py.rules.text`, so that a trace can be
replayed without a database.

Invariant: ``read_trace(write_trace(trace)) == trace``. A replay that returns has applied every step where the trace
says, and has obtained after each the graph that the trace names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from taso_py.ir.errors import TasoError
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.rules.apply import apply, concrete_side
from taso_py.rules.index import GraphIndex
from taso_py.rules.lemma import LEMMA, Lemmas, lemma_match
from taso_py.rules.match import Match, Matcher
from taso_py.rules.ruleset import RuleSet
from taso_py.rules.substitution import Substitution, key
from taso_py.rules.text import read_rules, write_rules
from taso_py.search.bodies import Body


class TraceError(TasoError):
    """A trace that cannot be read, or that does not lead from the graph to the result."""


@dataclass(frozen=True)
class TraceStep:
    """One application of a rule."""

    rule: str
    """The identifier of the rule."""
    values: tuple[tuple[str, str], ...]
    """The value of each variable, by name: a node's digest, a point, and the number of the output."""
    nodes: tuple[str, ...]
    """The digests of the nodes that the operators of the source were matched to."""
    result: str
    """The digest of the graph after the step."""

    def __str__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self.values)
        return f"step {self.rule}({values}) at [{', '.join(self.nodes)}] -> {self.result}"


@dataclass(frozen=True)
class BodyTrace:
    """The steps in one body of a node of control flow."""

    node: str
    """The digest of the node."""
    place: int
    """The number of the body among the node's."""
    trace: Trace
    """The steps, from the body as a graph of its own."""
    result: str
    """The digest of the outer graph after them."""

    def __str__(self) -> str:
        steps = "".join(f"    {step}\n" for step in self.trace.steps)
        return f"body {self.place} of {self.node} from {self.trace.original} {{\n{steps}  }} -> {self.result}"


@dataclass(frozen=True)
class Trace:
    """The steps from an original graph to a result."""

    original: str
    """The digest of the original graph."""
    steps: tuple[TraceStep, ...]
    rules: tuple[Substitution, ...]
    """The rules that occur, also in bodies, and those that lemmas among them follow from, sorted by identifier."""
    bodies: tuple[BodyTrace, ...] = ()
    """The steps in bodies of control flow, which are taken after the others."""

    @property
    def applied(self) -> tuple[str, ...]:
        """The identifiers of the rules in the order of application."""
        return tuple(step.rule for step in (*self.steps, *(step for body in self.bodies for step in body.trace.steps)))


def make_trace(
    original: Graph, steps: Iterable[tuple[Match, Graph]], result: Graph, bodies: Sequence[BodyTrace] = ()
) -> Trace:
    """Return the trace of matches that were applied one after the other, each given with the graph after it.

    Args:
        original: the graph at the beginning.
        steps: the matches.
        result: the graph at the end.
        bodies: the steps in bodies that were taken after them.

    Raises:
        TraceError: they lead to another graph than the result.
    """
    rules: dict[str, Substitution] = {}
    taken: list[TraceStep] = []
    end = original.digest
    for match, after in steps:
        rules |= {rule.id: rule for rule in (match.rule, *match.bases)}
        end = after.digest
        taken.append(_step(match, end))
    rules |= {rule.id: rule for body in bodies for rule in body.trace.rules}
    if (bodies[-1].result if bodies else end) != result.digest:
        raise TraceError("its steps one by one lead to another graph")
    return Trace(original.digest, tuple(taken), tuple(rules[id_] for id_ in sorted(rules)), tuple(bodies))


def _step(match: Match, result: str) -> TraceStep:
    values = tuple((name, _name(value)) for name, value in match.values.items())
    return TraceStep(match.rule.id, values, tuple(node.digest for node in match.nodes), result=result)


def _name(value: Value) -> str:
    return f"{value.node.digest}.{value.output}"


def write_trace(trace: Trace) -> str:
    """Return a trace as text."""
    lines = [f"trace {trace.original} {{", *(f"  {step}" for step in (*trace.steps, *trace.bodies)), "}"]
    return "\n".join(lines) + "\n" + ("\n" + write_rules(trace.rules) if trace.rules else "")


_BODY = re.compile(
    r"  body (\d+) of ([0-9a-f]{32}) from ([0-9a-f]{32}) \{\n((?:    step .*\n)*)  \} -> ([0-9a-f]{32})\n"
)
_HEAD = re.compile(rf"trace ([0-9a-f]{{32}}) \{{\n((?:  step .*\n)*)((?:{_BODY.pattern})*)\}}\n\n?")
_STEP = re.compile(r"  step (r[0-9a-f]{12})\(([^()]*)\) at \[([0-9a-f, ]*)\] -> ([0-9a-f]{32})")
_VALUE = re.compile(r"(\w+)=([0-9a-f]{32}\.\d+)")


def read_trace(text: str) -> Trace:
    """Parse a trace.

    Raises:
        TraceError: the text is no trace, or lacks a rule that a step names.
        GraphTextError: one of its rules cannot be read.
    """
    head = _HEAD.match(text)
    if head is None:
        raise TraceError("this is no trace; pass the trace.rules file that optimize wrote")
    steps = tuple(map(_read_step, head[2].splitlines()))
    rules = tuple(read_rules(text[head.end() :]))
    bodies = tuple(_read_body(found, rules) for found in _BODY.finditer(head[3]))
    trace = Trace(head[1], steps, rules, bodies)
    missing = {*trace.applied} - {rule.id for rule in rules}
    if missing:
        raise TraceError(f"the trace lacks the rule {min(missing)}; write it again with optimize --output")
    return trace


def _read_body(found: re.Match[str], rules: Sequence[Substitution]) -> BodyTrace:
    place, node, original, lines, result = found.groups()
    steps = tuple(_read_step(line.removeprefix("  ")) for line in lines.splitlines())
    used = {step.rule for step in steps}
    if any(rule.proof == LEMMA and rule.id in used for rule in rules):
        lemmas = Lemmas(rules)
        used |= {base.id for rule in rules if rule.proof == LEMMA and rule.id in used for base in lemmas.bases(rule)}
    trace = Trace(original, steps, tuple(rule for rule in rules if rule.id in used))
    return BodyTrace(node, int(place), trace, result)


def _read_step(line: str) -> TraceStep:
    found = _STEP.fullmatch(line)
    if found is None:
        raise TraceError(f"the trace has a step that cannot be read: {line.strip()}")
    values = tuple((name, value) for name, value in _VALUE.findall(found[2]))
    return TraceStep(found[1], values, tuple(found[3].split(", ")), result=found[4])


def replay(graph: Graph, trace: Trace, rules: Iterable[Substitution] | None = None) -> Graph:
    """Return the result that a trace leads to, derived again.

    Args:
        graph: the original graph.
        trace: the trace to replay.
        rules: the rules to apply; by default the trace's own.

    Raises:
        TraceError: the trace is of another graph, or a step does not apply or gives another graph than it did.
    """
    result = graph
    for _, result in replay_steps(graph, trace, rules):  # noqa: B007 (what is left of the loop is the result)
        pass
    for replayed in replay_bodies(result, trace, rules):
        result = replayed.outer
    return result


@dataclass(frozen=True)
class BodyReplay:
    """The steps of a trace in one body, as they were taken again."""

    body: Body
    """The body before."""
    steps: tuple[tuple[Match, Graph], ...]
    """Each match in it, and the body's graph after it."""
    outer: Graph
    """The outer graph afterwards."""
    node: Node
    """The node that has the rewritten body."""

    @property
    def graph(self) -> Graph:
        """The body's graph afterwards."""
        return self.steps[-1][1]


def replay_bodies(graph: Graph, trace: Trace, rules: Iterable[Substitution] | None = None) -> Iterator[BodyReplay]:
    """Yield the steps of a trace in bodies of control flow as they are taken again.

    Args:
        graph: the graph that the trace's other steps lead to.
        trace: the trace.
        rules: the rules to apply; by default the trace's own.

    Raises:
        TraceError: there is no such body, or a step does not apply or gives another graph than it did.
    """
    known = RuleSet.of(trace.rules if rules is None else rules)
    for number, told in enumerate(trace.bodies, start=1):
        body = next((Body.of(node, told.place) for node in graph.effects if node.digest == told.node), None)
        if body is None or body.graph.digest != told.trace.original or not told.trace.steps:
            raise TraceError(f"body {number}: there is none where the trace says")
        steps = tuple(replay_steps(body.graph, told.trace, known))
        outer, node = body.put_back(graph, steps[-1][1])
        if outer.digest != told.result:
            raise TraceError(f"body {number}: its steps give another graph than the trace says")
        graph = outer
        yield BodyReplay(body, steps, outer, node)


def replay_steps(
    graph: Graph, trace: Trace, rules: Iterable[Substitution] | None = None
) -> Iterator[tuple[Match, Graph]]:
    """Yield the steps of a trace as :func:`replay` takes them: each match, and the graph after it.

    Those in bodies come after all of these, see :func:`replay_bodies`.
    """
    if graph.digest != trace.original:
        raise TraceError("the trace is of another graph; replay it on the model, inputs and version it was made with")
    known = _Known(trace, trace.rules if rules is None else rules)
    for number, step in enumerate(trace.steps, start=1):
        match = known.find(graph, step, number)
        if match is None or not _replaces_its_source(match):
            raise TraceError(f"step {number}: rule {step.rule} does not match where the trace says")
        after = apply(graph, match)
        if after is None or after.digest != step.result:
            raise TraceError(f"step {number}: rule {step.rule} gives another graph than the trace says")
        graph = after
        yield match, graph


def _replaces_its_source(match: Match) -> bool:
    """Return whether the rule's source, instantiated with the match's bindings, equals the values that it replaces.

    This does not rely on the matcher.
    """
    try:
        made = concrete_side(match, match.rule.source)
    except (TasoError, ValueError, ZeroDivisionError):
        return False
    waiting = list(zip(made, match.outputs, strict=True))
    while waiting:
        one, other = waiting.pop()
        if one == other:
            continue
        # Equal numbers may be written differently (1 and 1.0).
        if one.output != other.output or one.node.op != other.node.op or one.node.types != other.node.types:
            return False
        waiting += zip(one.node.inputs, other.node.inputs, strict=True)
    return True


class _Known:
    """The rules that the steps of a trace may apply: given ones, and the trace's lemmas that follow from them."""

    def __init__(self, trace: Trace, rules: Iterable[Substitution]) -> None:
        self._rules = RuleSet.of(rules)
        self._lemmas = {rule.id: rule for rule in trace.rules if rule.proof == LEMMA}

    @cached_property
    def _derived(self) -> Lemmas:
        return Lemmas(rule for rule in self._rules if rule.proof != LEMMA)

    def find(self, graph: Graph, step: TraceStep, number: int) -> Match | None:
        """Return the match that a step describes, if there is one.

        Raises:
            TraceError: its rule is not known, or is a lemma that does not follow from those that are.
        """
        rule, lemma = self._rules.get(step.rule), self._lemmas.get(step.rule)
        if rule is not None and rule.proof != LEMMA:
            return _find(graph, step, rule)
        if lemma is None:
            raise TraceError(f"step {number}: the database has no rule {step.rule}")
        bases = self._derived.bases(lemma)
        if not bases:
            raise TraceError(f"step {number}: the lemma {step.rule} does not follow from the rules")
        nodes = {node.digest: node for node in graph.nodes}
        places = {name: place.split(".") for name, place in step.values}
        variables, count = lemma.source.inputs, len(lemma.source.nodes)
        if (len(variables) + len(step.nodes), places.keys()) != (count, set(map(key, variables))):
            return None
        if not {*step.nodes, *(digest for digest, _ in places.values())} <= nodes.keys():
            return None
        values = {name: Value(nodes[digest], int(output)) for name, (digest, output) in places.items()}
        return lemma_match(lemma, bases, [nodes[digest] for digest in step.nodes], values)


def _find(graph: Graph, step: TraceStep, rule: Substitution) -> Match | None:
    """Return the match that a step describes; its symmetric images describe other results, so they do not count."""
    index = GraphIndex(graph)
    anchors = [node for node in graph.nodes if node.digest in step.nodes]
    found: Sequence[Match] = Matcher([rule], keep_all=True).around(index, anchors)
    return next((match for match in found if _step(match, step.result) == step), None)
