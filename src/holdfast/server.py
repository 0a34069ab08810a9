"""The HTTP API as an ASGI application: mount it in Starlette, FastAPI or Django, or serve it alone.

The application needs no lifespan, works under any path prefix, and shares the app's store. Without tokens it accepts
requests from this machine only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.client.app import App
from holdfast.http.application import Service
from holdfast.http.request_limits import Limits
from holdfast.http.tokens import Token, kept_of, keyring

__all__ = ["Limits", "Token", "asgi", "token"]


def asgi(
    app: App,
    *,
    tokens: Sequence[Token] | str | None = None,
    hosts: Iterable[str] = (),
    limits: Limits | None = None,
    page: bool = True,
) -> Service:
    """Return an ASGI application that serves the runs of an app.

    Args:
        app: The app. The ASGI application shares its store.
        tokens: Tokens that may call the API: objects made with `token`, or the path of a token file. The default is
            the file that the setting `tokens` names, or the token file next to the SQLite database, plus the token in
            the environment. Without any token, the
            application accepts requests from this machine only.
        hosts: Host names to accept in addition to the loopback names.
        limits: Maximum sizes of requests.
        page: Serve the dashboard at the root of the application.
    """
    return Service(app, keyring(app.config, app.url, tokens), hosts, limits, page=page)


def token(
    secret: str,
    *,
    name: str = "token",
    scope: str = "admin",
    expires_at: float | None = None,
    group: str | None = None,
) -> Token:
    """Return a `Token` for a secret that you generated. Use 256 random bits: `secrets.token_urlsafe(32)`.

    Args:
        secret: The secret that clients send, at least 32 characters. The result holds only its hash.
        name: The owner of the token. The engine records operator actions under this name.
        scope: What the token may do: ``read``, ``submit``, ``operate`` or ``admin``.
        expires_at: When the token expires, in UTC epoch seconds. None means never.
        group: The only group whose runs the token can reach. None means all runs.

    Raises:
        InvalidArguments: The secret is too short, or another value is not valid.
    """
    return kept_of(secret, name=name, scope=scope, expires_at=expires_at, group=group)
