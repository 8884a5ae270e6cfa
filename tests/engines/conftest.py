"""The fixture of tests that every engine for whole graphs has to pass."""

from __future__ import annotations

import pytest

from taso_py.engines.session import SessionEngine
from tests.engines.sessions import NAMES, engine_named


@pytest.fixture(params=NAMES)
def engine(request: pytest.FixtureRequest) -> SessionEngine:
    return engine_named(request.param)
