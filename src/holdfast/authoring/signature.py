"""A function's arguments and result, between Python values and JSON, checked against its type hints (SPEC R11).

Whatever msgspec knows works: plain values, dataclasses, structs, TypedDicts, enums, dates, decimals, UUIDs; and
pydantic models, by their own methods, without pydantic being needed. What comes back is what the hint says, read from
the JSON: the first run and a replay hand the code the same value.

A `Secret` is kept as its vault keeps it; and a value that holds the text of one that was revealed is refused.

What JSON cannot hold exactly is refused here, before anybody tries to store it: a number that is not finite, text that
is not Unicode, a value that holds itself or nests too deep; and what has more bytes than the settings allow.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import math
import typing
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from holdfast.authoring.redaction import holds
from holdfast.authoring.secrets import FIELD, Secret, Vault, identity, is_kept, secret_hint, sent
from holdfast.errors import InvalidArguments, InvalidResult, PayloadTooLarge

__all__ = ["EXTENDS", "Signature", "fingerprint", "named", "outgoing", "own", "payload"]

RESERVED = "holdfast:"
NAME_MAX = 1000  # characters of a key
DEPTH_MAX = 60  # an event may nest 64 levels: these, and the few around a value

_canonical = msgspec.json.Encoder(order="sorted")
_encode = msgspec.json.Encoder().encode
EXTENDS = "$extend"  # alone in what a step of a plan gives: it adds nodes
_SECRET = f'"{FIELD}"'.encode()


class Signature:
    """How one function is called, and what it gives."""

    def __init__(self, function: Callable[..., Any], name: str, vault: Vault | None = None) -> None:
        self._name = name
        self._vault = vault if vault is not None else Vault()
        self._encode_foreign = partial(_encode_foreign, self._vault)
        self._decode_foreign = partial(_decode_foreign, self._vault)
        self._signature = inspect.signature(function)
        hints = _hints(function)
        self._result = hints.pop("return", Any)
        for parameter in self._signature.parameters.values():
            if parameter.kind in {parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY}:
                raise TypeError(f"{name}: *{parameter.name} has no name to keep it under; use named parameters")
        self._hints = hints
        self._secrets = {name: found for name, hint in hints.items() if (found := secret_hint(hint)) is not None}
        kinds = {name: parameter.kind for name, parameter in self._signature.parameters.items()}
        self._positional = [name for name, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        self._all_positional = len(self._positional) == len(kinds)
        self._names = frozenset(self._positional)
        self._open = next((name for name, kind in kinds.items() if kind is inspect.Parameter.VAR_KEYWORD), None)

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], bytes_max: int | None = None) -> dict[str, Any]:
        """Bind a call's arguments, check them, and give them as JSON values by name.

        Raises:
            InvalidArguments: too many, too few, of another type than the function says, or nothing that JSON can hold.
            PayloadTooLarge: they have more than `bytes_max` bytes.
        """
        given = self._bound(args, kwargs)
        if self._open is not None:
            given.update(given.pop(self._open, {}))
        if self._secrets:
            given.update({name: self._secret(name, given[name]) for name in self._secrets if name in given})
        kept = {name: self._plain(name, value) for name, value in given.items()}
        plain = {name: value for name, (value, _) in kept.items()}
        self.typed(plain)
        _limit(f"the arguments of {self._name}", sum(len(written) for _, written in kept.values()), bytes_max)
        return plain

    def _secret(self, name: str, value: Any) -> Any:
        """Give an argument that is to be a secret as one; whoever starts a job from outside has only its value."""
        if isinstance(value, Secret):
            wanted = typing.get_args(self._secrets[name])
            if wanted and not value.fits(wanted[0]):
                raise InvalidArguments(self._name, f"{name} is a secret of another type than {wanted[0]!r:.80}")
            return value
        if value is None or is_kept(value):
            return value
        try:
            return self._secret(name, Secret(value))
        except TypeError as error:
            raise InvalidArguments(self._name, f"{name}: {error}") from None

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Give the arguments by name. The everyday call, every parameter given, needs no search."""
        if len(args) == len(self._positional) and not kwargs and self._all_positional:
            return dict(zip(self._positional, args, strict=True))
        if not args and self._all_positional and kwargs.keys() == self._names:
            return {name: kwargs[name] for name in self._positional}
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise InvalidArguments(self._name, str(error)) from error

    def decode(self, plain: dict[str, Any]) -> dict[str, Any]:
        """Give the keyword arguments that stored JSON values stand for, typed as the function says.

        Raises:
            InvalidArguments: they do not fit the function, which has changed since they were stored.
        """
        try:
            self._signature.bind(**plain)
        except TypeError as error:
            raise InvalidArguments(self._name, str(error)) from error
        return self.typed(plain)

    def typed(self, plain: dict[str, Any]) -> dict[str, Any]:
        """Give JSON values that were bound before as what the hints say."""
        return {name: self._typed(name, value) for name, value in plain.items()}

    def parameters(self) -> dict[str, bool]:
        """Give the names of the parameters, and whether each must be given; an open end (``**more``) is not listed."""
        listed = [one for one in self._signature.parameters.values() if one.name != self._open]
        return {one.name: one.default is inspect.Parameter.empty for one in listed}

    @property
    def is_open(self) -> bool:
        """Whether it takes arguments of any name."""
        return self._open is not None

    def hint(self, name: str) -> Any:
        """Give the type of a parameter; Any if it has none."""
        return self._hints.get(name, Any)

    @property
    def result_hint(self) -> Any:
        """The type of the result; Any if it has none."""
        return self._result

    def schema(self) -> dict[str, Any]:
        """Give a JSON Schema of the arguments; a type that has none may be anything."""
        parameters = [one for one in self._signature.parameters.values() if one.name != self._open]
        properties, parts = {}, {}
        for one in parameters:
            properties[one.name], components = _schema(self._hints.get(one.name, Any))
            parts.update(components)
        return {
            "type": "object",
            "properties": properties,
            "required": [one.name for one in parameters if one.default is inspect.Parameter.empty],
            "additionalProperties": self._open is not None,
            **({"$defs": parts} if parts else {}),
        }

    def from_text(self, name: str, text: str) -> Any:
        """Read an argument as people type it: text where the function wants text, else JSON, else text."""
        hint = self._hints.get(name, Any)
        if name in self._secrets:
            return self._referred(name, text)
        readings: list[Any] = [text]
        if hint is not str:
            with contextlib.suppress(msgspec.DecodeError, ValueError):
                readings.insert(0, msgspec.json.decode(text))
        for reading in readings:
            with contextlib.suppress(TypeError, ValueError):
                return _convert(reading, hint, self._decode_foreign)
        return readings[0]  # fits nothing: the check of the arguments says why

    def _referred(self, name: str, text: str) -> Secret[str]:
        prefix, _, variable = text.partition(":")
        if prefix != "env" or not variable:
            said = f"name the variable that has it, as in {name}=env:STRIPE_KEY: what is typed here, others can read"
            raise InvalidArguments(self._name, f"{name} is a secret: {said}")
        return Secret.env(variable)

    def encode_result(self, value: Any, bytes_max: int | None = None) -> Any:
        """Give a result as a JSON value.

        Raises:
            InvalidResult: JSON cannot hold it, or it is not what the function says it returns.
            PayloadTooLarge: it has more than `bytes_max` bytes.
        """
        try:
            plain, written = self._to_own(value)
            _convert(plain, self._result, self._decode_foreign)
        except (TypeError, ValueError) as error:
            raise InvalidResult(self._name, str(error)) from error
        _limit(f"the result of {self._name}", len(written), bytes_max)
        return plain

    def encode_outcome(self, value: Any, bytes_max: int | None = None) -> Any:
        """Give the result of a step or tool as a JSON value, which adds to a plan only if that was meant.

        Raises:
            InvalidResult: as above; or somebody else's data would add to a plan.
            PayloadTooLarge: it has more than `bytes_max` bytes.
        """
        if isinstance(value, dict) and value.keys() == {EXTENDS}:
            said = f"a dict with {EXTENDS!r} alone would add nodes to a plan, whoever wrote it: return extend(plan)"
            raise InvalidResult(self._name, said)
        return self.encode_result(value, bytes_max)

    def decode_result(self, plain: Any) -> Any:
        """Give the value that a stored result stands for, typed as the function says."""
        try:
            return _convert(plain, self._result, self._decode_foreign)
        except (TypeError, ValueError) as error:
            raise InvalidResult(self._name, str(error)) from error

    def _plain(self, name: str, value: Any) -> tuple[Any, bytes]:
        try:
            return self._to_own(value)
        except (TypeError, ValueError) as error:
            raise InvalidArguments(self._name, f"{name} cannot be kept as JSON: {error}") from error

    def _to_own(self, value: Any) -> tuple[Any, bytes]:
        """Give a value as JSON holds it; no secret is referred to by anything but code."""
        plain, written = _to_plain(value, self._encode_foreign)
        if _SECRET in written:
            self._vault.refuse_foreign(value)
        return plain, written

    def _typed(self, name: str, value: Any) -> Any:
        try:
            return _convert(value, self._hints.get(name, Any), self._decode_foreign)
        except (TypeError, ValueError) as error:
            raise InvalidArguments(self._name, f"{name}: {error}") from error


def payload(what: str, value: Any, bytes_max: int | None = None) -> Any:
    """Give a value that belongs to no function, such as a signal's, as a JSON value.

    Raises:
        InvalidArguments: JSON cannot hold it.
        PayloadTooLarge: it has more than `bytes_max` bytes.
    """
    try:
        plain, written = _to_plain(value, _encode_bare)
    except (TypeError, ValueError) as error:
        raise InvalidArguments(what, f"it cannot be kept as JSON: {error}") from error
    _limit(what, len(written), bytes_max)
    return plain


def outgoing(what: str, value: Any) -> Any:
    """Give a value for a server as JSON; secrets in it are sent, for the server encrypts them on arrival.

    Raises:
        InvalidArguments: JSON cannot hold it.
    """
    try:
        return _to_plain(value, _encode_sent)[0]
    except (TypeError, ValueError) as error:
        raise InvalidArguments(what, f"it cannot be sent as JSON: {error}") from error


def named(what: str, key: Any) -> str:
    """Give a key or name that can be kept.

    Raises:
        InvalidArguments: it is no text, empty, or too long.
    """
    if not isinstance(key, str) or not 0 < len(key) <= NAME_MAX:
        raise InvalidArguments(what, f"a key is text of 1 to {NAME_MAX} characters, got {str(key)[:50]!r}")
    payload(what, key)  # it may still be no Unicode
    return key


def own(what: str, key: Any) -> str:
    """Give a key that a user's signal may have.

    Raises:
        InvalidArguments: it is none, or one of those by which Holdfast itself is told of timers, children and answers.
    """
    if named(what, key).startswith(RESERVED):
        raise InvalidArguments(what, f"keys that begin with {RESERVED} are not for signals, got {key[:50]!r}")
    return str(key)


def fingerprint(plain: Any) -> str:
    """Hash JSON values, whatever the order of their keys."""
    written = _canonical.encode(plain)
    if _SECRET in written:  # ciphertext is another each time
        written = _canonical.encode(identity(plain))
    return hashlib.sha256(written).hexdigest()[:32]


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError:  # a hint that names something local: unchecked rather than refused
        return {}


def _schema(hint: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give a type's JSON Schema and the definitions it names; what has none of its own may be anything."""
    try:
        (made,), parts = msgspec.json.schema_components(
            [hint], schema_hook=_foreign_schema, ref_template="#/$defs/{name}"
        )
    except TypeError:
        return {}, {}
    return made, parts


def _foreign_schema(hint: Any) -> dict[str, Any]:
    if secret_hint(hint) is not None:
        return {"description": "A secret: its value, which is encrypted on arrival and never shown.", "writeOnly": True}
    if hasattr(hint, "model_json_schema"):
        made: dict[str, Any] = hint.model_json_schema()
        return made
    raise NotImplementedError


def _limit(what: str, size: int, bytes_max: int | None) -> None:
    if bytes_max is not None and size > bytes_max:
        raise PayloadTooLarge(what, size, bytes_max)


def _to_plain(value: Any, encode_foreign: Callable[[Any], Any]) -> tuple[Any, bytes]:
    """Give a value as JSON holds it, exactly, and its bytes there."""
    try:
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=encode_foreign)
        written = _encode(plain)
    except RecursionError as error:
        raise ValueError("it holds itself, or nests too deep") from error
    except UnicodeEncodeError as error:
        raise ValueError(f"it holds {error.object[error.start : error.end]!r}, which is no Unicode text") from error
    if written.count(b"[") + written.count(b"{") > DEPTH_MAX:
        _refuse_depth(plain)
    if b"null" in written:  # what is not finite would have become null without a word
        _refuse_not_finite(plain)
    if holds(written):
        raise ValueError("it holds the text of a secret that was revealed: pass or return the Secret itself")
    return plain, written


def _refuse_depth(plain: Any) -> None:
    level = [plain]
    for _ in range(DEPTH_MAX + 1):
        level = [item for container in level for item in _items(container)]
        if not level:
            return
    raise ValueError(f"it nests deeper than {DEPTH_MAX} levels")


def _refuse_not_finite(plain: Any) -> None:
    if isinstance(plain, float) and not math.isfinite(plain):
        raise ValueError(f"it holds {plain}, which is no number in JSON")
    for item in _items(plain):
        _refuse_not_finite(item)


def _items(plain: Any) -> list[Any]:
    if isinstance(plain, dict):
        return list(plain.values())
    return list(plain) if isinstance(plain, (list, tuple)) else []


def _convert(plain: Any, hint: Any, decode_foreign: Callable[[Any, Any], Any]) -> Any:
    if hint is Any:
        if is_kept(plain):
            return decode_foreign(Secret, plain)
        return msgspec.to_builtins(plain) if isinstance(plain, (dict, list)) else plain  # nobody changes what is kept
    return msgspec.convert(plain, hint, strict=True, str_keys=True, dec_hook=decode_foreign)


def _encode_foreign(vault: Vault, value: Any) -> Any:
    if isinstance(value, Secret):
        return vault.kept(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not JSON; pass plain values, dataclasses, structs or models")


def _decode_foreign(vault: Vault, hint: Any, plain: Any) -> Any:
    if secret_hint(hint) is not None:
        return vault.read(hint, plain)
    if hasattr(hint, "model_validate"):
        return hint.model_validate(plain)
    raise TypeError(f"cannot make a {getattr(hint, '__name__', hint)} from JSON")


_encode_bare = partial(_encode_foreign, Vault())  # of no app: references are kept, and nothing is encrypted


def _encode_sent(value: Any) -> Any:
    return sent(value) if isinstance(value, Secret) else _encode_bare(value)
