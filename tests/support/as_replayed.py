"""A mode of the suite in which each value is handed to code as a replay would: read back from its stored bytes (E13).

Set ``HOLDFAST_TEST_AS_REPLAYED=1`` and run tests/engine, tests/plans or tests/crashes. A place that hands out
anything else than the recorded form (a tuple, a subclass, a value that was not encoded) fails the test that reached
it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from support.exactness import exactly

__all__ = ["as_replayed", "is_wanted"]

VARIABLE = "HOLDFAST_TEST_AS_REPLAYED"


def is_wanted() -> bool:
    """Return whether the suite is run in this mode."""
    return os.environ.get(VARIABLE, "") not in {"", "0"}


@contextmanager
def as_replayed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hand out what is read back from bytes; at the end, fail if that was not what would have been handed out."""
    differing: list[str] = []

    def read_back(plain: Any) -> Any:
        stored = msgspec.json.decode(msgspec.json.encode(plain))
        if exactly(stored) != exactly(plain):
            differing.append(f"{plain!r:.200} is replayed as {stored!r:.200}")
        return stored

    monkeypatch.setattr("holdfast.authoring.plain_values.as_recorded", read_back)
    yield
    assert not differing, "handed out, and not as it is recorded: " + "; ".join(differing)
