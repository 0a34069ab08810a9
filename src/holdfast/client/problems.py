"""What a server answers when it refuses, as the error that the same call on an app would have raised.

A problem names its condition, ``unknown_job``, and carries the parts of it as fields beside the message. A field that a
server leaves out is filled in as well as can be: the class is what programs decide by, the message what people read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast import errors

__all__ = ["error_of"]

Fields = dict[str, Any]

# By code: the error made from a problem's fields. `message` is always among them.
_MADE: dict[str, Callable[[Fields], Exception]] = {
    "unknown_job": lambda said: errors.UnknownJob(said.get("job") or said.get("run_id") or said["asked"]),
    "unknown_entry": lambda said: errors.UnknownEntry(said.get("name") or said["asked"], list(said.get("known") or [])),
    "invalid_arguments": lambda said: errors.InvalidArguments(*_unfit(said)),
    "invalid_result": lambda said: errors.InvalidResult(*_unfit(said)),
    "payload_too_large": lambda said: errors.PayloadTooLarge(
        said.get("what") or "the request", int(said.get("size") or 0), int(said.get("limit") or 0)
    ),
    "idempotency_conflict": lambda said: errors.IdempotencyConflict(
        said.get("key") or said["asked"], said.get("job") or ""
    ),
    "effect_conflict": lambda said: errors.EffectConflict(said.get("job") or said["asked"], said.get("node") or ""),
    "not_in_doubt": lambda said: errors.NotInDoubt(said.get("job") or said["asked"], said.get("node") or ""),
    "invalid_transition": lambda said: _refused(errors.InvalidTransition, said),
    "invalid_run_transition": lambda said: _refused(errors.InvalidRunTransition, said),
    "invalid_event": lambda said: errors.InvalidEvent(said["message"]),
    "invalid_setting": lambda said: errors.InvalidSetting(
        said.get("name") or "server", said.get("value"), said.get("reason") or said["message"]
    ),
    "stale_attempt": lambda said: errors.StaleAttempt(
        said.get("job") or said["asked"], int(said.get("attempt") or 0), int(said.get("current") or 0)
    ),
    "unauthorized": lambda said: errors.NotAllowed(_with_hint(said)),
    "forbidden": lambda said: errors.NotAllowed(_with_hint(said)),
    "store_unavailable": lambda said: errors.StoreUnavailable(said["message"]),
    "unprocessable": lambda said: errors.InvalidArguments(*_unfit(said)),
}
_BY_STATUS = {401: "unauthorized", 403: "forbidden", 413: "payload_too_large", 422: "invalid_arguments"}


def error_of(status: int, body: bytes, asked: str, server: str) -> Exception:
    """Make the error that an answer tells of.

    Args:
        status: the answer's.
        body: a problem document; anything else comes from something between, or from no Holdfast server.
        asked: what the request was about, for fields that are left out.
        server: its address, for the message.
    """
    said = _fields(body)
    if said is None:
        return errors.StoreUnavailable(
            f"{server} answers {status} and not as Holdfast does: is that the address of a Holdfast server?"
        )
    said = {"message": f"it answers {status}", **said, "asked": asked}
    code = str(said.get("code") or "")
    make = _MADE.get(code) or _MADE.get(_BY_STATUS.get(status, ""))
    if make is not None:
        return make(said)
    text = f"{server}: {_with_hint(said)}"
    return errors.StoreUnavailable(text) if status >= 500 or status == 429 else errors.HoldfastError(text)  # noqa: PLR2004 - HTTP's own numbers


def _fields(body: bytes) -> Fields | None:
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return said if isinstance(said, dict) and "code" in said else None


def _unfit(said: Fields) -> tuple[str, str]:
    """Give whose arguments, and what is wrong with them: fields, or the two halves of the message."""
    name, colon, reason = said["message"].partition(": ")
    return said.get("name") or (name if colon else "the request"), said.get("reason") or reason or name


def _refused(kind: type[errors.TransitionRefused], said: Fields) -> errors.TransitionRefused:
    return kind(
        said.get("current"),
        said.get("event") or said.get("target") or "",
        machine=said.get("machine"),
        target=said.get("target"),
        detail=said.get("detail") or "",
        index=said.get("index"),
        rule=said.get("rule"),
    )


def _with_hint(said: Fields) -> str:
    hint = said.get("hint")
    return f"{said['message']}: {hint}" if hint and hint not in said["message"] else str(said["message"])
