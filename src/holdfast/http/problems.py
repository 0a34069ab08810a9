"""What a client is told when something is refused: `application/problem+json`, with a code, a sentence and a cure.

The fields of an error of ours are in `params`, by name, so that a client builds the same error and never reads the
text.

A client is never told more than it could have known: no traceback, no SQL, no path, no address of a database. So an
error of the store has no params. What we did not foresee is answered with an id, and logged with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast import errors
from holdfast.errors import HoldfastError, TransitionRefused
from holdfast.http.response import Answer

__all__ = ["STATUSES", "Problem", "ProblemBody", "problem_of"]

RETRY_SECONDS = 2  # when to come back if the store is away

# What each of our errors is over HTTP: its status, and what to do about it.
STATUSES: list[tuple[type[HoldfastError], int, str]] = [
    (errors.UnknownJob, 404, "check the id, and which server you ask"),
    (errors.UnknownEntry, 404, "GET /api/v1/entries lists the jobs that this server knows"),
    (errors.InvalidPlan, 422, "mend all of `problems`; `holdfast plan check` finds the same before it is sent"),
    (errors.InvalidArguments, 422, "GET /api/v1/entries has a JSON Schema of each job's arguments"),
    (errors.PayloadTooLarge, 413, "keep the data elsewhere and pass a reference to it"),
    (errors.IdempotencyConflict, 409, "use another key, or the same arguments"),
    (errors.NotInDoubt, 409, "GET the run's explanation for what it waits for"),
    (errors.TransitionRefused, 409, "GET the run: its status says what it can still become"),
    (errors.StaleAttempt, 409, "the job has another owner now"),
    (errors.QueueFull, 429, "try again when Retry-After says so"),
]


class ProblemBody(msgspec.Struct, omit_defaults=True):
    """A refusal.

    Attributes:
        type: always about:blank; `code` tells problems apart.
        title: what the status means.
        status: the HTTP status again.
        code: the name of the condition, for programs: of an error of ours, its class in snake_case.
        message: what is wrong, for people.
        hint: what to do about it.
        params: the fields of the error that `code` names, by name.
        id: for an internal error, the name under which it was logged.
        machine: for a refused transition, which state machine refused.
        current: the state it is in.
        target: the state or event that was asked for.
        plan: for a plan that cannot run, its name.
        problems: and all that is wrong with it, each with its place.
    """

    title: str
    status: int
    code: str
    message: str
    type: str = msgspec.field(default_factory=lambda: "about:blank")
    hint: str = ""
    params: dict[str, Any] = {}
    id: str | None = None
    machine: str | None = None
    current: str | None = None
    target: str | None = None
    plan: str | None = None
    problems: list[str] | None = None


class Problem(Exception):
    """A refusal on its way to the client."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        hint: str = "",
        *,
        headers: Sequence[tuple[bytes, bytes]] = (),
        **parts: Any,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.hint = status, code, message, hint
        self.headers, self.parts = headers, parts

    def answer(self) -> Answer:
        """Give it as an answer."""
        title = _TITLES.get(self.status, "Refused")
        body = ProblemBody(title, self.status, self.code, self.message, hint=self.hint, **self.parts)
        return Answer(self.status, msgspec.json.encode(body), b"application/problem+json", self.headers)


_TITLES = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    413: "Content Too Large",
    414: "URI Too Long",
    415: "Unsupported Media Type",
    421: "Misdirected Request",
    422: "Unprocessable Content",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


def problem_of(error: HoldfastError) -> Problem | None:
    """Give the refusal that an error of ours is to a client; None if it is nothing that a client has done."""
    if isinstance(error, errors.StoreUnavailable):
        return Problem(
            503, "store_unavailable", "the store cannot be used now; nothing was written", "try again in a moment",
            headers=[(b"retry-after", str(RETRY_SECONDS).encode())],
        )  # fmt: skip
    for kind, status, hint in STATUSES:
        if isinstance(error, kind):
            code, params = errors.code_of(type(error)), errors.params_of(error)
            return Problem(status, code, str(error), hint, headers=_headers(error), params=params, **_parts(error))
    return None


def _headers(error: HoldfastError) -> list[tuple[bytes, bytes]]:
    if not isinstance(error, errors.QueueFull):
        return []
    return [(b"retry-after", str(max(1, math.ceil(error.retry_after_seconds))).encode())]


def _parts(error: HoldfastError) -> dict[str, Any]:
    """Return the fields that stand outside `params` as well, where older clients read them."""
    if isinstance(error, errors.InvalidPlan):
        return {"plan": error.plan, "problems": error.problems}
    if not isinstance(error, TransitionRefused):
        return {}
    current = str(error.current) if error.current is not None else None
    return {"machine": error.machine, "current": current, "target": str(error.target or error.event)}
