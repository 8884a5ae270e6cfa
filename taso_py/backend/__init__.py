"""Conversion of graphs to PyTorch modules: lowering, constant folding, and the contract with the original's callers.

Invariant: a module built from the graph that was imported computes the same bits as the original.
"""

from taso_py.backend.build import build, build_around
from taso_py.backend.contract import ContractError
from taso_py.backend.convert import retype, to_device
from taso_py.backend.fold import UNLIMITED, fold
from taso_py.backend.overwrite import poison
from taso_py.backend.plan import NO_PLAN, Plan
from taso_py.backend.program import Contract, Fixed, Program, Signature

__all__ = [
    "NO_PLAN",
    "UNLIMITED",
    "Contract",
    "ContractError",
    "Fixed",
    "Plan",
    "Program",
    "Signature",
    "build",
    "build_around",
    "fold",
    "poison",
    "retype",
    "to_device",
]
