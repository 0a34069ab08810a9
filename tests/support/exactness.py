"""Values compared exactly: 1 is not 1.0 or True, a tuple is not a list, and the order of keys counts."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

__all__ = ["exactly"]


def exactly(value: Any) -> Any:
    """Return a form of a value that equals another's only if they have the same types, order and signs throughout."""
    if isinstance(value, dict):
        return type(value), [(exactly(key), exactly(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [exactly(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return type(value), sorted(map(repr, map(exactly, value)))
    if isinstance(value, msgspec.Struct):
        return type(value), exactly(msgspec.structs.astuple(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value), [(field.name, exactly(getattr(value, field.name))) for field in dataclasses.fields(value)]
    return type(value), repr(value) if isinstance(value, float) else value
