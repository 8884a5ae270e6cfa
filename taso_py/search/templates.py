"""Greedy templates: the hand-made rewrites that frameworks ship, applied one by one in a fixed order.

It is the baseline that the search is compared with, with the same machinery and the same costs, in two ways. *Blindly*,
as in frameworks, every template is applied wherever it matches, whatever the effect. *Measured*, a template that makes
the graph no cheaper is reverted, and not tried again in the same place.

Invariant: no template matches the result any more, except where one was refused; blindly, a template is refused only if
more weights would be stored than the limit allows.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.resources import files

from taso_py.ir.graph import Graph
from taso_py.rules.match import Match, Matcher
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules
from taso_py.search.cost import Cost
from taso_py.search.explorer import PRECISION, Explorer
from taso_py.search.result import Limits, ProgressCallback, SearchResult, SearchStop
from taso_py.search.state import Option, SearchState

WEIGHT = "w"
"""Prefix of the names of template variables that stand for values computed from weights alone."""


@cache
def read_templates() -> tuple[Substitution, ...]:
    """Return the templates that come with the package, in their order."""
    return tuple(read_rules(files("taso_py.search").joinpath("templates.rules").read_text(encoding="utf-8")))


def search(
    graph: Graph,
    templates: Iterable[Substitution] | Matcher,
    cost: Cost,
    limits: Limits | None = None,
    report: ProgressCallback | None = None,
) -> SearchResult:
    """Apply templates blindly; the result is the graph they lead to, even if it costs more than the original.

    Args:
        graph: the graph to start from.
        templates: the templates in order of application, each as long as it matches somewhere.
        cost: gives the costs of graphs.
        limits: the limits of the search; alpha and seed have no effect.
        report: called with the progress after every graph that is built.
    """
    return _Templates(graph, Matcher.of(templates), cost, limits=limits or Limits(), report=report).run()


def search_measured(
    graph: Graph,
    templates: Iterable[Substitution] | Matcher,
    cost: Cost,
    limits: Limits | None = None,
    report: ProgressCallback | None = None,
) -> SearchResult:
    """Apply templates as :func:`search` does, but keep only those that make the graph cheaper."""
    return _Measured(graph, Matcher.of(templates), cost, limits=limits or Limits(), report=report).run()


class _Templates(Explorer):
    def __init__(
        self,
        graph: Graph,
        templates: Matcher,
        cost: Cost,
        limits: Limits,
        report: ProgressCallback | None,
    ) -> None:
        super().__init__(graph, templates, cost, limits=limits, report=report)
        self._order = {template.id: number for number, template in enumerate(templates.rules)}

    def explore(self, original: SearchState) -> SearchStop:
        state, refused = original, set[Option]()
        while not self.is_spent:
            option = self._next(state, refused)
            if option is None:
                return SearchStop.EXHAUSTED
            after = self._after(state, option)
            if after is None:
                refused.add(option)
                continue
            refused = {new for new in after.options if new in refused or new.origin in refused}
            for new in after.options:
                new.origin = None  # or the options of all states before would be kept
            state = after
        return SearchStop.BUDGET

    def _next(self, state: SearchState, refused: set[Option]) -> Option | None:
        """Return the first match of the first template that matches."""
        place, node = state.index.place, state.node_ids.node

        def turn(option: Option) -> tuple[int, int]:
            return self._order[option.rule.id], min(place[node[node_id]] for node_id in option.nodes)

        open_ = (o for o in state.options if o not in refused and _reads_weights(o.match(state.node_ids)))
        return min(open_, key=turn, default=None)

    def _after(self, state: SearchState, option: Option) -> SearchState | None:
        """Return the state after a template is applied; None if it is refused."""
        built = self.build(state, option, set())
        if built is None:
            return None
        after = self.expand(built, ends_detour=True)
        if not self.is_valid(after.static_bytes):
            return None
        # The last state is the result, however much it costs.
        self._pool, self.best = {frozenset(): after}, after
        return after


class _Measured(_Templates):
    def _after(self, state: SearchState, option: Option) -> SearchState | None:
        built = self.build(state, option, set())
        if built is None or built.estimate.seconds > state.seconds - PRECISION * self.original.seconds:
            return None
        after = self.expand(built, ends_detour=True)
        return after if self.is_valid(after.static_bytes) else None


def _reads_weights(match: Match) -> bool:
    """Return whether the variables that must be bound to weights are."""
    return all(value.node.is_static for name, value in match.values.items() if name.startswith(WEIGHT))
