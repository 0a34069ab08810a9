"""The event for the way a job's code ended: completed, failed, or to be retried (SPEC E10, J11).

There is an event for every result and every error. Results and errors are the user's objects, and reading one may raise
anything. The event then says so instead.

The text of an error is redacted before it is cut to its maximum length, because half a secret is still a secret.
"""

from __future__ import annotations

import random
import traceback
from typing import Any

from msgspec.structs import asdict

from holdfast.authoring.functions import JobFunction
from holdfast.authoring.redaction import redacted
from holdfast.errors import (
    InDoubt,
    InvalidArguments,
    InvalidResult,
    NonDeterminism,
    PayloadTooLarge,
    Permanent,
    PlanFailed,
    StepFailed,
)
from holdfast.machines import JobEvent
from holdfast.store.result_blobs import FIELD, reference

# Retrying the whole job cannot change these: they are declared final, or their cause is recorded.
FINAL = (Permanent, StepFailed, NonDeterminism, InvalidArguments, InvalidResult, PayloadTooLarge)
MESSAGE_MAX = 2000
TRACEBACK_MAX = 4000
KIND_MAX = 200

Written = tuple[str, dict[str, Any]]


def completed(
    function: JobFunction[..., Any], value: Any, failures: int, now: float, event_max: int, bytes_max: int
) -> tuple[Written, bytes | None]:
    """Return the event for code that returned, and the JSON of a result that is too large for it.

    A result that cannot be stored is a failure.
    """
    try:
        result, content = function.signature.encode_large(value, event_max, bytes_max, may_extend=True)
    except Exception as error:  # InvalidResult, PayloadTooLarge, SecretUnavailable: the code's failure
        return failed(function, error, failures, now), None
    if content is None:
        return (JobEvent.COMPLETED.value, {"result": result}), None
    return (JobEvent.COMPLETED.value, {"result": None, FIELD: asdict(reference(content))}), content


def failed(function: JobFunction[..., Any], error: BaseException, failures: int, now: float) -> Written:
    """Return the event for code that raised for the n-th time in this run: a retry if allowed, else the end."""
    failure = {"code": kind_of(error), "message": error_text(error)}
    backoff = function.backoff
    if failures <= backoff.retries and _retryable(error, backoff.only):
        not_before = now + backoff.delay_seconds(failures, random.random())  # noqa: S311 - only spreads load
        return JobEvent.REQUEUED.value, {"reason": "retry", "not_before": not_before, "error": failure}
    ended = {"reason": "error", **failure, "error": failure, "details": {"traceback": trace_of(error)}}
    nodes = _failed_calls(error)
    return JobEvent.FAILED.value, {**ended, "nodes": nodes} if nodes else ended


def _retryable(error: BaseException, only: tuple[type[BaseException], ...]) -> bool:
    if issubclass(type(error), FINAL):
        return False
    try:
        return isinstance(error, only)
    except BaseException:  # a class may override the instance check
        return False


def _failed_calls(error: BaseException) -> list[str]:
    """List the calls whose failure ended the job. An operator's retry repeats them. Calls in doubt are not listed."""
    nodes: list[str] = []
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    try:
        while left:
            cause = left.pop()
            if cause is None or id(cause) in seen:  # causes may form a cycle
                continue
            seen.add(id(cause))
            if isinstance(cause, BaseExceptionGroup):
                left += reversed(cause.exceptions)
            elif not isinstance(cause, StepFailed) or isinstance(cause, PlanFailed):
                left.append(cause.__cause__)
            elif cause.node and not isinstance(cause, InDoubt):
                nodes.append(_writable(str(cause.node)))
    except BaseException:  # a user's subclass may raise when it is read; the calls found so far count
        return nodes
    return nodes


def kind_of(error: BaseException) -> str:
    """Return the name of an error's class in a form that can be stored."""
    try:
        return _writable(str.__str__(type(error).__name__))[:KIND_MAX]
    except BaseException:  # a metaclass may raise
        return "Exception"


def error_text(error: BaseException) -> str:
    """Return the text of a user's error in a form that can be stored, even if reading it raises."""
    try:
        text = str.__str__(str(error))  # str() may return a subclass with its own methods
        if isinstance(error, BaseExceptionGroup):
            text += ": " + "; ".join(f"{kind_of(part)}: {error_text(part)}" for part in error.exceptions)
        return _writable(text)[:MESSAGE_MAX]
    except BaseException as worse:  # an error whose text cannot be read still has a name
        return f"(its text cannot be read: {kind_of(worse)})"


def trace_of(error: BaseException) -> str:
    """Return an error's traceback in a form that can be stored."""
    try:
        return _writable("".join(traceback.format_exception(error)))[-TRACEBACK_MAX:]
    except BaseException as worse:  # formatting reads the error, its causes and their classes
        return f"(its traceback cannot be read: {kind_of(worse)})"


def _writable(text: str) -> str:
    return redacted(text).encode(errors="backslashreplace").decode()
