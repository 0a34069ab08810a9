"""The URL of a store: what is ours, and what the driver gets."""

from __future__ import annotations

import pytest

from holdfast.client.store_url import postgres_place


@pytest.mark.parametrize(
    ("query", "driver", "ours"),
    [
        ("", "", {}),
        ("?schema=jobs&migrate=no", "", {"schema": "jobs", "migrate": "no"}),
        ("?sslmode=require&schema=jobs", "?sslmode=require", {"schema": "jobs"}),
        ("?options=-ca%3D1%20-cb%3D2&schema=jobs", "?options=-ca%3D1%20-cb%3D2", {"schema": "jobs"}),
        ("?password=a+b%26c", "?password=a+b%26c", {}),
        ("?host=%2Frun%2Fpostgresql&schema=%6Aobs", "?host=%2Frun%2Fpostgresql", {"schema": "jobs"}),
    ],
)
def test_the_driver_gets_its_parameters_as_they_were_written(query: str, driver: str, ours: dict[str, str]) -> None:
    """libpq decodes percent signs, but no plus signs: a space that is written as a plus would be another value."""
    assert postgres_place(f"postgresql://ada@db/shop{query}") == (f"postgresql://ada@db/shop{driver}", ours)
