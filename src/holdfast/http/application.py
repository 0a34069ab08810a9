"""The ASGI application, built on Starlette: middleware counts, checks and refuses requests before they reach a route.

The application needs no lifespan and works under any mount prefix. It shares the store of the client that the caller
passes. A handler can raise an unexpected error. The HTTP client then gets an id, and the log has the same id with the
traceback.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Sequence

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from holdfast.client.app import App
from holdfast.errors import HoldfastError
from holdfast.http.auth import HEADS, Guard
from holdfast.http.connections import Connections
from holdfast.http.maintenance import Maintenance
from holdfast.http.metrics import Metrics
from holdfast.http.page import page_routes
from holdfast.http.problems import Problem, problem_of
from holdfast.http.readiness import Readiness
from holdfast.http.request_limits import Limits, check_request, heads_of
from holdfast.http.response import Answer
from holdfast.http.route import Operation
from holdfast.http.routes import routes
from holdfast.http.shared_reads import SharedReads
from holdfast.http.streams import Hub
from holdfast.http.tokens import Keyring
from holdfast.http.tokens import Scope as Needed
from holdfast.ids import new_id

CALLED_OFF = 499  # status counted for a request that ended without a response

REQUEST_ID = "holdfast.request_id"  # scope key of the id of a request
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,100}\Z", re.ASCII)

_log = logging.getLogger("holdfast.http")


class Service(Starlette):
    """An ASGI application over one client.

    `workers` names worker processes that are part of its readiness. `page` adds the dashboard at the root.
    """

    def __init__(
        self,
        client: App,
        keys: Keyring,
        hosts: Iterable[str] = (),
        limits: Limits | None = None,
        workers: Sequence[str] = (),
        *,
        page: bool = True,
    ) -> None:
        self.client = client
        self.limits = limits or Limits()
        self.guard = Guard(keys, hosts)
        self.hub = Hub(client, self.limits)
        self.shared = SharedReads(client)
        self.metrics = Metrics()
        self.connections: Connections | None = None  # of Holdfast's own server
        self.readiness = Readiness(client, workers)
        self.maintenance = Maintenance(client)
        self._turn = asyncio.Lock()
        self._turn_loop: asyncio.AbstractEventLoop | None = None
        super().__init__(
            routes=[*routes(), *(page_routes() if page else ())],
            middleware=[
                Middleware(_RequestCounter, metrics=self.metrics, maintenance=self.maintenance),
                Middleware(_RequestChecks, limits=self.limits, guard=self.guard),
            ],
        )
        self.router.redirect_slashes = False
        self.router.default = self._not_found

    def build_middleware_stack(self) -> ASGIApp:
        """Chain the middleware. Starlette's own, which answers errors, is left out: `_RequestCounter` does that."""
        app: ASGIApp = self.router
        for middleware, arguments, options in reversed(self.user_middleware):
            app = middleware(app, *arguments, **options)
        return app

    def large_turn(self) -> asyncio.Lock:
        """Return the lock of requests with large bodies, for the current event loop."""
        loop = asyncio.get_running_loop()
        if loop is not self._turn_loop:
            self._turn, self._turn_loop = asyncio.Lock(), loop
        return self._turn

    def stop(self) -> None:
        """Report not ready and end all streams, because the server shuts down."""
        self.readiness.stopping = True
        self.maintenance.stop()
        self.hub.stop()

    async def _not_found(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await WebSocketClose(1008)(scope, receive, send)
            return
        self.guard.admit(scope, Needed.READ)  # a client without a token must not learn which paths exist
        raise Problem(404, "not_found", "no route has this path", "GET /openapi.json lists the routes")


class _RequestCounter:
    """Middleware that gives each request an id, answers errors, and counts requests by route, method and status."""

    def __init__(self, app: ASGIApp, metrics: Metrics, maintenance: Maintenance) -> None:
        self.app, self.metrics, self.maintenance = app, metrics, maintenance

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        self.maintenance.look()
        counted = False
        request_id = _request_id(scope)
        scope[REQUEST_ID] = request_id

        def count(status: int) -> None:
            nonlocal counted
            counted = True
            self.metrics.count(_path_of(scope) or "(none)", scope["method"], status)

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                count(message["status"])
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self.app(scope, receive, send_counted)
        except Exception as error:
            if counted:
                raise  # the response has begun: the server logs the error, and closes the connection
            await _refusal(scope, error)(scope, receive, send_counted)
        finally:
            if not counted:
                count(CALLED_OFF)


class _RequestChecks:
    """Middleware that refuses a request by its size, headers or path form, before the router looks up the route."""

    def __init__(self, app: ASGIApp, limits: Limits, guard: Guard) -> None:
        self.app, self.limits, self.guard = app, limits, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            check_request(scope, self.limits)
            scope[HEADS] = heads_of(scope)
            self.guard.check_path(scope)
        await self.app(scope, receive, send)


def _refusal(scope: Scope, error: Exception) -> Answer:
    """Return the problem response for an error. An unexpected error gets an id that is also in the log."""
    if isinstance(error, Problem):
        return error.answer()
    known = problem_of(error) if isinstance(error, HoldfastError) else None
    if known is not None and known.status < 500:  # noqa: PLR2004 - 4xx: the client's mistake
        return known.answer()
    name = scope[REQUEST_ID]
    _log.error("%s: %s %s", name, scope["method"], _path_of(scope), exc_info=error)
    if known is not None:
        known.parts["id"] = name
        return known.answer()
    problem = Problem(
        500,
        "internal_error",
        "internal server error",
        "give the operator the id; the log has the error with the same id",
        id=name,
    )
    return problem.answer()


def _request_id(scope: Scope) -> str:
    """Return the id that the client or a proxy sent, if it is a short plain text, else a new one."""
    sent = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode("latin-1")
    return sent if _ID.match(sent) else new_id()


def _path_of(scope: Scope) -> str:
    """Return the path of the matched route, or "" if the match is a route of the app that mounts this one."""
    route = scope.get("route")
    return route.path if isinstance(route, Operation) else ""
