"""A route object: method, path, the scope it needs, its handler, and what it takes and gives.

There is no default scope: a route that is open says so. Nor is there one for tokens that are bound to a group: what
such a token may do with it, each route says.

The server routes by these objects, the guard asks them who may come in, and the OpenAPI document is made from them: so
the three cannot differ.
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
from holdfast.http.problems import Problem
from holdfast.http.request import Call, Query
from holdfast.http.tokens import Scope as Needed

__all__ = ["PUBLIC", "Bound", "Many", "Operation", "Text"]

PUBLIC: Final = None  # written out where a route is open to everybody

Handler = Callable[[Call], Awaitable[Response]]


class Bound(StrEnum):
    """What a token that is bound to a group may do with a route; its words are those of the reference."""

    RUN = "own runs"  # of the run that the path names, which is looked at here, before the handler is called
    OWN = "own"  # of its group: the handler sees to it
    FREE = "yes"  # nobody's runs are told of
    NEVER = "no"  # it is about the whole store


class Many(msgspec.Struct, frozen=True):
    """A list of these, with where the next page begins."""

    item: Any


class Text(msgspec.Struct, frozen=True):
    """An answer that is no JSON."""

    media_type: str


class Operation(Route):
    """One method of one path.

    Attributes:
        needed: the scope that it needs; `PUBLIC` is for everybody.
        bound: what a token that is bound to a group may do with it.
        handler: what answers.
        summary: one line about it.
        gives: by status, what is answered: a type, `Many` of one, or `Text`.
        takes: the type of the body; None is no body.
        optional: whether the body may be left out.
        query: what the query may have.
        allow: all methods of this path, for whoever uses another.
    """

    def __init__(  # noqa: PLR0913 - it is a row of a table
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
    ) -> None:
        super().__init__(path, handler, methods=[method], name=handler.__name__)
        if ("id" in self.param_convertors) is not (bound is Bound.RUN):
            raise ValueError(f"{path}: a path that names a run is for own runs, and no other is")
        self.method, self.bound = method, bound
        self.needed, self.handler, self.summary = needed, handler, summary
        self.gives, self.takes, self.optional, self.query = gives, takes, optional, tuple(query)
        self.allow: list[str] = [method]

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Authenticate, call the handler, and send what it returns."""
        scope["route"] = self
        request = Request(scope, receive)
        principal = request.app.guard.admit(scope, self.needed)
        if self.methods is not None and request.method not in self.methods:
            allow = ", ".join(self.allow)
            raise Problem(
                405, "method_not_allowed", f"this path takes {allow}", "see /openapi.json",
                headers=[(b"allow", allow.encode())],
            )  # fmt: skip
        call = Call(request, principal)
        if scope["query_string"] and not self.query:
            call.query(())  # a query that means nothing here is a mistake
        response = await (self.handler(call) if principal.group is None else self._answer_bound(call))
        await response(scope, receive, send)

    async def _answer_bound(self, call: Call) -> Response:
        """Answer who may see the runs of one group alone."""
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
                409, "idempotency_conflict", f"the key {error.key!r} was used before, for another run",
                "use another key", params={"key": error.key, "job": ""},  # whose run it is, is not told
            ) from None  # fmt: skip
