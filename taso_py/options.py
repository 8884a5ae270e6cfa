"""Options of an optimization, stated once: names, defaults, limits, and the help that the command line shows.

Invariant: options that were made are valid; importing this module imports neither torch nor a search.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from difflib import get_close_matches
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Self

from taso_py.effort import EFFORTS, NORMAL, Effort, within
from taso_py.engines.names import AUTO, ENGINE_NAMES, RUNTIME_CHOICES
from taso_py.ir.errors import TasoError, in_a_line
from taso_py.rules.verdict import Numerics
from taso_py.search.names import SEARCHES

if TYPE_CHECKING:
    from taso_py.search.result import Limits

GROWTH_LIMIT = 1.25
"""The most bytes of weights that the result may hold, relative to the original."""
_OR_NONE = " | None"


@dataclass(frozen=True)
class Kind:
    """A kind of values that options have."""

    python: type
    """The type that texts on the command line are converted to."""
    accepted: type
    """The values that Python may give."""
    text: str
    """The kind in messages."""


_KINDS: Mapping[str, Kind] = {
    "str": Kind(str, str, "a name"),
    "int": Kind(int, Integral, "a whole number"),
    "float": Kind(float, Real, "a number"),
    "bool": Kind(bool, bool, "True or False"),
}
"""Kinds by annotation."""


def kind_of(option: Field[Any]) -> Kind | None:
    """Return the kind of an option's values; None if it has a check of its own."""
    return _KINDS.get(str(option.type).removesuffix(_OR_NONE))


class OptimizeError(TasoError):
    """Raised if an optimization cannot be carried out as asked."""


def _by_effort(limit: str) -> str:
    """Return a limit at each level of effort, for help texts."""
    return ", ".join(f"{name}: {getattr(effort, limit):g}" for name, effort in EFFORTS.items())


def _shown(text: str, *, metavar: str | None = None, choices: tuple[str, ...] | None = None) -> Mapping[str, Any]:
    """Return the metadata of an option that the command line has, with what its help says."""
    return {"help": text, "metavar": metavar, "choices": choices}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of an optimization; the defaults are those of the command line, where the runtime is ``auto`` though."""

    runtime: str = field(
        default="eager",
        metadata=_shown(
            "where the result runs; auto is where it is fastest (default: auto; onnxruntime for an ONNX model)",
            choices=RUNTIME_CHOICES,
        ),
    )
    search: str = field(
        default="backtracking",
        metadata=_shown(
            "how rules are chosen (%(default)s); templates are hand-made fusions, applied wherever they match",
            choices=SEARCHES,
        ),
    )
    alpha: float = field(
        default=1.05,
        metadata=_shown("keep graphs within this factor of the best, or within two small operators (%(default)s)"),
    )
    budget: int = field(
        default=2000,
        metadata=_shown(
            "graphs to build at most in a search (%(default)s), which is repeated up to three times if its decisive "
            "latencies change when they are measured again",
            metavar="N",
        ),
    )
    effort: str = field(
        default=NORMAL,
        metadata=_shown(
            "how long measuring, searching and timing may take (%(default)s); every level checks results equally well",
            choices=tuple(EFFORTS),
        ),
    )
    within: float | None = field(
        default=None, metadata=_shown("approximate seconds for everything, in place of --effort", metavar="S")
    )
    time_limit: float | None = field(
        default=None,
        metadata=_shown(f"seconds of search, measuring kernels not included ({_by_effort('search_s')})", metavar="S"),
    )
    numerics: Numerics | None = field(
        default=None,
        metadata=_shown(
            "how much results may differ at most: %(choices)s (default: mask; zero-terms in fp16)",
            metavar="CLASS",
            choices=tuple(numerics.label for numerics in Numerics),
        ),
    )
    """The cap, or its label; None allows all, and up to ZERO_TERMS where a rule is applied in fp16."""
    seed: int = 0
    race_seconds: float | None = field(
        default=None,
        metadata=_shown(
            "seconds to time the best graphs and the original (default: by effort); then the winner is timed again",
            metavar="S",
        ),
    )
    reload: bool = False
    """True if the result is compared in its saved form too, loaded again, although it is not saved; what is saved
    always is."""
    kernels: bool = True
    """True if kernels and memory formats are chosen; otherwise plain ATen calls compute everything."""
    reuse: bool = True
    """True if repeated parts of the graph, equal except for their weights, are searched once."""
    cache: bool = True
    """True if winners are remembered on disk, beside the latencies, and earlier winners are considered again."""
    progress: bool = False

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> Self:
        """Return options with the given fields set and the others at their defaults.

        Raises:
            TasoError: an option does not exist or has an invalid value.
        """
        known = [option.name for option in fields(cls)]
        for name in options:
            if name not in known:
                close = get_close_matches(name, known, n=3) or known
                raise OptimizeError(f"there is no option {name!r}; did you mean {', '.join(close)}?")
        return cls(**options)

    def __post_init__(self) -> None:
        self._check_kinds()
        label: Any = self.numerics
        if label is not None and not isinstance(label, Numerics):
            object.__setattr__(self, "numerics", Numerics.labelled(str(label)))
        object.__setattr__(self, "seed", int(self.seed))  # PyTorch refuses NumPy's integers
        if not 0 <= self.seed < 2**63:
            raise OptimizeError(f"seed must be a whole number from 0 to 2**63 - 1, not {self.seed}")
        if self.effort not in EFFORTS:
            raise OptimizeError(f"no effort is called {self.effort}; there are {', '.join(EFFORTS)}")
        if self.within is not None and not 0 < self.within < math.inf:
            raise OptimizeError(f"within must be a positive number of seconds, not {self.within}")
        if not self.effective_effort.race_s > 0:
            raise OptimizeError(f"race_seconds must be positive, not {self.race_seconds}")
        if self.search not in SEARCHES:
            raise OptimizeError(f"no search is called {self.search}; there are {', '.join(SEARCHES)}")
        if self.runtime not in (AUTO, *ENGINE_NAMES):
            raise OptimizeError(f"no runtime is called {self.runtime}; there are {', '.join((AUTO, *ENGINE_NAMES))}")
        self.limits()

    def _check_kinds(self) -> None:
        for option in fields(self):
            given: object = getattr(self, option.name)
            kind = kind_of(option)
            if given is None and str(option.type).endswith(_OR_NONE):
                continue
            # To Python, booleans are whole numbers.
            if kind and not (isinstance(given, kind.accepted) and isinstance(given, bool) is (kind.python is bool)):
                raise OptimizeError(f"{option.name} must be {kind.text}, not {in_a_line(given)}")

    @property
    def effective_effort(self) -> Effort:
        """The level of effort, with ``time_limit`` and ``race_seconds`` in place of its own limits if given."""
        level = EFFORTS[self.effort] if self.within is None else within(self.within)
        search_s = level.search_s if self.time_limit is None else self.time_limit
        race_s = level.race_s if self.race_seconds is None else self.race_seconds
        return replace(level, search_s=search_s, race_s=race_s)

    def evaluation_effort(self, share: float) -> Effort:
        """Return the effort for judging results: races get a share of their seconds, unless these are given."""
        effort = self.effective_effort
        return effort if self.race_seconds is not None else replace(effort, race_s=share * effort.race_s)

    def limits(self) -> Limits:
        """Return the limits of the search; raises `TasoError` if they are invalid."""
        from taso_py.search.result import Limits  # with graphs and rules, which --help does not need

        return Limits(
            alpha=self.alpha,
            budget=self.budget,
            patience=self.effective_effort.patience,
            seconds=self.effective_effort.search_s,
            growth=GROWTH_LIMIT,
            numerics=self.numerics,
            results=self.effective_effort.finalists,
            reuse=self.reuse,
            seed=self.seed,
        )


SHOWN: Mapping[str, Field[Any]] = {option.name: option for option in fields(Options) if "help" in option.metadata}
"""The options that the command line has, by name."""
