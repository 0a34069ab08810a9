"""A function's arguments and result as JSON, checked against its type hints (SPEC R11).

All types that msgspec knows work: plain values, dataclasses, structs, TypedDicts, enums, dates, decimals, UUIDs. So do
paths, and pydantic models, without a dependency on pydantic. Results and arguments are always read back from JSON, so
the first run and a replay give the code the same value (`holdfast.authoring.plain_values`).

The vault decides how a `Secret` is stored. A value that contains the text of a revealed secret is refused.

Invalid values are refused before anything is stored: values that JSON cannot hold exactly, values larger than the
settings allow, and objects that raise any exception when they are read.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import typing
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import PurePath
from typing import Any, NoReturn

import msgspec

from holdfast.authoring import plain_values
from holdfast.authoring.json_schemas import schema_of_fields
from holdfast.authoring.plain_values import Recorder, canonical, limit
from holdfast.authoring.secrets import (
    FIELD,
    CodecFailed,
    Secret,
    Vault,
    for_server,
    identity,
    is_kept,
    secret_hint,
    sent_secret,
)
from holdfast.authoring.type_hints import INERT, LEAVES, made_of, resolved_hints
from holdfast.errors import InvalidArguments, InvalidResult, SecretUnavailable

RESERVED = "holdfast:"
NAME_MAX = 1000  # bytes per key: the index of a database holds no longer ones

EXTENDS = "$extend"  # the only key of a step's result that adds nodes to its plan
_SECRET = f'"{FIELD}"'.encode()
_NUMBERS = frozenset({int, float, bool})  # they have nothing to sort, and are no reference to a secret
_SCALARS = (str, int, float, bool)  # a value whose type is exactly the hint needs no conversion


class Signature:
    """The arguments and the result of one function."""

    def __init__(
        self, function: Callable[..., Any], name: str, vault: Vault | None = None, options: Iterable[str] = ()
    ) -> None:
        self._name = name
        self._options = frozenset(options)  # of a start, which are no arguments
        self._vault = vault if vault is not None else Vault()
        self._recorder = Recorder(partial(_encode_foreign, self._vault))
        self._decode_foreign = partial(_decode_foreign, self._vault)
        self._signature = inspect.signature(function)
        hints = resolved_hints(function, name)
        self._result = hints.pop("return", Any)
        for parameter in self._signature.parameters.values():
            if parameter.kind in {parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY}:
                raise TypeError(f"{name}: *{parameter.name} cannot be stored by name; use named parameters")
        self._hints = hints
        self._exact = {name: hint for name, hint in hints.items() if hint in _SCALARS}
        self._exact_result = self._result if self._result in _SCALARS else None
        self._whole = {name for name, hint in hints.items() if made_of(hint, LEAVES)}
        self._inert = {name for name, hint in hints.items() if made_of(hint, INERT)}
        self._whole_result, self._inert_result = made_of(self._result, LEAVES), made_of(self._result, INERT)
        self._secrets = {name: secret for name, hint in hints.items() if (secret := secret_hint(hint)) is not None}
        kinds = {name: parameter.kind for name, parameter in self._signature.parameters.items()}
        self._positional = [name for name, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        self._all_positional = len(self._positional) == len(kinds)
        self._names = frozenset(self._positional)
        self._open = next((name for name, kind in kinds.items() if kind is inspect.Parameter.VAR_KEYWORD), None)

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], bytes_max: int | None = None) -> dict[str, Any]:
        """Bind a call's arguments, check them, and return them as JSON values by name.

        Raises:
            InvalidArguments: there are too many or too few, one has the wrong type, or JSON cannot hold one.
            PayloadTooLarge: they have more than `bytes_max` bytes.
        """
        bound = self._bound(args, kwargs)
        if self._open is not None:
            bound.update(bound.pop(self._open, {}))
        if self._secrets:
            bound.update({name: self._secret(name, bound[name]) for name in self._secrets if name in bound})
        encoded, size = {}, 0
        for name, value in bound.items():
            encoded[name], written = self._plain(name, value)
            size += len(written)
        self._check(encoded)
        if bytes_max is not None and size > bytes_max:
            limit(f"the arguments of {self._name}", size, bytes_max)
        return encoded

    def _secret(self, name: str, value: Any) -> Any:
        """Return an argument for a secret parameter as a Secret. A client can send only its value."""
        if isinstance(value, Secret):
            wanted = typing.get_args(self._secrets[name])
            if wanted and not value.fits(wanted[0]):
                raise InvalidArguments(self._name, f"{name} is a secret with another type than {wanted[0]!r:.80}")
            return value
        if value is None or is_kept(value):
            return value
        try:
            return self._secret(name, sent_secret(value))
        except TypeError as error:
            raise InvalidArguments(self._name, f"{name}: {error}") from None

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments by name. The common call, with every parameter given, has a fast path."""
        if not kwargs and self._all_positional and len(args) == len(self._positional):
            return dict(zip(self._positional, args, strict=True))
        if not args and self._all_positional and kwargs.keys() == self._names:
            return {name: kwargs[name] for name in self._positional}
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise InvalidArguments(self._name, f"{error}; {self._cure(kwargs)}") from error

    def _cure(self, kwargs: dict[str, Any]) -> str:
        """Return what to do about arguments that do not fit the parameters."""
        options = [name for name in kwargs if name in self._options and name not in self._signature.parameters]
        if options:
            chosen = ", ".join(f"{name}=…" for name in options)
            return f"options of a start are chosen with {self._name}.options({chosen}).start(…)"
        return f"it takes {', '.join(self._signature.parameters) or 'no arguments'}"

    def parameters_of(self, kind: type) -> list[str]:
        """Return the parameters whose type is this one, or this one or None."""
        return [name for name in self._signature.parameters if self._hints.get(name) in (kind, kind | None)]

    def decode(self, encoded: dict[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments for stored JSON values, converted to the function's types.

        Raises:
            InvalidArguments: they do not fit the function, which has changed since they were stored.
        """
        if not (self._all_positional and encoded.keys() == self._names):
            try:
                self._signature.bind(**encoded)
            except TypeError as error:
                raise InvalidArguments(self._name, str(error)) from error
        return self.typed(encoded)

    def typed(self, encoded: dict[str, Any]) -> dict[str, Any]:
        """Return JSON values that were bound before, converted to the types of the hints."""
        exact, typed = self._exact, self._typed
        return {
            name: value if type(value) is exact.get(name) else typed(name, value) for name, value in encoded.items()
        }

    def parameters(self) -> dict[str, bool]:
        """Return the parameters by name, and whether each is required; ``**more`` is not listed."""
        listed = [parameter for parameter in self._signature.parameters.values() if parameter.name != self._open]
        return {parameter.name: parameter.default is inspect.Parameter.empty for parameter in listed}

    @property
    def is_open(self) -> bool:
        """Whether the function takes arguments of any name."""
        return self._open is not None

    def hint(self, name: str) -> Any:
        """Return the type of a parameter; Any if it has none."""
        return self._hints.get(name, Any)

    @property
    def result_hint(self) -> Any:
        """The type of the result; Any if it has none."""
        return self._result

    def schema(self) -> dict[str, Any]:
        """Return a JSON Schema of the arguments. A type without a schema accepts anything."""
        parameters = [parameter for parameter in self._signature.parameters.values() if parameter.name != self._open]
        given = {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty}
        defaults = {name: value for name, value in given.items() if name not in self._secrets}
        hints = {parameter.name: self._hints.get(parameter.name, Any) for parameter in parameters}
        return {
            **schema_of_fields(hints, defaults, self._recorder.recordable),
            "required": [name for name in hints if name not in given],
            "additionalProperties": self._open is not None,
        }

    def from_text(self, name: str, text: str) -> Any:
        """Return an argument that was typed as text: text if the function takes text, else JSON, else text."""
        hint = self._hints.get(name, Any)
        if name in self._secrets:
            return self._referred(name, text)
        readings: list[Any] = [text]
        if hint is not str:
            with contextlib.suppress(msgspec.DecodeError, ValueError):
                readings.insert(0, msgspec.json.decode(text))
        for reading in readings:
            with contextlib.suppress(TypeError, ValueError):
                return self._converted(reading, hint)
        return readings[0]  # fits nothing: the check of the arguments reports why

    def _referred(self, name: str, text: str) -> Secret[str]:
        prefix, _, variable = text.partition(":")
        if prefix != "env" or not variable:
            advice = f"name the variable that has it, as in {name}=env:STRIPE_KEY: what is typed here, others can read"
            raise InvalidArguments(self._name, f"{name} is a secret: {advice}")
        return Secret.env(variable)

    def encode_result(self, value: Any, bytes_max: int | None = None) -> Any:
        """Return a result as a JSON value.

        Raises:
            InvalidResult: JSON cannot hold it, or it does not have the function's return type.
            PayloadTooLarge: it has more than `bytes_max` bytes.
        """
        return self._limited(self._encoded(value, may_extend=True), bytes_max)

    def encode_large(self, value: Any, event_max: int, bytes_max: int, *, may_extend: bool) -> tuple[Any, bytes | None]:
        """Return a result as a JSON value, and its bytes if they are more than an event takes.

        Raises:
            InvalidResult: as for `encode_result`; unless `may_extend`, as for `encode_outcome`.
            PayloadTooLarge: it has more than `bytes_max` bytes.
        """
        encoded, written = self._encoded(value, may_extend=may_extend)
        if len(written) <= event_max:
            return encoded, None
        option = "result_bytes_max" if bytes_max > event_max else "payload_bytes_max"
        limit(f"the result of {self._name}", len(written), max(event_max, bytes_max), option)
        return encoded, written

    def encode_outcome(self, value: Any, bytes_max: int | None = None) -> Any:
        """Return the result of a step or tool as a JSON value. Only `extend` may add nodes to a plan.

        Raises:
            InvalidResult: as for `encode_result`; or data from outside would add nodes to a plan.
            PayloadTooLarge: it has more than `bytes_max` bytes.
        """
        return self._limited(self._encoded(value, may_extend=False), bytes_max)

    def _limited(self, result: tuple[Any, bytes], bytes_max: int | None) -> Any:
        limit(f"the result of {self._name}", len(result[1]), bytes_max)
        return result[0]

    def _encoded(self, value: Any, *, may_extend: bool) -> tuple[Any, bytes]:
        try:
            if not may_extend and isinstance(value, dict) and value.keys() == {EXTENDS}:
                message = f"a dict with {EXTENDS!r} alone would add nodes to a plan: return extend(plan)"
                raise ValueError(message)  # noqa: TRY301 - turned into InvalidResult below
            record = self._recorder.recordable
            encoded, written = record(value) if type(value) in _NUMBERS else self._to_own(value, record)
            if type(encoded) is not self._exact_result and self._result is not Any:
                self._converted(encoded if self._inert_result else plain_values.as_recorded(encoded), self._result)
        except BaseException as error:  # an object may raise anything when it is read
            self._refuse(InvalidResult, error)
        return encoded, written

    def decode_result(self, encoded: Any) -> Any:
        """Return the value for a stored result, converted to the function's return type."""
        if type(encoded) is self._exact_result:
            return encoded
        try:
            if self._result is Any:
                return self._anything(encoded)
            return self._converted(encoded if self._whole_result else plain_values.as_recorded(encoded), self._result)
        except BaseException as error:  # a class may raise anything when it is built
            self._refuse(InvalidResult, error)

    def _plain(self, name: str, value: Any) -> tuple[Any, bytes]:
        try:
            if type(value) in _NUMBERS:
                return self._recorder.recordable(value)
            return self._to_own(value, self._recorder.identifiable)
        except BaseException as error:  # an object may raise anything when it is read
            self._refuse(InvalidArguments, error, f"{name} cannot be stored as JSON: ")

    def _to_own(self, value: Any, record: Callable[[Any], tuple[Any, bytes]]) -> tuple[Any, bytes]:
        """Return a value as JSON holds it. Only code may refer to secrets."""
        encoded, written = record(value)
        if written.find(_SECRET) >= 0:  # faster than `in`, which tries a number first
            self._recorder.refuse_raw(value)  # it could contain a reference that is not checked
            self._vault.refuse_foreign(value)
        return encoded, written

    def _check(self, encoded: dict[str, Any]) -> None:
        """Check arguments against the hints."""
        for name, value in encoded.items():
            if type(value) is not self._exact.get(name) and self._hints.get(name, Any) is not Any:
                self._typed(name, value, self._inert)

    def _typed(self, name: str, value: Any, whole: set[str] | None = None) -> Any:
        hint = self._hints.get(name, Any)
        try:
            if hint is Any:
                return self._anything(value)
            is_whole = name in (self._whole if whole is None else whole)
            return self._converted(value if is_whole else plain_values.as_recorded(value), hint)
        except BaseException as error:  # a class may raise anything when it is built
            self._refuse(InvalidArguments, error, f"{name}: ")

    def _anything(self, encoded: Any) -> Any:
        return self._decode_foreign(Secret, encoded) if is_kept(encoded) else plain_values.as_recorded(encoded)

    def _converted(self, encoded: Any, hint: Any) -> Any:
        return msgspec.convert(encoded, hint, strict=True, str_keys=True, dec_hook=self._decode_foreign)

    def _refuse(
        self, refusal: type[InvalidArguments | InvalidResult], error: BaseException, prefix: str = ""
    ) -> NoReturn:
        if isinstance(error, SecretUnavailable):
            raise error  # a fault of this process, not of the value: another may have the key
        if isinstance(error, CodecFailed) and error.__cause__ is not None:
            raise error.__cause__
        raise refusal(self._name, f"{prefix}{_error_text(error)}") from error


def checked_payload(what: str, value: Any, bytes_max: int | None = None) -> Any:
    """Return a value that belongs to no function, such as a signal's payload, as a JSON value.

    Raises:
        InvalidArguments: JSON cannot hold it.
        PayloadTooLarge: it has more than `bytes_max` bytes.
    """
    try:
        encoded, written = _bare.recordable(value)
    except BaseException as error:
        raise InvalidArguments(what, f"it cannot be stored as JSON: {_error_text(error)}") from error
    limit(what, len(written), bytes_max)
    return encoded


def payload_for_server(what: str, value: Any) -> Any:
    """Return a value for a server as JSON. Secrets in it are sent, and the server encrypts them on arrival.

    Raises:
        InvalidArguments: JSON cannot hold it.
    """
    try:
        return _sent.recordable(value)[0]
    except BaseException as error:
        raise InvalidArguments(what, f"it cannot be sent as JSON: {_error_text(error)}") from error


def checked_name(what: str, key: Any) -> str:
    """Return a key or name that can be stored.

    Raises:
        InvalidArguments: it is not text, is empty or too long, or has a NUL. The rule is the same for every store.
    """
    if not isinstance(key, str) or not 0 < len(key) <= NAME_MAX or "\0" in key:
        raise InvalidArguments(what, f"a key must be text of 1 to {NAME_MAX} bytes without NUL, got {str(key)[:50]!r}")
    checked_payload(what, key)  # it may not be Unicode
    if len(key.encode()) > NAME_MAX:
        raise InvalidArguments(what, f"a key must have at most {NAME_MAX} bytes in UTF-8, got {key[:50]!r}")
    return key


def user_key(what: str, key: Any) -> str:
    """Return a key that a user's signal may have.

    Raises:
        InvalidArguments: it is not a key, or is reserved for Holdfast's own timers, children and answers.
    """
    if checked_name(what, key).startswith(RESERVED):
        raise InvalidArguments(what, f"keys that begin with {RESERVED} are reserved, got {key[:50]!r}")
    return str(key)


def fingerprint(encoded: Any) -> str:
    """Return a hash of JSON values that does not depend on the order of keys."""
    written = canonical(encoded)
    if written.find(_SECRET) >= 0:  # as above; ciphertext differs each time
        written = canonical(identity(encoded))
    return hashlib.sha256(written).hexdigest()[:32]


def _error_text(error: BaseException) -> str:
    """Return the text of an error; with its type, if a user's object raised it."""
    try:
        text = str.__str__(str(error))
    except BaseException:  # its __str__ may raise anything
        text = "its text cannot be read"
    return text if isinstance(error, (TypeError, ValueError)) else f"reading it raised {type(error).__name__}: {text}"


def _encode_foreign(vault: Vault, value: Any) -> Any:
    if isinstance(value, Secret):
        return vault.kept(value)
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if inspect.iscoroutine(value):
        raise TypeError(f"{value.__name__}(…) is a coroutine, which is not JSON: did you forget await?")
    raise TypeError(f"{type(value).__name__} is not JSON; pass plain values, dataclasses, structs or models")


def _decode_foreign(vault: Vault, hint: Any, encoded: Any) -> Any:
    if secret_hint(hint) is not None:
        return vault.read(hint, encoded)
    if hasattr(hint, "model_validate"):
        return hint.model_validate(encoded)
    if isinstance(hint, type) and issubclass(hint, PurePath) and isinstance(encoded, str):
        return hint(encoded)
    raise TypeError(f"cannot make a {getattr(hint, '__name__', hint)} from JSON")


_encode_bare = partial(_encode_foreign, Vault())  # without an app: references are stored, and nothing is encrypted
_bare = Recorder(_encode_bare)
_sent = Recorder(lambda value: for_server(value) if isinstance(value, Secret) else _encode_bare(value))
