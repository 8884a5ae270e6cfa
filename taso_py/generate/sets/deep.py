"""The vocabulary ``deep``: that of ``core``, four operators deep.

Beyond the size that ``core`` itself covers, only rules are wanted that gain something and that smaller ones do not
derive.
"""

from __future__ import annotations

from dataclasses import replace

from taso_py.generate.sets.core import CORE

DEEP = tuple(replace(family, operators=4, equal=family.operators) for family in CORE)
