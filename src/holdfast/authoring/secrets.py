"""Secrets: values that are stored only as a reference or as ciphertext (rule S14).

In an event a secret is one of these, and nothing else::

    {"$secret": {"env": "STRIPE_KEY"}}           the name of an environment variable of the process that reveals it
    {"$secret": {"box": "…base64…", "id": "…"}}  ciphertext by the app's codec, and a keyed digest

The identity of a secret, for idempotency keys and for telling calls apart (E8, R8), is its name or its digest. It is
never the ciphertext, which a good cipher changes each time. The codec makes the digest, because it must be keyed: an
attacker can find a PIN from its bare hash by trying them all. The digest is required. Without it, two calls that differ
only in their secrets would be equal and told apart by their order, which concurrent branches do not keep.

Only code makes references and boxes, here. JSON from a client may not contain them. Otherwise a client that may start a
job could make it use any variable of the worker, or a box copied from another run's history. An app may allow variables
by name. A client sends the value of a Secret, and the codec encrypts it on arrival.

What can fail: the process lacks the variable or the codec, or the codec cannot open the box. Then `reveal` raises
`SecretUnavailable`.
"""

from __future__ import annotations

import base64
import hashlib
import os
import types
import typing
from collections.abc import Iterator
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import msgspec

from holdfast.authoring.redaction import remember_secret
from holdfast.errors import SecretUnavailable

T = TypeVar("T")

FIELD = "$secret"
NO_CODEC = (
    "a Secret made from a value is stored encrypted, and this app has no codec: "
    'use Secret.env("NAME"), or pass App(..., codec=...)'
)


class Codec(Protocol):
    """Encrypts and decrypts bytes with its own key. Users provide it. It is called from any thread."""

    def encrypt(self, data: bytes, /) -> bytes:
        """Return authenticated ciphertext, with a new nonce each time."""
        ...

    def decrypt(self, data: bytes, /) -> bytes:
        """Return the bytes that were encrypted with this key or an earlier one. Raise for any other input."""
        ...

    def digest(self, data: bytes, /) -> bytes:
        """Return a keyed digest such as HMAC-SHA256. It must stay the same for the same bytes while jobs run."""
        ...


class Secret(Generic[T]):
    """A value that is never shown, and never stored in plain text. Call `reveal` only where the value is used.

    As an argument or a result of jobs, steps and tools, it is stored as ciphertext, by the app's codec. Without a codec
    it is refused. A reference, ``Secret.env("NAME")``, needs no codec.

    Args:
        value: the value; JSON must be able to hold it.

    Raises:
        TypeError: JSON cannot hold the value.
    """

    __slots__ = ("_inside",)

    def __init__(self, value: T) -> None:
        plain = _plain(value)
        remember_secret([value, plain], outside=False)
        self._inside: _Value | _Variable | _Box = _Value(value, plain)

    @classmethod
    def env(cls, name: str) -> Secret[str]:
        """Return a reference to an environment variable. The process that reveals it reads the variable then.

        Args:
            name: the name of the variable.

        Raises:
            ValueError: the name is invalid.
        """
        if not name or "=" in name or "\0" in name:
            raise ValueError(f"Secret.env needs the name of an environment variable, got {name!r:.50}")
        return _secret(_Variable(name, str))

    def reveal(self) -> T:
        """Return the value.

        From now on, its text is redacted in errors, progress and exports, as far as it is recognised.

        Raises:
            SecretUnavailable: this process lacks the variable, the codec, or the right key.
        """
        value: T = self._inside.opened()
        remember_secret([value, _plain(value)])
        return value

    def fits(self, hint: Any) -> bool:
        """Return whether it can be a ``Secret[hint]``. True for a secret whose value is not loaded."""
        if not isinstance(self._inside, _Value):
            return True
        try:
            msgspec.convert(self._inside.plain, hint, strict=True, str_keys=True)
        except (TypeError, ValueError):
            return False
        return True

    def __repr__(self) -> str:
        return "Secret(…)"

    def __str__(self) -> str:
        return repr(self)

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __copy__(self) -> Secret[T]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret[T]:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Secret cannot be pickled, because that would expose its value: reveal it, or pass a reference"
        )


class _Value:
    """A secret whose value is loaded, and its box, which is made once."""

    def __init__(self, value: Any, plain: Any) -> None:
        self.value, self.plain = value, plain
        self.box: _Box | None = None

    def opened(self) -> Any:
        return self.value

    def kept(self, vault: Vault) -> dict[str, str]:
        if self.box is None or self.box.vault.codec is not vault.codec:
            self.box = vault.boxed(self.plain)
        return dict(self.box.kept(vault))


class _Variable:
    """A secret in the environment of the process that reveals it."""

    def __init__(self, name: str, hint: Any) -> None:
        self.name, self.hint = name, hint

    def opened(self) -> Any:
        if self.name not in os.environ:
            raise SecretUnavailable(
                f"the environment variable {self.name} is not set in this process: set it for the worker"
            )
        text = os.environ[self.name]
        return text if self.hint in {str, Any} else _read(text.encode(), self.hint, self.name)

    def kept(self, vault: Vault) -> dict[str, str]:
        del vault
        return {"env": self.name}


class _Box:
    """A secret as ciphertext of its vault."""

    def __init__(self, box: dict[str, str], vault: Vault, hint: Any) -> None:
        self.box, self.vault, self.hint = box, vault, hint

    def opened(self) -> Any:
        return _read(self.vault.opened(self.box["box"]), self.hint, "the secret")

    def kept(self, vault: Vault) -> dict[str, str]:
        if self.vault.codec is vault.codec:
            return dict(self.box)
        return vault.boxed(_plain(self.opened())).box  # from another app, with its own key


class CodecFailed(Exception):
    """The codec could not encrypt: a fault of this process, not of the value. Its cause is the codec's error."""


class Vault:
    """How one app stores secrets: its codec, and the variables that JSON from clients may name."""

    def __init__(self, codec: Codec | None = None) -> None:
        self.codec = codec
        self.env_secrets: frozenset[str] = frozenset()

    def kept(self, secret: Secret[Any]) -> dict[str, Any]:
        """Return a secret as it is stored.

        Raises:
            TypeError: it was made from its value, and there is no codec.
        """
        return {FIELD: secret._inside.kept(self)}

    def boxed(self, plain: Any) -> _Box:
        """Encrypt a value."""
        if self.codec is None:
            raise TypeError(NO_CODEC)
        written = msgspec.json.encode(plain)
        try:
            encrypted = self.codec.encrypt(written)
        except Exception as error:
            raise CodecFailed from error
        box = base64.b64encode(encrypted).decode()
        digest = hashlib.sha256(self.codec.digest(written)).hexdigest()[:32]
        return _Box({"box": box, "id": digest}, self, Any)

    def opened(self, box: str) -> bytes:
        """Decrypt a box.

        Raises:
            SecretUnavailable: there is no codec, or it cannot open this box.
        """
        if self.codec is None:
            raise SecretUnavailable("this secret is encrypted, and the app has no codec in this process")
        try:
            return self.codec.decrypt(base64.b64decode(box))
        except Exception as error:  # noqa: BLE001 - a codec may raise anything; its text may show the secret
            raise SecretUnavailable(f"the app's codec cannot decrypt this secret: {type(error).__name__}") from None

    def read(self, hint: Any, plain: Any) -> Secret[Any]:
        """Return the Secret for stored JSON. Nothing is decrypted yet.

        Raises:
            TypeError: the JSON is not a stored secret.
        """
        if not is_kept(plain):
            raise TypeError('a secret is required: Secret.env("NAME") or Secret(value)')
        inside: dict[str, str] = plain[FIELD]
        arguments = typing.get_args(hint)
        wanted = arguments[0] if arguments and not isinstance(arguments[0], TypeVar) else Any
        return _secret(_Variable(inside["env"], wanted) if "env" in inside else _Box(inside, self, wanted))

    def missing_key(self, encoded: Any) -> str | None:
        """Return why this process cannot reveal a secret in stored JSON values; None if it can reveal all."""
        for inside in _references(encoded):
            try:
                (_Variable(inside["env"], Any) if "env" in inside else _Box(inside, self, Any)).opened()
            except SecretUnavailable as error:
                return str(error)
        return None

    def refuse_foreign(self, encoded: Any) -> None:
        """Check that JSON from a client refers to no secret that it may not use.

        Raises:
            ValueError: it does.
        """
        for inside in _references(encoded):
            if "env" not in inside:
                raise ValueError("clients cannot send ciphertext: send the value of the secret")
            if inside["env"] not in self.env_secrets:
                raise ValueError(
                    f"the variable {inside['env'][:50]!r} may not be named by clients: allow it with "
                    "app.env_secrets, or send the value of the secret"
                )


def sent_secret(value: Any) -> Secret[Any]:
    """Return a secret whose value a client has sent.

    Raises:
        TypeError: JSON cannot hold the value.
    """
    plain = _plain(value)
    remember_secret([value, plain], outside=False, sent=True)
    return _secret(_Value(value, plain))


def _secret(inside: _Value | _Variable | _Box) -> Secret[Any]:
    secret: Secret[Any] = object.__new__(Secret)
    secret._inside = inside
    return secret


def is_kept(plain: Any) -> bool:
    """Return whether a JSON value is a secret as it is stored."""
    inside = plain.get(FIELD) if isinstance(plain, dict) and len(plain) == 1 else None
    if not isinstance(inside, dict) or not all(isinstance(part, str) for part in inside.values()):
        return False
    return inside.keys() == {"env"} or inside.keys() == {"box", "id"}


def for_server(secret: Secret[Any]) -> Any:
    """Return a secret as it is sent to a server over a trusted connection: by name, or its value."""
    inside = secret._inside
    return {FIELD: {"env": inside.name}} if isinstance(inside, _Variable) else _plain(inside.opened())


def secret_hint(hint: Any) -> Any:
    """Return the Secret in ``Secret``, ``Secret[T]`` or ``Secret[T] | None``; None for any other hint."""
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        return next(filter(None, map(secret_hint, typing.get_args(hint))), None)
    return hint if hint is Secret or typing.get_origin(hint) is Secret else None


def identity(plain: Any) -> Any:
    """Return JSON values for comparison, with each encrypted secret replaced by its digest."""
    if isinstance(plain, dict):
        if is_kept(plain) and "id" in plain[FIELD]:
            return {FIELD: {"id": plain[FIELD]["id"]}}
        return {name: identity(value) for name, value in plain.items()}
    return [identity(value) for value in plain] if isinstance(plain, (list, tuple)) else plain


def _references(encoded: Any) -> Iterator[Any]:
    """Yield the stored secrets in JSON values. `Secret` objects, which code made, are not among them."""
    if is_kept(encoded):
        yield encoded[FIELD]
    elif isinstance(encoded, dict):
        for value in encoded.values():
            yield from _references(value)
    elif isinstance(encoded, (list, tuple)):
        for value in encoded:
            yield from _references(value)


def _plain(value: Any) -> Any:
    """Return a secret's value as JSON. The error for a value that JSON cannot hold does not show it."""
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except (TypeError, ValueError, RecursionError):
        raise TypeError(f"the value of a Secret must fit in JSON, got {type(value).__name__}") from None


def _read(written: bytes, hint: Any, what: str) -> Any:
    try:
        return msgspec.json.decode(written, type=hint, strict=True)
    except (TypeError, ValueError):
        raise SecretUnavailable(f"{what} does not have the type in the function's hint, {hint!r:.80}") from None
