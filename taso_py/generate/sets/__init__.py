"""The named vocabularies.

``core`` mixes everything, ``merge`` goes deeper with less, ``fold`` solves for weights, ``fuse`` finds the forms in
which the operators are written out that one kernel computes.

Invariant: a vocabulary lists operators and the roles of their operands, never rules.
"""

from __future__ import annotations

from collections.abc import Mapping

from taso_py.generate.sets.core import CORE
from taso_py.generate.sets.fold import FOLD
from taso_py.generate.sets.fuse import FUSE
from taso_py.generate.sets.merge import MERGE
from taso_py.generate.vocabulary import Family, Folding, Written

VOCABULARIES: Mapping[str, tuple[Family | Folding | Written, ...]] = {
    "core": CORE,
    "merge": MERGE,
    "fold": FOLD,
    "fuse": FUSE,
}
"""By the name that ``taso-py generate --ops`` takes."""
