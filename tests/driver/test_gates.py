"""Gates, layer scales and norms in the forms in which models write them, with the shipped rules at the default limits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.driver.test_practice import Case, check, randn

TOKENS, IMAGE, LAST = randn(2, 7, 96), randn(2, 16, 9, 10), randn(2, 9, 10, 96)
UP, KERNEL = nn.Linear(96, 24), nn.Conv2d(16, 24, 3)
