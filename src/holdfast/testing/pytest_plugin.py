"""The pytest plugin: the fixtures `lab` and `world`. It imports nothing of Holdfast until a test uses one."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from holdfast.testing.lab import Lab
    from holdfast.testing.world import World

RECORD = "holdfast_record"
POSTGRES = "holdfast_postgres"
MARKER = "holdfast(store='memory', start_at=None): the store and the first virtual time of the fixture `lab`"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("holdfast")
    text = "the database of labs with store='postgres'; they create schemas in it and remove them (HOLDFAST_TEST_URL)"
    group.addoption("--holdfast-postgres", metavar="URL", dest=POSTGRES, help=text)
    group.addoption("--holdfast-record", action="store_true", dest=RECORD, help="write the files of lab.golden")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A laboratory that runs jobs in virtual time."""
    from holdfast.testing.lab import Lab  # noqa: PLC0415 - a test suite without it pays nothing

    chosen = _chosen(request)
    place = f"{request.path.stem}-{request.node.nodeid.partition('::')[2].replace('::', '-')}"
    name = re.sub(r"[^A-Za-z0-9._-]", "_", place)
    if name != place:  # two names must not become one
        name = f"{name}-{zlib.crc32(place.encode()):08x}"
    options = {
        "golden": request.path.parent / "histories" / name,
        "recording": request.config.getoption(RECORD, default=False),
    }
    with Lab(**{**options, **chosen}) as lab:
        yield lab


def _chosen(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return what the markers of a test choose."""
    chosen: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("holdfast"))):  # the closest last
        if marker.args:
            raise pytest.UsageError(f"{request.node.nodeid}: write @pytest.mark.holdfast(store=…), with names")
        if unknown := marker.kwargs.keys() - {"store", "start_at"}:
            names = ", ".join(sorted(unknown))
            raise pytest.UsageError(f"{request.node.nodeid}: the marker holdfast takes store and start_at, not {names}")
        chosen |= marker.kwargs
    url = request.config.getoption(POSTGRES, default=None)
    if url and chosen.get("store") == "postgres":
        chosen["store"] = url
    return chosen


@pytest.fixture
def world() -> World:
    """A record of what tools did to the outside world."""
    from holdfast.testing.world import World  # noqa: PLC0415 - as above

    return World()
