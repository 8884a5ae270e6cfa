"""The named vocabularies.

``core`` mixes everything, ``merge`` goes deeper with fewer operators, ``fold`` solves for weights, ``fuse`` finds the
written-out forms of operators that one kernel computes, ``scalars`` computes with numbers, ``layout`` with rows of
channels in place of images, ``rows`` with some rows in place of all, ``views`` moves elementwise operators before a
view, ``layers`` has layers that take in what is before or behind them, ``heads`` attention of causal queries and of
groups of queries, ``algebra`` further laws of sums, products and joins, ``activations`` the gates of mobile networks
written out, ``arrays`` sums, stacks, slices and diagonals of results, ``formulas`` numbers, powers and functions of
elements, ``choices`` choices between values and logic, ``branches`` sums of layers of one operand, ``lookups`` what is
computed from what integers choose, ``images`` what is computed of enlarged images and of averages,
``interpolation`` what is computed of linearly enlarged ones, ``joints`` convolutions of several images joined,
``rotary`` and ``angles`` rotary position embeddings, ``absorbed`` norms, unequal padding and orders of channels that
layers take in, ``sigmoids`` GELU by a sigmoid, ``compounds`` sums with a product and norms of vectors taken apart,
``gates`` factors that are collected, ``convolutions`` transposed convolutions and those of volumes,
``identities`` quotients, signs and bounds, ``signs`` laws of positive numbers, ``extents`` what is computed of values
that are repeated, padded, joined or reduced, ``orders`` of elements in reverse order, ``cumulative`` of running sums,
``loops`` of parts, as in loops over rows, ``batches`` of elements of batches, ``groups`` convolutions side by side.
``transformer`` moves the operators of attention blocks through reshapes, transposes and halves, ``deep`` is ``core``
with more operators, ``conv`` has grouped convolutions and the operators beside them, ``matrix`` goes deepest with
fewest operators.

Invariant: a vocabulary lists operators and the roles of their operands, never rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taso_py.generate.sets.absorbed import ABSORBED
from taso_py.generate.sets.activations import ACTIVATIONS
from taso_py.generate.sets.algebra import ALGEBRA
from taso_py.generate.sets.arrays import ARRAYS
from taso_py.generate.sets.batches import BATCHES
from taso_py.generate.sets.branches import BRANCHES
from taso_py.generate.sets.choices import CHOICES
from taso_py.generate.sets.compounds import COMPOUNDS
from taso_py.generate.sets.conv import CONV
from taso_py.generate.sets.convolutions import CONVOLUTIONS
from taso_py.generate.sets.core import CORE
from taso_py.generate.sets.cumulative import CUMULATIVE
from taso_py.generate.sets.deep import DEEP
from taso_py.generate.sets.extents import EXTENTS
from taso_py.generate.sets.fold import FOLD
from taso_py.generate.sets.formulas import FORMULAS
from taso_py.generate.sets.fuse import FUSE
from taso_py.generate.sets.gates import GATES
from taso_py.generate.sets.groups import GROUPS
from taso_py.generate.sets.heads import HEADS
from taso_py.generate.sets.identities import IDENTITIES
from taso_py.generate.sets.images import IMAGES
from taso_py.generate.sets.interpolation import INTERPOLATION
from taso_py.generate.sets.joints import JOINTS
from taso_py.generate.sets.layers import LAYERS
from taso_py.generate.sets.layout import LAYOUT
from taso_py.generate.sets.lookups import LOOKUPS
from taso_py.generate.sets.loops import LOOPS
from taso_py.generate.sets.matrix import MATRIX
from taso_py.generate.sets.merge import MERGE
from taso_py.generate.sets.orders import ORDERS
from taso_py.generate.sets.rotary import ANGLES, ROTARY
from taso_py.generate.sets.rows import ROWS
from taso_py.generate.sets.scalars import SCALARS
from taso_py.generate.sets.sigmoids import SIGMOIDS
from taso_py.generate.sets.signs import SIGNS
from taso_py.generate.sets.transformer import TRANSFORMER
from taso_py.generate.sets.views import VIEWS
from taso_py.generate.vocabulary import Family, Folding, Written

VOCABULARIES: Mapping[str, tuple[Family | Folding | Written, ...]] = {
    "core": CORE,
    "merge": MERGE,
    "fold": FOLD,
    "fuse": FUSE,
    "scalars": SCALARS,
    "layout": LAYOUT,
    "layers": LAYERS,
    "heads": HEADS,
    "algebra": ALGEBRA,
    "activations": ACTIVATIONS,
    "arrays": ARRAYS,
    "formulas": FORMULAS,
    "choices": CHOICES,
    "branches": BRANCHES,
    "lookups": LOOKUPS,
    "images": IMAGES,
    "rotary": ROTARY,
    "angles": ANGLES,
    "absorbed": ABSORBED,
    "interpolation": INTERPOLATION,
    "joints": JOINTS,
    "sigmoids": SIGMOIDS,
    "compounds": COMPOUNDS,
    "gates": GATES,
    "convolutions": CONVOLUTIONS,
    "identities": IDENTITIES,
    "signs": SIGNS,
    "extents": EXTENTS,
    "orders": ORDERS,
    "cumulative": CUMULATIVE,
    "loops": LOOPS,
    "batches": BATCHES,
    "groups": GROUPS,
    "rows": ROWS,
    "views": VIEWS,
    "transformer": TRANSFORMER,
    "deep": DEEP,
    "conv": CONV,
    "matrix": MATRIX,
}
"""Families by the name that ``taso-py generate --ops`` takes."""

SHIPPED: Sequence[tuple[str, ...]] = (
    ("core", "merge", "fold"),
    *((name,) for name in ("fuse", "scalars", "layout", "rows", "views", "layers", "heads", "algebra", "activations")),
    ("arrays",),
    ("formulas",),
    ("choices",),
    ("branches",),
    ("lookups",),
    ("images",),
    ("rotary",),
    ("angles",),
    ("absorbed",),
    ("interpolation",),
    ("joints",),
    ("sigmoids",),
    ("compounds",),
    ("gates",),
    ("convolutions",),
    ("identities",),
    ("signs",),
    ("extents",),
    ("orders",),
    ("cumulative",),
    ("loops",),
    ("batches",),
    ("groups",),
)
"""Vocabularies of the shipped database; those in one tuple are generated together into one file.

Not ``transformer``: rules that only move data gain nothing by themselves, and many of them make every search wider. Not
``deep``, ``conv`` and ``matrix``, as long as their gain has not been weighed against that.
"""
