"""Holdfast inside a web application of yours: an ASGI app to mount in Starlette, FastAPI or Django, or to serve alone.

It needs no lifespan, works under any prefix, and shares the app's store. Without tokens it serves this machine alone.
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
) -> Service:
    """Give an ASGI application for an app's runs.

    Args:
        app: the app, whose store it shares.
        tokens: who may come in: tokens made with `token`, or the path of a file of them. Default: the file that the
            setting `tokens` names, and the token in the environment. With none, only this machine is served.
        hosts: names under which this is reached, besides those of loopback.
        limits: how large requests may be.
    """
    return Service(app, keyring(app.config, tokens), hosts, limits)


def token(
    secret: str,
    *,
    name: str = "token",
    scope: str = "admin",
    expires_at: float | None = None,
    group: str | None = None,
) -> Token:
    """Give what is kept of a token of your own making: use at least 256 random bits.

    Bound to a `group`, it opens the runs of that group and no others.
    """
    return kept_of(secret, name=name, scope=scope, expires_at=expires_at, group=group)
