"""Measurement that takes no time."""

import pytest

from taso_py.latency import measuring
from taso_py.latency.clock import Latency


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every measurement answers one millisecond; the list has one entry for each."""
    calls: list[object] = []

    def measure(fn: object, **_: object) -> Latency:
        calls.append(fn)
        return Latency(1e-3, 1e-3, 1e-3, 10, 0)

    monkeypatch.setattr(measuring, "measure", measure)
    monkeypatch.setattr(measuring.Probe, "is_calm", lambda _: True)
    monkeypatch.setattr(measuring.Measuring, "_clock", None)
    return calls
