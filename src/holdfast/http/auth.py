"""Who may do what: the path as it was sent, the Host, the origin, the token, and the scope that a route asks for.

- A path that two programs could read differently is refused before it is looked up: ``;``, ``//``, dot segments,
  encoded slashes, backslashes. So nothing behind a path can change which route it is.
- A Host that is not ours is refused: a name that somebody else's DNS points here (rebinding) opens nothing.
- Without tokens only loopback is served, and nothing that a proxy has passed on.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import quote, unquote_to_bytes

from starlette.types import Scope as Connection

from holdfast.http.problems import Problem
from holdfast.http.tokens import Keyring, Scope

__all__ = ["HEADS", "TOKEN", "Guard", "Principal", "is_loopback"]

HEADS = "holdfast.heads"  # where a request's headers stand, by name
TOKEN = "token:"  # noqa: S105 - and its name: who did what was done with it
SEEN_MAX = 64
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})

_PATH = re.compile(r"(?:/[A-Za-z0-9_~:@.-]+)+\Z|/\Z")
_DOTS = re.compile(r"/\.+(?:/|\Z)")
_HIDDEN = re.compile(r"%2[ef]", re.IGNORECASE)  # a dot or a slash that hides from whoever reads the path undecoded
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::\d{1,5})?\Z")
_FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via"})


class Principal:
    """Whoever asks: under which name what he does is recorded, what he may do, and with whose runs; None: with all."""

    __slots__ = ("actor", "group", "scope")

    def __init__(self, actor: str, scope: Scope, group: str | None) -> None:
        self.actor, self.scope, self.group = actor, scope, group


_ANYBODY_HERE = Principal("http", Scope.ADMIN, None)


@functools.lru_cache(1024)
def is_loopback(address: str) -> bool:
    """Whether an address, or one of the names of loopback, is this machine alone."""
    if address.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Looks at every request before a handler does."""

    def __init__(self, keys: Keyring, hosts: Iterable[str] = ()) -> None:
        self.keys = keys
        self._hosts = LOOPBACK_NAMES | {host.lower() for host in hosts}
        self._seen: set[bytes] = set()  # Hosts as they were sent, that were ours

    @staticmethod
    def check_path(connection: Connection) -> None:
        """Refuse a path that can be read in more than one way; before the route is looked up."""
        raw = connection.get("raw_path")
        path = raw.decode("latin-1") if raw is not None else quote(connection["path"])
        path = _ours_of(path, quote(connection.get("root_path", "")))
        if "%" in path and not _HIDDEN.search(path):
            path = unquote_to_bytes(path).decode("latin-1")  # and what is decoded must be as plain as the rest
        if not _PATH.match(path) or _DOTS.search(path):
            raise Problem(400, "invalid_path", "this path can be read in more than one way", "send it plain")

    def admit(self, connection: Connection, needed: Scope | None) -> Principal:
        """Give who asks, if he may do what needs this scope; None is for everybody."""
        if needed is None:
            return _ANYBODY_HERE
        self._check_origin(connection)
        if not self.keys:
            return self._neighbour(connection)
        kind, _, token = connection[HEADS].get(b"authorization", b"").decode("latin-1").partition(" ")
        found = self.keys.find(token.strip()) if kind.lower() == "bearer" else None
        if found is None:
            raise _unauthorized("a token is needed, and this is none that is good")
        scope = Scope.named(found.scope)
        if scope < needed:
            raise Problem(
                403, "forbidden", f"this needs the scope {needed.name.lower()}, the token has {scope.name.lower()}",
                "use a token with a wider scope",
            )  # fmt: skip
        return Principal(f"{TOKEN}{found.name}", scope, found.group)

    def _neighbour(self, connection: Connection) -> Principal:
        client = connection.get("client")
        passed_on = not _FORWARDED.isdisjoint(connection[HEADS])
        if passed_on or client is None or not is_loopback(client[0]):
            raise _unauthorized("no token is set up, so only this machine is served, and nothing from behind a proxy")
        return _ANYBODY_HERE

    def _know(self, host: bytes) -> bool:
        ours = self._ours(host.decode("latin-1").lower())
        if ours and len(self._seen) < SEEN_MAX:
            self._seen.add(host)
        return ours

    def _ours(self, host: str) -> bool:
        named = _HOST.match(host)
        return named is not None and (named[1] in self._hosts or host in self._hosts)

    def _check_origin(self, connection: Connection) -> None:
        """Refuse a Host that is not ours, and what a page of another site sends."""
        heads = connection[HEADS]
        host, origin = heads.get(b"host", b""), heads.get(b"origin")
        foreign = origin is not None and not self._ours(origin.decode("latin-1").lower().partition("://")[2])
        if heads.get(b"sec-fetch-site") == b"cross-site" and connection["method"] not in {"GET", "HEAD"}:
            foreign = True
        if host not in self._seen and not self._know(host):
            raise Problem(
                421, "unknown_host", "this server is not known by that Host", "allow it with --allow-host, or hosts="
            )
        if foreign:
            raise Problem(403, "foreign_origin", "requests from pages of other sites are refused", "ask from here")


def _ours_of(path: str, root: str) -> str:
    """Give the part of a path that is ours, where we are mounted under another."""
    return path[len(root) :] or "/" if root and path.startswith(root) else path


def _unauthorized(message: str) -> Problem:
    return Problem(
        401, "unauthorized", message, "send Authorization: Bearer <token>; make one with holdfast tokens create",
        headers=[(b"www-authenticate", b'Bearer realm="holdfast"')],
    )  # fmt: skip
