"""Bodies of control flow, rewritten by random rules and put back."""

from __future__ import annotations

import random

from taso_py.ir.graph import Graph
from taso_py.ops.nested import ControlFlow
from taso_py.rules.substitution import Substitution
from taso_py.search.bodies import Body
from taso_py.search.space import Space
from taso_py.search.state import Option, SearchState

MOST_STEPS = 3
"""Most rules that are applied to a body."""


def random_steps(space: Space, graph: Graph, chance: random.Random, most: int) -> SearchState:
    """Return the state of a graph after random steps, each rule as likely as any other."""
    state = space.with_options(space.start(graph))
    for _ in range(chance.randrange(most + 1)):
        options: dict[str, list[Option]] = {}
        for option in state.options:
            options.setdefault(option.match(state.node_ids).rule.id, []).append(option)
        if not options:
            break
        step = space.step(state, chance.choice(options[chance.choice(sorted(options))]))
        if step is not None:
            state = space.finish(space.estimate(step), ends_detour=chance.random() < 0.5)
    return state


def with_rewritten_bodies(graph: Graph, space: Space, chance: random.Random) -> tuple[Graph, list[Substitution]]:
    """Return a graph whose bodies are rewritten by random rules, and these rules."""
    rules: list[Substitution] = []
    for number in range(len(graph.effects)):
        flow = ControlFlow.of(graph.effects[number])
        for place in range(0 if flow is None else len(flow.bodies)):
            body = Body.of(graph.effects[number], place)
            if body is None:
                continue
            state = random_steps(space, body.graph, chance, MOST_STEPS)
            if state.steps:
                graph, _ = body.put_back(graph, state.graph)
                rules += [path.match.rule for path in state.steps]
    return graph, rules
