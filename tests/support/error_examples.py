"""One error of each class of the tree, made from the types of its constructor's arguments."""

from __future__ import annotations

import inspect
from typing import Any

from holdfast import errors
from holdfast.errors import HoldfastError

__all__ = ["TREE", "WITH_FIELDS", "example"]

TREE: list[type[HoldfastError]] = [getattr(errors, name) for name in errors.__all__]
WITH_FIELDS = [kind for kind in TREE if inspect.isfunction(kind.__init__)]

# A value for each type that a field may have, with characters that a message would quote or split at.
VALUES: dict[str, Any] = {
    "str": 'shop\'s "check,out": \\\n[H1] of job é',
    "str | None": "H1",
    "int": 1234567,
    "int | None": 3,
    "float": 1.5,
    "list[str]": ["b, c", "a"],
    "frozenset[str]": frozenset({"timer", "io_ready"}),
    "object": {"depth": [1, None]},
}


def example(kind: type[HoldfastError], *, whole: bool = True) -> HoldfastError:
    """Make an error with a value for each argument of its constructor; if not whole, only for the required ones."""
    if kind not in WITH_FIELDS:
        return kind("the disk is full") if whole else kind()
    arguments = list(inspect.signature(kind).parameters.values())
    given = {one.name: VALUES[one.annotation] for one in arguments if whole or one.default is one.empty}
    return kind(**given)
