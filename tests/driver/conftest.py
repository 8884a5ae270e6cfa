"""What tests of optimizations share."""

from __future__ import annotations

import pytest

from tests.driver.gains import take_any_gain


@pytest.fixture
def any_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is built is the result, whether it is faster or not."""
    take_any_gain(monkeypatch)
