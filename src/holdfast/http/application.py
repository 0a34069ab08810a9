"""The ASGI application: every request's way from the first byte to the last, and what becomes of what goes wrong.

It needs no lifespan, works under any mount prefix, and shares the store of the client it is given. What can go wrong: a
handler raises what nobody foresaw. Then the client gets an id, and the same id is logged with the traceback.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from starlette.routing import Match

from holdfast.client.interface import Client
from holdfast.errors import HoldfastError
from holdfast.http.auth import HEADS, Guard
from holdfast.http.metrics import Metrics
from holdfast.http.problems import Problem, problem_of
from holdfast.http.readiness import Readiness
from holdfast.http.request_limits import Limits, check_request, heads_of
from holdfast.http.response import Receive, Scope, Send
from holdfast.http.route import Operation
from holdfast.http.routes import routes
from holdfast.http.streams import Hub
from holdfast.http.tokens import Keyring
from holdfast.http.tokens import Scope as Needed
from holdfast.ids import new_id

__all__ = ["Service"]

_log = logging.getLogger("holdfast.http")


class Service:
    """An ASGI application over one client; `workers` are those that run beside it and are part of its readiness."""

    def __init__(
        self,
        client: Client,
        keys: Keyring,
        hosts: Iterable[str] = (),
        limits: Limits | None = None,
        workers: Sequence[str] = (),
    ) -> None:
        self.client = client
        self.limits = limits or Limits()
        self.guard = Guard(keys, hosts)
        self.hub = Hub(client, self.limits)
        self.metrics = Metrics()
        self.readiness = Readiness(client, workers)
        self._table = routes()
        # A path that is a route's own, letter by letter, need not be looked at again nor looked up.
        self._plain = {(one.method, one.path.encode()): one for one in self._table if "{" not in one.path}

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
        status = 499  # unless there is an answer: it was called off
        try:
            try:
                check_request(scope, self.limits)
                scope[HEADS] = heads_of(scope)
                answer = await self._route(scope).answer(self, scope, receive)
            except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer and no traceback
                answer = self._problem(scope, error).answer()
            status = answer.status
        finally:
            route = scope.get("route")
            self.metrics.count(route.path if route is not None else "(none)", scope["method"], status)
        await answer.send(send)

    def _route(self, scope: Scope) -> Operation:
        """Find the route object: of this method, or of another, which will say so; or say that there is none."""
        plain = self._plain.get((scope["method"], scope.get("raw_path", b""))) if not scope.get("root_path") else None
        if plain is not None:
            scope["route"] = plain
            return plain
        self.guard.check_path(scope)
        nearly: tuple[Operation, Scope] | None = None
        for route in self._table:
            match, found = route.matches(scope)
            if match is Match.FULL:
                nearly = (route, found)
                break
            if match is Match.PARTIAL and nearly is None:
                nearly = (route, found)
        if nearly is None:
            self.guard.admit(scope, Needed.READ)  # who may not look is not told what there is
            raise Problem(404, "not_found", "there is nothing at this path", "GET /openapi.json lists what there is")
        scope["route"] = nearly[0]
        scope.update(nearly[1])
        return nearly[0]

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


async def _live(receive: Receive, send: Send) -> None:
    """Take part in a server's lifespan; there is nothing to do for it."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
