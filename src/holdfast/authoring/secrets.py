"""Values that are never stored as they are: a `Secret` is kept as a reference to it, or as ciphertext (rule S14).

In an event a secret is one of these, and nothing else::

    {"$secret": {"env": "STRIPE_KEY"}}           the name of an environment variable of whoever reveals it
    {"$secret": {"box": "…base64…", "id": "…"}}  ciphertext by the app's codec, and a keyed digest

The identity of a secret, for idempotency keys and for telling calls apart (E8, R8), is its name or its digest, never
its ciphertext, which a good cipher makes anew each time. The digest is the codec's, because it must be keyed: a bare
hash of a PIN in a history is the PIN to whoever tries them all. And it must be there: without it two calls that differ
in their secrets alone would be equals, told apart by their order, which concurrent branches do not keep.

References and boxes are made by code, here. One that comes from outside as JSON, over HTTP, is refused: whoever may
start a job could otherwise have it use any variable of the worker, or a box copied from another run's history. An app
may allow variables by name. What comes from outside for a Secret is its value, which the codec encrypts on arrival.

What can go wrong: a process lacks the variable or the codec, or the codec cannot open the box: `SecretUnavailable` when
it is revealed, and not before.
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

__all__ = ["FIELD", "Codec", "Secret", "Vault", "identity", "is_kept", "secret_for_server", "secret_hint"]

T = TypeVar("T")

FIELD = "$secret"
NO_CODEC = (
    "a Secret that was made from its value is kept as ciphertext, and this app has no codec for that: refer to it by "
    'Secret.env("NAME"), or give the app one, App(..., codec=...)'
)


class Codec(Protocol):
    """Turns bytes into ciphertext and back, with a key of its own; users bring it. Called from any thread."""

    def encrypt(self, data: bytes, /) -> bytes:
        """Give authenticated ciphertext, with a nonce of its own each time."""
        ...

    def decrypt(self, data: bytes, /) -> bytes:
        """Give back what was encrypted, with this key or one that it has replaced; raise if it is anything else."""
        ...

    def digest(self, data: bytes, /) -> bytes:
        """Give a keyed digest, as HMAC-SHA256 does: the same for the same bytes, for as long as jobs run."""
        ...


class Secret(Generic[T]):
    """A value that is shown nowhere and stored nowhere as it is. `reveal` it where it is used, and only there.

    As an argument or a result of jobs, steps and tools it is kept as ciphertext, by the app's codec; without one it is
    refused. A reference, ``Secret.env("NAME")``, needs no codec.
    """

    __slots__ = ("_inside",)

    def __init__(self, value: T) -> None:
        plain = _plain(value)
        remember_secret([value, plain], outside=False)
        self._inside: _Value | _Variable | _Box = _Value(value, plain)

    @classmethod
    def env(cls, name: str) -> Secret[str]:
        """Refer to an environment variable; it is read when it is revealed, by the process that does so."""
        if not name or "=" in name or "\0" in name:
            raise ValueError(f"a secret is referred to by the name of an environment variable, got {name!r:.50}")
        return _secret(_Variable(name, str))

    def reveal(self) -> T:
        """Give the value itself. From now on its text is kept out of errors, progress and exports, as far as seen.

        Raises:
            SecretUnavailable: this process has not the variable, not the codec, or not the right key.
        """
        value: T = self._inside.opened()
        remember_secret([value, _plain(value)])
        return value

    def fits(self, hint: Any) -> bool:
        """Whether it can be what a ``Secret[hint]`` says; one that is not at hand may be."""
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
        raise TypeError("a Secret is not pickled, which would write it down as it is: reveal it, or pass a reference")


class _Value:
    """A secret that is at hand; and the box it was put into, which is the same when it is asked for again."""

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
    """A secret that is in the environment of whoever reveals it."""

    def __init__(self, name: str, hint: Any) -> None:
        self.name, self.hint = name, hint

    def opened(self) -> Any:
        if self.name not in os.environ:
            raise SecretUnavailable(f"the environment of this process has no {self.name}: set it for the worker")
        text = os.environ[self.name]
        return text if self.hint in {str, Any} else _read(text.encode(), self.hint, self.name)

    def kept(self, vault: Vault) -> dict[str, str]:
        del vault
        return {"env": self.name}


class _Box:
    """A secret as its vault has kept it."""

    def __init__(self, box: dict[str, str], vault: Vault, hint: Any) -> None:
        self.box, self.vault, self.hint = box, vault, hint

    def opened(self) -> Any:
        return _read(self.vault.opened(self.box["box"]), self.hint, "the secret")

    def kept(self, vault: Vault) -> dict[str, str]:
        if self.vault.codec is vault.codec:
            return dict(self.box)
        return vault.boxed(_plain(self.opened())).box  # of another app, with a key of its own


class CodecFailed(Exception):
    """The codec could not encrypt: a fault of this process, not of the value. Its cause is what the codec raised."""


class Vault:
    """How the functions of one app keep secrets: its codec, and the variables that JSON from outside may name."""

    def __init__(self, codec: Codec | None = None) -> None:
        self.codec = codec
        self.env_secrets: frozenset[str] = frozenset()

    def kept(self, secret: Secret[Any]) -> dict[str, Any]:
        """Give a secret as it is stored.

        Raises:
            TypeError: it was made from its value, and there is no codec.
        """
        return {FIELD: secret._inside.kept(self)}  # noqa: SLF001 - what users need not see, the vault must

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
        """Decrypt it.

        Raises:
            SecretUnavailable: there is no codec, or it cannot open this.
        """
        if self.codec is None:
            raise SecretUnavailable("this secret is kept as ciphertext, and the app has no codec in this process")
        try:
            return self.codec.decrypt(base64.b64decode(box))
        except Exception as error:  # noqa: BLE001 - whatever a user's codec raises; its words may show what it saw
            raise SecretUnavailable(f"the app's codec cannot open this secret: {type(error).__name__}") from None

    def read(self, hint: Any, plain: Any) -> Secret[Any]:
        """Make the Secret that stored JSON stands for; nothing is decrypted yet.

        Raises:
            TypeError: it stands for none.
        """
        if not is_kept(plain):
            raise TypeError('a secret is wanted: Secret.env("NAME") or Secret(value)')
        inside: dict[str, str] = plain[FIELD]
        arguments = typing.get_args(hint)
        wanted = arguments[0] if arguments and not isinstance(arguments[0], TypeVar) else Any
        return _secret(_Variable(inside["env"], wanted) if "env" in inside else _Box(inside, self, wanted))

    def refuse_foreign(self, given: Any) -> None:
        """See that JSON from outside refers to no secret that it may not.

        Raises:
            ValueError: it does.
        """
        for inside in _references(given):
            if "env" not in inside:
                raise ValueError("ciphertext is not taken from outside: give the value of the secret")
            if inside["env"] not in self.env_secrets:
                raise ValueError(
                    f"the variable {inside['env'][:50]!r} may not be referred to from outside: allow it with "
                    "app.env_secrets, or give the value of the secret"
                )


def _secret(inside: _Variable | _Box) -> Secret[Any]:
    made: Secret[Any] = object.__new__(Secret)
    made._inside = inside  # noqa: SLF001 - what the constructor does not make
    return made


def is_kept(plain: Any) -> bool:
    """Whether a JSON value is a secret as it is stored."""
    inside = plain.get(FIELD) if isinstance(plain, dict) and len(plain) == 1 else None
    if not isinstance(inside, dict) or not all(isinstance(one, str) for one in inside.values()):
        return False
    return inside.keys() == {"env"} or inside.keys() == {"box", "id"}


def secret_for_server(secret: Secret[Any]) -> Any:
    """Give a secret as it goes to a server, over a connection that is trusted with it: by name, or as it is."""
    inside = secret._inside  # noqa: SLF001 - as for the vault
    return {FIELD: {"env": inside.name}} if isinstance(inside, _Variable) else _plain(inside.opened())


def secret_hint(hint: Any) -> Any:
    """Find the Secret in ``Secret``, ``Secret[T]`` or ``Secret[T] | None``; None if the hint is something else."""
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        return next(filter(None, map(secret_hint, typing.get_args(hint))), None)
    return hint if hint is Secret or typing.get_origin(hint) is Secret else None


def identity(plain: Any) -> Any:
    """Give JSON values as they are told apart: of a secret its name or its digest."""
    if isinstance(plain, dict):
        if is_kept(plain) and "id" in plain[FIELD]:
            return {FIELD: {"id": plain[FIELD]["id"]}}
        return {name: identity(one) for name, one in plain.items()}
    return [identity(one) for one in plain] if isinstance(plain, (list, tuple)) else plain


def _references(given: Any) -> Iterator[Any]:
    """Find what refers to secrets in values as JSON has them. Secrets themselves, made by code, are none of these."""
    if is_kept(given):
        yield given[FIELD]
    elif isinstance(given, dict):
        for one in given.values():
            yield from _references(one)
    elif isinstance(given, (list, tuple)):
        for one in given:
            yield from _references(one)


def _plain(value: Any) -> Any:
    """Give a secret's value as JSON has it; the error for one that JSON cannot hold does not show it."""
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except (TypeError, ValueError, RecursionError):
        raise TypeError(f"a Secret holds what JSON can hold; this {type(value).__name__} is not that") from None


def _read(written: bytes, hint: Any, what: str) -> Any:
    try:
        return msgspec.json.decode(written, type=hint, strict=True)
    except (TypeError, ValueError):
        raise SecretUnavailable(f"{what} is not of the type that the function says, {hint!r:.80}") from None
