"""Plain JSON values, exactly as reading the stored bytes returns them (SPEC E13).

`recordable` turns any value into its plain form once. The engine records that form and passes it on. So code receives
the same value, of the same type and with its keys in the same order, on the first run and in a replay.

Values that JSON cannot hold exactly are refused with TypeError or ValueError: a number that is not finite, text that is
not Unicode, two keys that are equal in JSON, a value that contains itself or nests too deep. An object may raise any
other exception when it is read. That exception is raised unchanged, and the caller must expect it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec

from holdfast.authoring.redaction import holds_secret
from holdfast.errors import PayloadTooLarge

DEPTH_MAX = 60  # an event may nest 64 levels, a few of them around the value

canonical = msgspec.json.Encoder(order="sorted").encode
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_ATOMS = frozenset({str, int, float, bool, type(None)})  # types that are read back unchanged, unlike their subclasses
_NESTING = frozenset({dict, list})
_NO_KEYS = frozenset({bool, type(None), tuple, frozenset})  # msgspec asks about these only as keys

Foreign = Callable[[Any], Any]


def as_recorded(plain: Any) -> Any:
    """Return plain values as a replay reads them: a fresh copy, so that code may change it.

    Every recorded value that code receives goes through here.
    """
    return msgspec.to_builtins(plain) if isinstance(plain, (dict, list)) else plain


class Recorder:
    """Makes plain values. `foreign` returns a substitute for an object that JSON does not know, or raises TypeError."""

    def __init__(self, foreign: Foreign) -> None:
        def known(value: Any) -> Any:
            kind = type(value)  # not `__class__`, which an object can fake
            if kind in _NO_KEYS or issubclass(kind, Enum):
                raise TypeError("Only dicts with str-like or number-like keys are supported")
            return _bare(value) if issubclass(kind, (str, int, float)) else foreign(value)

        self._foreign = known
        self._encode = msgspec.json.Encoder(enc_hook=known).encode
        self._sorted = msgspec.json.Encoder(enc_hook=known, order="sorted").encode

    def recordable(self, value: Any) -> tuple[Any, bytes]:
        """Return the plain form of a value, and its JSON text.

        Raises:
            TypeError: a part of it is not JSON.
            ValueError: it cannot be stored exactly, or contains the text of a secret.
        """
        try:
            written = self._encode(value)
            plain = value if type(value) in _ATOMS else _decode(written)
        except RecursionError as error:
            raise ValueError("it contains itself, or nests too deep") from error
        except UnicodeEncodeError as error:
            raise ValueError(
                f"it holds {error.object[error.start : error.end]!r}, which is not valid Unicode"
            ) from error
        if plain is not value:
            if _encode(plain) != written:
                self.refuse_raw(value)
                raise ValueError("it has keys that are the same in JSON, such as 1 and '1'")
            if written.count(b"[") + written.count(b"{") > DEPTH_MAX:
                _refuse_depth(plain)
        # msgspec silently writes a number that is not finite as null. `find` is faster than `in`, which tries to read
        # the text as a number first.
        if written.find(b"null") >= 0 and value is not None:
            builtin = self._builtin(value)
            if plain is value or builtin != plain:  # a fast test; only values with tuples differ here
                _refuse_not_finite(builtin)
        if holds_secret(written):
            raise ValueError("it contains the text of a secret that was revealed: pass or return the Secret itself")
        return plain, written

    def identifiable(self, value: Any) -> tuple[Any, bytes]:
        """Return a plain form that is the same in every process: the items of sets are sorted (E8).

        The order of a set depends on the process, and a call is identified by its arguments.

        Raises:
            TypeError: as for `recordable`; or the items of a set cannot be sorted.
            ValueError: as for `recordable`.
        """
        plain, written = self.recordable(value)
        if plain is value:  # an atom
            return plain, written
        try:
            if self._sorted(value) == canonical(plain):
                return plain, written
        except TypeError:
            pass  # keys that are not text, or a set that cannot be sorted
        try:
            settled = _decode(_encode(self._builtin(value, order="sorted")))
        except TypeError as error:
            raise TypeError("it contains a set whose items cannot be sorted: pass a list") from error
        return _in_order_of(plain, settled), written

    def refuse_raw(self, value: Any) -> None:
        """Refuse a value that contains unchecked JSON text.

        Raises:
            TypeError: it contains a `msgspec.Raw`.
        """
        self._builtin(value)

    def _builtin(self, value: Any, order: Any = None) -> Any:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=self._foreign, order=order)


def limit(what: str, size: int, bytes_max: int | None, option: str = "payload_bytes_max") -> None:
    """Refuse a value with too many bytes. `option` is the setting with the limit.

    Raises:
        PayloadTooLarge: it has more than `bytes_max`.
    """
    if bytes_max is not None and size > bytes_max:
        raise PayloadTooLarge(what, size, bytes_max, option)


def _bare(value: Any) -> Any:
    """Return the plain value of a subclass of str, int or float, bypassing its own methods."""
    if issubclass(type(value), str):
        return str.__str__(value)
    return int.__int__(value) if issubclass(type(value), int) else float.__float__(value)


def _in_order_of(plain: Any, settled: Any) -> Any:
    """Return the items of `settled`, with the keys of dicts in the order of `plain`."""
    if isinstance(settled, dict) and isinstance(plain, dict) and settled.keys() == plain.keys():
        return {key: _in_order_of(item, settled[key]) for key, item in plain.items()}
    if isinstance(settled, list) and isinstance(plain, list) and len(settled) == len(plain):
        return [_in_order_of(*pair) for pair in zip(plain, settled, strict=True)]
    return settled


def _refuse_depth(plain: Any) -> None:
    level = [plain] if type(plain) in _NESTING else []
    for _ in range(DEPTH_MAX):
        inside = (container.values() if type(container) is dict else container for container in level)
        level = [item for items in inside for item in items if type(item) in _NESTING]
        if not level:
            return
    if any(level):  # an empty container on the last level has nothing deeper
        raise ValueError(f"it nests deeper than {DEPTH_MAX} levels")


def _refuse_not_finite(plain: Any) -> None:
    level = [plain]
    while level:
        item = level.pop()
        if isinstance(item, float) and not math.isfinite(item):
            raise ValueError(f"it holds {item}, which is not a number in JSON")
        level.extend(_items(item))


def _items(plain: Any) -> list[Any]:
    if isinstance(plain, dict):
        return list(plain.values())
    return list(plain) if isinstance(plain, (list, tuple)) else []
