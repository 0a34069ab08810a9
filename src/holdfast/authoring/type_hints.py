"""The type hints of a function: the types they name, and whether values of them share anything."""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import FrameType, NoneType, UnionType
from typing import Any
from uuid import UUID


def resolved_hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    """Return the types of a function's hints. A hint as text may name an object of the scope that declares it.

    Raises:
        TypeError: a hint names an object that does not exist here.
    """
    outer = set(getattr(function, "__qualname__", "").split(".")[:-1])
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the names of an outer function are only on the stack
    names: dict[str, Any] = {}
    while frame is not None:
        if frame.f_code.co_name in outer:
            names = {**frame.f_locals, **names}
        frame = frame.f_back
    try:
        return typing.get_type_hints(function, localns=names or None, include_extras=True)
    except NameError as error:
        cure = "define or import it before the function, and not only for type checkers"
        raise TypeError(f"{name}: a type hint names {error.name}, which does not exist here: {cure}") from None


# A conversion to these types, and containers of them, shares nothing with the plain value.
LEAVES: frozenset[Any] = frozenset(
    {str, int, float, bool, NoneType, bytes, datetime, date, time, timedelta, Decimal, UUID}
)
INERT = LEAVES | {dict, list}  # converting to these runs no user code that could change the plain value
_CONTAINERS = {list, dict, set, frozenset, tuple, typing.Union, UnionType}


def made_of(hint: Any, leaves: frozenset[Any]) -> bool:
    """Return whether a hint consists only of these types and containers of them."""
    if hint is Any:
        return leaves is INERT
    if isinstance(hint, type) and hint in leaves:
        return True
    return typing.get_origin(hint) in _CONTAINERS and all(
        part is Ellipsis or made_of(part, leaves) for part in typing.get_args(hint)
    )
