"""Access checks of a request: the raw path, the Host, the origin, the token, and the scope that the route needs.

- The guard refuses a path that two programs could read differently, before the router looks it up. Examples are
  ``;``, ``//``, dot segments, encoded slashes and backslashes. So a proxy and this server see the same route.
- The guard refuses an unknown Host. This stops DNS rebinding, where a foreign name resolves to this server.
- Without tokens the server accepts loopback clients only, and refuses requests that a proxy forwarded.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from urllib.parse import quote, unquote_to_bytes

from starlette.types import Scope as Connection

from holdfast.http.problems import Problem
from holdfast.http.tokens import Keyring, Scope, Token

HEADS = "holdfast.heads"  # scope key of a request's headers, by name
TOKEN = "token:"  # noqa: S105 - prefix of the actor name of a token, not a secret
SEEN_MAX = 64
SAME_ORIGIN = frozenset({b"same-origin", b"none"})  # values of Sec-Fetch-Site; none is a user's own navigation
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})

_PATH = re.compile(r"(?:/[A-Za-z0-9_~:@.-]+)+\Z|/\Z")
_DOTS = re.compile(r"/\.+(?:/|\Z)")
_HIDDEN = re.compile(r"%2[ef]", re.IGNORECASE)  # a proxy that does not decode the path misses this dot or slash
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::\d{1,5})?\Z")
_FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via"})


class Principal:
    """The sender of a request.

    `actor` is the name that the store records for its actions. `scope` is what it may do. `group` restricts it to the
    runs of one group; None means all runs. `token` is the token, or None if the server needs none.
    """

    __slots__ = ("actor", "group", "scope", "token")

    def __init__(self, actor: str, scope: Scope, group: str | None, token: Token | None = None) -> None:
        self.actor, self.scope, self.group, self.token = actor, scope, group, token


_ANYBODY_HERE = Principal("http", Scope.ADMIN, None)


@functools.lru_cache(1024)
def is_loopback(address: str) -> bool:
    """Return whether an address or host name is loopback."""
    if address.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Checks every request before its handler runs."""

    def __init__(self, keys: Keyring, hosts: Iterable[str] = ()) -> None:
        self.keys = keys
        self._allowed = {host.lower() for host in hosts} - LOOPBACK_NAMES
        self._hosts = LOOPBACK_NAMES | self._allowed
        self._seen: set[bytes] = set()  # raw Host headers that were accepted; a cache

    @staticmethod
    def check_path(connection: Connection) -> None:
        """Refuse a path that can be read in more than one way. Call it before the route lookup."""
        raw = connection.get("raw_path")
        path = raw.decode("latin-1") if raw is not None else quote(connection["path"])
        path = _ours_of(path, quote(connection.get("root_path", "")))
        if "%" in path and not _HIDDEN.search(path):
            path = unquote_to_bytes(path).decode("latin-1")  # the decoded path must pass the same pattern
        if not _PATH.match(path) or _DOTS.search(path):
            raise Problem(
                400,
                "invalid_path",
                "the path is ambiguous",
                "send a path without encoded or repeated slashes and dot segments",
            )

    def admit(self, connection: Connection, needed: Scope | None) -> Principal:
        """Return the principal of a request that has the needed scope. None admits every client."""
        if needed is None:
            return _ANYBODY_HERE
        self._check_origin(connection)
        if not self.keys:
            return self._neighbour(connection)
        kind, _, token = connection[HEADS].get(b"authorization", b"").decode("latin-1").partition(" ")
        found = self.keys.find(token.strip()) if kind.lower() == "bearer" else None
        if found is None:
            raise _unauthorized("missing or invalid token")
        scope = Scope.named(found.scope)
        if scope < needed:
            raise Problem(
                403, "forbidden", f"the scope {needed.name.lower()} is needed, and the token has {scope.name.lower()}",
                "use a token with a wider scope",
            )  # fmt: skip
        return Principal(f"{TOKEN}{found.name}", scope, found.group, found)

    def _neighbour(self, connection: Connection) -> Principal:
        client = connection.get("client")
        passed_on = not _FORWARDED.isdisjoint(connection[HEADS])
        if passed_on or client is None or not is_loopback(client[0]):
            raise _unauthorized("the server has no tokens, so it accepts only direct requests from its own machine")
        return _ANYBODY_HERE

    def _know(self, host: bytes) -> bool:
        ours = self._ours(host.decode("latin-1").lower())
        if ours and len(self._seen) < SEEN_MAX:
            self._seen.add(host)
        return ours

    def _ours(self, host: str) -> bool:
        return _is_among(host, self._hosts)

    def check_host(self, connection: Connection) -> None:
        """Refuse a request whose Host is not a name of this server."""
        host = connection[HEADS].get(b"host", b"")
        if host not in self._seen and not self._know(host):
            raise Problem(
                421,
                "unknown_host",
                "the Host header does not name this server",
                "allow the name with --allow-host, or hosts=",
            )

    def _check_origin(self, connection: Connection) -> None:
        """Refuse an unknown Host, and a request that a page of another origin sends, such as of another port."""
        heads = connection[HEADS]
        host, origin = heads.get(b"host", b""), heads.get(b"origin")
        foreign = heads.get(b"sec-fetch-site", b"none") not in SAME_ORIGIN
        if origin is not None and not foreign:
            place = origin.decode("latin-1").lower().partition("://")[2]
            # A proxy may send another Host. The names that the operator allows are those that browsers see.
            foreign = place != host.decode("latin-1").lower() and not _is_among(place, self._allowed)
        self.check_host(connection)
        if foreign:
            raise Problem(
                403,
                "foreign_origin",
                "the request comes from a page of another site",
                "send it from a page of this server",
            )


def _is_among(host: str, known: AbstractSet[str]) -> bool:
    named = _HOST.match(host)
    return named is not None and (named[1] in known or host in known)


def _ours_of(path: str, root: str) -> str:
    """Return the path without the mount prefix."""
    return path[len(root) :] or "/" if root and path.startswith(root) else path


def _unauthorized(message: str) -> Problem:
    return Problem(
        401, "unauthorized", message, "send Authorization: Bearer <token>; holdfast tokens create makes one",
        headers=[(b"www-authenticate", b'Bearer realm="holdfast"')],
    )  # fmt: skip
