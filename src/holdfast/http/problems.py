"""Error responses: `application/problem+json` (RFC 9457) with a code, a description and a hint.

`params` has the fields of a Holdfast error by name. A client builds the same error from them and never parses the text.

A response never discloses internals: no traceback, no SQL, no path, no database address. So an error of the store has
no params. The response to an unexpected error has an id, and the log has the error with the same id.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast import errors
from holdfast.errors import HoldfastError, TransitionRefused
from holdfast.http.response import Answer

RETRY_SECONDS = 2  # Retry-After while the store does not answer
TYPE = "urn:holdfast:problem:"  # prefix of `type`, before the code

# The codes of each status. The OpenAPI document and the reference list them.
CODES: dict[int, tuple[str, ...]] = {
    400: ("invalid_path", "invalid_header", "invalid_query", "invalid_json", "bad_request"),
    401: ("unauthorized",),
    403: ("forbidden", "foreign_origin"),
    404: ("not_found", "unknown_job", "unknown_entry", "unknown_build", "unknown_schedule", "no_plan"),
    405: ("method_not_allowed",),
    408: ("request_timeout",),
    409: (
        "transition_refused", "invalid_transition", "invalid_run_transition", "idempotency_conflict", "not_in_doubt",
        "question_closed", "schedule_exists", "stale_attempt",
    ),
    412: ("limits_changed",),
    413: ("body_too_large", "payload_too_large", "json_too_large"),
    414: ("path_too_long", "query_too_long"),
    415: ("unsupported_media_type",),
    421: ("unknown_host",),
    422: ("invalid_arguments", "idempotency_key_reused", "invalid_plan", "json_too_deep", "number_too_long"),
    429: ("queue_full", "too_many_requests"),
    431: ("headers_too_large",),
    500: ("internal_error",),
    503: ("store_unavailable", "too_many_requests"),
}  # fmt: skip

# The HTTP status and the hint of each Holdfast error. The first row whose class matches applies.
STATUSES: list[tuple[type[HoldfastError], int, str]] = [
    (errors.UnknownJob, 404, "check the id and the server"),
    (errors.UnknownBuild, 404, "GET /api/v1/builds lists the builds"),
    (errors.UnknownEntry, 404, "GET /api/v1/entries lists the jobs that this server knows"),
    (errors.UnknownSchedule, 404, "GET /api/v1/schedules lists the schedules"),
    (errors.ScheduleExists, 409, "use another name, or change the schedule"),
    (
        errors.InvalidPlan,
        422,
        "fix all `problems`; `holdfast plan check` reports the same problems before you send the plan",
    ),
    (errors.InvalidArguments, 422, "correct it and send it again; nothing was stored"),
    (errors.PayloadTooLarge, 413, "store the data elsewhere and send a reference to it"),
    (errors.IdempotencyConflict, 409, "use another key, or the same arguments"),
    (errors.IdempotencyKeyReused, 422, "send a new key with each request, and the same key only with a repeat of it"),
    (errors.NotInDoubt, 409, "GET the run's explanation: it says what the run waits for"),
    (errors.QuestionClosed, 409, "GET /api/v1/inbox lists the open questions"),
    (errors.TransitionRefused, 409, "GET the run: its status decides which actions are allowed"),
    (errors.StaleAttempt, 409, "another worker holds the job now"),
    (errors.LimitsChanged, 412, "GET the limits of the queue, and send their new ETag"),
    (errors.QueueFull, 429, "try again after the seconds in Retry-After"),
]


class ProblemBody(msgspec.Struct, omit_defaults=True):
    """The body of an error response.

    Attributes:
        type: the code as a URI.
        title: the meaning of the status.
        status: the HTTP status of the response.
        code: the name of the condition, for programs. For a Holdfast error it is the class name in snake_case.
        detail: what is wrong, for people.
        message: the same text as `detail`, under the name that earlier clients read.
        hint: what to do about it.
        params: the fields of the error that `code` names, by name.
        id: for an internal error, the id of its log entry.
        machine: for a refused transition, the state machine that refused it.
        current: for a refused transition, the current state.
        target: for a refused transition, the requested state or event.
        plan: for a plan that cannot run, its name.
        problems: for a plan that cannot run, all its problems, each with its place.
    """

    title: str
    status: int
    code: str
    detail: str
    message: str
    type: str
    hint: str = ""
    params: dict[str, Any] = {}
    id: str | None = None
    machine: str | None = None
    current: str | None = None
    target: str | None = None
    plan: str | None = None
    problems: list[str] | None = None


class Problem(Exception):
    """An error that the server sends to the client as a problem response."""

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

    @property
    def title(self) -> str:
        """The meaning of the status."""
        return TITLES.get(self.status, "Refused")

    def body(self) -> ProblemBody:
        """Return the body of the problem response."""
        return ProblemBody(
            title=self.title,
            status=self.status,
            code=self.code,
            detail=self.message,
            message=self.message,
            type=TYPE + self.code,
            hint=self.hint,
            **self.parts,
        )

    def raw(self) -> bytes:
        """Return the bytes of a problem response that ends the connection."""
        answer = self.answer()
        heads = b"".join(b"%b: %b\r\n" % pair for pair in [*answer.raw_headers, (b"connection", b"close")])
        return b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (answer.status_code, self.title.encode(), heads, bytes(answer.body))

    def answer(self) -> Answer:
        """Return the problem response."""
        return Answer(self.status, msgspec.json.encode(self.body()), b"application/problem+json", self.headers)


TITLES = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    412: "Precondition Failed",
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
    """Return the problem of a Holdfast error, or None if it is internal: `STATUSES` has no row for it."""
    if isinstance(error, errors.StoreUnavailable):
        return Problem(
            503, "store_unavailable", "the store is unavailable; nothing was written", "try again later",
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
    """Return the fields that the body has outside `params` too. Older clients read them there."""
    if isinstance(error, errors.InvalidPlan):
        return {"plan": error.plan, "problems": error.problems}
    if not isinstance(error, TransitionRefused):
        return {}
    current = str(error.current) if error.current is not None else None
    return {"machine": error.machine, "current": current, "target": str(error.target or error.event)}
