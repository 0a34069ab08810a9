"""An app on each store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import App
from support.as_replayed import as_replayed, is_wanted
from support.postgres import fresh_url
from support.stories import quick


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return fresh_url()
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def app(url: str) -> Iterator[App]:
    made = App("shop", config=quick(url))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def values_as_replayed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not is_wanted():
        yield
        return
    with as_replayed(monkeypatch):
        yield
