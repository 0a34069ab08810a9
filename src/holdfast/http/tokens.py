"""API tokens: 256 random bits, shown once and stored as a hash. Each has a name, a scope and an expiry.

A token can be bound to a group. Its holder can then read and change the runs of that group only.

The tokens are in a JSON file that only its owner can read. The server reads the file again when it changes, so it
refuses a revoked token after a second at most. Tokens are compared in constant time and are never logged.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast.config import Config
from holdfast.errors import InvalidArguments, InvalidSetting
from holdfast.store.sqlite.file_lock import FileLock

T = TypeVar("T")

LOOK_SECONDS = 0.5  # the server refuses a revoked token after this time at most
GROUP_MAX = 255  # characters of a group's name
SECRET_MIN = 32  # characters of a token; a shorter one can be guessed
FILE = "holdfast-tokens.json"
PREFIX = "hf_"  # lets scanners for leaked secrets recognize a token


class Scope(IntEnum):
    """What a token may do. Each scope includes the scopes before it."""

    READ = 1
    SIGNAL = 2
    SUBMIT = 3
    OPERATE = 4
    ADMIN = 5

    @classmethod
    def named(cls, name: str) -> Scope:
        """Return the scope of this name.

        Raises:
            InvalidArguments: no scope has this name.
        """
        if name.upper() not in cls.__members__:
            raise InvalidArguments(
                "scope", f"must be one of {', '.join(one.name.lower() for one in cls)}, got {name!r}"
            )
        return cls[name.upper()]


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """The stored data of a token.

    Attributes:
        name: name of the token holder; the store records it with each action.
        scope: read, signal, submit, operate or admin.
        hash: SHA-256 of the token, in hex.
        created_at: creation time, UTC epoch seconds.
        expires_at: expiry, UTC epoch seconds; None means no expiry.
        group: the only group whose runs the token opens; None means all runs.
    """

    name: str
    scope: str
    hash: str
    created_at: float = 0.0
    expires_at: float | None = None
    group: str | None = None


class _Kept(msgspec.Struct):
    """The content of the token file.

    Releases without groups read `tokens` only. Tokens of a group are in `bound`, so those releases refuse them.
    """

    tokens: list[Token] = []
    bound: list[Token] = []


def new_token() -> str:
    """Return a new random token."""
    return PREFIX + secrets.token_urlsafe(32)


def hashed(token: str) -> str:
    """Return the hash of a token. A token has 256 random bits, so a fast hash is enough."""
    return hashlib.sha256(token.encode()).hexdigest()


class TokenFile:
    """The file that stores tokens."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._seen: tuple[int, int, int] | None = None
        self._looked_at = float("-inf")
        self._tokens: list[Token] = []

    def all(self) -> list[Token]:
        """Return all tokens. Check twice a second whether the file has changed, and read it only then."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            return self._tokens
        self._tokens = self._look()
        self._looked_at = now
        return self._tokens

    def _look(self) -> list[Token]:
        try:
            stat = os.stat(self._path)  # noqa: PTH116 - on the hot path of every request
        except FileNotFoundError:
            self._seen = None
            return []
        seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if seen == self._seen:
            return self._tokens
        found = self._read()
        self._seen = seen
        return found

    def create(self, name: str, scope: str, expires_at: float | None = None, group: str | None = None) -> str:
        """Store a new token and return it. The token cannot be shown again.

        Raises:
            InvalidArguments: the name is taken, or a value is not valid.
            InvalidSetting: the file cannot be read or written.
        """
        return self._alone(partial(self._create, name, scope, expires_at, group))

    def rotate(self, name: str, grace_seconds: float) -> str:
        """Store a second secret for a token and return it. The old one stays valid for `grace_seconds`.

        Raises:
            InvalidArguments: no token has this name.
            InvalidSetting: the file cannot be read or written.
        """
        return self._alone(partial(self._rotate, name, grace_seconds))

    def revoke(self, name: str) -> bool:
        """Remove a token with all its secrets. Return False if no token has this name."""
        return self._alone(partial(self._revoke, name))

    def _alone(self, work: Callable[[], T]) -> T:
        """Call `work` under the lock of the file, so that it sees and changes the current content."""
        lock = FileLock(self._path.with_name(f"{self._path.name}-lock"))
        try:
            self._looked_at = float("-inf")
            return lock.run(work)
        except OSError as error:
            said = f"{error.strerror}: check the path and its permissions"
            raise InvalidSetting("tokens", str(self._path), said) from error
        finally:
            lock.close()

    def _create(self, name: str, scope: str, expires_at: float | None, group: str | None) -> str:
        if not name or len(name) > 100 or not name.isprintable():  # noqa: PLR2004 - a bound for names
            raise InvalidArguments("name", "must have 1 to 100 printable characters")
        if any(one.name == name for one in self.all()):
            raise InvalidArguments("name", f"a token named {name!r} already exists: revoke it, or use another name")
        token = new_token()
        kept = kept_of(token, name=name, scope=scope, expires_at=expires_at, group=group)
        self._write([*self.all(), msgspec.structs.replace(kept, created_at=time.time())])
        return token

    def _rotate(self, name: str, grace_seconds: float) -> str:
        current = [token for token in self.all() if token.name == name]
        if not current:
            raise InvalidArguments("name", f"no token is named {name!r}")
        newest = current[-1]  # earlier secrets are dropped: a token has two at most
        now = time.time()
        end = now + grace_seconds if newest.expires_at is None else min(newest.expires_at, now + grace_seconds)
        secret = new_token()
        others = [token for token in self.all() if token.name != name]
        old = msgspec.structs.replace(newest, expires_at=end)
        self._write([*others, old, msgspec.structs.replace(newest, hash=hashed(secret), created_at=now)])
        return secret

    def _revoke(self, name: str) -> bool:
        left = [one for one in self.all() if one.name != name]
        found = len(left) != len(self.all())
        if found:
            self._write(left)
        return found

    def _read(self) -> list[Token]:
        try:
            kept = msgspec.json.decode(self._path.read_bytes(), type=_Kept)
        except (msgspec.DecodeError, OSError) as error:
            raise InvalidSetting("tokens", str(self._path), f"not a token file: {error}") from error
        return sorted([*kept.tokens, *kept.bound], key=lambda one: one.created_at)

    def _write(self, tokens: list[Token]) -> None:
        """Replace the whole file. Only its owner can ever read it, because the draft is created with that mode."""
        draft = self._path.with_name(f"{self._path.name}.{secrets.token_hex(8)}")
        # A new file under a random name: never a link or a file of another user of the folder.
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(msgspec.json.format(msgspec.json.encode(_parted(tokens)), indent=2))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        self._looked_at = float("-inf")


def _parted(tokens: list[Token]) -> _Kept:
    bound = [one for one in tokens if one.group is not None]
    return _Kept([one for one in tokens if one.group is None], bound)


class Keyring:
    """All tokens that the server accepts: those in a token file, and those that the caller passes.

    Once the server has needed a token, it needs one until the process ends. So an operator who revokes the last token
    locks all clients out, and does not open the server.
    """

    def __init__(self, file: TokenFile | None = None, given: Iterable[Token] = ()) -> None:
        self._file = file
        self._given = list(given)
        self._closed = bool(self._given)

    def __bool__(self) -> bool:
        self._closed = self._closed or bool(self._file is not None and self._file.all())
        return self._closed

    def __len__(self) -> int:
        return len(self._given) + (len(self._file.all()) if self._file is not None else 0)

    def find(self, token: str) -> Token | None:
        """Return the data of a valid token, or None. It compares with every token, so that the time reveals nothing."""
        wanted, found = hashed(token).encode(), None
        for one in [*self._given, *(self._file.all() if self._file is not None else ())]:
            if hmac.compare_digest(one.hash.encode(), wanted):
                found = one
        return found if found is not None and (found.expires_at is None or time.time() < found.expires_at) else None


def kept_of(
    secret: str, *, name: str, scope: str = "admin", expires_at: float | None = None, group: str | None = None
) -> Token:
    """Return the data to store for a token that the caller already has.

    Raises:
        InvalidArguments: the token is too short to be safe, or a value is not valid.
    """
    if len(secret) < SECRET_MIN:
        reason = f"must have at least {SECRET_MIN} characters, got {len(secret)}: use secrets.token_urlsafe(32)"
        raise InvalidArguments("token", reason)
    if group is not None and not (0 < len(group) <= GROUP_MAX and group.isprintable()):
        raise InvalidArguments("group", f"must have 1 to {GROUP_MAX} printable characters")
    known = Scope.named(scope).name.lower()
    return Token(name=name, scope=known, hash=hashed(secret), expires_at=expires_at, group=group)


def token_path(config: Config, url: str) -> Path:
    """Return the token file: the one in the settings, or a file next to the SQLite database of a store.

    Another store has its file in the current folder.
    """
    if config.tokens:
        return Path(config.tokens)
    database = url.removeprefix("sqlite:///") if url.startswith("sqlite:///") else ""
    return Path(database).absolute().with_name(FILE) if Path(database).name else Path(FILE)


def keyring(config: Config, url: str, tokens: Sequence[Token] | str | None = None) -> Keyring:
    """Return the keyring of the given tokens, or by default of the token file and token in the settings."""
    if tokens is None:
        given = [kept_of(config.token, name="environment")] if config.token else []
        return Keyring(TokenFile(token_path(config, url)), given)
    return Keyring(TokenFile(tokens)) if isinstance(tokens, str) else Keyring(None, tokens)
