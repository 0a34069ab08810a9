"""How code ended, as the event to write for it: completed, failed for good, or to be tried again (SPEC E10, J11).

What errors say is redacted, and only then cut to its length: half a secret is one, too.
"""

from __future__ import annotations

import random
import traceback
from typing import Any

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

__all__ = ["Written", "completed", "failed", "words"]

# Trying the whole job again cannot change these: they say so themselves, or their cause is recorded.
FINAL = (Permanent, StepFailed, NonDeterminism, InvalidArguments, InvalidResult, PayloadTooLarge)
MESSAGE_MAX = 2000
TRACEBACK_MAX = 4000

Written = tuple[str, dict[str, Any]]


def completed(function: JobFunction[..., Any], value: Any, failures: int, now: float, bytes_max: int) -> Written:
    """The code returned; if what it returned cannot be kept, that is a failure."""
    try:
        return JobEvent.COMPLETED.value, {"result": function.signature.encode_result(value, bytes_max)}
    except (InvalidResult, PayloadTooLarge) as error:
        return failed(function, error, failures, now)


def failed(function: JobFunction[..., Any], error: BaseException, failures: int, now: float) -> Written:
    """The code raised, for the n-th time in this run: a retry while the policy has one left, else the end."""
    said = {"code": type(error).__name__, "message": words(error)}
    backoff = function.backoff
    if failures <= backoff.retries and isinstance(error, backoff.only) and not isinstance(error, FINAL):
        not_before = now + backoff.delay_seconds(failures, random.random())  # noqa: S311 - only spreads load
        return JobEvent.REQUEUED.value, {"reason": "retry", "not_before": not_before, "error": said}
    trace = _writable("".join(traceback.format_exception(error)))[-TRACEBACK_MAX:]
    ended = {"reason": "error", **said, "error": said, "details": {"traceback": trace}}
    nodes = _failed_calls(error)
    return JobEvent.FAILED.value, {**ended, "nodes": nodes} if nodes else ended


def _failed_calls(error: BaseException | None) -> list[str]:
    """The calls whose failure ended the job: an operator's retry makes them again. One in doubt is never among them."""
    if isinstance(error, BaseExceptionGroup):
        return [node for one in error.exceptions for node in _failed_calls(one)]
    if isinstance(error, StepFailed) and not isinstance(error, PlanFailed):
        return [error.node] if error.node and not isinstance(error, InDoubt) else []
    return _failed_calls(error.__cause__) if error is not None else []


def words(error: BaseException) -> str:
    """Give the text of a user's error, in a form that can be kept, whatever it does when it is asked."""
    try:
        return _writable(str(error))[:MESSAGE_MAX]
    except Exception as worse:  # noqa: BLE001 - an error that cannot say what it is still has a name
        return f"(its text cannot be read: {type(worse).__name__})"


def _writable(text: str) -> str:
    return redacted(text).encode(errors="backslashreplace").decode()
