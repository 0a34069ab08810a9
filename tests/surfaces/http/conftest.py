"""What holds for all tests of the HTTP API."""

from __future__ import annotations

import pytest

from holdfast.surfaces.http import readiness


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that answers after some seconds is slow, and not away: here that is said of one that does not answer."""
    monkeypatch.setattr(readiness, "PATIENCE_SECONDS", 60.0)
