"""A route object: method, path, needed scope, handler, and the types of its request and responses.

There is no default scope. A public route declares itself public. Every route also declares what a token that is bound
to a group may do with it.

The router, the guard and the OpenAPI document all use these objects, so the three cannot differ.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from holdfast.errors import IdempotencyConflict
from holdfast.http.auth import TOKEN
from holdfast.http.problems import Problem
from holdfast.http.request import Call, Query
from holdfast.http.tokens import Scope as Needed
from holdfast.store.audit import Acting, acting
from holdfast.store.request_keys import request_key

PUBLIC: Final = None  # a public route names it explicitly

Handler = Callable[[Call], Awaitable[Response]]


class Bound(StrEnum):
    """What a token that is bound to a group may do with a route. The reference shows the values."""

    RUN = "own runs"  # the path names a run; the route checks its group before it calls the handler
    OWN = "own"  # its own group only; the handler enforces it
    FREE = "yes"  # the response has no data of runs
    NEVER = "no"  # the route covers the whole store


class Many(msgspec.Struct, frozen=True):
    """A page of items, with the cursor of the next page."""

    item: Any


class Text(msgspec.Struct, frozen=True):
    """A response of any content. `others` are media types that it may have instead."""

    media_type: str
    others: tuple[str, ...] = ()


class Operation(Route):
    """A route: one method of one path.

    Attributes:
        needed: the scope that the token needs; `PUBLIC` needs no token.
        bound: what a token that is bound to a group may do with it.
        handler: the function that returns the response.
        summary: its one-line description in the OpenAPI document.
        gives: the response by status: a type, `Many` of a type, or `Text`.
        takes: the type of the request body; None means no body.
        optional: whether the client may leave the body out.
        query: the allowed query parameters.
        refuses: statuses of refusals that follow from what the handler does, such as 409. The OpenAPI document adds
            those that follow from the route itself.
        example: a request body, for the OpenAPI document.
        allow: all methods of this path, for the Allow header of a 405 response.
    """

    def __init__(  # noqa: PLR0913 - a row of the route table
        self,
        method: str,
        path: str,
        needed: Needed | None,
        bound: Bound,
        handler: Handler,
        summary: str,
        gives: dict[int, Any],
        *,
        takes: Any = None,
        optional: bool = False,
        query: Sequence[Query] = (),
        refuses: Sequence[int] = (),
        example: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(path, handler, methods=[method], name=handler.__name__)
        if ("id" in self.param_convertors) is not (bound is Bound.RUN):
            raise ValueError(f"{path}: a path with a run id must have Bound.RUN, and other paths must not")
        self.method, self.bound = method, bound
        self.needed, self.handler, self.summary = needed, handler, summary
        self.gives, self.takes, self.optional, self.query = gives, takes, optional, tuple(query)
        self.refuses, self.example = tuple(refuses), example
        self.allow: list[str] = [method]

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Authenticate the client, call the handler, and send its response."""
        scope["route"] = self
        request = Request(scope, receive)
        principal = request.app.guard.admit(scope, self.needed)
        if self.methods is not None and request.method not in self.methods:
            allow = ", ".join(self.allow)
            raise Problem(
                405, "method_not_allowed", f"the path accepts {allow}", "see /openapi.json",
                headers=[(b"allow", allow.encode())],
            )  # fmt: skip
        call = Call(request, principal)
        if scope["query_string"] and not self.query:
            call.query(())  # refuses any parameter: a query without meaning is a mistake
        key = request_key.set(None)
        outer = acting.set(Acting(principal.actor, creations=principal.actor.startswith(TOKEN)))
        try:
            response = await (self.handler(call) if principal.group is None else self._answer_bound(call))
        finally:
            acting.reset(outer)
            request_key.reset(key)
            call.close()
        await response(scope, receive, send)

    async def _answer_bound(self, call: Call) -> Response:
        """Return the response for a token that is bound to a group."""
        if self.bound is Bound.NEVER:
            raise call.whole_store()
        if self.bound is Bound.RUN:
            await call.check_own(call.run_id)
        try:
            return await self.handler(call)
        except IdempotencyConflict as error:
            if await call.owns(error.job):
                raise
            raise Problem(
                409, "idempotency_conflict", f"another run already has the key {error.key!r}",
                "use another key", params={"key": error.key, "job": ""},  # hides the run of another group
            ) from None  # fmt: skip
