"""A route object: method, path, the scope it needs, its handler, and what it takes and gives.

There is no default scope: a route that is open says so.

The server routes by these objects, the guard asks them who may come in, and the OpenAPI document is made from them: so
the three cannot differ.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.routing import Route

from holdfast.surfaces.http.answers import Answer, Receive, Scope
from holdfast.surfaces.http.calls import Call, Query
from holdfast.surfaces.http.problems import Problem
from holdfast.surfaces.http.tokens import Scope as Needed

if TYPE_CHECKING:
    from holdfast.surfaces.http.service import Service

__all__ = ["PUBLIC", "Many", "Operation", "Text"]

PUBLIC: Final = None  # written out where a route is open to everybody

Handler = Callable[[Call], Awaitable[Answer]]


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
        handler: Handler,
        summary: str,
        gives: dict[int, Any],
        *,
        takes: Any = None,
        optional: bool = False,
        query: Sequence[Query] = (),
    ) -> None:
        super().__init__(path, handler, methods=[method], name=handler.__name__)
        self.method = method
        self.needed, self.handler, self.summary = needed, handler, summary
        self.gives, self.takes, self.optional, self.query = gives, takes, optional, tuple(query)
        self.allow: list[str] = [method]

    def answer(self, service: Service, scope: Scope, receive: Receive) -> Awaitable[Answer]:
        """Let in who may come in, and have him answered."""
        principal = service.guard.admit(scope, self.needed)
        if self.methods is not None and scope["method"] not in self.methods:
            allow = ", ".join(self.allow)
            raise Problem(
                405, "method_not_allowed", f"this path takes {allow}", "see /openapi.json",
                headers=[(b"allow", allow.encode())],
            )  # fmt: skip
        call = Call(service, scope, receive, principal)
        if scope["query_string"] and not self.query:
            call.query(())  # a query that means nothing here is a mistake
        return self.handler(call)
