"""The ASGI application: every request's way from the first byte to the last, and what becomes of what goes wrong.

It needs no lifespan, works under any mount prefix, and shares the store of the client it is given. What can go wrong: a
handler raises what nobody foresaw. Then the client gets an id, and the same id is logged with the traceback.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from starlette.routing import Router

from holdfast.client.verbs import Client
from holdfast.errors import HoldfastError
from holdfast.ids import new_id
from holdfast.surfaces.http.answers import Receive, Scope, Send
from holdfast.surfaces.http.limits import Limits, check_request
from holdfast.surfaces.http.metrics import Metrics
from holdfast.surfaces.http.probes import Readiness
from holdfast.surfaces.http.problems import Problem, problem_of
from holdfast.surfaces.http.routes import routes
from holdfast.surfaces.http.security import Guard
from holdfast.surfaces.http.streams import Hub
from holdfast.surfaces.http.tokens import Keyring
from holdfast.surfaces.http.tokens import Scope as Needed

__all__ = ["Service"]

_log = logging.getLogger("holdfast.http")


class Service:
    """An ASGI application over one client."""

    def __init__(self, client: Client, keys: Keyring, hosts: Iterable[str] = (), limits: Limits | None = None) -> None:
        self.client = client
        self.limits = limits or Limits()
        self.guard = Guard(keys, hosts)
        self.hub = Hub(client, self.limits)
        self.metrics = Metrics()
        self.readiness = Readiness(client)
        self._router = Router(routes(), redirect_slashes=False, default=self._nothing)

    def stop(self) -> None:
        """Take no more work, and end the streams: the server is going."""
        self.readiness.stopping = True
        self.hub.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        status = 0

        async def watched(message: Scope) -> None:
            nonlocal status
            status = status or message.get("status", 0)
            await send(message)

        scope["holdfast.service"] = self
        try:
            check_request(scope, self.limits)
            self.guard.check_path(scope)
            await self._router.app(scope, receive, watched)
        except Exception as error:
            if status:
                self._log(new_id(), scope, error)  # too late for another answer
                raise
            await self._problem(scope, error).answer().send(watched)
        finally:
            route = scope.get("route")
            self.metrics.count(route.path if route is not None else "(none)", scope["method"], status)

    def _problem(self, scope: Scope, error: Exception) -> Problem:
        if isinstance(error, Problem):
            return error
        known = problem_of(error) if isinstance(error, HoldfastError) else None
        if known is not None and known.status < 500:  # noqa: PLR2004 - the client's mistake
            return known
        name = new_id()
        self._log(name, scope, error)
        if known is not None:
            known.parts["id"] = name
            return known
        return Problem(
            500, "internal_error", "something went wrong here", "tell the operator the id: it is in the log", id=name
        )

    @staticmethod
    def _log(name: str, scope: Scope, error: Exception) -> None:
        route = scope.get("route")
        _log.error("%s: %s %s", name, scope["method"], route.path if route is not None else "", exc_info=error)

    async def _nothing(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell who may know that there is nothing; others are asked for a token first."""
        del receive, send
        self.guard.admit(scope, Needed.READ)
        raise Problem(404, "not_found", "there is nothing at this path", "GET /openapi.json lists what there is")


async def _live(receive: Receive, send: Send) -> None:
    """Take part in a server's lifespan; there is nothing to do for it."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
